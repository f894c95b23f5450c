//! One training step: forward, backward, optimizer, with callbacks around each.
//!
//! [`Trainer`] runs the parts of a step that most programs share. A closure computes the forward
//! pass and returns the loss of one part of the batch.

use std::rc::Rc;

use vramscope_collector::{Category, Scope};

pub use crate::callbacks::{Callback, Phase, ThreadCallback};

use crate::autocast::autocast;
use crate::callbacks::Callbacks;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Result, arguments};
use crate::modules::Parameter;
use crate::operation::Observation;
use crate::optimizers::{ClearGradients, LossScaler, Optimizer, clear_gradients};
use crate::tensor::Tensor;

/// The options of a training step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepOptions {
    /// The data type in which linear layers and convolutions compute the forward pass; `f32` for no
    /// mixed precision.
    pub precision: DType,
    /// Number of parts into which the batch is split, at least 1. Their gradients are accumulated.
    pub parts: usize,
    /// The way in which gradients are cleared before the step.
    pub clear: ClearGradients,
}

impl Default for StepOptions {
    fn default() -> Self {
        Self { precision: DType::F32, parts: 1, clear: ClearGradients::ToNone }
    }
}

/// A model in training: parameters, optimizer and callbacks.
pub struct Trainer {
    device: Device,
    parameters: Vec<Parameter>,
    optimizer: Optimizer,
    options: StepOptions,
    /// The loss scaler; only used in `f16`, whose small gradients would otherwise become 0.
    scaler: Option<LossScaler>,
    callbacks: Rc<Callbacks>,
    steps: u64,
}

impl Trainer {
    /// Creates a trainer of a model with these parameters.
    ///
    /// # Errors
    /// If the options have 0 parts, or memory cannot be allocated.
    pub fn new(
        device: &Device,
        parameters: Vec<Parameter>,
        optimizer: Optimizer,
        options: StepOptions,
    ) -> Result<Self> {
        if options.parts == 0 {
            return Err(arguments("training", "a batch has at least 1 part"));
        }
        let callbacks = Rc::new(Callbacks::new(device));
        let scaler = (options.precision == DType::F16).then(|| LossScaler::new(device)).transpose()?;
        Ok(Self { device: device.clone(), parameters, optimizer, options, scaler, callbacks, steps: 0 })
    }

    /// Adds a callback.
    pub fn add_callback(&mut self, callback: Rc<dyn Callback>) {
        self.callbacks.add(callback);
    }

    /// Returns the parameters.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Returns the optimizer.
    #[must_use]
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// Runs one step. For each part of the batch, calls `forward(part)`, which returns the part's
    /// mean loss, and runs the backward pass; then runs the optimizer. Returns the parts' losses as
    /// tensors, so that the caller decides when to wait for their values.
    ///
    /// # Errors
    /// The errors of `forward`, and if memory or kernels fail.
    pub fn step(&mut self, mut forward: impl FnMut(usize) -> Result<Tensor>) -> Result<Vec<Tensor>> {
        let device = self.device.clone();
        self.steps += 1;
        let name = format!("step {}", self.steps);
        let span = device.span(&name);
        let scope = Scope::open("step");
        let layers = (!self.callbacks.is_empty()).then(|| Observation::start(self.callbacks.clone()));
        self.before(Phase::Step);
        // Like most programs, clears gradients before the forward pass allocates activations.
        clear_gradients(&self.parameters, self.options.clear)?;
        let mut losses = Vec::with_capacity(self.options.parts);
        for part in 0..self.options.parts {
            let loss = self.forward(part, &mut forward)?;
            losses.push(loss.detach());
            self.backward(loss)?;
        }
        self.before(Phase::Optimizer);
        {
            let _span = device.span(Phase::Optimizer.name());
            match &mut self.scaler {
                Some(scaler) => {
                    scaler.step(&mut self.optimizer, &self.parameters)?;
                }
                None => self.optimizer.step(&self.parameters)?,
            }
        }
        self.after(Phase::Optimizer);
        self.after(Phase::Step);
        drop((span, scope, layers));
        self.callbacks.after_step(&losses);
        Ok(losses)
    }

    /// Runs the forward pass of one part of the batch.
    fn forward(&self, part: usize, forward: &mut impl FnMut(usize) -> Result<Tensor>) -> Result<Tensor> {
        self.before(Phase::Forward);
        let loss = {
            let _span = self.device.span(Phase::Forward.name());
            let _scope = Scope::open_with(Phase::Forward.name(), Category::Activation);
            let precision = self.options.precision;
            let _autocast = (precision != DType::F32).then(|| autocast(precision));
            forward(part)?
        };
        self.after(Phase::Forward);
        Ok(loss)
    }

    /// Runs the backward pass of one part of the batch, and frees its graph.
    fn backward(&self, loss: Tensor) -> Result {
        self.before(Phase::Backward);
        {
            let _span = self.device.span(Phase::Backward.name());
            let _scope = Scope::open_with(Phase::Backward.name(), Category::Gradient);
            // Scaled so that the parts' gradients add up to the gradient of the batch's mean loss.
            let loss = match self.options.parts {
                1 => loss,
                parts => loss.scale(1.0 / parts as f32)?,
            };
            match &self.scaler {
                Some(scaler) => scaler.scale(&loss)?.backward()?,
                None => loss.backward()?,
            }
        }
        self.after(Phase::Backward);
        Ok(())
    }

    /// Calls the callbacks at the beginning of a phase.
    fn before(&self, phase: Phase) {
        self.callbacks.before(phase, self.steps);
    }

    /// Calls the callbacks at the end of a phase.
    fn after(&self, phase: Phase) {
        self.callbacks.after(phase);
    }
}
