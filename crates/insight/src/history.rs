//! The lifetimes of all allocations of a recording and the times of its events, built in steps.
//!
//! ```
//! use vramscope_insight::history::History;
//! use vramscope_trace::Recording;
//!
//! # fn draw_a_frame() {}
//! # fn fetch(_: &[std::ops::Range<u64>]) {}
//! # let recording = Recording::new();
//! let mut history = History::new();
//! loop {
//!     let progress = history.extend(&recording, 100_000)?;
//!     draw_a_frame();
//!     if progress.is_complete {
//!         break;
//!     }
//!     // Empty unless the recording was opened by its index and is loaded on demand.
//!     fetch(&progress.missing);
//! }
//! # Ok::<(), vramscope_trace::FormatError>(())
//! ```

use std::ops::Range;
use std::sync::Arc;

use vramscope_trace::{DeviceId, DeviceLifetimes, FormatError, Lifetimes, LifetimesReader, MomentTimes, Recording};

use crate::categories::infer_categories;
use crate::group::{DeviceCategories, RecordingCategories};

/// Maximum number of events for which all times are stored exactly.
const EXACT_TIMES: usize = 8_000_000;
/// Approximate number of bytes in one request for missing chunks.
const FETCH_BYTES: u64 = 2 << 20;

/// Divisor of the events of the last inference of categories: once a growing recording has as many
/// more, the categories are inferred again.
const CATEGORIES_DIVISOR: u64 = 8;

/// How far a [`History`] has been built.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of events of the recording that the history contains, missing ones included.
    pub events: u64,
    /// Number of events that the recording has now, missing ones included.
    pub known_events: u64,
    /// True if the history is complete up to the last moment that the recording has now. A live
    /// recording may grow later; then [`History::extend`] goes on.
    pub is_complete: bool,
    /// Byte ranges of the recording's file to load before the next step: each is one chunk, to be
    /// passed to [`Recording::supply`] with its offset. Together about 2 MiB, or one chunk if it is
    /// larger. Empty if the next step can be made.
    pub missing: Vec<Range<u64>>,
}

/// The lifetimes of all allocations of a recording and the times of its events, up to a moment.
///
/// [`extend`](Self::extend) adds events in steps; between two steps everything can be queried, and
/// is complete up to [`until`](Self::until). Allocations that have not ended by then have no end
/// yet.
///
/// If the oldest part of the recording is dropped, further steps also build a new history of the
/// rest, and this one still contains that part meanwhile. When the new one has caught up, it
/// replaces this one: row numbers are different then, and [`generation`](Self::generation) has
/// increased.
///
/// A history takes about 31 bytes for an allocation, and 4 bytes for each of up to 8 million
/// events; of longer recordings, only every second, fourth, … event's time is kept.
#[derive(Clone, Debug, Default)]
pub struct History {
    pass: Pass,
    /// The history of the recording's remaining part, until it has caught up.
    replacement: Option<Box<Pass>>,
    generation: u64,
    categories: Option<Inferred>,
    /// How often categories were inferred.
    categories_generation: u64,
}

/// The inferred categories.
#[derive(Clone, Debug)]
struct Inferred {
    all: Arc<RecordingCategories>,
    /// The generation of the history from which they were inferred.
    generation: u64,
    /// The moment up to which it was complete.
    until: u64,
}

/// One pass over a recording.
#[derive(Clone, Debug)]
struct Pass {
    reader: LifetimesReader,
    times: MomentTimes,
    /// The identity of the recording; `None` before the first step.
    identity: Option<RecordingIdentity>,
}

/// Properties of a recording that stay while it grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecordingIdentity {
    first_event: u64,
    start_ns: u64,
    epoch_unix_ns: u64,
}

impl Default for Pass {
    fn default() -> Self {
        Self { reader: LifetimesReader::with_changes(), times: MomentTimes::with_limit(EXACT_TIMES), identity: None }
    }
}

impl RecordingIdentity {
    /// Returns the properties of `recording`.
    fn of(recording: &Recording) -> Self {
        let epoch_unix_ns = recording.info().epoch_unix_ns;
        Self { first_event: recording.first_event(), start_ns: recording.start_ns(), epoch_unix_ns }
    }
}

impl Pass {
    /// Adds about `max_events` more events; returns how many were added.
    fn step(&mut self, recording: &Recording, max_events: u64) -> Result<u64, FormatError> {
        let added = self.reader.step_with_times(recording, max_events, &mut self.times);
        if self.reader.first_moment().is_some() {
            self.identity.get_or_insert_with(|| RecordingIdentity::of(recording));
        }
        added
    }

    /// Returns true if the next step can add the recording's next events: `recording` is that of
    /// the previous steps, and still has the events that follow.
    fn can_continue(&self, recording: &Recording) -> bool {
        self.identity.is_none_or(|identity| {
            let now = RecordingIdentity::of(recording);
            let trimmed = now.first_event > identity.first_event && now.epoch_unix_ns == identity.epoch_unix_ns;
            let moment = self.reader.moment();
            (now == identity || trimmed) && (recording.first_event()..=recording.end_event()).contains(&moment)
        })
    }

    /// Returns true if the recording still begins where this pass began.
    fn has_same_start(&self, recording: &Recording) -> bool {
        self.identity.is_none_or(|identity| identity == RecordingIdentity::of(recording))
    }
}

impl History {
    /// Creates an empty history.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a whole recording, and infers the categories of its blocks.
    ///
    /// # Errors
    /// If a chunk cannot be read, or is not loaded.
    pub fn of(recording: &Recording) -> Result<Self, FormatError> {
        let mut history = Self::new();
        loop {
            let progress = history.extend(recording, u64::MAX)?;
            if progress.is_complete {
                history.infer_categories(recording);
                return Ok(history);
            }
            if let Some(range) = progress.missing.first() {
                return Err(FormatError::new(range.start, "this chunk has not been loaded yet"));
            }
        }
    }

    /// Adds about `max_events` more events of `recording` (whole chunks, of at most 16,384 events
    /// if `trace` wrote them), and returns how far it is. 100,000 events take less than 8 ms.
    ///
    /// A recording that was opened by its index has its chunks loaded on demand: then
    /// [`Progress::missing`] tells which to supply first; they may be dropped from memory after the
    /// next step. If `recording` is [another one](Self::is_stale), the history begins again, with
    /// the next [`generation`](Self::generation).
    ///
    /// # Errors
    /// If a chunk cannot be read. The history ends before the first event that cannot be read.
    pub fn extend(&mut self, recording: &Recording, max_events: u64) -> Result<Progress, FormatError> {
        if !self.pass.can_continue(recording) {
            let (generation, categories_generation) = (self.generation + 1, self.categories_generation + 1);
            *self = Self { generation, categories_generation, ..Self::default() };
        }
        let added = self.pass.step(recording, max_events)?;
        if self.pass.has_same_start(recording) {
            self.replacement = None;
        } else {
            self.extend_replacement(recording, max_events.saturating_sub(added))?;
        }
        Ok(self.progress(recording))
    }

    /// Adds about `max_events` more events to the history of the recording's remaining part, and
    /// adopts it once it has caught up.
    fn extend_replacement(&mut self, recording: &Recording, max_events: u64) -> Result<(), FormatError> {
        let mut pass = self.replacement.take().filter(|pass| pass.has_same_start(recording)).unwrap_or_default();
        pass.step(recording, max_events)?;
        if pass.reader.moment() >= self.pass.reader.moment() {
            self.pass = *pass;
            self.generation += 1;
        } else {
            self.replacement = Some(pass);
        }
        Ok(())
    }

    /// Returns how far the history has been built, without adding to it.
    #[must_use]
    pub fn progress(&self, recording: &Recording) -> Progress {
        let reader = &self.pass.reader;
        let first = recording.first_event();
        let missing = reader.missing(recording, FETCH_BYTES);
        Progress {
            events: reader.moment().saturating_sub(first),
            known_events: recording.end_event().saturating_sub(first),
            is_complete: self.replacement.is_none()
                && self.pass.has_same_start(recording)
                && reader.is_at_end(recording),
            missing,
        }
    }

    /// Returns true if `recording` is not the one that was passed before, or has lost events that
    /// the history lacks: then [`extend`](Self::extend) begins again, and until then queries answer
    /// for the other recording.
    #[must_use]
    pub fn is_stale(&self, recording: &Recording) -> bool {
        !self.pass.can_continue(recording)
    }

    /// Returns true if the history contains at least nine tenths of the recording's events: the
    /// history of a live recording may never be complete.
    #[must_use]
    pub fn is_nearly_read(&self, recording: &Recording) -> bool {
        let first = recording.first_event();
        let (read, known) = (self.until().saturating_sub(first), recording.end_event().saturating_sub(first));
        read > 0 && read >= known - known / 10 && !self.is_stale(recording)
    }

    /// Returns a number that increases when the history begins again. Row numbers, and what was
    /// computed from them, are valid for one generation.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns true if categories should be [inferred](Self::infer_categories) now: the history is
    /// complete, and contains more than at the last inference. The history of a recording that
    /// grows need be [nearly](Self::is_nearly_read) complete only, and must have grown by an
    /// eighth.
    #[must_use]
    pub fn needs_categories(&self, recording: &Recording, is_growing: bool) -> bool {
        let events = |until: u64| until.saturating_sub(self.first_event());
        let is_ready = if is_growing { self.is_nearly_read(recording) } else { self.progress(recording).is_complete };
        if !is_ready {
            return false;
        }
        let Some(known) = self.categories.as_ref().filter(|known| known.generation == self.generation) else {
            return true;
        };
        let least = if is_growing { events(known.until) / CATEGORIES_DIVISOR } else { 0 };
        self.until() > known.until.saturating_add(least)
    }

    /// Infers the categories of all allocations read so far. Takes about 400 ns for each
    /// allocation.
    pub fn infer_categories(&mut self, recording: &Recording) {
        let until = self.until();
        let all = infer_categories(recording, self.all_lifetimes(), (self.first_event(), until));
        self.categories = Some(Inferred { all, generation: self.generation, until });
        self.categories_generation += 1;
    }

    /// Returns the inferred categories of a device's blocks; all are unknown before the first
    /// [inference](Self::infer_categories).
    #[must_use]
    pub fn categories(&self, device: DeviceId) -> DeviceCategories {
        let all = self.inferred_categories();
        all.map_or_else(DeviceCategories::default, |all| DeviceCategories::new(all, device))
    }

    /// Returns the inferred categories of all blocks; `None` before the first
    /// [inference](Self::infer_categories).
    #[must_use]
    pub fn inferred_categories(&self) -> Option<&Arc<RecordingCategories>> {
        self.categories.as_ref().map(|known| &known.all)
    }

    /// Returns the categories of all allocations read so far, inferred now if that was not done.
    #[must_use]
    pub fn all_categories(&self, recording: &Recording) -> Arc<RecordingCategories> {
        match &self.categories {
            Some(known) if (known.generation, known.until) == (self.generation, self.until()) => Arc::clone(&known.all),
            _ => infer_categories(recording, self.all_lifetimes(), (self.first_event(), self.until())),
        }
    }

    /// Returns a number that increases when categories are inferred: what was computed from earlier
    /// ones is outdated.
    #[must_use]
    pub fn categories_generation(&self) -> u64 {
        self.categories_generation
    }

    /// Returns the lifetimes of all devices.
    #[must_use]
    pub fn all_lifetimes(&self) -> &Lifetimes {
        self.pass.reader.lifetimes()
    }

    /// Returns the lifetimes of a device, or `None` if nothing has happened on it.
    #[must_use]
    pub fn lifetimes(&self, device: DeviceId) -> Option<&DeviceLifetimes> {
        self.all_lifetimes().device(device)
    }

    /// Returns the first moment that the history contains.
    #[must_use]
    pub fn first_event(&self) -> u64 {
        self.pass.reader.first_moment().unwrap_or(0)
    }

    /// Returns the moment up to which the history is complete.
    #[must_use]
    pub fn until(&self) -> u64 {
        self.pass.reader.moment()
    }

    /// Returns the time of the moment after `event` events, in nanoseconds since the recording's
    /// time 0. A moment that the history lacks has the time of the last one before it, or of the
    /// first.
    ///
    /// Exact up to 8 million events. Beyond, every second, fourth (and so on) moment is exact and
    /// the times between are interpolated: off by less than the time between these two moments.
    /// Later moments never have an earlier time.
    #[must_use]
    pub fn time_ns(&self, event: u64) -> u64 {
        self.pass.times.at(event)
    }

    /// Returns the last moment whose [time](Self::time_ns) is at most `time_ns`; the first moment
    /// if all are later.
    #[must_use]
    pub fn moment_at(&self, time_ns: u64) -> u64 {
        self.pass.times.moment_at(time_ns)
    }

    /// Returns the [moment](Self::moment_at) at each of `times_ns`; faster than a call for each
    /// time if the times do not decrease.
    #[must_use]
    pub fn moments_at(&self, times_ns: &[u64]) -> Vec<u64> {
        self.pass.times.moments_at(times_ns)
    }

    /// Returns true if all times are exact: the recording has at most 8 million events.
    #[must_use]
    pub fn has_exact_times(&self) -> bool {
        self.pass.times.stride() == 1
    }

    /// Returns the memory that the history occupies, in bytes, approximately.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let size = |pass: &Pass| pass.reader.lifetimes().memory_bytes() + pass.times.memory_bytes();
        let categories = self.categories.as_ref().map_or(0, |known| known.all.memory_bytes());
        size(&self.pass) + self.replacement.as_deref().map_or(0, size) + categories
    }
}
