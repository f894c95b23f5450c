//! The training loop.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use vramscope_collector::{AllocateError, HostPool};
use vramscope_trace::Category;

use crate::adam::Adam;
use crate::data::{Batch, Dataset};
use crate::digits::{CLASSES, PIXELS};
use crate::network::{Network, Parameters, largest_of_each};
use crate::random::Random;

/// How many batches are made ready ahead of their step.
const BATCHES_READY: usize = 8;

/// What to train, and how fast.
#[derive(Clone, Debug)]
pub struct Options {
    /// Stop after so many steps; `None` goes on until told to stop.
    pub steps: Option<u64>,
    /// A step takes at least so long, so that a viewer can follow it.
    pub min_step_time: Duration,
    /// Digits to learn from.
    pub training_digits: usize,
    /// Digits to test what was learned on.
    pub held_out_digits: usize,
    /// Digits in a batch, from and to; each batch draws its own number.
    pub batch: (usize, usize),
    /// The widths of the layers between the pixels and the ten answers.
    pub hidden: Vec<usize>,
    /// Test after every so many steps.
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

/// A step that was just done.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Its number, from 1.
    pub number: u64,
    /// The mean loss over its batch.
    pub loss: f32,
    /// The part of the held-out digits that the network reads right, where this step tested it.
    pub accuracy: Option<f32>,
}

/// How the training ended. What was trained keeps its memory until this is dropped, so that a recording that ends before shows it.
pub struct Summary {
    /// Steps done.
    pub steps: u64,
    /// The loss of the last step.
    pub loss: Option<f32>,
    /// The last accuracy measured.
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

/// Why the training could not go on.
#[derive(Debug)]
pub enum DemoError {
    /// The pool had no memory for it.
    Memory(AllocateError),
}

impl fmt::Display for DemoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(error) => write!(f, "training stopped: {error}"),
        }
    }
}

impl std::error::Error for DemoError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Memory(error) => Some(error),
        }
    }
}

impl From<AllocateError> for DemoError {
    fn from(error: AllocateError) -> Self {
        Self::Memory(error)
    }
}

/// Trains on `pool` until the steps are done or `stop` is set, calling `on_step` after each step.
///
/// # Errors
/// When the pool's capacity is not enough.
///
/// # Panics
/// When a number of digits or a width in `options` is 0.
pub fn run(
    options: &Options,
    pool: HostPool,
    stop: &AtomicBool,
    on_step: &mut dyn FnMut(Step),
) -> Result<Summary, DemoError> {
    let counts = [options.training_digits, options.held_out_digits, options.batch.0];
    assert!(counts.iter().chain(&options.hidden).all(|&count| count > 0), "there is nothing to train: {options:?}");
    let training = Training::new(pool, options, stop)?;
    let mut summary = Summary { steps: 0, loss: None, accuracy: None, _training: training };
    while options.steps.is_none_or(|steps| summary.steps < steps) && !stop.load(Ordering::Relaxed) {
        let begin = Instant::now();
        let number = summary.steps + 1;
        let training = &mut summary._training;
        let loss = training.step(number)?;
        let accuracy = if number.is_multiple_of(options.evaluate_every) { Some(training.evaluate()?) } else { None };
        summary.steps = number;
        summary.loss = Some(loss);
        summary.accuracy = accuracy.or(summary.accuracy);
        on_step(Step { number, loss, accuracy });
        thread::sleep(options.min_step_time.saturating_sub(begin.elapsed()));
    }
    Ok(summary)
}

/// Everything that lives as long as the training does.
struct Training {
    pool: HostPool,
    /// Digits in a batch, from and to.
    batch: (usize, usize),
    random: Random,
    digits: Dataset,
    /// Batches that are ready before their step comes.
    ready: VecDeque<Batch>,
    held_out: Dataset,
    network: Network,
    adam: Adam,
    best: Option<Best>,
}

/// The parameters that did best so far.
struct Best {
    accuracy: f32,
    _layers: Vec<Parameters>,
}

impl Training {
    fn new(pool: HostPool, options: &Options, stop: &AtomicBool) -> Result<Self, AllocateError> {
        let mut random = Random::new(1);
        let network = {
            let _model = pool.scope("model");
            let widths: Vec<usize> = [&[PIXELS][..], &options.hidden, &[CLASSES]].concat();
            Network::new(&pool, &widths, &mut random)?
        };
        let data = pool.scope("data");
        let digits = Dataset::draw(&pool, "training", options.training_digits, &mut random, stop)?;
        let held_out = Dataset::draw(&pool, "held out", options.held_out_digits, &mut random, stop)?;
        drop(data);
        let (ready, adam) = (VecDeque::new(), Adam::default());
        Ok(Self { pool, batch: options.batch, random, digits, ready, held_out, network, adam, best: None })
    }

    /// Makes batches of digits ready.
    fn load(&mut self) -> Result<(), AllocateError> {
        let _loader = self.pool.scope("loader");
        while self.ready.len() < BATCHES_READY {
            let (least, most) = self.batch;
            let len = least + self.random.below(most.saturating_sub(least) + 1);
            let (random, digits) = (&mut self.random, &self.digits);
            let batch = digits.batch(&self.pool, (0..len).map(|_| random.below(digits.len())))?;
            self.ready.push_back(batch);
        }
        Ok(())
    }

    /// One step of training; returns its loss.
    fn step(&mut self, number: u64) -> Result<f32, AllocateError> {
        let pool = self.pool.clone();
        let _span = pool.span(format!("step {number}"));
        self.load()?;
        let Batch { pixels, labels } = self.ready.pop_front().expect("the loader made batches ready");
        let _step = pool.scope("step");
        let forward = self.network.forward(pixels)?;
        let (loss, gradients) = self.network.backward(forward, &labels)?;
        self.adam.step(&pool, &mut self.network.layers, &gradients)?;
        Ok(loss)
    }

    /// The part of the held-out digits that the network reads right. Keeps the parameters if they are the best so far.
    fn evaluate(&mut self) -> Result<f32, AllocateError> {
        const BATCH: usize = 1024;
        let pool = &self.pool;
        let _span = pool.span("evaluate");
        let _evaluate = pool.scope("evaluate");
        let mut right = 0;
        for begin in (0..self.held_out.len()).step_by(BATCH) {
            let numbers = begin..self.held_out.len().min(begin + BATCH);
            let Batch { pixels, labels } = self.held_out.batch(pool, numbers)?;
            let logits = self.network.predict(pixels)?;
            right += largest_of_each(&logits, CLASSES)
                .zip(&labels)
                .filter(|&(answer, &label)| answer == usize::from(label))
                .count();
        }
        let accuracy = right as f32 / self.held_out.len() as f32;
        if self.best.as_ref().is_none_or(|best| accuracy > best.accuracy) {
            let _checkpoint = pool.scope_with("checkpoint", Category::Parameter);
            let layers =
                self.network.layers.iter().map(|layer| layer.parameters.duplicate()).collect::<Result<_, _>>()?;
            self.best = Some(Best { accuracy, _layers: layers });
        }
        Ok(accuracy)
    }
}
