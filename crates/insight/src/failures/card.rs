//! The cards of all failures of a recording, built in steps.

use std::collections::BTreeMap;

use vramscope_pool::Settings;
use vramscope_trace::{DeviceId, FormatError, IncidentKind, Recording, Replay};

use super::cap::ReservedCap;
use super::cause::OomCause;
use super::device_memory::DeviceMemory;
use super::failure::Failure;

/// A failed request with the cap that it ran into and its cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureCard {
    /// The request and the memory at that moment.
    pub failure: Failure,
    /// The cap on the reserved bytes.
    pub cap: ReservedCap,
    /// The device's size and what others hold of it.
    pub device: DeviceMemory,
    /// Why it failed.
    pub cause: OomCause,
    /// The issue of pytorch/pytorch that describes the failure, if a known defect of PyTorch's
    /// allocator caused it.
    pub pytorch_issue: Option<u32>,
    /// Why it failed, as sentences for users.
    pub summary: String,
}

/// The failures of a recording, read in steps and extended as a live recording grows. None is
/// omitted, however close together they are.
#[derive(Clone, Debug, Default)]
pub struct Failures {
    settings: Settings,
    failures: Vec<Failure>,
    /// For each failure, the maximum bytes that its device's pool could obtain up to it.
    most_obtainable_bytes: Vec<u64>,
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
                self.read(recording, incident.at_event)?;
            }
            self.incidents += 1;
        }
        Ok(true)
    }

    /// Reads the failure after the moment `at_event`, without the failures before it.
    ///
    /// # Errors
    /// If a chunk cannot be read.
    pub(crate) fn read(&mut self, recording: &Recording, at_event: u64) -> Result<(), FormatError> {
        if let Some(failure) = Failure::read(recording, &mut self.replay, at_event, &self.settings)? {
            let earlier = self.failures.iter().zip(&self.most_obtainable_bytes).rev();
            let earlier = earlier.filter(|(other, _)| other.device == failure.device).map(|(_, &most)| most);
            let most = failure.obtainable_bytes().max(earlier.take(1).sum());
            self.most_obtainable_bytes.push(most);
            self.failures.push(failure);
        }
        Ok(())
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
            .zip(&self.most_obtainable_bytes)
            .map(|(failure, &most_obtainable_bytes)| {
                let device = failure.device;
                let cap = *caps.entry(device).or_insert_with(|| self.cap(recording, device));
                // Failures that contradict each other, because the cap was changed, show only their
                // own bounds.
                let cap = if cap == ReservedCap::None { ReservedCap::of_failure(failure.reservation()) } else { cap };
                let total_bytes = Some(total_bytes(recording, device)).filter(|&bytes| bytes > 0);
                let device = DeviceMemory::at(failure, total_bytes, most_obtainable_bytes);
                let cause = OomCause::of(failure, cap, device);
                FailureCard {
                    failure: failure.clone(),
                    cap,
                    device,
                    cause,
                    pytorch_issue: cause.pytorch_issue(failure, &self.settings),
                    summary: cause.summary(failure, cap, device, &self.settings),
                }
            })
            .collect()
    }
}

/// Returns the size of a device's memory in bytes; 0 if it is not recorded.
fn total_bytes(recording: &Recording, device: DeviceId) -> u64 {
    recording.info().device(device).map_or(0, |info| info.total_bytes)
}
