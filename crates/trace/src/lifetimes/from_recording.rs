//! Builds the lifetimes of a whole recording.

use std::collections::BTreeMap;

use super::builder::LifetimesBuilder;
use super::event_times::EventTimes;
use super::queries::{LifetimeSummary, Lifetimes};
use crate::error::FormatError;
use crate::event::{DeviceId, Event};
use crate::recording::{Recording, Replay};

impl Lifetimes {
    /// Builds the index of all allocations of a recording, in one pass over its events.
    ///
    /// # Errors
    /// If a chunk cannot be read.
    pub fn from_recording(recording: &Recording) -> Result<Self, FormatError> {
        build(recording, |_, _| {})
    }
}

/// Returns the number and the median lifetime of the allocations of every device of a recording.
///
/// Takes one pass over the events. Until it returns, it needs 4 bytes of memory for each event, in
/// addition to the [`Lifetimes`] of all allocations.
///
/// # Errors
/// If a chunk cannot be read.
pub fn lifetime_summaries(recording: &Recording) -> Result<BTreeMap<DeviceId, LifetimeSummary>, FormatError> {
    let mut times = EventTimes::default();
    let lifetimes = build(recording, |index, event| times.push(index, event.time_ns))?;
    let summaries = lifetimes.devices().map(|(id, device)| (id, device.summary(|index| times.at(index))));
    Ok(summaries.collect())
}

/// Builds the index of all allocations of a recording, and calls `each` with every event and its
/// index (from 0), in order.
fn build(recording: &Recording, mut each: impl FnMut(u64, &Event)) -> Result<Lifetimes, FormatError> {
    let mut builder = LifetimesBuilder::new();
    let mut replay = Replay::new();
    let mut index = recording.first_event();
    builder.full_state(replay.seek(recording, index)?);
    while let Some(next) = recording.next_event(index) {
        if next != index || recording.has_correction_at(next) {
            builder.full_state(replay.seek(recording, next)?);
        }
        index = next + 1;
        // A full state only stands between two chunks, so every event of this one follows directly.
        if let Some((first, events)) = replay.load_events(recording, next)? {
            for (number, event) in (first..).zip(events).skip((next - first) as usize) {
                builder.event(number, event);
                each(number, event);
                index = number + 1;
            }
        }
    }
    if index != recording.end_event() || recording.has_correction_at(index) {
        builder.full_state(recording.end_state());
    }
    Ok(builder.finish())
}
