//! Tests of the gradients of every operation and model against finite differences.
//!
//! Each case computes `loss = mean(f(inputs) * weights)` with fixed random weights. Its gradients
//! are compared with the central difference `(loss(x + h) - loss(x - h)) / 2h` in random
//! directions.

use fastrand::Rng;
use vramscope_collector::{HostDevice, HostPool, Settings};
use vramscope_trace::NullSink;

use crate::autograd::{checkpoint, no_grad};
use crate::models::{Gpt, GptConfig, Perceptron, Recompute, ResNet};
use crate::ops::ConvolutionOptions;
use crate::random::normal;
use crate::{Device, Parameter, Result, Tensor, TensorError};

/// Creates a host device for tests.
pub(crate) fn host() -> Device {
    let pool = HostPool::new(HostDevice::new(1 << 30), Settings::default(), NullSink, || 0);
    Device::host(pool).expect("the host always works")
}

/// Creates a tensor of normally distributed random elements.
pub(crate) fn random(device: &Device, shape: &[usize], rng: &mut Rng) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| normal(rng, 1.0)).collect();
    Tensor::from_f32(device, shape, &values).expect("the pool is large enough")
}

/// Returns the mean of `y` times fixed random weights, so that each element has another gradient.
fn weighted_mean(y: &Tensor) -> Result<Tensor> {
    let weights = random(y.device(), y.shape(), &mut Rng::with_seed(99));
    y.multiply(&weights)?.mean()
}

/// Sets `tensor` to `values + step * direction`.
fn move_to(tensor: &Tensor, values: &[f32], direction: &[f32], step: f32) {
    let moved: Vec<u8> =
        values.iter().zip(direction).flat_map(|(value, direction)| (value + step * direction).to_le_bytes()).collect();
    tensor.device().backend().upload(&moved, tensor.raw()).expect("the sizes are equal");
}

/// Compares the gradients of `inputs` with finite differences of the loss. `step` is the distance h
/// of the difference: large enough that rounding does not matter, and small enough that few ReLUs
/// switch between the two points.
fn check_gradients(name: &str, inputs: &[Tensor], step: f32, loss: impl Fn() -> Result<Tensor>) {
    inputs.iter().for_each(|input| input.set_grad(None));
    loss().and_then(|loss| loss.backward()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut rng = Rng::with_seed(5);
    for (index, input) in inputs.iter().enumerate() {
        let gradient = input.grad().unwrap_or_else(|| panic!("{name}: input {index} has no gradient"));
        assert_eq!(gradient.shape(), input.shape(), "{name}: input {index}");
        let gradient = gradient.to_f32().expect("the host can be read");
        let values = input.to_f32().expect("the host can be read");
        for _ in 0..3 {
            let direction: Vec<f32> = (0..values.len()).map(|_| normal(&mut rng, 1.0)).collect();
            let length = direction.iter().map(|x| x * x).sum::<f32>().sqrt();
            let direction: Vec<f32> = direction.iter().map(|x| x / length).collect();
            let at = |step| {
                let _mode = no_grad();
                move_to(input, &values, &direction, step);
                f64::from(loss().and_then(|loss| loss.item()).expect("the forward pass works"))
            };
            let difference = (at(step) - at(-step)) / (2.0 * f64::from(step));
            move_to(input, &values, &direction, 0.0);
            let expected: f64 = gradient.iter().zip(&direction).map(|(a, b)| f64::from(a * b)).sum();
            let scale = gradient.iter().map(|x| x * x).sum::<f32>().sqrt();
            let tolerance = 2e-2 * f64::from(scale) + 2e-7 / f64::from(step);
            assert!(
                (difference - expected).abs() < tolerance,
                "{name}: input {index}: the gradient gives {expected}, the difference {difference}"
            );
        }
    }
}

/// A test case: an operation, and the shapes of its arguments, which require gradients.
struct Case {
    name: &'static str,
    shapes: &'static [&'static [usize]],
    compute: fn(&[Tensor]) -> Result<Tensor>,
}

const CASES: &[Case] = &[
    Case { name: "add", shapes: &[&[3, 5], &[3, 5]], compute: |x| x[0].add(&x[1]) },
    Case { name: "add to itself", shapes: &[&[3, 5]], compute: |x| x[0].add(&x[0]) },
    Case { name: "subtract", shapes: &[&[3, 5], &[3, 5]], compute: |x| x[0].subtract(&x[1]) },
    Case { name: "scale", shapes: &[&[7]], compute: |x| x[0].scale(-1.5) },
    Case { name: "multiply", shapes: &[&[3, 5], &[3, 5]], compute: |x| x[0].multiply(&x[1]) },
    Case { name: "multiply by itself", shapes: &[&[3, 5]], compute: |x| x[0].multiply(&x[0]) },
    Case { name: "reshape", shapes: &[&[3, 4]], compute: |x| x[0].reshape(&[2, 6])?.scale(2.0) },
    Case { name: "mean", shapes: &[&[3, 5]], compute: |x| x[0].multiply(&x[0])?.mean() },
    Case { name: "gelu", shapes: &[&[4, 33]], compute: |x| x[0].gelu() },
    Case { name: "relu", shapes: &[&[4, 33]], compute: |x| x[0].relu() },
    Case { name: "relu in place", shapes: &[&[4, 33]], compute: |x| x[0].scale(2.0)?.relu_in_place()?.scale(0.5) },
    Case { name: "add in place", shapes: &[&[4, 3], &[4, 3]], compute: |x| x[0].scale(2.0)?.add_in_place(&x[1]) },
    Case { name: "linear", shapes: &[&[2, 3, 5], &[4, 5], &[4]], compute: |x| x[0].linear(&x[1], Some(&x[2])) },
    Case { name: "linear without bias", shapes: &[&[6, 5], &[4, 5]], compute: |x| x[0].linear(&x[1], None) },
    Case { name: "matmul", shapes: &[&[2, 3, 5], &[2, 5, 4]], compute: |x| x[0].matmul(&x[1], false) },
    Case { name: "matmul transposed", shapes: &[&[2, 3, 5], &[2, 4, 5]], compute: |x| x[0].matmul(&x[1], true) },
    Case { name: "causal softmax", shapes: &[&[2, 5, 5]], compute: |x| x[0].causal_softmax(0.7, 0) },
    Case { name: "causal softmax after a cache", shapes: &[&[2, 4, 6]], compute: |x| x[0].causal_softmax(0.7, 2) },
    Case { name: "layer norm", shapes: &[&[70, 9], &[9], &[9]], compute: |x| x[0].layer_norm(&x[1], &x[2]) },
    Case { name: "batch norm", shapes: &[&[3, 4, 5, 5], &[4], &[4]], compute: |x| x[0].batch_norm(&x[1], &x[2]) },
    Case {
        name: "embedding",
        shapes: &[&[6, 4]],
        compute: |x| x[0].embedding(&Tensor::from_u32(x[0].device(), &[2, 3], &[5, 0, 5, 2, 1, 5])?),
    },
    Case {
        name: "cross entropy",
        shapes: &[&[5, 7]],
        compute: |x| x[0].cross_entropy(&Tensor::from_u32(x[0].device(), &[5], &[0, 6, 3, 3, 1])?),
    },
    Case {
        name: "convolution",
        shapes: &[&[2, 3, 6, 7], &[4, 3, 3, 3]],
        compute: |x| x[0].convolution(&x[1], ConvolutionOptions { stride: 2, padding: 1 }),
    },
    Case {
        name: "convolution of single pixels",
        shapes: &[&[2, 3, 6, 7], &[4, 3, 1, 1]],
        compute: |x| x[0].convolution(&x[1], ConvolutionOptions { stride: 1, padding: 0 }),
    },
    Case {
        name: "max pool",
        shapes: &[&[2, 3, 6, 6]],
        compute: |x| x[0].max_pool(2, ConvolutionOptions { stride: 2, padding: 0 }),
    },
    Case { name: "average of pixels", shapes: &[&[2, 3, 4, 5]], compute: |x| x[0].average_pixels() },
    Case {
        name: "attention heads",
        shapes: &[&[2, 3, 24]],
        compute: |x| {
            let [queries, keys, values] = x[0].split_heads::<3>(2)?;
            queries.multiply(&keys)?.add(&values)?.merge_heads(2)
        },
    },
    Case {
        name: "one part of the heads",
        shapes: &[&[2, 3, 24]],
        compute: |x| {
            let [_, keys, _] = x[0].split_heads::<3>(2)?;
            keys.merge_heads(2)
        },
    },
    Case {
        name: "checkpoint",
        shapes: &[&[4, 6]],
        compute: |x| checkpoint(&x[0].scale(2.0)?, |x| x.gelu()?.multiply(x)),
    },
];

#[test]
fn gradients_of_operations_match_finite_differences() {
    let device = host();
    for Case { name, shapes, compute } in CASES {
        let mut rng = Rng::with_seed(11);
        let inputs: Vec<Tensor> = shapes.iter().map(|shape| random(&device, shape, &mut rng).with_grad()).collect();
        check_gradients(name, &inputs, 1e-2, || weighted_mean(&compute(&inputs)?));
    }
    assert_eq!(device.stats().allocated_bytes.all.current, 0, "graphs and results are freed");
}

/// Returns the tensors of parameters, without their names.
pub(crate) fn values(parameters: Vec<Parameter>) -> Vec<Tensor> {
    parameters.into_iter().map(|parameter| parameter.value).collect()
}

#[test]
fn gradients_of_models_match_finite_differences() {
    let device = host();
    let mut rng = Rng::with_seed(3);
    {
        let model = Perceptron::new(&device, &[6, 9, 4], 1).expect("the pool is large enough");
        let (x, targets) = (random(&device, &[5, 6], &mut rng), Tensor::from_u32(&device, &[5], &[0, 1, 2, 3, 0]));
        let targets = targets.expect("the pool is large enough");
        check_gradients("perceptron", &values(model.parameters()), 1e-2, || model.forward(&x)?.cross_entropy(&targets));
    }
    {
        let config = GptConfig { vocabulary: 11, layers: 2, width: 8, heads: 2, length: 6 };
        let model = Gpt::new(&device, config, 1).expect("the pool is large enough");
        let parameters = values(model.parameters());
        // The initial weights are so small that their effects vanish among rounding errors.
        for parameter in &parameters {
            let larger: Vec<f32> = parameter.to_f32().expect("readable").iter().map(|x| x * 10.0).collect();
            move_to(parameter, &larger, &vec![0.0; larger.len()], 0.0);
        }
        let tokens = |seed: u64| {
            let mut rng = Rng::with_seed(seed);
            let tokens: Vec<u32> = (0..2 * 6).map(|_| rng.u32(..11)).collect();
            Tensor::from_u32(&device, &[2, 6], &tokens).expect("the pool is large enough")
        };
        let (tokens, targets) = (tokens(7), tokens(8));
        for recompute in [Recompute::Nothing, Recompute::Layers, Recompute::Blocks] {
            let name = format!("gpt, recompute {recompute:?}");
            check_gradients(&name, &parameters, 1e-2, || model.forward(&tokens, recompute)?.cross_entropy(&targets));
        }
    }
    let model = ResNet::new(&device, 1, 1, 3, 1).expect("the pool is large enough");
    let images = random(&device, &[3, 1, 8, 8], &mut rng);
    let targets = Tensor::from_u32(&device, &[3], &[0, 1, 2]).expect("the pool is large enough");
    for in_place in [false, true] {
        let parameters = values(model.parameters());
        let name = format!("resnet, in place {in_place}");
        check_gradients(&name, &parameters, 1e-3, || model.forward(&images, in_place)?.cross_entropy(&targets));
    }
}

#[test]
fn recomputation_gives_bit_identical_gradients() {
    let device = host();
    let config = GptConfig { vocabulary: 11, layers: 2, width: 8, heads: 2, length: 6 };
    let model = Gpt::new(&device, config, 1).expect("the pool is large enough");
    let tokens = Tensor::from_u32(&device, &[1, 6], &[1, 4, 2, 8, 5, 7]).expect("the pool is large enough");
    let gradients = |recompute| {
        let parameters = values(model.parameters());
        parameters.iter().for_each(|parameter| parameter.set_grad(None));
        let loss = model.forward(&tokens, recompute).and_then(|logits| logits.cross_entropy(&tokens));
        loss.and_then(|loss| loss.backward()).expect("the backward pass works");
        let bytes = parameters.iter().map(|parameter| parameter.grad().expect("a gradient").to_bytes());
        bytes.collect::<Result<Vec<_>>>().expect("the host can be read")
    };
    let plain = gradients(Recompute::Nothing);
    assert_eq!(gradients(Recompute::Blocks), plain);
    assert_eq!(gradients(Recompute::Layers), plain);
}

#[test]
fn change_in_place_of_a_saved_tensor_is_an_error() {
    let device = host();
    let x = random(&device, &[4], &mut Rng::with_seed(1)).with_grad();
    let doubled = x.scale(2.0).expect("works");
    // The product needs `doubled` in the backward pass.
    let product = doubled.multiply(&doubled).and_then(|product| product.mean()).expect("works");
    let _ = doubled.relu_in_place().expect("the error comes in the backward pass");
    let error = product.backward().expect_err("the saved tensor has changed");
    assert!(matches!(error, TensorError::ChangedInPlace { operation: "multiply" }), "{error}");
    let error = x.clone().relu_in_place().expect_err("a leaf cannot be changed in place");
    assert!(matches!(error, TensorError::InPlaceOnLeaf { .. }), "{error}");
    let mean = x.gelu().and_then(|y| y.mean()).expect("works");
    mean.backward().expect("the first backward pass works");
    assert!(matches!(mean.backward(), Err(TensorError::GraphFreed { .. })));
    let gelu = x.scale(1.0).and_then(Tensor::gelu_in_place).and_then(|y| y.mean()).expect("works");
    assert!(matches!(gelu.backward(), Err(TensorError::ChangedInPlace { operation: "gelu_in_place" })));
}

#[test]
fn long_graph_is_dropped_without_recursion() {
    let device = host();
    let x = Tensor::full(&device, &[1], crate::DType::F32, 1.0).expect("works").with_grad();
    let mut sum = x.scale(1.0).expect("works");
    for _ in 0..200_000 {
        sum = sum.scale(1.0).expect("works");
    }
    drop(sum);
}
