//! The addresses that a device's segments occupy over time.

use std::collections::BTreeMap;

use vramscope_trace::{DeviceState, Event, EventKind};

/// A range of addresses that was reserved without change between two moments: a segment, or a
/// mapped part of an expandable one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSpan {
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// The first moment at which it is reserved.
    pub first_moment: u64,
    /// The first moment at which it is not reserved any more; `u64::MAX` if it is reserved at the
    /// end.
    pub end: u64,
    /// Whether it is a mapped part of an expandable segment; adjacent parts belong together.
    pub is_mapped_part: bool,
}

impl SegmentSpan {
    /// Returns the address after the last byte.
    #[must_use]
    pub const fn end_address(&self) -> u64 {
        self.address.saturating_add(self.size)
    }
}

/// Sorts spans by a key, in ascending order.
pub(super) fn sort_spans(spans: &mut [SegmentSpan], key: fn(&SegmentSpan) -> u64) {
    spans.sort_unstable_by_key(key);
}

/// The reserved memory of one device over time, from the events of its segments.
///
/// Add the full state at the recording's beginning and every event of the device; events of blocks
/// may be left out. Where events are missing, add the full state that follows. Each event of a
/// segment takes 40 bytes.
#[derive(Clone, Debug, Default)]
pub struct SegmentSpans {
    /// Ended spans, in the order of their ends.
    ended: Vec<SegmentSpan>,
    /// Spans that are reserved now, by address: size, first moment, `is_mapped_part`.
    open: BTreeMap<u64, (u64, u64, bool)>,
}

impl SegmentSpans {
    /// Creates the spans of a device without memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an event of the device; `moment` is the event's number (its index + 1). Events that do
    /// not concern segments have no effect.
    #[inline]
    pub fn event(&mut self, moment: u64, event: &Event) {
        match event.kind {
            EventKind::SegmentAllocated { address, size, .. } => self.reserve(moment, address, size, false),
            EventKind::SegmentMapped { address, size, .. } => self.reserve(moment, address, size, true),
            EventKind::SegmentFreed { address, .. } => {
                if let Some(&(size, ..)) = self.open.get(&address) {
                    self.release(moment, address, size);
                }
            }
            EventKind::SegmentUnmapped { address, size, .. } => self.release(moment, address, size),
            _ => {}
        }
    }

    /// Applies a full state of the device at `moment`: ends the spans that the state lacks, and
    /// begins spans for its new segments.
    pub fn apply_full_state(&mut self, moment: u64, state: &DeviceState) {
        // A full state has one entry for an expandable segment that has several spans here, so only
        // addresses that differ are changed.
        let contains = |address: u64, size: u64| {
            state.segment_at(address).is_some_and(|segment| address.saturating_add(size) <= segment.end())
        };
        let open = self.open.iter().map(|(&address, &(size, ..))| (address, size));
        let absent: Vec<(u64, u64)> = open.filter(|&(address, size)| !contains(address, size)).collect();
        for (address, size) in absent {
            self.release(moment, address, size);
        }
        for segment in state.segments() {
            let mut address = segment.address;
            let known: Vec<(u64, u64)> = self
                .open
                .range(segment.address..segment.end())
                .map(|(&address, &(size, ..))| (address, size))
                .collect();
            for (start, size) in known {
                self.reserve(moment, address, start.saturating_sub(address), segment.expandable);
                address = start.saturating_add(size);
            }
            self.reserve(moment, address, segment.end().saturating_sub(address), segment.expandable);
        }
    }

    /// Ends all reservations at `moment`.
    pub(super) fn release_all(&mut self, moment: u64) {
        self.release(moment, 0, u64::MAX);
    }

    /// Begins a span of `size` bytes at `address`, and ends the spans that overlap it.
    fn reserve(&mut self, moment: u64, address: u64, size: u64, is_mapped_part: bool) {
        if size == 0 || address.checked_add(size).is_none() {
            return;
        }
        self.release(moment, address, size);
        self.open.insert(address, (size, moment, is_mapped_part));
    }

    /// Ends the reservation of `size` bytes at `address`; reserved parts before and after stay.
    fn release(&mut self, moment: u64, address: u64, size: u64) {
        let end = address.saturating_add(size);
        while let Some((&start, &(open_size, since, is_mapped_part))) = self.open.range(..end).next_back() {
            let open_end = start.saturating_add(open_size);
            if open_end <= address {
                break;
            }
            self.open.remove(&start);
            if moment > since {
                let (address, size) = (start, open_size);
                self.ended.push(SegmentSpan { address, size, first_moment: since, end: moment, is_mapped_part });
            }
            // The parts before and after stay reserved, as spans of their own.
            if start < address {
                self.open.insert(start, (address - start, moment, is_mapped_part));
            }
            if end < open_end {
                self.open.insert(end, (open_end - end, moment, is_mapped_part));
            }
            if start < address {
                break;
            }
        }
    }

    /// Returns the spans that are reserved at any moment from `first` to `last`, in no particular
    /// order. The cost is linear in the number of spans that end after `first`.
    pub fn between(&self, first: u64, last: u64) -> impl Iterator<Item = SegmentSpan> + '_ {
        let ended = &self.ended[self.ended.partition_point(|span| span.end <= first)..];
        let open = self.open.iter().map(|(&address, &(size, first_moment, is_mapped_part))| SegmentSpan {
            address,
            size,
            first_moment,
            end: u64::MAX,
            is_mapped_part,
        });
        ended.iter().copied().chain(open).filter(move |span| span.first_moment <= last)
    }

    /// Returns the memory that the spans occupy, in bytes, approximately.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.ended.capacity() * size_of::<SegmentSpan>() + self.open.len() * 40
    }
}

#[cfg(test)]
mod tests {
    use vramscope_trace::{DeviceId, PoolKey, SiteId, StreamId};

    use super::*;

    /// Adds events (kind, address, size), and returns the spans by start as (address, size, first
    /// moment, end).
    fn spans(events: &[(char, u64, u64)]) -> Vec<(u64, u64, u64, u64)> {
        let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
        let mut spans = SegmentSpans::new();
        for (moment, &(kind, address, size)) in (1..).zip(events) {
            let kind = match kind {
                'a' => EventKind::SegmentAllocated { address, size, stream, pool, site },
                'm' => EventKind::SegmentMapped { address, size, stream, pool, site },
                'u' => EventKind::SegmentUnmapped { address, size, site },
                _ => EventKind::SegmentFreed { address, size, site },
            };
            spans.event(moment, &Event { device: DeviceId(0), time_ns: 0, kind });
        }
        let mut all: Vec<_> =
            spans.between(0, u64::MAX).map(|span| (span.address, span.size, span.first_moment, span.end)).collect();
        all.sort_unstable_by_key(|&(address, size, first_moment, _)| (first_moment, address, size));
        all
    }

    #[test]
    fn segments_last_from_allocation_to_free() {
        assert_eq!(spans(&[('a', 100, 50), ('a', 200, 10), ('f', 100, 50)]), [(100, 50, 1, 3), (200, 10, 2, u64::MAX)]);
        assert_eq!(spans(&[('f', 100, 50)]), []);
        assert_eq!(spans(&[('a', u64::MAX - 1, 50), ('a', 3, 0)]), []);
    }

    #[test]
    fn unmapping_splits_the_mapped_part() {
        let expected = [(100, 60, 1, 2), (100, 20, 2, u64::MAX), (140, 20, 2, u64::MAX)];
        assert_eq!(spans(&[('m', 100, 60), ('u', 120, 20)]), expected);
        let expected = [(100, 20, 1, 3), (120, 20, 2, 3), (110, 20, 3, 3), (100, 10, 3, u64::MAX)];
        let found = spans(&[('m', 100, 20), ('m', 120, 20), ('u', 110, 30)]);
        assert_eq!(found, [expected[0], expected[1], expected[3]]);
    }

    #[test]
    fn overlapping_segment_replaces_the_older_one() {
        assert_eq!(spans(&[('a', 100, 50), ('a', 100, 80)]), [(100, 50, 1, 2), (100, 80, 2, u64::MAX)]);
    }
}
