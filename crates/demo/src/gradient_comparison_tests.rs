//! Tests that compare the gradients of models in another precision and on another device.

use fastrand::Rng;

use crate::autocast::set_autocast;
use crate::gradient_tests::{host, random, values};
use crate::models::{Gpt, GptConfig, Perceptron, Recompute, ResNet};
use crate::{DType, Device, Result, Tensor};

/// The gradients of a model's parameters, one vector for each parameter.
type Gradients = Vec<Vec<f32>>;

/// Computes the gradients of each model's parameters, with the forward pass in `precision`. Returns
/// the models' names with the gradients.
fn gradients(device: &Device, precision: DType) -> Vec<(&'static str, Gradients)> {
    let read = |parameters: Vec<Tensor>, loss: &dyn Fn() -> Result<Tensor>| -> Gradients {
        {
            let _mode = set_autocast((precision != DType::F32).then_some(precision));
            loss().and_then(|loss| loss.backward()).unwrap_or_else(|error| panic!("{error}"));
        }
        let gradients = parameters.iter().map(|parameter| parameter.grad().expect("a gradient").to_f32());
        gradients.collect::<Result<_>>().expect("the device can be read")
    };
    let tensor = "the pool is large enough";
    let mut rng = Rng::with_seed(3);
    let mut found = Vec::new();
    {
        let model = Perceptron::new(device, &[48, 96, 10], 1).expect(tensor);
        let x = random(device, &[32, 48], &mut rng);
        let classes: Vec<u32> = (0..32).map(|row| row % 10).collect();
        let classes = Tensor::from_u32(device, &[32], &classes).expect(tensor);
        found.push(("perceptron", read(values(model.parameters()), &|| model.forward(&x)?.cross_entropy(&classes))));
    }
    {
        let config = GptConfig { vocabulary: 64, layers: 2, width: 64, heads: 4, length: 32 };
        let model = Gpt::new(device, config, 1).expect(tensor);
        let mut tokens = || {
            let tokens: Vec<u32> = (0..4 * 32).map(|_| rng.u32(..64)).collect();
            Tensor::from_u32(device, &[4, 32], &tokens).expect(tensor)
        };
        let (tokens, targets) = (tokens(), tokens());
        let loss = || model.forward(&tokens, Recompute::Nothing)?.cross_entropy(&targets);
        found.push(("gpt", read(values(model.parameters()), &loss)));
    }
    let model = ResNet::new(device, 1, 1, 10, 1).expect(tensor);
    let images = random(device, &[8, 1, 16, 16], &mut rng);
    let classes = Tensor::from_u32(device, &[8], &[0, 1, 2, 3, 4, 5, 6, 7]).expect(tensor);
    found.push(("resnet", read(values(model.parameters()), &|| model.forward(&images, true)?.cross_entropy(&classes))));
    found
}

/// Returns the Euclidean distance between a model's gradients, divided by the norm of `expected`.
fn distance(found: &Gradients, expected: &Gradients) -> f32 {
    let length = |values: &mut dyn Iterator<Item = f32>| values.map(|x| x * x).sum::<f32>().sqrt();
    let pairs = found.iter().flatten().zip(expected.iter().flatten());
    length(&mut pairs.map(|(one, other)| one - other)) / length(&mut expected.iter().flatten().copied())
}

/// Checks that each model's distance is at most `bound`; the ResNet's at most `resnet_bound`.
/// Rounding switches some ReLUs of the ResNet, so that its distance falls only with the square root
/// of the rounding error.
fn check(
    found: &[(&'static str, Gradients)],
    expected: &[(&'static str, Gradients)],
    (bound, resnet_bound): (f32, f32),
    what: &str,
) {
    for ((model, found), (_, expected)) in found.iter().zip(expected) {
        let bound = if *model == "resnet" { resnet_bound } else { bound };
        let distance = distance(found, expected);
        assert!(distance <= bound, "{what}, {model}: gradients differ by {distance}, more than {bound}");
    }
}

#[test]
fn gradients_of_mixed_precision_are_near_those_of_f32() {
    let expected = gradients(&host(), DType::F32);
    check(&gradients(&host(), DType::Bf16), &expected, (0.02, 0.15), "bf16");
    check(&gradients(&host(), DType::F16), &expected, (0.004, 0.06), "f16");
}

#[cfg(feature = "cuda")]
#[test]
fn gradients_on_a_gpu_are_near_those_of_the_host() {
    let Some(context) = crate::backend::cuda::test_context() else { return };
    let gpu = || {
        let gpu = crate::CudaDevice::from_context(&context).expect("the context has a GPU");
        let pool = crate::CudaPool::new(gpu, Default::default(), vramscope_trace::NullSink, || 0);
        Device::cuda(Box::new(pool), &context).expect("the GPU is a device")
    };
    for (precision, bounds) in [(DType::F32, (1e-4, 0.01)), (DType::Bf16, (0.02, 0.15))] {
        let expected = gradients(&host(), precision);
        check(&gradients(&gpu(), precision), &expected, bounds, &format!("GPU, {precision:?}"));
    }
}
