//! The out-of-memory errors of a recording and the placements of requests, kept between calls.

use vramscope_pool::Settings;
use vramscope_trace::{
    ByteSize, Counters, DeviceId, DeviceState, FormatError, Incident, IncidentKind, Recording, Replay,
};

use crate::failures::{Failure, Failures};
use crate::placement::{Placement, PlacementRequest, placement, recorded_settings};

/// The out-of-memory errors of a recording, where the allocator looked for memory at each, and
/// where it would place another request.
#[derive(Default)]
pub struct FailureAnalysis {
    /// `None` before they are needed.
    failures: Option<Failures>,
    /// For each failure, the placement that its request needed; `None` if it is unknown.
    placements: Vec<Option<Placement>>,
    /// The request that was placed last.
    placed: Option<(PlacedKey, Result<Placement, String>)>,
}

/// The inputs of the placement of a request, which is computed again when they change.
#[derive(Clone, Debug, PartialEq)]
struct PlacedKey {
    device: DeviceId,
    moment: u64,
    counters: Counters,
    cap_bytes: Option<u64>,
    size: String,
}

impl FailureAnalysis {
    /// Returns the out-of-memory errors of the recording, all read.
    ///
    /// # Errors
    /// If an error's moment is not loaded, or cannot be read.
    pub fn failures(&mut self, recording: &Recording) -> Result<&Failures, FormatError> {
        let failures = self.failures.get_or_insert_with(|| Failures::new(recorded_settings(recording.info())));
        failures.step(recording, usize::MAX)?;
        Ok(failures)
    }

    /// Returns the allocator's settings as recorded, with the cap that the recording's
    /// out-of-memory errors show.
    pub fn settings(&mut self, recording: &Recording, device: DeviceId) -> Settings {
        let mut settings = recorded_settings(recording.info());
        if let Ok(failures) = self.failures(recording) {
            settings.limit_bytes = failures.cap(recording, device).most_bytes();
        }
        settings
    }

    /// Returns, for each of the recording's out-of-memory errors, where the allocator looked for
    /// memory and the blocks in the way; `None` where they are unknown.
    ///
    /// # Errors
    /// If an error's moment is not loaded, or cannot be read.
    pub fn placements(&mut self, recording: &Recording) -> Result<&[Option<Placement>], FormatError> {
        self.failures(recording)?;
        let Some(failures) = &self.failures else { return Ok(&[]) };
        let known = self.placements.len();
        let mut replay = Replay::new();
        for failure in failures.failures().iter().skip(known) {
            let state = replay.seek(recording, failure.event.saturating_sub(1))?;
            let cap = failures.cap(recording, failure.device).about_bytes();
            let settings = Settings { limit_bytes: cap, ..recorded_settings(recording.info()) };
            let placement =
                state.device(failure.device).and_then(|device| placement(device, &failure.request(), &settings).ok());
            self.placements.push(placement);
        }
        Ok(&self.placements)
    }

    /// Returns the failure of a device at which, or right before which, a moment is, and where its
    /// request was tried; `None` if no request failed then.
    ///
    /// # Errors
    /// If an error's moment is not loaded, or cannot be read.
    pub fn at(
        &mut self,
        recording: &Recording,
        device: DeviceId,
        moment: u64,
    ) -> Result<Option<(&Failure, Option<&Placement>)>, FormatError> {
        // Almost no moment is one of a failure.
        let events = moment.saturating_sub(1)..=moment;
        let is_failure = |one: &Incident| {
            matches!(one.kind, IncidentKind::OutOfMemory { .. })
                && one.device == device
                && events.contains(&one.at_event)
        };
        if !recording.incidents().iter().any(is_failure) {
            return Ok(None);
        }
        let is_there = |failure: &Failure| {
            failure.device == device && (failure.event == moment || failure.event == moment.saturating_add(1))
        };
        let failures = self.failures(recording)?.failures();
        let exact = failures.iter().position(|failure| is_there(failure) && failure.event == moment);
        let Some(index) = exact.or_else(|| failures.iter().position(is_there)) else { return Ok(None) };
        self.placements(recording)?;
        let failure = self.failures.as_ref().and_then(|failures| failures.failures().get(index));
        let placement = self.placements.get(index).and_then(Option::as_ref);
        Ok(failure.map(|failure| (failure, placement)))
    }

    /// Returns where the allocator would place a request of the typed `size` in the memory `state`
    /// of a device at a moment; `None` if nothing was typed.
    ///
    /// # Errors
    /// If the size is invalid, or the request cannot be placed: a message for the user.
    pub fn placement_of(
        &mut self,
        recording: &Recording,
        (device, moment, state): (DeviceId, u64, &DeviceState),
        size: &str,
    ) -> Option<Result<&Placement, &str>> {
        if size.is_empty() {
            return None;
        }
        let settings = self.settings(recording, device);
        let (counters, cap_bytes) = (state.counters(), settings.limit_bytes);
        let key = PlacedKey { device, moment, counters, cap_bytes, size: size.to_owned() };
        let kept = self.placed.take().filter(|(known, _)| *known == key);
        let (_, result) = self.placed.insert(kept.unwrap_or_else(|| {
            let result = size.parse::<ByteSize>().map_err(|error| error.to_string()).and_then(|ByteSize(bytes)| {
                let request = PlacementRequest::new(state, bytes);
                placement(state, &request, &settings).map_err(|error| error.to_string())
            });
            (key, result)
        }));
        Some(result.as_ref().map_err(String::as_str))
    }
}
