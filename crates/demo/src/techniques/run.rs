//! A run in progress: calls a program's steps and measures them.

use std::any::Any;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use vramscope_collector::Scope;

use super::report::{Figure, TechniqueReport, TechniqueStep, median_after_warm_up};
use super::settings::Settings;
use crate::callbacks::{Callbacks, Phase};
use crate::device::Device;
use crate::error::Result;
use crate::memory::SpanGuard;
use crate::operation::Observation;
use crate::training::Trainer;

/// The models, data and results of a program, which live until the recording has ended.
pub(super) type ProgramState = Box<dyn Any>;

/// The run of a program: its device, settings and measurements so far.
pub(super) struct Run<'a> {
    pub(super) device: &'a Device,
    pub(super) settings: &'a Settings,
    pub(super) stop: &'a AtomicBool,
    /// Shortest duration of a step, so that a viewer can follow.
    pub(super) min_step_time: Duration,
    pub(super) on_step: &'a mut dyn FnMut(&TechniqueStep),
    times_ms: Vec<f64>,
    report: TechniqueReport,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        device: &'a Device,
        settings: &'a Settings,
        stop: &'a AtomicBool,
        min_step_time: Duration,
        on_step: &'a mut dyn FnMut(&TechniqueStep),
    ) -> Self {
        device.memory().reset_peaks();
        Self {
            device,
            settings,
            stop,
            min_step_time,
            on_step,
            times_ms: Vec::new(),
            report: TechniqueReport::default(),
        }
    }

    /// Calls `step` with the index of each step, from 0, and measures it. `step` returns the loss.
    /// Ends early if `stop` is set.
    pub(super) fn each_step(&mut self, mut step: impl FnMut(u64) -> Result<f32>) -> Result {
        for number in 0..self.settings.steps {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            self.device.synchronize()?;
            let start = Instant::now();
            let loss = step(number)?;
            self.device.synchronize()?;
            let time = start.elapsed();
            self.times_ms.push(time.as_secs_f64() * 1e3);
            let stats = self.device.stats();
            let (allocated, reserved) = (stats.allocated_bytes.all, stats.reserved_bytes.all);
            self.report.losses.push(loss);
            self.report.step_allocated_bytes.push(allocated.current);
            self.report.step_reserved_bytes.push(reserved.current);
            (self.on_step)(&TechniqueStep {
                number: number + 1,
                steps: self.settings.steps,
                loss,
                allocated_bytes: allocated.current,
                reserved_bytes: reserved.current,
                peak_allocated_bytes: allocated.peak,
            });
            thread::sleep(self.min_step_time.saturating_sub(time));
        }
        Ok(())
    }

    /// Stores a measured value in the report.
    pub(super) fn figure(&mut self, name: &'static str, figure: Figure) {
        self.report.figures.insert(name, figure);
    }

    /// Stores a measured size in the report.
    pub(super) fn bytes(&mut self, name: &'static str, bytes: u64) {
        self.figure(name, Figure::Bytes(bytes));
    }

    /// Stores the total size of the trainers' optimizer states in the report.
    pub(super) fn optimizers<'t>(&mut self, trainers: impl IntoIterator<Item = &'t Trainer>) {
        let bytes = trainers.into_iter().map(|trainer| trainer.optimizer().state_bytes() as u64);
        self.report.optimizer_bytes = bytes.sum();
    }

    /// Measures the memory at the end of the run and returns the report.
    pub(super) fn finish(self, technique: String) -> TechniqueReport {
        let stats = self.device.stats();
        let (allocated, reserved) = (stats.allocated_bytes.all, stats.reserved_bytes.all);
        TechniqueReport {
            technique,
            device: self.settings.device.name(),
            peak_allocated_bytes: allocated.peak,
            peak_requested_bytes: stats.requested_bytes.all.peak,
            peak_reserved_bytes: reserved.peak,
            peak_inactive_split_bytes: stats.inactive_split_bytes.all.peak,
            end_allocated_bytes: allocated.current,
            end_reserved_bytes: reserved.current,
            device_allocations: stats.num_device_alloc,
            step_ms: median_after_warm_up(&self.times_ms),
            ..self.report
        }
    }
}

/// A guard of a step in a program without [`Trainer`](crate::training::Trainer): opens the step's
/// span and scope. Dropping it closes them.
#[must_use = "the step ends when this is dropped"]
pub(super) struct StepScope {
    callbacks: Rc<Callbacks>,
    _layers: Option<Observation>,
    _scope: Scope,
    _span: Box<dyn SpanGuard>,
}

impl StepScope {
    /// Begins the step with the index `number`, from 0.
    pub(super) fn begin(device: &Device, number: u64) -> Self {
        let span = device.span(&format!("step {}", number + 1));
        let scope = Scope::open("step");
        let callbacks = Rc::new(Callbacks::new(device));
        let layers = (!callbacks.is_empty()).then(|| Observation::start(callbacks.clone()));
        callbacks.before(Phase::Step, number + 1);
        Self { callbacks, _layers: layers, _scope: scope, _span: span }
    }
}

impl Drop for StepScope {
    fn drop(&mut self) {
        self.callbacks.after(Phase::Step);
        self.callbacks.after_step(&[]);
    }
}
