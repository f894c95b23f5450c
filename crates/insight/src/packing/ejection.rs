//! Searches for a placement below a height by removing the buffers that are in the way.
//!
//! Guided ejection search (Nagata and Bräysy, Operations Research Letters 37(5), 2009): a buffer
//! without a gap is placed where the buffers to remove were removed least often so far. Buffers
//! that are hard to place therefore stay where they are, and others find new gaps.

use super::budget::Budget;
use super::layout::{Layout, UNPLACED};

/// Once in this many times, the buffer to place next is another one than the last removed.
const SHUFFLE_ONE_IN: u32 = 4;

/// A search for a placement below a height.
#[derive(Clone, Debug)]
pub(super) struct EjectionSearch {
    /// The height to stay below, in units.
    height: u64,
    /// The buffers without a place; the last one is placed next.
    unplaced: Vec<u32>,
    /// How often each buffer found no gap, plus 1.
    penalties: Vec<u32>,
    random: fastrand::Rng,
    /// Offsets to try.
    candidates: Vec<u64>,
    /// End and penalty of each neighbor, lowest end first.
    ends: Vec<(u64, u32)>,
    /// Entry n is the sum of the penalties of the first n neighbors in `ends`.
    penalty_sums: Vec<u64>,
}

impl EjectionSearch {
    /// Starts a search from a placement that is higher than `height`: the buffers that end above
    /// are removed from the layout.
    pub(super) fn new(layout: &mut Layout, offsets: &[u64], height: u64, seed: u64) -> Self {
        layout.offsets.copy_from_slice(offsets);
        let ends_above = |number: &u32| offsets[*number as usize] + layout.spans[*number as usize].size > height;
        let mut unplaced: Vec<u32> = (0..offsets.len() as u32).filter(ends_above).collect();
        for &number in &unplaced {
            layout.offsets[number as usize] = UNPLACED;
        }
        unplaced.sort_by_key(|&number| layout.spans[number as usize].size);
        Self {
            height,
            unplaced,
            penalties: vec![1; offsets.len()],
            random: fastrand::Rng::with_seed(seed),
            candidates: Vec::new(),
            ends: Vec::new(),
            penalty_sums: Vec::new(),
        }
    }

    /// Continues the search. Returns true if all buffers of the layout are placed below the height,
    /// false if one cannot be, and `None` if the budget is spent.
    pub(super) fn run(&mut self, layout: &mut Layout, budget: &mut Budget) -> Option<bool> {
        while let Some(&number) = self.unplaced.last() {
            if budget.is_spent() {
                return None;
            }
            let size = layout.spans[number as usize].size;
            if layout.floors[number as usize] + size > self.height {
                return Some(false);
            }
            self.unplaced.pop();
            budget.spend((layout.find_neighbors(number)) as u64);
            let offset = match layout.best_fit(number, self.height) {
                Some(offset) => offset,
                None => {
                    budget.spend((layout.neighbors.len() * 16) as u64);
                    self.eject(layout, number)
                }
            };
            layout.offsets[number as usize] = offset;
        }
        Some(true)
    }

    /// Removes the neighbors with the smallest penalties that make a gap for the buffer. Returns
    /// the offset of the gap.
    fn eject(&mut self, layout: &mut Layout, number: u32) -> u64 {
        let penalty = &mut self.penalties[number as usize];
        *penalty = penalty.saturating_add(1);
        let size = layout.spans[number as usize].size;
        let offset = self.cheapest_offset(layout, number, size);
        for neighbor in layout.neighbors.iter().filter(|one| one.offset < offset + size && one.end > offset) {
            layout.offsets[neighbor.number as usize] = UNPLACED;
            self.unplaced.push(neighbor.number);
        }
        if self.unplaced.len() > 1 && self.random.u32(0..SHUFFLE_ONE_IN) == 0 {
            let last = self.unplaced.len() - 1;
            let other = self.random.usize(0..=last);
            self.unplaced.swap(other, last);
        }
        offset
    }

    /// Returns the offset at which the penalties of the overlapping neighbors add up to the least;
    /// a random one of several.
    fn cheapest_offset(&mut self, layout: &Layout, number: u32, size: u64) -> u64 {
        let (floor, ceiling) = (layout.floors[number as usize], self.height - size);
        let neighbors = &layout.neighbors;
        self.candidates.clear();
        self.candidates.extend([floor, ceiling]);
        let beside = neighbors.iter().flat_map(|one| [Some(one.end), one.offset.checked_sub(size)]).flatten();
        self.candidates.extend(beside.filter(|offset| (floor..=ceiling).contains(offset)));
        self.candidates.sort_unstable();
        self.candidates.dedup();
        self.ends.clear();
        self.ends.extend(neighbors.iter().map(|one| (one.end, self.penalties[one.number as usize])));
        self.ends.sort_unstable();
        self.penalty_sums.clear();
        self.penalty_sums.push(0);
        let mut sum = 0;
        for neighbor in neighbors {
            sum += u64::from(self.penalties[neighbor.number as usize]);
            self.penalty_sums.push(sum);
        }
        // The overlapping neighbors start below the end; left out are neighbors that end at or
        // below the start.
        let (mut started, mut ended, mut ended_penalty) = (0, 0, 0);
        let (mut best, mut best_penalty, mut ties) = (floor, u64::MAX, 0);
        for &offset in &self.candidates {
            while started < neighbors.len() && neighbors[started].offset < offset + size {
                started += 1;
            }
            while ended < self.ends.len() && self.ends[ended].0 <= offset {
                ended_penalty += u64::from(self.ends[ended].1);
                ended += 1;
            }
            let penalty = self.penalty_sums[started] - ended_penalty;
            if penalty < best_penalty {
                (best, best_penalty, ties) = (offset, penalty, 1);
            } else if penalty == best_penalty {
                ties += 1;
                if self.random.u32(0..ties) == 0 {
                    best = offset;
                }
            }
        }
        best
    }
}
