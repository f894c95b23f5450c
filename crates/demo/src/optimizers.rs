//! Optimizers: SGD with momentum, Adam and AdamW, with states in `f32` or 8 bits.
//!
//! Like PyTorch's, they allocate the states in the first step, and skip parameters without a
//! gradient.

use vramscope_collector::{Category, Scope};

use crate::backend::{AdamStep, QUANTIZED_BLOCK, QuantizedMoments, SgdStep};
use crate::dtype::DType;
use crate::error::Result;
use crate::modules::Parameter;
use crate::operation::{Module, Operation};
use crate::tensor::Tensor;

/// An optimizer's method, with its constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    /// Stochastic gradient descent.
    Sgd {
        /// Factor of the last update in the next one. With 0 there is no momentum and no state.
        momentum: f32,
    },
    /// Adam or AdamW.
    Adam(Adam),
}

/// The constants of Adam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Decay of the mean of gradients.
    pub beta1: f32,
    /// Decay of the mean of squared gradients.
    pub beta2: f32,
    /// The value added to the divisor.
    pub epsilon: f32,
    /// Decoupled weight decay (AdamW); 0 for Adam.
    pub weight_decay: f32,
    /// True to keep both means in 8 bits, with one scale for every 256 elements.
    pub is_8bit: bool,
}

impl Adam {
    /// PyTorch's defaults of `torch.optim.Adam`.
    pub const PYTORCH: Self = Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0, is_8bit: false };
}

impl Default for Adam {
    fn default() -> Self {
        Self::PYTORCH
    }
}

/// The optimizer state of one parameter.
enum ParameterState {
    Momentum(Tensor),
    Moments { mean: Tensor, variance: Tensor },
    Quantized { mean: Tensor, mean_scales: Tensor, variance: Tensor, variance_scales: Tensor },
}

impl ParameterState {
    /// Allocates the state of `parameter`, all zeros; `None` if the method has no state.
    fn new(method: Method, parameter: &Tensor) -> Result<Option<Self>> {
        let _category = Scope::of(Category::OptimizerState);
        let device = parameter.device();
        let zeros = || Tensor::zeros(device, parameter.shape(), DType::F32);
        Ok(match method {
            Method::Sgd { momentum: 0.0 } => None,
            Method::Sgd { .. } => Some(Self::Momentum(zeros()?)),
            Method::Adam(Adam { is_8bit: false, .. }) => Some(Self::Moments { mean: zeros()?, variance: zeros()? }),
            Method::Adam(_) => {
                let len = parameter.len();
                let codes = |dtype| Tensor::from_bytes(device, &[len], dtype, &vec![0; len]);
                let scales = || Tensor::zeros(device, &[len.div_ceil(QUANTIZED_BLOCK)], DType::F32);
                let (mean, variance) = (codes(DType::I8)?, codes(DType::U8)?);
                Some(Self::Quantized { mean, mean_scales: scales()?, variance, variance_scales: scales()? })
            }
        })
    }

    /// Returns the tensors of the state.
    fn tensors(&self) -> Vec<Tensor> {
        match self {
            Self::Momentum(buffer) => vec![buffer.clone()],
            Self::Moments { mean, variance } => vec![mean.clone(), variance.clone()],
            Self::Quantized { mean, mean_scales, variance, variance_scales } => {
                [mean, mean_scales, variance, variance_scales].map(Tensor::clone).into()
            }
        }
    }

    /// Returns the size of the state in bytes.
    fn bytes(&self) -> usize {
        self.tensors().iter().map(Tensor::bytes).sum()
    }
}

/// An optimizer with its states.
pub struct Optimizer {
    method: Method,
    /// Learning rate.
    rate: f32,
    steps: i32,
    /// The state of each parameter, in the order of the parameters. `None` before a parameter's
    /// first step, and if the method has no state.
    states: Vec<Option<ParameterState>>,
}

impl Optimizer {
    /// Creates an optimizer with the learning rate `rate`.
    #[must_use]
    pub fn new(method: Method, rate: f32) -> Self {
        Self { method, rate, steps: 0, states: Vec::new() }
    }

    /// Returns the size of all states in bytes.
    #[must_use]
    pub fn state_bytes(&self) -> usize {
        self.states.iter().flatten().map(ParameterState::bytes).sum()
    }

    /// Returns the tensors of all states.
    #[must_use]
    pub fn state_tensors(&self) -> Vec<Tensor> {
        self.states.iter().flatten().flat_map(ParameterState::tensors).collect()
    }

    /// Updates all `parameters` that have a gradient. Every step must pass the same parameters.
    ///
    /// # Errors
    /// If memory or kernels fail.
    #[track_caller]
    pub fn step(&mut self, parameters: &[Parameter]) -> Result {
        let _scope = Scope::open("optimizer");
        let _operation = Operation::enter("optimizer_step");
        self.steps += 1;
        self.states.resize_with(parameters.len(), || None);
        for (Parameter { value, module, .. }, state) in parameters.iter().zip(&mut self.states) {
            let Some(gradient) = value.grad() else { continue };
            let _module = Module::enter_path(module);
            if state.is_none() {
                *state = ParameterState::new(self.method, value)?;
            }
            update(self.method, self.rate, self.steps, value, &gradient, state.as_ref())?;
        }
        Ok(())
    }
}

/// Updates one parameter. `rate` is the learning rate; `steps` counts this step.
fn update(
    method: Method,
    rate: f32,
    steps: i32,
    parameter: &Tensor,
    gradient: &Tensor,
    state: Option<&ParameterState>,
) -> Result {
    parameter.storage().bump_version();
    let kernels = parameter.device().kernels();
    let (parameter, gradient) = (parameter.raw(), gradient.raw());
    match method {
        Method::Sgd { momentum } => {
            let step = SgdStep { rate, momentum };
            let buffer = match state {
                Some(ParameterState::Momentum(buffer)) => Some(buffer.raw()),
                _ => None,
            };
            kernels.sgd(parameter, gradient, buffer, &step)?;
        }
        Method::Adam(Adam { beta1, beta2, epsilon, weight_decay, is_8bit: _ }) => {
            // In f64, as in PyTorch: an f32 1 - beta2^t loses half its digits in early steps.
            let correction = |beta: f32| 1.0 - f64::from(beta).powi(steps);
            let step = AdamStep {
                rate: (f64::from(rate) / correction(beta1)) as f32,
                decay: rate * weight_decay,
                beta1,
                beta2,
                epsilon,
                root_scale: (1.0 / correction(beta2).sqrt()) as f32,
            };
            match state {
                Some(ParameterState::Moments { mean, variance }) => {
                    kernels.adam(parameter, gradient, [mean.raw(), variance.raw()], &step)?;
                }
                Some(ParameterState::Quantized { mean, mean_scales, variance, variance_scales }) => {
                    let moments = QuantizedMoments {
                        mean: mean.raw(),
                        mean_scales: mean_scales.raw(),
                        variance: variance.raw(),
                        variance_scales: variance_scales.raw(),
                    };
                    kernels.adam_8bit(parameter, gradient, moments, &step)?;
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// The way in which gradients are cleared before a training step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClearGradients {
    /// They are freed, like `zero_grad(set_to_none=True)`.
    #[default]
    ToNone,
    /// They are set to zero and stay allocated, like `zero_grad(set_to_none=False)`.
    ToZero,
    /// They are not cleared: gradients of several backward passes add up.
    Never,
}

/// Clears the gradients of `parameters`.
///
/// # Errors
/// If kernels fail.
pub fn clear_gradients(parameters: &[Parameter], clear: ClearGradients) -> Result {
    for Parameter { value, .. } in parameters {
        match clear {
            ClearGradients::ToNone => value.set_grad(None),
            ClearGradients::ToZero => {
                if let Some(gradient) = value.grad() {
                    gradient.storage().bump_version();
                    gradient.device().backend().fill(gradient.raw(), 0.0)?;
                }
            }
            ClearGradients::Never => {}
        }
    }
    Ok(())
}

/// A loss scaler for training in `f16`, like `torch.amp.GradScaler`. Without scaling, small
/// gradients would become 0.
///
/// A step whose gradients overflow is skipped and halves the scale. The scale is doubled after
/// 2,000 steps without an overflow.
pub struct LossScaler {
    scale: f32,
    steps_since_overflow: u32,
    found_infinite: Tensor,
}

impl LossScaler {
    /// Number of steps without overflow after which the scale is doubled.
    const GROWTH_INTERVAL: u32 = 2000;

    /// Creates a scaler with the scale 65,536.
    ///
    /// # Errors
    /// If its flag cannot be allocated.
    pub fn new(device: &crate::device::Device) -> Result<Self> {
        let _category = Scope::of(Category::OptimizerState);
        let found_infinite = Tensor::from_u32(device, &[1], &[0])?;
        Ok(Self { scale: 65536.0, steps_since_overflow: 0, found_infinite })
    }

    /// Returns the loss times the scale, for the backward pass.
    ///
    /// # Errors
    /// If memory or kernels fail.
    #[track_caller]
    pub fn scale(&self, loss: &Tensor) -> Result<Tensor> {
        loss.scale(self.scale)
    }

    /// Divides the gradients by the scale, and runs the step of `optimizer` unless a gradient is
    /// infinite or NaN. Adapts the scale. Returns true if the step was run.
    ///
    /// # Errors
    /// If memory or kernels fail.
    #[track_caller]
    pub fn step(&mut self, optimizer: &mut Optimizer, parameters: &[Parameter]) -> Result<bool> {
        {
            let _operation = Operation::enter("unscale");
            let device = self.found_infinite.device();
            device.backend().upload(&0u32.to_le_bytes(), self.found_infinite.raw())?;
            for gradient in parameters.iter().filter_map(|parameter| parameter.value.grad()) {
                device.kernels().unscale(gradient.raw(), 1.0 / self.scale, self.found_infinite.raw())?;
            }
        }
        let overflowed = self.found_infinite.to_u32()? != [0];
        if overflowed {
            (self.scale, self.steps_since_overflow) = (self.scale / 2.0, 0);
        } else {
            optimizer.step(parameters)?;
            self.steps_since_overflow += 1;
            if self.steps_since_overflow == Self::GROWTH_INTERVAL {
                (self.scale, self.steps_since_overflow) = (self.scale * 2.0, 0);
            }
        }
        Ok(!overflowed)
    }
}
