//! Tests that wrong arguments return errors and leave the device usable.

use vramscope_collector::{HostDevice, HostPool, Settings};
use vramscope_demo::autograd::{checkpoint, no_grad};
use vramscope_demo::models::{Gpt, GptConfig, Perceptron, Recompute};
use vramscope_demo::{ConvolutionOptions, DType, Device, Result, Tensor, TensorError};
use vramscope_trace::NullSink;

/// Creates a host device for tests.
fn host() -> Device {
    let pool = HostPool::new(HostDevice::new(64 << 20), Settings::default(), NullSink, || 0);
    Device::host(pool).expect("the host always works")
}

/// Creates a tensor whose elements are all 1.
fn ones(device: &Device, shape: &[usize]) -> Tensor {
    Tensor::full(device, shape, DType::F32, 1.0).expect("the pool is large enough")
}

/// Asserts that the result is an error about the arguments of `operation`.
#[track_caller]
fn assert_refused<T>(result: Result<T>, operation: &str) {
    match result {
        Err(TensorError::Arguments { operation: refused, .. }) if refused == operation => {}
        Err(error) => panic!("{operation}: another error: {error}"),
        Ok(_) => panic!("{operation}: no error"),
    }
}

#[test]
fn sizes_that_overflow_are_errors() {
    let device = host();
    for shape in [&[usize::MAX, 2][..], &[(1 << 62) + 1], &[1 << 32, 1 << 32], &[0, usize::MAX, 2]] {
        assert_refused(Tensor::full(&device, shape, DType::F32, 1.0), "allocate");
        assert_refused(Tensor::from_bytes(&device, shape, DType::F32, &[]), "upload");
        assert_refused(ones(&device, &[0]).reshape(shape), "reshape");
    }
    let options = ConvolutionOptions { stride: 1, padding: usize::MAX / 4 };
    assert_refused(ones(&device, &[1, 1, 4, 4]).convolution(&ones(&device, &[1, 1, 3, 3]), options), "convolution");
    let error = Tensor::full(&device, &[1 << 40], DType::F32, 1.0).expect_err("the pool is smaller");
    assert!(error.is_out_of_memory(), "{error}");
    assert!(ones(&device, &[4]).narrow(usize::MAX, 2).is_err());
}

#[test]
fn wrong_types_are_errors() {
    let device = host();
    let indices = Tensor::from_u32(&device, &[2, 2], &[0; 4]).expect("the pool is large enough");
    let floats = ones(&device, &[2, 2]);
    let half = Tensor::full(&device, &[2], DType::F16, 1.0).expect("the pool is large enough");
    assert_refused(Tensor::full(&device, &[2], DType::U32, 1.0), "full");
    assert_refused(indices.gelu(), "gelu");
    assert_refused(indices.clone().relu_in_place(), "relu_in_place");
    assert_refused(indices.add(&floats), "add");
    assert_refused(floats.multiply(&indices), "multiply");
    assert_refused(indices.scale(2.0), "scale");
    assert_refused(indices.mean(), "mean");
    assert_refused(indices.argmax(), "argmax");
    assert_refused(indices.linear(&floats, None), "linear");
    assert_refused(floats.embedding(&floats), "embedding");
    assert_refused(floats.cross_entropy(&floats), "cross_entropy");
    assert_refused(floats.layer_norm(&half, &half), "layer_norm");
    assert_refused(ones(&device, &[2, 0]).argmax(), "argmax");
}

#[test]
fn tensors_of_another_device_are_errors() {
    let (device, other) = (host(), host());
    let (x, elsewhere) = (ones(&device, &[2, 2]), ones(&other, &[2, 2]));
    let row = ones(&other, &[2]);
    let indices = Tensor::from_u32(&other, &[2], &[0, 1]).expect("the pool is large enough");
    assert_refused(x.add(&elsewhere), "add");
    assert_refused(x.linear(&elsewhere, None), "linear");
    assert_refused(x.linear(&x, Some(&row)), "linear");
    assert_refused(x.layer_norm(&row, &row), "layer_norm");
    assert_refused(x.embedding(&indices), "embedding");
    assert_refused(x.cross_entropy(&indices), "cross_entropy");
}

#[test]
fn pooling_windows_outside_of_the_image_are_errors() {
    let x = ones(&host(), &[1, 1, 4, 4]);
    assert_refused(x.max_pool(2, ConvolutionOptions { stride: 2, padding: 2 }), "max_pool");
    assert_refused(x.max_pool(0, ConvolutionOptions { stride: 2, padding: 0 }), "max_pool");
    let pooled = x.max_pool(2, ConvolutionOptions { stride: 2, padding: 1 }).expect("every window has a pixel");
    assert_eq!(pooled.shape(), [1, 1, 3, 3]);
}

#[test]
fn checkpoint_without_a_gradient_for_its_input_is_an_error() {
    let device = host();
    let (x, weight) = (ones(&device, &[2, 2]), ones(&device, &[2, 2]).with_grad());
    let part = move |x: &Tensor| x.linear(&weight, None);
    assert_refused(checkpoint(&x, part.clone()), "checkpoint");
    let _mode = no_grad();
    assert!(checkpoint(&x, part).is_ok(), "without gradients, nothing is lost");
}

#[test]
fn models_refuse_sizes_that_do_not_fit() {
    let device = host();
    let config = GptConfig { vocabulary: 8, layers: 1, width: 8, heads: 2, length: 4 };
    assert_refused(Gpt::new(&device, GptConfig { heads: 3, ..config }, 1).map(|_| ()), "gpt");
    assert_refused(Gpt::new(&device, GptConfig { heads: 0, ..config }, 1).map(|_| ()), "gpt");
    assert_refused(Perceptron::new(&device, &[4], 1).map(|_| ()), "perceptron");
    assert_refused(Perceptron::new(&device, &[4; 10], 1).map(|_| ()), "perceptron");
    let huge = Gpt::new(&device, GptConfig { width: 1 << 20, ..config }, 1).map(|_| ());
    assert!(huge.expect_err("the pool is smaller").is_out_of_memory());
    let gpt = Gpt::new(&device, config, 1).expect("the pool is large enough");
    let tokens = |shape: [usize; 2]| {
        Tensor::from_u32(&device, &shape, &vec![1; shape[0] * shape[1]]).expect("the pool is large enough")
    };
    assert_refused(gpt.forward(&tokens([1, 5]), Recompute::Nothing), "gpt");
    let _mode = no_grad();
    let mut cache = gpt.cache(&device, 2, 4).expect("the pool is large enough");
    assert_refused(gpt.forward_cached(&tokens([1, 2]), &mut cache), "append_rows");
}

#[test]
fn record_stream_ignores_a_tensor_without_memory() {
    let device = host();
    ones(&device, &[0]).record_stream(1).expect("there is nothing to record");
    let moved = ones(&device, &[3]);
    moved.move_to_host().expect("the host can be written");
    moved.record_stream(1).expect("there is nothing to record");
    moved.move_to_device().expect("the pool is large enough");
    moved.record_stream(1).expect("the pool records the use");
    assert_eq!(moved.to_f32().expect("the host can be read"), [1.0; 3]);
}

#[test]
fn gradients_have_the_types_of_their_tensors() {
    let device = host();
    let leaf = |dtype, value| Tensor::full(&device, &[3], dtype, value).expect("the pool is large enough").with_grad();
    type Operation = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let operations: [(Operation, [f32; 2]); 3] = [
        (Tensor::add, [1.0 / 3.0, 1.0 / 3.0]),
        (Tensor::subtract, [1.0 / 3.0, -1.0 / 3.0]),
        (Tensor::multiply, [-2.0 / 3.0, 0.5]),
    ];
    for (operation, expected) in operations {
        let (a, b) = (leaf(DType::Bf16, 1.5), leaf(DType::F32, -2.0));
        operation(&a, &b).and_then(|y| y.mean()).and_then(|mean| mean.backward()).expect("the backward pass works");
        for (x, expected) in [a, b].iter().zip(expected) {
            let gradient = x.grad().expect("both are leaves");
            assert_eq!(gradient.dtype(), x.dtype());
            let gradient = gradient.to_f32().expect("the host can be read")[0];
            assert!((gradient - expected).abs() < 4e-3, "{gradient} instead of {expected}");
        }
    }
    let (a, constant) = (leaf(DType::F32, 1.0), ones(&device, &[3]));
    let before = device.stats().allocation.all.allocated;
    let mean = constant.multiply(&a).and_then(|y| y.mean()).expect("works");
    mean.backward().expect("works");
    assert!(constant.grad().is_none());
    // The product, its mean, the mean's partial sums, the first gradient (1), and the gradients of
    // the mean's argument and of `a`.
    assert_eq!(device.stats().allocation.all.allocated - before, 6, "gradients that nothing needs are not computed");
}
