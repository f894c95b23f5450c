//! The cards of all failures of a recording, built in steps.

use std::collections::BTreeMap;

use vramscope_pool::Settings;
use vramscope_trace::{DeviceId, FormatError, IncidentKind, Recording, Replay};

use super::cap::ReservedCap;
use super::cause::FailureCause;
use super::failure::Failure;

/// A failed request with the cap that it ran into and its cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureCard {
    /// The request and the memory at that moment.
    pub failure: Failure,
    /// The cap on the reserved bytes.
    pub cap: ReservedCap,
    /// Why it failed.
    pub cause: FailureCause,
    /// Why it failed, as sentences for users.
    pub summary: String,
}

/// The failures of a recording, read in steps and extended as a live recording grows. None is
/// omitted, however close together they are.
#[derive(Clone, Debug, Default)]
pub struct Failures {
    settings: Settings,
    failures: Vec<Failure>,
    /// Number of the recording's incidents that have been read.
    incidents: usize,
    replay: Replay,
}

impl Failures {
    /// Creates an empty list. `settings` are the allocator's; their `limit_bytes` is the cap, if it
    /// is known.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Reads up to `max_failures` more failures, about 2 ms each. Returns true once all that the
    /// recording has so far are read.
    ///
    /// # Errors
    /// If a chunk cannot be read. A later call tries again.
    pub fn step(&mut self, recording: &Recording, max_failures: usize) -> Result<bool, FormatError> {
        let mut read = 0;
        while let Some(incident) = recording.incidents().get(self.incidents) {
            if matches!(incident.kind, IncidentKind::OutOfMemory { .. }) {
                if read == max_failures {
                    return Ok(false);
                }
                read += 1;
                let failure = Failure::read(recording, &mut self.replay, incident.at_event, &self.settings)?;
                self.failures.extend(failure);
            }
            self.incidents += 1;
        }
        Ok(true)
    }

    /// Returns the failures read so far, in the order of events.
    #[must_use]
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// Returns the cap of a device: recorded, or inferred from all failures read so far and the
    /// most bytes that it ever reserved.
    #[must_use]
    pub fn cap(&self, recording: &Recording, device: DeviceId) -> ReservedCap {
        if let Some(bytes) = ReservedCap::recorded(&self.settings, total_bytes(recording, device)) {
            return ReservedCap::Exact { bytes };
        }
        let peak_reserved = recording.series(device).map_or(0, |series| series.peak_reserved().bytes);
        let failed = self.failures.iter().filter(|failure| failure.device == device);
        ReservedCap::inferred(peak_reserved, failed.map(Failure::reservation))
    }

    /// Returns a card for every failure read so far, in the order of events.
    #[must_use]
    pub fn cards(&self, recording: &Recording) -> Vec<FailureCard> {
        let mut caps: BTreeMap<DeviceId, ReservedCap> = BTreeMap::new();
        self.failures
            .iter()
            .map(|failure| {
                let device = failure.device;
                let cap = *caps.entry(device).or_insert_with(|| self.cap(recording, device));
                // Failures that contradict each other, because the cap was changed, show only their
                // own bounds.
                let cap = if cap == ReservedCap::None { ReservedCap::of_failure(failure.reservation()) } else { cap };
                let cause = FailureCause::of(failure, cap, total_bytes(recording, device));
                FailureCard { failure: failure.clone(), cap, cause, summary: cause.summary(failure, cap) }
            })
            .collect()
    }
}

/// Returns the size of a device's memory in bytes; 0 if it is not recorded.
fn total_bytes(recording: &Recording, device: DeviceId) -> u64 {
    let devices = &recording.info().devices;
    devices.iter().find(|info| info.device == device.0).map_or(0, |info| info.total_bytes)
}
