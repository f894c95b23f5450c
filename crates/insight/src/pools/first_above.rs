//! The first moment at which the fragmentation of a device is above a value.

use vramscope_trace::{DeviceId, DeviceState, Event, EventKind, FormatError, Recording};

use super::event_walk::{EventWalk, WalkStep};

/// A moment at which fragmentation has passed a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FragmentationCrossing {
    /// The number of the event that raised it; the first moment if the recording begins above the
    /// value.
    pub event: u64,
    /// Time of the event, in nanoseconds since the recording's time 0.
    pub time_ns: u64,
    /// The fragmentation right after the event, from 0 to 1.
    pub fragmentation: f64,
}

/// A search, in steps, for the first moment at which the fragmentation of a device is above a
/// value.
///
/// The result is exact: every event counts, also between two sampled moments. Visiting all blocks
/// after every event would take 12 ns times their number each time, so the search follows the bytes
/// that are left of the largest known free block. While fragmentation with that block as the
/// largest is at most the value, the true fragmentation is, too.
#[derive(Clone, Debug)]
pub struct FirstAbove {
    device: DeviceId,
    threshold: f64,
    walk: EventWalk,
    /// First and end address of a free range: the largest free block when all were last visited,
    /// and later what is left of it.
    known_free: (u64, u64),
    found: Option<FragmentationCrossing>,
}

impl FirstAbove {
    /// Begins a search from the first moment of a recording. `threshold` is from 0 to 1.
    ///
    /// # Errors
    /// If a chunk cannot be read.
    pub fn new(recording: &Recording, device: DeviceId, threshold: f64) -> Result<Self, FormatError> {
        let walk = EventWalk::of_device(recording, device, recording.first_event())?;
        let mut search = Self { device, threshold, walk, known_free: (0, 0), found: None };
        search.check();
        Ok(search)
    }

    /// Continues the search by `max_work` units: one for each event and for every eight blocks
    /// visited; a unit takes 0.2 microseconds. Returns true once the search is finished; after a
    /// live recording has grown, a later call continues it.
    ///
    /// # Errors
    /// If a chunk cannot be read.
    pub fn step(&mut self, recording: &Recording, max_work: u64) -> Result<bool, FormatError> {
        let mut work = 0;
        while work < max_work && self.found.is_none() {
            work += 1;
            match self.walk.next(recording)? {
                Some(WalkStep::Event(event)) if event.device == self.device => {
                    self.shrink(&event);
                    work += self.check();
                }
                Some(WalkStep::Event(_)) => {}
                Some(WalkStep::Replaced) => {
                    self.known_free = (0, 0);
                    work += self.check();
                }
                None => return Ok(true),
            }
        }
        Ok(self.found.is_some())
    }

    /// Returns the moment up to which all events have been visited.
    #[must_use]
    pub fn moment(&self) -> u64 {
        self.walk.state().event()
    }

    /// Returns the first moment at which fragmentation is above the value; `None` if it
    /// never is, or the search has not finished.
    #[must_use]
    pub fn found(&self) -> Option<FragmentationCrossing> {
        self.found
    }

    /// Removes the addresses that an event may have taken from the known free range.
    fn shrink(&mut self, event: &Event) {
        let (address, size) = match event.kind {
            EventKind::BlockAllocated { address, size, .. }
            | EventKind::SegmentFreed { address, size, .. }
            | EventKind::SegmentUnmapped { address, size, .. }
            // A new segment removes a contradictory one below it.
            | EventKind::SegmentAllocated { address, size, .. }
            | EventKind::SegmentMapped { address, size, .. } => (address, size),
            _ => return,
        };
        let (first, end) = self.known_free;
        let (taken, taken_end) = (address, address.saturating_add(size));
        if taken_end <= first || end <= taken {
            return;
        }
        // A contradictory event may remove a whole segment.
        if !matches!(event.kind, EventKind::BlockAllocated { .. } | EventKind::SegmentUnmapped { .. }) {
            self.known_free = (0, 0);
            return;
        }
        let (below, above) = ((first, taken.max(first)), (taken_end.min(end), end));
        self.known_free = if below.1 - below.0 >= above.1 - above.0 { below } else { above };
    }

    /// Visits all blocks if the known free range does not show that fragmentation is at most the
    /// value, and ends the search if it is above. Returns the units of work that this took.
    fn check(&mut self) -> u64 {
        let Some(device) = self.walk.state().device(self.device) else { return 0 };
        let known_bytes = self.known_free.1 - self.known_free.0;
        // Blocks outside of every segment make this less than the free bytes, but a recording with
        // such blocks has inconsistencies.
        let counters = device.counters();
        let free_bytes = counters.reserved.saturating_sub(counters.active);
        if device.inconsistencies() == 0 && vramscope_trace::fragmentation(known_bytes, free_bytes) <= self.threshold {
            return 0;
        }
        let work = (device.blocks().len() + device.segments().len()) as u64 / 8;
        let (largest, fragmentation) = largest_free(device);
        self.known_free = largest;
        if fragmentation > self.threshold {
            let (event, time_ns) = (self.walk.state().event(), self.walk.state().time_ns());
            self.found = Some(FragmentationCrossing { event, time_ns, fragmentation });
        }
        work
    }
}

/// Returns the first and end address of the largest free block, and the device's fragmentation.
fn largest_free(device: &DeviceState) -> ((u64, u64), f64) {
    let (mut largest, mut total) = ((0, 0), 0u64);
    for segment in device.segments() {
        for extent in device.extents(segment).filter(|extent| extent.block.is_none()) {
            total = total.saturating_add(extent.size);
            if extent.size > largest.1 - largest.0 {
                largest = (extent.address, extent.address + extent.size);
            }
        }
    }
    (largest, vramscope_trace::fragmentation(largest.1 - largest.0, total))
}
