//! The vertical axis of the address map: reserved addresses without the gaps between them.

use std::ops::Range;

use super::segment_spans::{SegmentSpan, sort_spans};

/// A contiguous range of addresses, each of which is reserved at one or more of the shown moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// Position of its first byte on the axis, in bytes from the axis's lower end.
    pub offset: u64,
}

/// The vertical axis of an address map: ranges of addresses above each other, with short gaps
/// between them. A position on the axis is a number of bytes from its lower end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressAxis {
    ranges: Vec<AddressRange>,
    length: u64,
}

impl AddressAxis {
    /// Creates the axis of all addresses of `spans`. Where `rows` pixel rows leave space for it, a
    /// gap about 2 pixels wide separates two ranges.
    #[must_use]
    pub fn new(spans: impl Iterator<Item = SegmentSpan>, rows: u32) -> Self {
        let mut spans: Vec<SegmentSpan> = spans.collect();
        sort_spans(&mut spans, |span| span.address);
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (start, end) in spans.iter().map(|span| (span.address, span.end_address())) {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        let bytes = merged.iter().fold(0u64, |sum, (start, end)| sum.saturating_add(end - start));
        // At most a quarter of the height is for gaps.
        let has_gaps = merged.len() as u64 * 8 <= u64::from(rows);
        let gap = if has_gaps { bytes / u64::from(rows.max(1)) * 2 } else { 0 };
        let mut length = 0u64;
        let mut ranges = Vec::with_capacity(merged.len());
        for (start, end) in merged {
            let offset = if ranges.is_empty() { 0 } else { length.saturating_add(gap) };
            length = offset.saturating_add(end - start);
            ranges.push(AddressRange { address: start, size: end - start, offset });
        }
        Self { ranges, length }
    }

    /// Returns the ranges by ascending address.
    #[must_use]
    pub fn ranges(&self) -> &[AddressRange] {
        &self.ranges
    }

    /// Returns the length of the axis in bytes, with the gaps.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the part of the axis that shows `size` bytes at `address`; `None` if none of them is
    /// on the axis. Bytes beyond the end of the [`AddressRange`] that contains `address` are left
    /// out.
    #[must_use]
    #[inline]
    pub fn locate(&self, address: u64, size: u64) -> Option<Range<u64>> {
        let after = self.ranges.partition_point(|range| range.address <= address);
        let range = self.ranges[after.checked_sub(1)?];
        let within = address - range.address;
        let size = size.min(range.size.checked_sub(within)?);
        let start = range.offset.saturating_add(within);
        (size > 0).then(|| start..start.saturating_add(size))
    }

    /// Returns the address at `position` bytes from the axis's lower end; `None` in a gap and
    /// beyond the end.
    #[must_use]
    pub fn address(&self, position: u64) -> Option<u64> {
        let after = self.ranges.partition_point(|range| range.offset <= position);
        let range = self.ranges[after.checked_sub(1)?];
        let within = position - range.offset;
        (within < range.size).then(|| range.address + within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ranges_join_and_gaps_are_short() {
        let span = |address, size| SegmentSpan { address, size, first_moment: 0, end: u64::MAX, is_mapped_part: false };
        let spans = [span(9_000, 1_000), span(1_000, 500), span(1_500, 500), span(1_200, 100)];
        let axis = AddressAxis::new(spans.into_iter(), 100);
        let range = |address, size, offset| AddressRange { address, size, offset };
        assert_eq!(axis.ranges(), [range(1_000, 1_000, 0), range(9_000, 1_000, 1_040)]);
        assert_eq!(axis.length(), 2_040);
        assert_eq!(axis.locate(9_100, 200), Some(1_140..1_340));
        assert_eq!(axis.locate(9_900, 200), Some(1_940..2_040));
        assert_eq!((axis.locate(2_000, 8), axis.locate(10_000, 8), axis.locate(3, 8)), (None, None, None));
        assert_eq!(axis.address(1_140), Some(9_100));
        assert_eq!((axis.address(1_020), axis.address(2_040)), (None, None));
        assert_eq!(AddressAxis::new(spans.into_iter(), 10).length(), 2_000);
    }
}
