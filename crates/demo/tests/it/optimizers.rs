//! Tests of the optimizers against PyTorch's formulas, computed in `f64`.

use vramscope_collector::{HostDevice, HostPool, Settings};
use vramscope_demo::models::Perceptron;
use vramscope_demo::optimizers::{Adam, ClearGradients, LossScaler, Method, Optimizer, clear_gradients};
use vramscope_demo::{Device, Tensor};
use vramscope_trace::NullSink;

/// The learning rate.
const RATE: f32 = 0.01;
/// Number of compared steps.
const STEPS: i32 = 300;

/// Creates a host device for tests.
fn host() -> Device {
    let pool = HostPool::new(HostDevice::new(64 << 20), Settings::default(), NullSink, || 0);
    Device::host(pool).expect("the host always works")
}

/// Returns the parameter after each step of `torch.optim.SGD` or `torch.optim.AdamW`. `gradient`
/// returns the gradient of a step.
fn reference(method: Method, mut parameter: f64, gradient: impl Fn(i32) -> f64) -> Vec<f64> {
    let rate = f64::from(RATE);
    let (mut first, mut second) = (0.0, 0.0);
    let step = |step: i32| {
        let gradient = gradient(step);
        match method {
            Method::Sgd { momentum } => {
                first = f64::from(momentum) * first + gradient;
                parameter -= rate * first;
            }
            Method::Adam(Adam { beta1, beta2, epsilon, weight_decay, .. }) => {
                let [beta1, beta2, epsilon, decay] = [beta1, beta2, epsilon, weight_decay].map(f64::from);
                parameter *= 1.0 - rate * decay;
                first = beta1 * first + (1.0 - beta1) * gradient;
                second = beta2 * second + (1.0 - beta2) * gradient * gradient;
                let divisor = second.sqrt() / (1.0 - beta2.powi(step)).sqrt() + epsilon;
                parameter -= rate / (1.0 - beta1.powi(step)) * first / divisor;
            }
        }
        parameter
    };
    (1..=STEPS).map(step).collect()
}

#[test]
fn optimizers_follow_the_formulas_of_pytorch() {
    let device = host();
    let adam = Adam::default();
    let methods = [
        Method::Sgd { momentum: 0.0 },
        Method::Sgd { momentum: 0.9 },
        Method::Adam(adam),
        Method::Adam(Adam { weight_decay: 0.1, ..adam }),
        Method::Adam(Adam { epsilon: 0.5, ..adam }),
    ];
    for method in methods {
        let model = Perceptron::new(&device, &[1, 1], 1).expect("the pool is large enough");
        let parameters = model.parameters();
        let bias = &parameters[1].value;
        let mut optimizer = Optimizer::new(method, RATE);
        // The factor by which a step multiplies the loss is the gradient of the bias.
        let factor = |step: i32| ((step as f32) * 0.37).sin() * 2.0;
        let expected = reference(method, 0.0, |step| f64::from(factor(step)));
        let x = Tensor::from_f32(&device, &[1, 1], &[0.0]).expect("the pool is large enough");
        for (step, expected) in (1..).zip(expected) {
            clear_gradients(&parameters, ClearGradients::ToNone).expect("works");
            let loss = model.forward(&x).and_then(|y| y.scale(factor(step))?.mean());
            loss.and_then(|loss| loss.backward()).expect("works");
            optimizer.step(&parameters).expect("works");
            let actual = f64::from(bias.item().expect("readable"));
            let tolerance = 1e-5 * expected.abs().max(f64::from(RATE));
            assert!((actual - expected).abs() < tolerance, "{method:?}, step {step}: {actual} instead of {expected}");
        }
    }
}

#[test]
fn loss_scaler_skips_steps_that_overflow() {
    let device = host();
    let model = Perceptron::new(&device, &[1, 1], 1).expect("the pool is large enough");
    let parameters = model.parameters();
    let values = || -> Vec<f32> { parameters.iter().map(|parameter| parameter.value.item().unwrap()).collect() };
    let mut optimizer = Optimizer::new(Method::Sgd { momentum: 0.0 }, RATE);
    let mut scaler = LossScaler::new(&device).expect("the pool is large enough");
    let x = Tensor::from_f32(&device, &[1, 1], &[1.0]).expect("the pool is large enough");
    let mut step = |factor: f32| {
        clear_gradients(&parameters, ClearGradients::ToNone).unwrap();
        let loss = model.forward(&x).and_then(|y| y.scale(factor)?.mean()).unwrap();
        scaler.scale(&loss).and_then(|scaled| scaled.backward()).unwrap();
        let is_run = scaler.step(&mut optimizer, &parameters).unwrap();
        (is_run, scaler.scale(&x).unwrap().item().unwrap())
    };
    let first = values();
    assert_eq!(step(f32::MAX), (false, 32768.0), "the scale is halved");
    assert_eq!(values(), first, "the step is skipped");
    assert_eq!(step(1.0), (true, 32768.0));
    let expected: Vec<f32> = first.iter().map(|value| value - RATE).collect();
    assert_eq!(values(), expected, "gradients are those of the loss without the scale");
}
