//! Builds the lifetimes of a recording in steps.

use std::ops::Range;

use super::builder::LifetimesBuilder;
use super::lifetime_index::Lifetimes;
use super::moment_times::MomentTimes;
use crate::compression::Decompressor;
use crate::decoder::ChunkEntry;
use crate::error::FormatError;
use crate::event::Annotation;
use crate::recording::{Recording, Replay};

/// Builds the [`Lifetimes`] of a recording in steps, and extends them while it grows.
///
/// Between two steps the lifetimes can be queried; they are complete up to
/// [`moment`](Self::moment). Recordings with missing events work: allocations that are gone after a
/// gap end there.
///
/// ```
/// use vramscope_trace::{LifetimesReader, Recording};
///
/// # fn draw_a_frame() {}
/// # let recording = Recording::new();
/// let mut reader = LifetimesReader::new();
/// while !reader.is_at_end(&recording) {
///     reader.step(&recording, 100_000, |_moment, _time_ns, _is_event| {})?;
///     draw_a_frame();
/// }
/// # Ok::<(), vramscope_trace::FormatError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct LifetimesReader {
    builder: LifetimesBuilder,
    /// Computes full states after missing events.
    replay: Replay,
    decompressor: Decompressor,
    /// The first moment; `None` until the recording has a moment.
    first_moment: Option<u64>,
    /// The moment up to which the lifetimes are complete.
    moment: u64,
    /// The last moment whose full state was added, and the [`Recording::last_relabels_end`] at that
    /// time.
    state_added_at: Option<(u64, u64)>,
}

impl LifetimesReader {
    /// Creates a reader at the beginning of a recording.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a reader at the beginning of a recording that also keeps a list of all starts and
    /// ends ([`DeviceLifetimes::changes`](crate::DeviceLifetimes::changes)), at 4 bytes each.
    #[must_use]
    pub fn with_changes() -> Self {
        Self { builder: LifetimesBuilder::with_changes(), ..Self::default() }
    }

    /// Returns the lifetimes of all allocations up to [`moment`](Self::moment).
    #[must_use]
    pub fn lifetimes(&self) -> &Lifetimes {
        self.builder.lifetimes()
    }

    /// Returns the first moment that the recording had when the first step was made; `None` before
    /// that.
    #[must_use]
    pub fn first_moment(&self) -> Option<u64> {
        self.first_moment
    }

    /// Returns the moment up to which the lifetimes are complete.
    #[must_use]
    pub fn moment(&self) -> u64 {
        self.moment
    }

    /// Returns true if the lifetimes are complete up to the last moment that the recording has now.
    #[must_use]
    pub fn is_at_end(&self, recording: &Recording) -> bool {
        let end = recording.end_event();
        let is_current = self.moment == end && !self.is_state_due(recording, end);
        is_current && (self.first_moment.is_some() || is_empty(recording))
    }

    /// Returns true if the recording has a full state at `moment` that contradicts the events
    /// before it and has not been added.
    fn is_state_due(&self, recording: &Recording, moment: u64) -> bool {
        self.state_added_at != Some((moment, recording.last_relabels_end())) && recording.has_correction_at(moment)
    }

    /// Adds whole chunks of about `max_events` more events and returns how many events were added:
    /// 0 at the end, or if [`missing`](Self::missing) bytes must be supplied first.
    ///
    /// Calls `each` with every moment that the recording has, in increasing order, with its time in
    /// nanoseconds, and with true if an event led to it; false for the first moment, and for a full
    /// state after missing events. After an error the lifetimes stay as they were before the event
    /// that cannot be read.
    ///
    /// # Errors
    /// If a chunk that is not [missing](Self::missing) cannot be read.
    pub fn step(
        &mut self,
        recording: &Recording,
        max_events: u64,
        mut each: impl FnMut(u64, u64, bool),
    ) -> Result<u64, FormatError> {
        let mut added = 0;
        while added < max_events && !self.is_at_end(recording) {
            let before = (self.moment, self.state_added_at);
            match self.read_chunk(recording, &mut each) {
                Ok(_) if (self.moment, self.state_added_at) == before => {
                    let message = format!("the index lists a chunk without events after event {}", self.moment);
                    return Err(FormatError::new(recording.complete_bytes(), message));
                }
                Ok(events) => added += events,
                Err(_) if !self.missing(recording, 1).is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(added)
    }

    /// Adds events as [`step`](Self::step) does, and adds the time of every moment to `times`.
    ///
    /// # Errors
    /// See [`step`](Self::step).
    pub fn step_with_times(
        &mut self,
        recording: &Recording,
        max_events: u64,
        times: &mut MomentTimes,
    ) -> Result<u64, FormatError> {
        self.step(recording, max_events, |moment, time_ns, _| times.push(moment, time_ns))
    }

    /// Adds the full state at the current moment if necessary, and the next chunk of events.
    /// Returns the number of events.
    fn read_chunk(&mut self, recording: &Recording, each: &mut impl FnMut(u64, u64, bool)) -> Result<u64, FormatError> {
        if self.first_moment.is_none() {
            let first = recording.first_event();
            self.add_state(recording, first)?;
            self.first_moment = Some(first);
            each(first, recording.start_ns(), false);
        }
        let Some(next) = recording.next_event(self.moment) else {
            let end = recording.end_event();
            let is_new = end > self.moment;
            self.add_state(recording, end)?;
            if is_new {
                each(end, recording.end_ns(), false);
            }
            return Ok(0);
        };
        if next != self.moment || recording.has_correction_at(next) {
            let is_new = next > self.moment;
            self.add_state(recording, next)?;
            if is_new {
                each(next, self.replay.state().time_ns(), false);
            }
        }
        // Full states are only between chunks, so the events of a chunk follow each other directly.
        let Self { builder, moment, decompressor, .. } = self;
        let lists_marks = recording.lists_marks();
        recording.each_entry_from(next, decompressor, |index, entry| match entry {
            ChunkEntry::Event(event) => {
                builder.event(index, event);
                if !lists_marks && let Some(mark) = Annotation::of_mark(event, index) {
                    builder.mark(mark);
                }
                *moment = index.saturating_add(1);
                each(*moment, event.time_ns, true);
            }
            ChunkEntry::Relabel(relabel) => builder.relabel(index, relabel),
        })?;
        Ok(self.moment - next)
    }

    /// Adds the recording's full state at a moment to the lifetimes: blocks without an allocation
    /// begin one, and allocations without a block end.
    fn add_state(&mut self, recording: &Recording, moment: u64) -> Result<(), FormatError> {
        self.builder.replace_state(self.replay.seek(recording, moment)?);
        self.moment = moment;
        self.state_added_at = Some((moment, recording.last_relabels_end()));
        Ok(())
    }

    /// Returns the byte ranges of the chunks that the next steps need and that are not in memory:
    /// about `max_bytes` of them, but at least one. Empty if the next step can be made.
    ///
    /// Without a [`ReadAt`](crate::ReadAt), the caller must [supply](Recording::supply) them.
    #[must_use]
    pub fn missing(&self, recording: &Recording, max_bytes: u64) -> Vec<Range<u64>> {
        if self.first_moment.is_some() {
            return recording.missing_events(self.moment, max_bytes);
        }
        let first = recording.first_event();
        let mut ranges = recording.missing(first);
        for range in recording.missing_events(first, max_bytes) {
            if !ranges.contains(&range) {
                ranges.push(range);
            }
        }
        ranges
    }

    /// Returns the lifetimes, and frees the memory that only building them needs.
    #[must_use]
    pub fn finish(self) -> Lifetimes {
        self.builder.finish()
    }
}

/// Returns true if the recording has no event and no full state.
fn is_empty(recording: &Recording) -> bool {
    recording.end_event() == 0 && recording.next_event(0).is_none() && recording.devices().next().is_none()
}
