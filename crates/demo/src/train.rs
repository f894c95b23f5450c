//! The training loop.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use thiserror::Error;
use vramscope_collector::{AllocateError, HostPool};
use vramscope_trace::Category;

use crate::adam::Adam;
use crate::data::{Batch, Dataset};
use crate::digits::{CLASSES, PIXELS};
use crate::network::{Network, Parameters, argmax_rows};

/// Number of batches that are prepared in advance, for the next training steps.
const PREFETCHED_BATCHES: usize = 8;

/// The options of a training run: its data, model and speed, and when it ends.
#[derive(Clone, Debug)]
pub struct Options {
    /// Steps to train; `None` to train until stopped.
    pub steps: Option<u64>,
    /// Shortest duration of a step, so that a viewer can follow.
    pub min_step_time: Duration,
    /// Images to train on.
    pub training_digits: usize,
    /// Images to measure the accuracy on.
    pub held_out_digits: usize,
    /// Smallest and largest number of images in a batch; each batch draws its size.
    pub batch: (usize, usize),
    /// Widths of the hidden layers.
    pub hidden: Vec<usize>,
    /// Steps between two measurements of the accuracy.
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
    /// The pool is too small for the model and its data.
    #[error("training stopped: {0}")]
    Memory(#[from] AllocateError),
}

/// Trains with memory from `pool` until all steps are done or `stop` is set, and calls `on_step`
/// after each step.
///
/// # Errors
/// Returns an error if the pool is out of memory.
///
/// # Panics
/// Panics if a number of images or a width in `options` is 0.
pub fn run(
    options: &Options,
    pool: HostPool,
    stop: &AtomicBool,
    on_step: &mut dyn FnMut(Step),
) -> Result<Summary, DemoError> {
    let counts = [options.training_digits, options.held_out_digits, options.batch.0];
    assert!(
        counts.iter().chain(&options.hidden).all(|&count| count > 0),
        "numbers of images and widths must not be 0: {options:?}"
    );
    let training = Training::new(pool, options, stop)?;
    let mut summary = Summary { steps: 0, loss: None, accuracy: None, _training: training };
    while options.steps.is_none_or(|steps| summary.steps < steps) && !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        let number = summary.steps + 1;
        let training = &mut summary._training;
        let loss = training.step(number)?;
        let accuracy = if number.is_multiple_of(options.evaluate_every) { Some(training.evaluate()?) } else { None };
        summary.steps = number;
        summary.loss = Some(loss);
        summary.accuracy = accuracy.or(summary.accuracy);
        on_step(Step { number, loss, accuracy });
        thread::sleep(options.min_step_time.saturating_sub(start.elapsed()));
    }
    Ok(summary)
}

/// A training run in progress: the data, the network, the optimizer and the best parameters so far.
struct Training {
    pool: HostPool,
    /// Smallest and largest number of images in a batch.
    batch_sizes: (usize, usize),
    rng: Rng,
    training_set: Dataset,
    prefetched: VecDeque<Batch>,
    held_out: Dataset,
    network: Network,
    adam: Adam,
    checkpoint: Option<Checkpoint>,
}

/// A copy of the parameters that had the best accuracy so far, and that accuracy.
struct Checkpoint {
    accuracy: f32,
    _layers: Vec<Parameters>,
}

impl Training {
    fn new(pool: HostPool, options: &Options, stop: &AtomicBool) -> Result<Self, AllocateError> {
        let mut rng = Rng::with_seed(1);
        let network = {
            let _model_scope = pool.scope("model");
            let widths: Vec<usize> = [&[PIXELS][..], &options.hidden, &[CLASSES]].concat();
            Network::new(&pool, &widths, &mut rng)?
        };
        let data_scope = pool.scope("data");
        let training_set = Dataset::generate(&pool, "training", options.training_digits, &mut rng, stop)?;
        let held_out = Dataset::generate(&pool, "held out", options.held_out_digits, &mut rng, stop)?;
        drop(data_scope);
        let (prefetched, adam, batch_sizes) = (VecDeque::new(), Adam::default(), options.batch);
        Ok(Self { pool, batch_sizes, rng, training_set, prefetched, held_out, network, adam, checkpoint: None })
    }

    /// Prepares batches until [`PREFETCHED_BATCHES`] are ready for the next training steps.
    fn prefetch(&mut self) -> Result<(), AllocateError> {
        let _loader_scope = self.pool.scope("loader");
        while self.prefetched.len() < PREFETCHED_BATCHES {
            let (min, max) = self.batch_sizes;
            let (rng, training_set) = (&mut self.rng, &self.training_set);
            let len = rng.usize(min..=max.max(min));
            let batch = training_set.batch(&self.pool, (0..len).map(|_| rng.usize(..training_set.len())))?;
            self.prefetched.push_back(batch);
        }
        Ok(())
    }

    /// Runs the training step with number `number`, from 1, and returns its mean loss.
    fn step(&mut self, number: u64) -> Result<f32, AllocateError> {
        let pool = self.pool.clone();
        let _span = pool.span(format!("step {number}"));
        self.prefetch()?;
        let Batch { pixels, labels } = self.prefetched.pop_front().expect("prefetch() leaves at least one batch");
        let _step_scope = pool.scope("step");
        let activations = self.network.forward(pixels)?;
        let (loss, gradients) = self.network.backward(activations, &labels)?;
        self.adam.step(&pool, &mut self.network.layers, &gradients)?;
        Ok(loss)
    }

    /// Returns the share of held-out images that are classified correctly, from 0 to 1, and keeps a
    /// copy of the parameters if no share before was as large.
    fn evaluate(&mut self) -> Result<f32, AllocateError> {
        /// Number of held-out images that are classified at once; the last batch may have fewer.
        const BATCH: usize = 1024;
        let pool = &self.pool;
        let _span = pool.span("evaluate");
        let _evaluate_scope = pool.scope("evaluate");
        let mut correct = 0;
        for start in (0..self.held_out.len()).step_by(BATCH) {
            let indices = start..self.held_out.len().min(start + BATCH);
            let Batch { pixels, labels } = self.held_out.batch(pool, indices)?;
            let logits = self.network.predict(pixels)?;
            correct += argmax_rows(&logits, CLASSES)
                .zip(&labels)
                .filter(|&(answer, &label)| answer == usize::from(label))
                .count();
        }
        let accuracy = correct as f32 / self.held_out.len() as f32;
        if self.checkpoint.as_ref().is_none_or(|best| accuracy > best.accuracy) {
            let _checkpoint_scope = pool.scope_with("checkpoint", Category::Parameter);
            let layers =
                self.network.layers.iter().map(|layer| layer.parameters.duplicate()).collect::<Result<_, _>>()?;
            self.checkpoint = Some(Checkpoint { accuracy, _layers: layers });
        }
        Ok(accuracy)
    }
}
