//! The tool that measures memory and time by phase of the training step.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::rc::Rc;
use std::time::Instant;

use serde::Serialize;
use vramscope_trace::{ByteSize, Count, DurationNs};

use super::intervals::{Interval, Intervals};
use super::text_table::{TextTable, change_text, difference};
use super::timing::{Timing, nanoseconds};
use crate::device::Device;
use crate::operation::Observation;
use crate::training::{Callback, Phase};

/// Number of last calls of a phase or layer from which the median time is computed.
const TIMED_CALLS: usize = 1024;

/// A callback that measures memory and time of each phase and layer of a training step.
///
/// Bytes are allocated bytes of one device: the sizes of blocks after rounding.
pub struct PhaseTable {
    intervals: Rc<Intervals>,
    /// Allocated bytes when the table was created.
    start_bytes: u64,
    timing: Timing,
    layer_depth: usize,
    phase: Cell<Phase>,
    /// Row index and start time of each open phase and layer, the innermost last.
    open: RefCell<Vec<(usize, Instant)>>,
    rows: RefCell<Vec<Measured>>,
    /// Index of each row by its name.
    index: RefCell<HashMap<String, usize>>,
    _observation: Observation,
}

/// The measurements of all calls of a phase or layer.
struct Measured {
    name: String,
    calls: u64,
    /// The call with the highest peak; of equal peaks, the first call.
    highest: Interval,
    /// Sum of the kept bytes of all calls.
    kept_in_all: i64,
    /// The nanoseconds of the last [`TIMED_CALLS`] calls.
    times: VecDeque<u64>,
}

impl PhaseTable {
    /// Creates a table of the memory of `device`, which measures after it is added to a trainer.
    /// `layer_depth` is the maximum number of names in the path of a layer that gets a row: 0 for
    /// phases only, 1 for the model, 2 for its blocks.
    #[must_use]
    pub fn new(device: &Device, timing: Timing, layer_depth: usize) -> Self {
        let intervals = Rc::new(Intervals::new(device));
        Self {
            start_bytes: device.memory().allocated_bytes(),
            timing,
            layer_depth,
            phase: Cell::new(Phase::Step),
            open: RefCell::default(),
            rows: RefCell::default(),
            index: RefCell::default(),
            _observation: Observation::start(intervals.clone()),
            intervals,
        }
    }

    /// Returns the table so far: phases and layers in the order in which they first began. Leaves
    /// out phases and layers without a call that has ended.
    #[must_use]
    pub fn report(&self) -> PhaseReport {
        let rows = self.rows.borrow();
        PhaseReport {
            rows: rows.iter().filter(|row| row.calls > 0).map(Measured::row).collect(),
            outside_bytes: self.intervals.outside_bytes(),
            pool_allocated_bytes: difference(self.intervals.device().memory().allocated_bytes(), self.start_bytes),
        }
    }

    /// Begins a call of the row `name`.
    fn begin(&self, name: String) {
        let row = *self.index.borrow_mut().entry(name).or_insert_with_key(|name| {
            let mut rows = self.rows.borrow_mut();
            let (calls, highest, kept_in_all) = (0, Interval::default(), 0);
            rows.push(Measured { name: name.clone(), calls, highest, kept_in_all, times: VecDeque::new() });
            rows.len() - 1
        });
        self.intervals.begin();
        self.open.borrow_mut().push((row, self.timing.now(self.intervals.device())));
    }

    /// Ends the innermost open call.
    fn end(&self) {
        let Some((row, start)) = self.open.borrow_mut().pop() else { return };
        let time = nanoseconds(start, self.timing.now(self.intervals.device()));
        if let Some(interval) = self.intervals.end() {
            self.rows.borrow_mut()[row].add(interval, time);
        }
    }

    /// Returns the name of a layer's row in the current phase; `None` if the layer gets no row.
    fn layer_name(&self, layer: &str, device: &Device) -> Option<String> {
        let depth = layer.split('/').count();
        let has_row = device.is(self.intervals.device()) && depth <= self.layer_depth;
        has_row.then(|| format!("{} {layer}", self.phase.get().name()))
    }
}

impl Callback for PhaseTable {
    fn before(&self, phase: Phase, _step: u64, device: &Device) {
        if !device.is(self.intervals.device()) {
            return;
        }
        if phase == Phase::Step {
            // An error may have ended the last step inside a phase.
            self.open.borrow_mut().clear();
            self.intervals.clear();
        }
        self.phase.set(phase);
        self.begin(phase.name().to_owned());
    }

    fn after(&self, _phase: Phase, _step: u64, device: &Device) {
        if device.is(self.intervals.device()) {
            self.phase.set(Phase::Step);
            self.end();
        }
    }

    fn before_layer(&self, layer: &str, _step: u64, device: &Device) {
        if let Some(name) = self.layer_name(layer, device) {
            self.begin(name);
        }
    }

    fn after_layer(&self, layer: &str, _step: u64, device: &Device) {
        if self.layer_name(layer, device).is_some() {
            self.end();
        }
    }
}

impl Measured {
    /// Adds a call that took `time` nanoseconds.
    fn add(&mut self, interval: Interval, time: u64) {
        if self.calls == 0 || interval.peak > self.highest.peak {
            self.highest = interval;
        }
        self.calls += 1;
        self.kept_in_all = self.kept_in_all.saturating_add(difference(interval.after, interval.before));
        if self.times.len() == TIMED_CALLS {
            self.times.pop_front();
        }
        self.times.push_back(time);
    }

    fn row(&self) -> PhaseRow {
        let Interval { before, peak, after } = self.highest;
        let mut times: Vec<u64> = self.times.iter().copied().collect();
        times.sort_unstable();
        PhaseRow {
            name: self.name.clone(),
            calls: self.calls,
            before_bytes: before,
            peak_bytes: peak,
            after_bytes: after,
            kept_bytes: difference(after, before),
            kept_in_all_bytes: self.kept_in_all,
            median_ns: times.get(times.len() / 2).copied().unwrap_or(0),
        }
    }
}

/// A phase or layer in a [`PhaseReport`].
///
/// `before_bytes`, `peak_bytes`, `after_bytes` and `kept_bytes` describe the call with the highest
/// peak; of equal peaks, the first call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PhaseRow {
    /// The phase, such as `forward`, or the phase and the path of the layer, such as `forward
    /// gpt/block3`.
    pub name: String,
    /// Number of calls.
    pub calls: u64,
    /// Allocated bytes when the call began.
    pub before_bytes: u64,
    /// Maximum of the allocated bytes during the call.
    pub peak_bytes: u64,
    /// Allocated bytes after the call.
    pub after_bytes: u64,
    /// `after_bytes - before_bytes`.
    pub kept_bytes: i64,
    /// The sum of after minus before over all calls.
    pub kept_in_all_bytes: i64,
    /// Median time of the last 1,024 calls, in nanoseconds.
    pub median_ns: u64,
}

/// The measurements of a [`PhaseTable`], with a row for each phase and layer. `Display` formats
/// them as a table.
///
/// The kept bytes of all steps and `outside_bytes` add up to `pool_allocated_bytes`, if all memory
/// was allocated and freed for tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PhaseReport {
    /// The phases and layers in the order in which they first began.
    pub rows: Vec<PhaseRow>,
    /// Change of the allocated bytes outside of the steps.
    pub outside_bytes: i64,
    /// Change of the allocator's allocated bytes since the table was created.
    pub pool_allocated_bytes: i64,
}

impl fmt::Display for PhaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings = ["calls", "before", "peak", "after", "kept", "total kept", "time", "phase"];
        let mut table = TextTable::new(&headings, 1);
        for row in &self.rows {
            table.add([
                Count(row.calls).to_string(),
                ByteSize(row.before_bytes).to_string(),
                ByteSize(row.peak_bytes).to_string(),
                ByteSize(row.after_bytes).to_string(),
                change_text(row.kept_bytes),
                change_text(row.kept_in_all_bytes),
                DurationNs(row.median_ns).to_string(),
                row.name.clone(),
            ]);
        }
        table.fmt(f)?;
        let steps = self.rows.iter().filter(|row| row.name == Phase::Step.name());
        write!(f, "{} by steps", change_text(steps.map(|row| row.kept_in_all_bytes).sum()))?;
        write!(f, ", {} outside of steps", change_text(self.outside_bytes))?;
        writeln!(f, ", {} by the allocator's counter", change_text(self.pool_allocated_bytes))
    }
}
