//! Builds the lifetimes of a whole recording.

use std::collections::BTreeMap;

use super::lifetime_index::Lifetimes;
use super::moment_times::MomentTimes;
use super::queries::{DeviceLifetimes, LifetimeSummary};
use super::reader::LifetimesReader;
use crate::error::FormatError;
use crate::event::DeviceId;
use crate::recording::Recording;

impl Lifetimes {
    /// Builds the index of all allocations of a recording, in one pass over its events;
    /// [`LifetimesReader`] builds it in steps.
    ///
    /// # Errors
    /// If a chunk cannot be read.
    pub fn from_recording(recording: &Recording) -> Result<Self, FormatError> {
        build(recording, |_, _, _| {})
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
    let mut times = MomentTimes::new();
    let lifetimes = build(recording, |moment, time_ns, is_event| {
        if is_event {
            times.push(moment, time_ns);
        }
    })?;
    // The event with index i leads to moment i + 1.
    let summary = |device: &DeviceLifetimes| device.summary(|index| times.at(index.saturating_add(1)));
    Ok(lifetimes.devices().map(|(id, device)| (id, summary(device))).collect())
}

/// Builds the index of all allocations of a recording, and calls `each` as
/// [`LifetimesReader::step`] does.
fn build(recording: &Recording, mut each: impl FnMut(u64, u64, bool)) -> Result<Lifetimes, FormatError> {
    let mut reader = LifetimesReader::new();
    while !reader.is_at_end(recording) {
        reader.step(recording, u64::MAX, &mut each)?;
        if let Some(range) = reader.missing(recording, 1).first() {
            return Err(FormatError::new(range.start, "this chunk has not been loaded yet"));
        }
    }
    Ok(reader.finish())
}
