//! Measurements for the rules, made in one pass over the events of a device.

use std::collections::BTreeMap;

use vramscope_trace::{DeviceId, DeviceState, Event, EventKind, Peak, Recording, SiteId, StreamId};

use crate::failures::{Retry, RetryTracker};
use crate::steps::Steps;

/// Segments that were released although no request needed it: the program emptied the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EmptiedCache {
    /// The number of the first release.
    pub(super) event: u64,
    /// Bytes of the released segments and mapped ranges.
    pub(super) bytes: u64,
    /// Where they were released.
    pub(super) site: SiteId,
}

/// The memory that the pool could obtain at a moment: its reserved bytes, and the driver's free
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Obtainable {
    /// The number of the event that reported it.
    pub(super) event: u64,
    /// Reserved bytes and free bytes of the device.
    pub(super) bytes: u64,
    /// The site of the request that failed; `None` for a memory sample.
    pub(super) site: Option<SiteId>,
}

/// Segments and ranges of one site and stream that were obtained after others had been released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ObtainedAgain {
    /// Bytes of all segments and ranges.
    pub(super) bytes: u64,
    /// Bytes of the smallest segment or range.
    pub(super) least_bytes: u64,
    /// Bytes of the largest segment or range.
    pub(super) most_bytes: u64,
}

impl Default for ObtainedAgain {
    fn default() -> Self {
        Self { bytes: 0, least_bytes: u64::MAX, most_bytes: 0 }
    }
}

/// Measurements over the events of a device.
#[derive(Clone, Debug, Default)]
pub(super) struct Profile {
    /// Number of the device's events.
    pub(super) events: u64,
    /// Segments and ranges that were obtained from the driver after the first release, by the site
    /// and stream of the request that needed them.
    pub(super) obtained_again: BTreeMap<(SiteId, StreamId), ObtainedAgain>,
    /// Bytes of segments and ranges that were obtained from the driver, by site.
    pub(super) obtained: BTreeMap<SiteId, u64>,
    /// Bytes of all entries of `obtained_again`, at most the released bytes.
    pub(super) obtained_again_bytes: u64,
    /// Bytes of the segments and ranges that were released.
    pub(super) released_bytes: u64,
    /// Successful requests for which segments were released.
    pub(super) retries: Vec<Retry>,
    /// Releases that no request needed.
    pub(super) emptied: Vec<EmptiedCache>,
    /// The moment before the request at which most bytes were pending free, and the bytes. Frees
    /// that complete before the next request are not counted.
    pub(super) pending_peak: Peak,
    /// Peak of the allocated bytes in each step.
    pub(super) step_peaks: Vec<u64>,
    /// The most bytes that other processes held at a memory sample.
    pub(super) others_peak: Peak,
    /// Bytes that the pool could obtain, at each memory sample.
    pub(super) obtainable: Vec<Obtainable>,
}

/// Measures the [`Profile`] of a device, event by event.
#[derive(Clone, Debug)]
pub(super) struct ProfileBuilder {
    retries: RetryTracker,
    /// The present series of releases, until an event shows whether a request needed it.
    releases: Option<EmptiedCache>,
    steps: Steps,
    /// The position of the step that contains the next event, or follows it.
    position: usize,
    /// Bytes that are pending free after the previous event.
    pending_bytes: u64,
    profile: Profile,
}

/// Maximum number of entries of each list in a profile; later entries are not kept.
const MAX_ENTRIES: usize = 65_536;

/// Adds an entry to a list, unless the list already has [`MAX_ENTRIES`]: no rule needs more.
fn push_bounded<T>(list: &mut Vec<T>, entry: T) {
    if list.len() < MAX_ENTRIES {
        list.push(entry);
    }
}

impl ProfileBuilder {
    /// Begins the profile of a device of `recording` with its steps.
    pub(super) fn new(recording: &Recording, device: DeviceId, steps: Steps) -> Self {
        Self {
            retries: RetryTracker::new(recording, device),
            releases: None,
            profile: Profile { step_peaks: vec![0; steps.len()], ..Profile::default() },
            steps,
            position: 0,
            pending_bytes: 0,
        }
    }

    /// Raises the peak of the step that contains the event with number `number`.
    fn raise_step_peak(&mut self, number: u64, allocated_bytes: u64) {
        let steps = self.steps.as_slice();
        while steps.get(self.position).is_some_and(|step| step.to_event < number) {
            self.position += 1;
        }
        if steps.get(self.position).is_some_and(|step| step.from_event < number)
            && let Some(peak) = self.profile.step_peaks.get_mut(self.position)
        {
            *peak = (*peak).max(allocated_bytes);
        }
    }

    /// Adds the event with number `number`; `after` is the state after it.
    pub(super) fn event(&mut self, number: u64, event: &Event, after: &DeviceState) {
        self.profile.events += 1;
        let retry = self.retries.event(number, event, after);
        let counters = after.counters();
        self.raise_step_peak(number, counters.allocated);
        let pending_bytes =
            std::mem::replace(&mut self.pending_bytes, counters.active.saturating_sub(counters.allocated));
        let profile = &mut self.profile;
        let is_request = matches!(
            event.kind,
            EventKind::BlockAllocated { .. } | EventKind::SegmentAllocated { .. } | EventKind::OutOfMemory { .. }
        );
        if is_request && pending_bytes > profile.pending_peak.bytes {
            profile.pending_peak = Peak { event: number.saturating_sub(1), bytes: pending_bytes };
        }
        if let EventKind::SegmentFreed { size, site, .. } | EventKind::SegmentUnmapped { size, site, .. } = event.kind {
            profile.released_bytes = profile.released_bytes.saturating_add(size);
            let releases = self.releases.get_or_insert(EmptiedCache { event: number, bytes: 0, site });
            releases.bytes = releases.bytes.saturating_add(size);
            return;
        }
        let device_free = match event.kind {
            EventKind::SegmentAllocated { size, stream, site, .. }
            | EventKind::SegmentMapped { size, stream, site, .. } => {
                let obtained = profile.obtained.entry(site).or_default();
                *obtained = obtained.saturating_add(size);
                // No more is obtained again than was released.
                let bytes = size.min(profile.released_bytes.saturating_sub(profile.obtained_again_bytes));
                if bytes > 0 {
                    profile.obtained_again_bytes = profile.obtained_again_bytes.saturating_add(bytes);
                    let again = profile.obtained_again.entry((site, stream)).or_default();
                    again.bytes = again.bytes.saturating_add(bytes);
                    again.least_bytes = again.least_bytes.min(size);
                    again.most_bytes = again.most_bytes.max(size);
                }
                None
            }
            EventKind::OutOfMemory { device_free, site, .. } => Some((device_free, Some(site))),
            EventKind::MemorySample { free, used_by_others, .. } => {
                if used_by_others > profile.others_peak.bytes {
                    profile.others_peak = Peak { event: number, bytes: used_by_others };
                }
                Some((free, None))
            }
            _ => None,
        };
        if let Some((free, site)) = device_free {
            let bytes = counters.reserved.saturating_add(free);
            push_bounded(&mut profile.obtainable, Obtainable { event: number, bytes, site });
        }
        let is_retry = retry.is_some();
        if let Some(retry) = retry.filter(|retry| !retry.failed) {
            push_bounded(&mut profile.retries, retry);
        }
        let ends_releases = !matches!(
            event.kind,
            EventKind::FreeCompleted { .. } | EventKind::MemorySample { .. } | EventKind::Mark { .. }
        );
        if ends_releases
            && let Some(emptied) = self.releases.take()
            && !is_retry
        {
            push_bounded(&mut profile.emptied, emptied);
        }
    }

    /// Forgets unfinished releases, because a full state has replaced the memory state.
    pub(super) fn replaced(&mut self) {
        self.releases = None;
    }

    /// Returns the steps, and the profile of the events so far.
    pub(super) fn finish(mut self) -> (Steps, Profile) {
        if let Some(emptied) = self.releases.take() {
            push_bounded(&mut self.profile.emptied, emptied);
        }
        (self.steps, self.profile)
    }
}
