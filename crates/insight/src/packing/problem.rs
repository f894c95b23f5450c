//! The buffers of a packing problem, with times and sizes in small units.

use super::buffer::{Buffer, InvalidBuffer, greatest_common_divisor};

/// Maximum number of buffers of a problem, so that their numbers fit in 32 bits.
const MAX_BUFFERS: usize = 1 << 30;
/// Maximum size in bytes of all buffers together, so that sums of heights and sizes fit in 64 bits.
const MAX_TOTAL_BYTES: u64 = 1 << 62;

/// A buffer's size, and its lifetime in cliques.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// The first clique that contains it.
    pub(super) first: u32,
    /// The clique after the last one that contains it.
    pub(super) end: u32,
    /// Size in units.
    pub(super) size: u64,
}

impl Span {
    /// Returns the cliques that contain the buffer.
    pub(super) fn cliques(self) -> std::ops::Range<usize> {
        self.first as usize..self.end as usize
    }
}

/// The buffers to place.
///
/// Time is divided into maximal cliques: the sets of buffers that live at one time, without sets
/// that are part of another set. A clique ends with the first end after a start. Two buffers live
/// at one time exactly if a clique contains both.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    pub(super) spans: Vec<Span>,
    /// Length of each buffer's lifetime, in the caller's time.
    pub(super) durations: Vec<u64>,
    /// Bytes of a unit: the greatest common divisor of all sizes.
    pub(super) unit_bytes: u64,
    /// Units of the live buffers in each clique.
    pub(super) live: Vec<u64>,
    /// The highest entry of `live`: no placement is lower.
    pub(super) peak_live: u64,
}

impl Problem {
    /// Creates a problem; buffers without bytes are left out. `kept` receives the positions of the
    /// others.
    pub(super) fn new(buffers: &[Buffer], kept: &mut Vec<u32>) -> Result<Self, InvalidBuffer> {
        if buffers.len() > MAX_BUFFERS {
            return Err(InvalidBuffer::TooManyBuffers { count: buffers.len(), limit: MAX_BUFFERS });
        }
        let mut unit_bytes = 0;
        for (index, &Buffer { lower, upper, size }) in buffers.iter().enumerate() {
            if lower >= upper {
                return Err(InvalidBuffer::EmptyLifetime { index, lower, upper });
            }
            unit_bytes = greatest_common_divisor(unit_bytes, size);
            if size > 0 {
                kept.push(index as u32);
            }
        }
        check_total(buffers.iter().map(|buffer| buffer.size))?;
        let unit_bytes = unit_bytes.max(1);
        let kept = kept.iter().map(|&index| &buffers[index as usize]);
        let mut spans: Vec<Span> =
            kept.clone().map(|buffer| Span { first: 0, end: 0, size: buffer.size / unit_bytes }).collect();
        let durations = kept.clone().map(|buffer| buffer.upper - buffer.lower).collect();
        let mut starts: Vec<(u64, u32)> =
            kept.clone().zip(0..).map(|(buffer, number)| (buffer.lower, number)).collect();
        let mut ends: Vec<(u64, u32)> = kept.zip(0..).map(|(buffer, number)| (buffer.upper, number)).collect();
        // Buffers of recordings are in the order of their starts, for which a stable sort is fast.
        starts.sort();
        ends.sort_unstable();
        let mut starts = starts.into_iter().peekable();
        let mut live = Vec::new();
        let (mut live_now, mut has_grown) = (0, false);
        for (end, number) in ends {
            // Ends come before starts at the same time.
            while let Some((_, starting)) = starts.next_if(|&(start, _)| start < end) {
                let span = &mut spans[starting as usize];
                span.first = live.len() as u32;
                live_now += span.size;
                has_grown = true;
            }
            if has_grown {
                live.push(live_now);
                has_grown = false;
            }
            let span = &mut spans[number as usize];
            span.end = live.len() as u32;
            live_now -= span.size;
        }
        let peak_live = live.iter().copied().max().unwrap_or(0);
        Ok(Self { spans, durations, unit_bytes, live, peak_live })
    }

    /// Returns the height of a placement in units.
    pub(super) fn height(&self, offsets: &[u64]) -> u64 {
        self.spans.iter().zip(offsets).map(|(span, offset)| offset + span.size).max().unwrap_or(0)
    }
}

/// Returns an error if sizes add up to more than heights and sums can have.
pub(super) fn check_total(sizes: impl Iterator<Item = u64>) -> Result<(), InvalidBuffer> {
    let total = sizes.fold(0, u64::saturating_add);
    if total > MAX_TOTAL_BYTES { Err(InvalidBuffer::TooManyBytes) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_become_cliques_and_sizes_units() {
        let buffers = [(0, 10, 1024), (2, 4, 512), (3, 6, 0), (4, 5, 1536), (7, 8, 512), (8, 9, 512)];
        let buffers = buffers.map(|(lower, upper, size)| Buffer { lower, upper, size });
        let mut kept = Vec::new();
        let problem = Problem::new(&buffers, &mut kept).expect("the buffers are valid");
        assert_eq!(kept, [0, 1, 3, 4, 5]);
        assert_eq!(problem.unit_bytes, 512);
        assert_eq!(problem.live, [3, 5, 3, 3]);
        assert_eq!(problem.peak_live, 5);
        let spans: Vec<_> = problem.spans.iter().map(|span| (span.first, span.end)).collect();
        assert_eq!(spans, [(0, 4), (0, 1), (1, 2), (2, 3), (3, 4)]);
    }

    #[test]
    fn buffers_that_cannot_be_placed_are_errors() {
        let check = |lower, upper, size, expected: InvalidBuffer| {
            let buffers = [Buffer { lower: 0, upper: 1, size: 1 << 62 }, Buffer { lower, upper, size }];
            assert_eq!(Problem::new(&buffers, &mut Vec::new()).map(drop), Err(expected));
        };
        check(5, 5, 1, InvalidBuffer::EmptyLifetime { index: 1, lower: 5, upper: 5 });
        check(5, 6, u64::MAX, InvalidBuffer::TooManyBytes);
    }
}
