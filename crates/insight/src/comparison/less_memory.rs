//! Equal requests of two programs, of which one failed because its pool could get less memory.

use vramscope_pool::size;
use vramscope_trace::{Allocation, DeviceId, FormatError, PerRecording, Recording};

use super::first_difference::Requests;
use super::recording_label::RecordingLabel;
use crate::failures::{Failure, Failures};
use crate::placement::recorded_settings;

/// A request that failed in one recording and succeeded in the other, after equal requests in both.
/// The programs do not differ until then: the pool that failed could get less memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LessMemory {
    /// The recording in which the request failed.
    pub failed_in: RecordingLabel,
    /// Number of the failed request's event.
    pub event: u64,
    /// Bytes that it requested.
    pub requested_bytes: u64,
    /// Number of equal requests before it.
    pub equal_requests: u64,
    /// Bytes that each pool could get: its cap, or what it had reserved when the request failed and
    /// what the driver had free. Of the recording in which the request succeeded, the reserved
    /// peak, which is a lower bound.
    pub obtainable_bytes: PerRecording<u64>,
    /// Whether a cap of the pool refused the request, not the driver.
    pub is_capped: bool,
}

/// A device of one of the two recordings.
#[derive(Clone, Copy)]
pub(super) struct ComparedDevice<'a> {
    pub(super) recording: &'a Recording,
    pub(super) device: DeviceId,
    pub(super) requests: Requests<'a>,
}

/// The first failed request of a device.
struct FirstFailure {
    failure: Failure,
    /// The cap that refused it; `None` if the driver did.
    cap_bytes: Option<u64>,
}

/// Finds the request that failed in one recording only, because its pool could get less memory;
/// `None` if the requests before it differ.
///
/// # Errors
/// If a chunk cannot be read; with the recording.
pub(super) fn less_memory(
    of: PerRecording<ComparedDevice<'_>>,
) -> Result<Option<LessMemory>, (RecordingLabel, FormatError)> {
    let first = |label: RecordingLabel, of: ComparedDevice<'_>| first_failure(of).map_err(|error| (label, error));
    let failures = (first(RecordingLabel::A, of.a)?, first(RecordingLabel::B, of.b)?);
    let in_a = failures.0.and_then(|failed| failed.compared_with(RecordingLabel::A, of.a, of.b));
    let in_b = failures.1.and_then(|failed| failed.compared_with(RecordingLabel::B, of.b, of.a));
    Ok(in_b.or(in_a))
}

/// Returns the first failed request of a device.
fn first_failure(of: ComparedDevice<'_>) -> Result<Option<FirstFailure>, FormatError> {
    let mut failures = Failures::new(recorded_settings(of.recording.info()));
    failures.step(of.recording, usize::MAX)?;
    let cap = failures.cap(of.recording, of.device);
    let first = failures.failures().iter().find(|failure| failure.device == of.device);
    Ok(first.map(|failure| {
        let cap_bytes = cap.most_bytes().filter(|_| failure.is_capped_by(cap));
        FirstFailure { failure: failure.clone(), cap_bytes }
    }))
}

impl FirstFailure {
    /// Compares the failed request of the device `of` with the requests of the `other` device.
    fn compared_with(
        self,
        failed_in: RecordingLabel,
        of: ComparedDevice<'_>,
        other: ComparedDevice<'_>,
    ) -> Option<LessMemory> {
        let event = self.failure.event;
        let is_before = |one: &Allocation| one.first_moment < event;
        let mut others = other.requests.iter();
        let mut equal_requests = 0;
        for one in of.requests.iter().take_while(is_before) {
            let equal = others.next()?;
            if of.requests.key(&one) != other.requests.key(&equal) {
                return None;
            }
            equal_requests += 1;
        }
        let settings = recorded_settings(of.recording.info());
        let is_same = |one: &Allocation| size::block_size(&settings, one.requested) == self.failure.rounded_bytes;
        let served = others.next().filter(is_same)?;
        let own_bytes = self.cap_bytes.unwrap_or_else(|| self.failure.obtainable_bytes());
        let other_bytes = other.recording.series(other.device)?.peak_reserved().bytes;
        if equal_requests == 0 || other_bytes <= own_bytes {
            return None;
        }
        let obtainable_bytes = match failed_in {
            RecordingLabel::A => PerRecording { a: own_bytes, b: other_bytes },
            RecordingLabel::B => PerRecording { a: other_bytes, b: own_bytes },
        };
        Some(LessMemory {
            failed_in,
            event,
            requested_bytes: served.requested,
            equal_requests,
            obtainable_bytes,
            is_capped: self.cap_bytes.is_some(),
        })
    }
}
