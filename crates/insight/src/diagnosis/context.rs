//! Data about one device for all rules: lifetimes, steps, the profile and the blocks at the peak.

use std::collections::BTreeSet;

use vramscope_pool::Settings;
use vramscope_trace::{Allocation, ByteSize, Category, DeviceId, DeviceLifetimes, DeviceState, Peak, Recording};

use super::examined::ExaminedDevice;
use super::finding::{Finding, Problem, Severity};
use super::profile::Profile;
use crate::autopsy::RecordingLines;
use crate::evidence::DeviceEvidence;
use crate::failures::ReservedCap;
use crate::history::History;
use crate::steps::Steps;

/// Number of steps after a moment from which on what lasts that long is not about to end.
const MIN_LATER_STEPS: usize = 3;

/// A device with the data that rules need.
pub(super) struct Context<'r> {
    pub(super) recording: &'r Recording,
    pub(super) history: &'r History,
    pub(super) device: DeviceId,
    pub(super) settings: &'r Settings,
    pub(super) lifetimes: &'r DeviceLifetimes,
    pub(super) steps: Steps,
    pub(super) profile: Profile,
    pub(super) peak_allocated: Peak,
    pub(super) peak_reserved: Peak,
    /// Peak of the active bytes.
    pub(super) peak_active_bytes: u64,
    /// The state at the peak of the reserved bytes, after the request that the last segment serves.
    pub(super) at_peak_reserved: DeviceState,
    /// The state at the end of the last complete step; `None` without steps.
    pub(super) at_last_step: Option<DeviceState>,
    /// Allocated blocks at the peak of the allocated bytes, with their categories.
    pub(super) peak_contents: Vec<(Category, Allocation)>,
    /// Whether a request failed.
    pub(super) has_failure: bool,
}

impl Context<'_> {
    /// Returns the bytes that the pool can get: the smaller of a recorded cap and of the bytes that
    /// it could obtain at the last memory sample; else the device's recorded size.
    pub(super) fn capacity_bytes(&self) -> Option<u64> {
        let info = self.recording.info().device(self.device);
        let total_bytes = info.map_or(0, |info| info.total_bytes);
        let cap_bytes = ReservedCap::recorded(self.settings, total_bytes);
        let obtainable_bytes = self.profile.obtainable.last().map(|report| report.bytes);
        let known = [cap_bytes, obtainable_bytes].into_iter().flatten().min();
        known.or(Some(total_bytes).filter(|&bytes| bytes > 0))
    }

    /// Returns the device as the caller sees it, with the evidence that the rules have.
    pub(super) fn examined(&self) -> ExaminedDevice {
        let Profile { events, obtainable, .. } = &self.profile;
        ExaminedDevice {
            device: self.device,
            evidence: DeviceEvidence::new(self.recording, self.device, &self.steps, *events, obtainable.len()),
            peak_allocated: self.peak_allocated,
            peak_reserved: self.peak_reserved,
            peak_active_bytes: self.peak_active_bytes,
            capacity_bytes: self.capacity_bytes(),
            kept_copies: None,
            has_periods: false,
            is_reproduced: None,
            at_last_step: None,
            lesser_saving: None,
        }
    }

    /// Returns the state while the program still runs, before it frees all at its end, and its
    /// moment: the end of the last complete step, or without steps the end of the recording.
    pub(super) fn last_state(&self) -> Option<(u64, &DeviceState)> {
        let step = self.steps.as_slice().last().map(|step| step.to_event);
        match (step, &self.at_last_step) {
            (Some(event), Some(state)) => Some((event, state)),
            _ => Some((self.recording.end_event(), self.recording.end_state().device(self.device)?)),
        }
    }

    /// Returns true if the program goes on for long after a moment: for several steps, or without
    /// steps for a quarter of the history.
    pub(super) fn goes_on_after(&self, moment: u64) -> bool {
        let steps = self.steps.as_slice();
        let later = steps.len() - steps.partition_point(|step| step.from_event < moment);
        let (first, end) = (self.recording.first_event(), self.recording.end_event());
        match steps.is_empty() {
            true => end.saturating_sub(moment) >= end.saturating_sub(first) / 4,
            false => later >= MIN_LATER_STEPS,
        }
    }

    /// Returns the allocations of one category at the peak of the allocated bytes.
    pub(super) fn of_category(&self, category: Category) -> Vec<Allocation> {
        let of_category = self.peak_contents.iter().filter(|(one, _)| *one == category);
        of_category.map(|(_, allocation)| *allocation).collect()
    }

    /// Returns a finding about `blocks`, whose site is the call of the program that requested them.
    pub(super) fn finding(
        &self,
        lines: &RecordingLines<'_>,
        problem: Problem,
        bytes: u64,
        blocks: &[Allocation],
        summary: String,
    ) -> Finding {
        let moments = blocks.iter().map(|one| one.first_moment);
        let events = (moments.clone().min().unwrap_or(0), moments.max().unwrap_or(0));
        let call = lines.common_call(blocks.iter().map(|one| (one.site, one.size)));
        let names_call = call.is_some();
        let site = call.unwrap_or_else(|| sizes_and_stream(blocks));
        Finding { names_call, ..self.finding_at(problem, bytes, events, site, summary) }
    }

    /// Returns a finding about some events and a call of the program, without a remedy.
    pub(super) fn finding_at(
        &self,
        problem: Problem,
        bytes: u64,
        events: (u64, u64),
        site: String,
        summary: String,
    ) -> Finding {
        Finding {
            problem,
            severity: Severity::of(bytes, self.peak_reserved.bytes),
            device: self.device,
            events,
            bytes,
            site,
            summary,
            remedy: None,
            code: problem.remedy_code(),
            grown_to_bytes: None,
            steps_left: None,
            checked: None,
            names_call: true,
            trials: Vec::new(),
        }
    }
}

/// Returns the sum of the sizes of allocations.
pub(super) fn total_bytes<'a>(blocks: impl IntoIterator<Item = &'a Allocation>) -> u64 {
    blocks.into_iter().fold(0, |sum, one| sum.saturating_add(one.size))
}

/// Returns the sum of the requested sizes of allocations.
pub(super) fn requested_bytes<'a>(blocks: impl IntoIterator<Item = &'a Allocation>) -> u64 {
    blocks.into_iter().fold(0, |sum, one| sum.saturating_add(one.requested))
}

/// Describes blocks without stacks: `blocks of 2 MiB to 8 MiB on stream 0x0`.
fn sizes_and_stream(blocks: &[Allocation]) -> String {
    let sizes = blocks.iter().map(|one| one.size);
    let streams: BTreeSet<u64> = blocks.iter().map(|one| one.stream.0).collect();
    let sizes = sizes.clone().min().zip(sizes.max());
    sizes.map_or_else(String::new, |sizes| sizes_and_streams("blocks", sizes, &streams))
}

/// Describes blocks or segments (`what`) by their range of sizes, in bytes, and their streams.
pub(super) fn sizes_and_streams(what: &str, (least, most): (u64, u64), streams: &BTreeSet<u64>) -> String {
    let (least, most) = (ByteSize(least), ByteSize(most));
    let sizes = if least == most { most.to_string() } else { format!("{least} to {most}") };
    match (streams.first(), streams.len()) {
        (Some(stream), 1) => format!("{what} of {sizes} on stream {stream:#x}"),
        (_, count) => format!("{what} of {sizes} on {count} streams"),
    }
}
