//! States that a replay keeps, to start from them when it moves back.

use std::ops::RangeInclusive;

use crate::memory_state::MemoryState;
use crate::segment::Block;

/// Number of events between two checkpoints at first; it doubles whenever they take too much
/// memory.
const INTERVAL: u64 = 1 << 17;
/// Maximum number of blocks in all checkpoints together; they take 64 MB.
const MAX_BLOCKS: usize = (64 << 20) / size_of::<Block>();

/// Memory states at increasing moments; empty if the replay keeps none.
#[derive(Clone, Debug, Default)]
pub(super) struct Checkpoints {
    states: Vec<MemoryState>,
    /// Minimum number of events between two states; 0 if no states are kept.
    interval: u64,
}

impl Checkpoints {
    /// Creates an empty list that keeps states; the default keeps none.
    pub(super) fn new() -> Self {
        Self { states: Vec::new(), interval: INTERVAL }
    }

    /// Returns true if states are kept, false if the list was created without an interval.
    pub(super) fn are_kept(&self) -> bool {
        self.interval > 0
    }

    /// Keeps a copy of a state if it is at least an interval away from all kept states, and from
    /// `base`, the moment of the last full state before it.
    pub(super) fn offer(&mut self, state: &MemoryState, base: u64) {
        if !self.are_kept() || state.event < base + self.interval {
            return;
        }
        let at = self.states.partition_point(|kept| kept.event <= state.event);
        let is_near = |kept: &MemoryState| kept.event.abs_diff(state.event) < self.interval;
        let [before, after] = [at.checked_sub(1), Some(at)].map(|index| self.states.get(index?));
        if before.is_some_and(is_near) || after.is_some_and(is_near) {
            return;
        }
        self.states.insert(at, state.clone());
        while self.states.len() > 1 && self.states.iter().map(block_count).sum::<usize>() > MAX_BLOCKS {
            self.interval *= 2;
            let mut every_second = [false, true].into_iter().cycle();
            self.states.retain(|_| every_second.next() == Some(true));
        }
    }

    /// Drops the states before the moment `first`, because a live recording has discarded the
    /// events after them.
    pub(super) fn drop_before(&mut self, first: u64) {
        self.states.retain(|kept| kept.event >= first);
    }

    /// Returns the last kept state whose moment is in the range `moments`; `None` without one.
    pub(super) fn last_in(&self, moments: &RangeInclusive<u64>) -> Option<&MemoryState> {
        let at = self.states.partition_point(|kept| kept.event <= *moments.end());
        self.states.get(at.checked_sub(1)?).filter(|kept| moments.contains(&kept.event))
    }
}

/// Returns the number of active blocks of all devices in a memory state.
fn block_count(state: &MemoryState) -> usize {
    state.devices.values().map(|device| device.blocks.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an empty state at a moment.
    fn at(event: u64) -> MemoryState {
        MemoryState { event, ..MemoryState::default() }
    }

    #[test]
    fn states_far_from_others_are_kept() {
        let mut checkpoints = Checkpoints::new();
        let base = 1000;
        for (event, is_kept) in [
            (INTERVAL - 1, false),
            (INTERVAL, true),
            (INTERVAL + 5, false),
            (3 * INTERVAL, true),
            (2 * INTERVAL + 1, false),
            (2 * INTERVAL, true),
        ] {
            checkpoints.offer(&at(base + event), base);
            let found = checkpoints.last_in(&(base..=base + event)).map(|state| state.event);
            assert_eq!(found == Some(base + event), is_kept, "{event}: {found:?}");
        }
        assert_eq!(checkpoints.states.len(), 3);
        let found = |moments| checkpoints.last_in(&moments).map(|state| state.event - base);
        assert_eq!(found(0..=u64::MAX), Some(3 * INTERVAL));
        assert_eq!(found(0..=base + 3 * INTERVAL - 1), Some(2 * INTERVAL));
        assert_eq!(found(base + 1 + 2 * INTERVAL..=base + 3 * INTERVAL - 1), None);
        assert_eq!(found(0..=base), None);
    }

    #[test]
    fn disabled_checkpoints_keep_no_state() {
        let mut checkpoints = Checkpoints::default();
        checkpoints.offer(&at(u64::MAX), 0);
        assert!(!checkpoints.are_kept() && checkpoints.last_in(&(0..=u64::MAX)).is_none());
    }
}
