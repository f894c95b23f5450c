//! Places buffers that live long at the bottom, so that searches need not move them.
//!
//! Weights and optimizer states live from one step to the end, and so at the same time as almost
//! every other buffer: to look at them for each placement would take most of the time. Stacked in
//! the order of their starts they leave no gap, as long as most of them end together.

use std::cmp::Reverse;

use super::layout::UNPLACED;
use super::problem::Problem;

/// Maximum sum, over all long-lived buffers, of the number of cliques in which a buffer lives.
const MAX_CLIQUES: usize = 1 << 28;
/// Divisor: placing long-lived buffers first may raise the lower bound by at most 1/5000.
const MAX_RAISE: u64 = 5000;
/// Number of successive cliques for which the greatest height is stored once.
const BLOCK: usize = 64;

/// The long-lived buffers' offsets, and the lowest possible offsets of all others.
pub(super) struct Separation {
    /// The offset of each buffer in units; [`UNPLACED`] for a buffer that does not live long.
    pub(super) offsets: Vec<u64>,
    /// The buffers that do not live long.
    pub(super) movable: Vec<u32>,
    /// The lowest offset that each of `movable` can have.
    pub(super) floors: Vec<u64>,
    /// Lower bound of the height of placements above the long-lived buffers, in units.
    pub(super) lower_bound: u64,
}

impl Separation {
    /// Places the long-lived buffers of a problem. If a placement of all buffers would be higher
    /// then, only the longest-lived are placed, or none.
    pub(super) fn new(problem: &Problem) -> Self {
        let cliques = problem.live.len();
        for min_length in [cliques / 4, cliques / 8 * 5, cliques] {
            if let Some(separation) = Self::with_min_length(problem, min_length.max(2)) {
                return separation;
            }
        }
        Self::none(problem)
    }

    /// Creates a separation in which all buffers can move.
    pub(super) fn none(problem: &Problem) -> Self {
        let count = problem.spans.len();
        Self {
            offsets: vec![UNPLACED; count],
            movable: (0..count as u32).collect(),
            floors: vec![0; count],
            lower_bound: problem.peak_live,
        }
    }

    /// Places the buffers that live in at least `min_length` cliques. `None` if that raises the
    /// lower bound.
    fn with_min_length(problem: &Problem, min_length: usize) -> Option<Self> {
        let length = |number: &u32| problem.spans[*number as usize].cliques().len();
        let mut long: Vec<u32> =
            (0..problem.spans.len() as u32).filter(|number| length(number) >= min_length).collect();
        if long.is_empty() || long.iter().map(length).sum::<usize>() > MAX_CLIQUES {
            return None;
        }
        long.sort_by_key(|&number| {
            let span = problem.spans[number as usize];
            (span.first, Reverse(span.end))
        });
        let mut offsets = vec![UNPLACED; problem.spans.len()];
        let mut skyline = vec![0; problem.live.len()];
        let mut others = problem.live.clone();
        for number in long {
            let span = problem.spans[number as usize];
            let offset = skyline[span.cliques()].iter().copied().max().unwrap_or(0);
            offsets[number as usize] = offset;
            skyline[span.cliques()].fill(offset + span.size);
            others[span.cliques()].iter_mut().for_each(|live| *live -= span.size);
        }
        let bound = skyline.iter().zip(&others).map(|(floor, live)| floor + live).max().unwrap_or(0);
        let is_low = bound <= problem.peak_live + problem.peak_live / MAX_RAISE;
        is_low.then(|| Self::from_offsets(problem, offsets, &skyline, bound))
    }

    /// Creates a separation; `skyline` is the height of the long-lived buffers in each clique.
    fn from_offsets(problem: &Problem, offsets: Vec<u64>, skyline: &[u64], lower_bound: u64) -> Self {
        let movable: Vec<u32> =
            (0..offsets.len() as u32).filter(|&number| offsets[number as usize] == UNPLACED).collect();
        let blocks: Vec<u64> = skyline.chunks(BLOCK).map(|block| block.iter().copied().max().unwrap_or(0)).collect();
        let highest = |heights: &[u64]| heights.iter().copied().max().unwrap_or(0);
        let floor = |&number: &u32| {
            let range = problem.spans[number as usize].cliques();
            let (first_block, end_block) = (range.start.div_ceil(BLOCK), range.end / BLOCK);
            if first_block >= end_block {
                return highest(&skyline[range]);
            }
            let before = highest(&skyline[range.start..first_block * BLOCK]);
            let after = highest(&skyline[end_block * BLOCK..range.end]);
            before.max(after).max(highest(&blocks[first_block..end_block]))
        };
        let floors = movable.iter().map(floor).collect();
        Self { offsets, movable, floors, lower_bound }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packing::Buffer;

    /// Separates buffers, each given by its start, end and size.
    fn separation(buffers: &[(u64, u64, u64)]) -> Separation {
        let buffers: Vec<_> = buffers.iter().map(|&(lower, upper, size)| Buffer { lower, upper, size }).collect();
        Separation::new(&Problem::new(&buffers, &mut Vec::new()).expect("the buffers are valid"))
    }

    #[test]
    fn weights_are_below_and_temporaries_above() {
        let mut buffers = vec![(0, 1000, 7), (1, 1000, 5)];
        buffers.extend((0..200).map(|step| (step * 4 + 2, step * 4 + 5, 3)));
        let separation = separation(&buffers);
        assert_eq!(separation.offsets[..2], [0, 7]);
        assert_eq!(separation.movable, (2..202).collect::<Vec<_>>());
        assert_eq!(separation.floors, [12; 200]);
    }

    #[test]
    fn buffers_that_would_raise_the_height_are_not_placed() {
        // The second half of the first buffer's lifetime has room below the second buffer.
        let mut buffers = vec![(0, 1200, 100), (100, 2000, 10)];
        buffers.extend((0..100).map(|step| (step * 20 + 1, step * 20 + 15, if step < 60 { 1 } else { 95 })));
        let separation = separation(&buffers);
        assert_eq!(separation.offsets, [UNPLACED; 102]);
        assert_eq!(separation.movable.len(), 102);
        assert_eq!(separation.floors, [0; 102]);
    }
}
