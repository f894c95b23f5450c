//! The default demo: a perceptron learns to classify images of digits.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use thiserror::Error;
use vramscope_collector::{Category, Scope};

use crate::autograd::no_grad;
use crate::data::{Batch, Dataset};
use crate::device::Device;
use crate::digits::{CLASSES, PIXELS};
use crate::error::{Result, TensorError};
use crate::models::Perceptron;
use crate::optimizers::{Adam, Method, Optimizer};
use crate::tensor::Tensor;
use crate::training::{StepOptions, Trainer};

/// Adam's learning rate.
const LEARNING_RATE: f32 = 1e-3;

/// Number of batches that are prepared in advance, for the next training steps.
const PREFETCHED_BATCHES: usize = 8;

/// The options of a training run: its data, model and speed, and when it ends.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of steps to train; `None` to train until stopped.
    pub steps: Option<u64>,
    /// Shortest duration of a step, so that a viewer can follow.
    pub min_step_time: Duration,
    /// Number of images to train on.
    pub training_digits: usize,
    /// Number of held-out images to measure the accuracy on.
    pub held_out_digits: usize,
    /// Smallest and largest number of images in a batch. Each batch has a random size.
    pub batch: (usize, usize),
    /// Widths of the hidden layers.
    pub hidden: Vec<usize>,
    /// Number of steps between two measurements of the accuracy.
    pub evaluate_every: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            steps: None,
            min_step_time: Duration::from_millis(40),
            training_digits: 16_384,
            held_out_digits: 1024,
            batch: (16, 128),
            hidden: vec![1024, 256],
            evaluate_every: 50,
        }
    }
}

/// The result of one training step: its number, loss and, if measured, accuracy.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The step's number, from 1.
    pub number: u64,
    /// The mean loss over the batch.
    pub loss: f32,
    /// The share of held-out images that are classified correctly, from 0 to 1, if it was measured
    /// after this step.
    pub accuracy: Option<f32>,
}

/// The result of a training run. It keeps the model's memory until it is dropped; a recording that
/// ends before then shows that memory as allocated.
pub struct Summary {
    /// Number of completed steps.
    pub steps: u64,
    /// The loss of the last step.
    pub loss: Option<f32>,
    /// The last measured accuracy, from 0 to 1.
    pub accuracy: Option<f32>,
    _training: Training,
}

impl fmt::Debug for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, loss, accuracy, _training: _ } = self;
        let mut summary = f.debug_struct("Summary");
        summary.field("steps", steps).field("loss", loss).field("accuracy", accuracy).finish_non_exhaustive()
    }
}

/// An error that ends the training.
#[derive(Debug, Error)]
pub enum DemoError {
    /// The device is too small for the model and its data, or failed.
    #[error("training stopped: {0}")]
    Tensor(#[from] TensorError),
}

/// Trains on `device` until all steps are done or `stop` is set, and calls `on_step` after each
/// step.
///
/// # Errors
/// If the device is out of memory or fails.
///
/// # Panics
/// If a number of images or a width in `options` is 0.
pub fn run(
    options: &Options,
    device: &Device,
    stop: &AtomicBool,
    on_step: &mut dyn FnMut(Step),
) -> Result<Summary, DemoError> {
    let counts = [options.training_digits, options.held_out_digits, options.batch.0];
    assert!(
        counts.iter().chain(&options.hidden).all(|&count| count > 0),
        "numbers of images and widths must not be 0: {options:?}"
    );
    let training = Training::new(device, options, stop)?;
    let mut summary = Summary { steps: 0, loss: None, accuracy: None, _training: training };
    while options.steps.is_none_or(|steps| summary.steps < steps) && !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        let number = summary.steps + 1;
        let training = &mut summary._training;
        let loss = training.step()?;
        let accuracy = if number.is_multiple_of(options.evaluate_every) { Some(training.evaluate()?) } else { None };
        summary.steps = number;
        summary.loss = Some(loss);
        summary.accuracy = accuracy.or(summary.accuracy);
        on_step(Step { number, loss, accuracy });
        thread::sleep(options.min_step_time.saturating_sub(start.elapsed()));
    }
    Ok(summary)
}

/// A training run in progress: the data, the model and its trainer, and the best parameters so far.
struct Training {
    device: Device,
    /// Smallest and largest number of images in a batch.
    batch_sizes: (usize, usize),
    rng: Rng,
    training_set: Dataset,
    prefetched: VecDeque<Batch>,
    held_out: Dataset,
    model: Perceptron,
    trainer: Trainer,
    best: Option<BestParameters>,
}

/// A copy of the parameters with the best accuracy so far, and this accuracy.
struct BestParameters {
    accuracy: f32,
    _parameters: Vec<Tensor>,
}

impl Training {
    fn new(device: &Device, options: &Options, stop: &AtomicBool) -> Result<Self> {
        let mut rng = Rng::with_seed(1);
        let model = {
            let _scope = Scope::open("model");
            let widths: Vec<usize> = [&[PIXELS][..], &options.hidden, &[CLASSES]].concat();
            Perceptron::new(device, &widths, 1)?
        };
        let (training_set, held_out) = {
            let _scope = Scope::open("data");
            let training_set = Dataset::generate(device, "training", options.training_digits, &mut rng, stop)?;
            (training_set, Dataset::generate(device, "held out", options.held_out_digits, &mut rng, stop)?)
        };
        let optimizer = Optimizer::new(Method::Adam(Adam::default()), LEARNING_RATE);
        let trainer = Trainer::new(device, model.parameters(), optimizer, StepOptions::default())?;
        let (device, prefetched, batch_sizes) = (device.clone(), VecDeque::new(), options.batch);
        Ok(Self { device, batch_sizes, rng, training_set, prefetched, held_out, model, trainer, best: None })
    }

    /// Prepares batches until [`PREFETCHED_BATCHES`] are ready for the next training steps.
    fn prefetch(&mut self) -> Result {
        let _scope = Scope::open("loader");
        while self.prefetched.len() < PREFETCHED_BATCHES {
            let (min, max) = self.batch_sizes;
            let len = self.rng.usize(min..=max.max(min));
            self.prefetched.push_back(self.training_set.random_batch(len, &mut self.rng)?);
        }
        Ok(())
    }

    /// Runs one training step and returns its mean loss.
    fn step(&mut self) -> Result<f32> {
        self.prefetch()?;
        let batch = self.prefetched.pop_front();
        let Batch { pixels, labels } = batch.expect("prefetch() leaves at least one batch");
        let losses = self.trainer.step(|_| self.model.forward(&pixels)?.cross_entropy(&labels))?;
        losses[0].item()
    }

    /// Returns the share of held-out images that are classified correctly, from 0 to 1. Keeps a
    /// copy of the parameters if this share is larger than all before.
    fn evaluate(&mut self) -> Result<f32> {
        /// Number of held-out images that are classified at once; the last batch may have fewer.
        const BATCH: usize = 1024;
        let _span = self.device.span("evaluate");
        let _scope = Scope::open_with("evaluate", Category::Activation);
        let _mode = no_grad();
        let mut correct = 0;
        for batch in self.held_out.batches(BATCH) {
            let Batch { pixels, labels } = batch?;
            let answers = self.model.forward(&pixels)?.argmax()?.to_u32()?;
            correct += answers.iter().zip(labels.to_u32()?).filter(|(answer, label)| **answer == *label).count();
        }
        let accuracy = correct as f32 / self.held_out.len() as f32;
        if self.best.as_ref().is_none_or(|best| accuracy > best.accuracy) {
            let _scope = Scope::open_with("checkpoint", Category::Parameter);
            let parameters = self.trainer.parameters().iter().map(|parameter| parameter.value.copied());
            self.best = Some(BestParameters { accuracy, _parameters: parameters.collect::<Result<_>>()? });
        }
        Ok(accuracy)
    }
}
