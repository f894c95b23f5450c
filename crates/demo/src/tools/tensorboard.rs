//! The tool that writes scalars for TensorBoard while a training runs.

use std::cell::{Cell, RefCell};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::rc::Rc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use vramscope_formats::export::ScalarFile;

use super::intervals::Intervals;
use super::timing::{Timing, nanoseconds};
use crate::device::Device;
use crate::operation::Observation;
use crate::tensor::Tensor;
use crate::training::{Callback, Phase};

/// A callback that writes memory, loss and time of each step to an event file for TensorBoard.
///
/// The tags are `memory/allocated`, `memory/reserved` and `memory/fragmentation` at the end of the
/// step, `memory/peak`, the most allocated bytes during the step, `loss`, the mean of the parts of
/// the batch, and `step_time_ms`. Steps are numbered from 1, over all trainers that call this.
/// TensorBoard can read the file at any time.
pub struct TensorboardLog {
    path: PathBuf,
    timing: Timing,
    loss_every: u64,
    intervals: Rc<Intervals>,
    /// Number of steps that have ended.
    steps: Cell<u64>,
    /// Start time of the current step; `None` between steps.
    start: Cell<Option<Instant>>,
    /// The scalars of the step that ended last, by tag.
    measured: RefCell<Vec<(&'static str, f64)>>,
    file: RefCell<ScalarFile<File>>,
    /// The first error. Nothing is written after it.
    error: RefCell<Option<io::Error>>,
    _observation: Observation,
}

impl TensorboardLog {
    /// Creates an event file in `folder` for the memory of `device`, and the folder if it does not
    /// exist. The caller adds the callback to a trainer.
    ///
    /// The loss is read at each step whose number is a multiple of `loss_every`; reading it waits
    /// for the GPU. With 0, no loss is read or written.
    ///
    /// # Errors
    /// If the folder or file cannot be created or written.
    pub fn create(folder: &Path, device: &Device, timing: Timing, loss_every: u64) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let now = wall_time();
        let (path, file) = new_file(folder, now as u64)?;
        let intervals = Rc::new(Intervals::new(device));
        Ok(Self {
            path,
            timing,
            loss_every,
            steps: Cell::new(0),
            start: Cell::new(None),
            measured: RefCell::default(),
            file: RefCell::new(ScalarFile::create(file, now)?),
            error: RefCell::default(),
            _observation: Observation::start(intervals.clone()),
            intervals,
        })
    }

    /// Returns the path of the event file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds the loss of the step that ended last, for a program that computes the loss itself.
    pub fn add_loss(&self, loss: f32) {
        self.add_scalar("loss", self.steps.get(), f64::from(loss));
    }

    /// Adds a scalar of step `step`, such as an accuracy.
    pub fn add_scalar(&self, tag: &str, step: u64, value: f64) {
        self.write(step, &[(tag, value)]);
    }

    /// Returns the first write error, if there was one. Nothing is written after an error, and
    /// training continues.
    pub fn take_error(&self) -> Option<io::Error> {
        self.error.take()
    }

    /// Writes scalars of a step. Does nothing after the first error.
    fn write(&self, step: u64, scalars: &[(&str, f64)]) {
        if self.error.borrow().is_none()
            && let Err(error) = self.file.borrow_mut().write(wall_time(), step, scalars)
        {
            self.error.replace(Some(error));
        }
    }

    /// Returns true if `device` is the device whose memory is measured.
    fn is_of(&self, device: &Device) -> bool {
        device.is(self.intervals.device())
    }
}

impl Callback for TensorboardLog {
    fn before(&self, phase: Phase, _step: u64, device: &Device) {
        if phase == Phase::Step && self.is_of(device) {
            self.intervals.clear();
            self.intervals.begin();
            self.start.set(Some(self.timing.now(device)));
        }
    }

    fn after(&self, phase: Phase, _step: u64, device: &Device) {
        if phase != Phase::Step || !self.is_of(device) {
            return;
        }
        let (Some(start), Some(interval)) = (self.start.take(), self.intervals.end()) else { return };
        let time = nanoseconds(start, self.timing.now(device)) as f64 / 1e6;
        let stats = device.stats();
        let mut measured = vec![
            ("memory/allocated", interval.after as f64),
            ("memory/peak", interval.peak as f64),
            ("memory/reserved", stats.reserved_bytes.all.current as f64),
            ("step_time_ms", time),
        ];
        let fragmentation = device.memory().free_space().map(|free| ("memory/fragmentation", free.fragmentation()));
        measured.extend(fragmentation);
        self.measured.replace(measured);
    }

    fn after_step(&self, losses: &[Tensor], _step: u64, device: &Device) {
        if !self.is_of(device) {
            return;
        }
        let step = self.steps.get() + 1;
        self.steps.set(step);
        let mut scalars = self.measured.take();
        if self.loss_every > 0 && step.is_multiple_of(self.loss_every) {
            // Reading a loss only fails if the device fails, which the program's next call reports.
            let values: Option<Vec<f32>> = losses.iter().map(|loss| loss.item().ok()).collect();
            let values = values.filter(|values| !values.is_empty());
            let mean = |values: Vec<f32>| values.iter().copied().map(f64::from).sum::<f64>() / values.len() as f64;
            scalars.extend(values.map(|values| ("loss", mean(values))));
        }
        self.write(step, &scalars);
    }
}

/// Returns the time in seconds since 1970.
fn wall_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Creates an event file with a new name. TensorBoard sorts event files by the seconds since 1970
/// in their names.
fn new_file(folder: &Path, seconds: u64) -> io::Result<(PathBuf, File)> {
    let process = process::id();
    let mut number = 0;
    loop {
        let path = folder.join(format!("events.out.tfevents.{seconds:010}.vramscope.{process}.{number}"));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error),
        }
    }
}
