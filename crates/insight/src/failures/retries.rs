//! Retries: requests for which the allocator released its free segments and asked the driver again.
//!
//! No event says that a request was retried. It shows as segments that are released directly before
//! a new one is reserved, or before the request fails. Three other causes look alike:
//!
//! - The program called `empty_cache` before. Then the site of the release is another or not
//!   recorded, because PyTorch records stacks of releases that the program asks for at its highest
//!   level only, or the new segment had fitted without it: the allocator once had as much reserved
//!   as both together.
//! - The release of oversize blocks, which `max_split_size` keeps from being used. Then other
//!   segments stay free.
//! - Garbage collection, which comes before a retry. With `garbage_collection_threshold` set, only
//!   failed requests count as retries.

use std::collections::BTreeMap;

use vramscope_trace::{DeviceId, DeviceState, Event, EventKind, FormatError, MempoolId, Recording, SiteId};

use crate::placement::recorded_settings;
use crate::pools::event_walk::{EventWalk, WalkStep};

/// A request for which the allocator released its free segments and asked the driver again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Number of the event after the releases: a new segment, a mapped range, or out of memory.
    pub event: u64,
    /// Time of that event, in nanoseconds since the recording's time 0.
    pub time_ns: u64,
    /// The device.
    pub device: DeviceId,
    /// Where the request was made.
    pub site: SiteId,
    /// Number of segments and mapped ranges that were released; 0 if nothing was free.
    pub released: u64,
    /// Bytes of the released segments and mapped ranges.
    pub released_bytes: u64,
    /// Bytes reserved before the release.
    pub reserved_bytes: u64,
    /// Free bytes among the reserved ones. Blocks that are pending free are not free.
    pub free_bytes: u64,
    /// Whether the request then failed.
    pub failed: bool,
}

/// Successive releases of segments.
#[derive(Clone, Copy, Debug)]
struct Releases {
    site: SiteId,
    count: u64,
    bytes: u64,
    /// Bytes reserved before the first of them.
    reserved_before: u64,
    /// Free bytes among the reserved ones.
    free_before: u64,
}

/// Recognizes retries of one device while its events are visited in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct RetryTracker {
    releases: Option<Releases>,
    /// Peak of the device's reserved bytes in the whole recording.
    peak_reserved_bytes: u64,
    /// Whether the allocator also releases segments to collect garbage.
    collects_garbage: bool,
}

impl RetryTracker {
    /// Creates a tracker for a device of `recording`.
    pub(crate) fn new(recording: &Recording, device: DeviceId) -> Self {
        let collects_garbage = recorded_settings(recording.info()).garbage_collection_threshold > 0.0;
        let mut tracker = Self { releases: None, peak_reserved_bytes: 0, collects_garbage };
        tracker.update_peak(recording, device);
        tracker
    }

    /// Reads the device's peak of reserved bytes again, after a live recording has grown.
    pub(crate) fn update_peak(&mut self, recording: &Recording, device: DeviceId) {
        self.peak_reserved_bytes = recording.series(device).map_or(0, |series| series.peak_reserved().bytes);
    }

    /// Returns true if every retry can be recognized; false if garbage collection looks like one.
    pub(crate) fn is_certain(&self) -> bool {
        !self.collects_garbage
    }

    /// Visits the device's next event, with number `number`; `after` is the state after it. Returns
    /// the retry that the event ends, if any.
    pub(crate) fn event(&mut self, number: u64, event: &Event, after: &DeviceState) -> Option<Retry> {
        let retry = |site, releases: Option<Releases>, failed| Retry {
            event: number,
            time_ns: event.time_ns,
            device: event.device,
            site,
            released: releases.map_or(0, |releases| releases.count),
            released_bytes: releases.map_or(0, |releases| releases.bytes),
            reserved_bytes: releases.map_or(after.counters().reserved, |releases| releases.reserved_before),
            free_bytes: releases.map_or(0, |releases| releases.free_before),
            failed,
        };
        match event.kind {
            EventKind::SegmentFreed { size, site, .. } | EventKind::SegmentUnmapped { size, site, .. } => {
                let reserved_before = after.counters().reserved.saturating_add(size);
                let free_before = reserved_before.saturating_sub(after.counters().active);
                let new = Releases { site, count: 0, bytes: 0, reserved_before, free_before };
                let releases = self.releases.get_or_insert(new);
                releases.count += 1;
                releases.bytes = releases.bytes.saturating_add(size);
                None
            }
            EventKind::SegmentAllocated { address, size, site, .. }
            | EventKind::SegmentMapped { address, size, site, .. } => {
                let releases = self.releases.take()?;
                let needed = releases.reserved_before.saturating_add(size) > self.peak_reserved_bytes;
                let is_retry =
                    !self.collects_garbage && releases.site == site && needed && !has_free_segment(after, address);
                is_retry.then(|| retry(site, Some(releases), false))
            }
            EventKind::OutOfMemory { site, .. } => Some(retry(site, self.releases.take(), true)),
            // The allocator waits for pending frees before it releases segments.
            EventKind::FreeCompleted { .. } | EventKind::MemorySample { .. } | EventKind::Mark { .. } => None,
            _ => {
                self.releases = None;
                None
            }
        }
    }
}

/// Returns true if a segment of the default pool, other than the one that contains the address
/// `except`, is free as a whole.
fn has_free_segment(device: &DeviceState, except: u64) -> bool {
    let mut segments = device.segments().filter(|segment| {
        let is_other = !(segment.address..segment.end()).contains(&except);
        segment.pool.owner == MempoolId::default() && !segment.expandable && is_other
    });
    segments.any(|segment| device.is_free(segment))
}

/// The retries of a recording, found in steps.
#[derive(Clone, Debug)]
pub struct Retries {
    walk: EventWalk,
    trackers: BTreeMap<DeviceId, RetryTracker>,
    retries: Vec<Retry>,
}

impl Retries {
    /// Creates an empty list that starts at the first moment of a recording.
    ///
    /// # Errors
    /// If a chunk cannot be read.
    pub fn new(recording: &Recording) -> Result<Self, FormatError> {
        let walk = EventWalk::new(recording, recording.first_event())?;
        Ok(Self { walk, trackers: BTreeMap::new(), retries: Vec::new() })
    }

    /// Visits up to `max_events` more events, 0.2 microseconds each. Returns true at the end; after
    /// a live recording has grown, a later call continues.
    ///
    /// # Errors
    /// If a chunk cannot be read.
    pub fn step(&mut self, recording: &Recording, max_events: u64) -> Result<bool, FormatError> {
        for device in recording.devices() {
            let new = || RetryTracker::new(recording, device);
            self.trackers.entry(device).or_insert_with(new).update_peak(recording, device);
        }
        for _ in 0..max_events {
            match self.walk.next(recording)? {
                Some(WalkStep::Event(event)) => {
                    let state = self.walk.state();
                    let tracker = self.trackers.get_mut(&event.device);
                    if let Some((tracker, device)) = tracker.zip(state.device(event.device)) {
                        self.retries.extend(tracker.event(state.event(), &event, device));
                    }
                }
                Some(WalkStep::Replaced) => {
                    self.trackers.values_mut().for_each(|tracker| tracker.releases = None);
                }
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Returns the retries found so far, in the order of events.
    #[must_use]
    pub fn found(&self) -> &[Retry] {
        &self.retries
    }
}
