//! The table of allocated blocks by address.

use crate::index::BlockIndex;

/// Maps the first address of each allocated block to the block's index.
///
/// A hash table with linear probing. Removal moves displaced entries back, so that there are no
/// tombstones and probes stay short. An allocation and its free need one insertion and one removal;
/// the standard library's hash map takes 16 ns longer for the pair (`benches/allocate.rs`).
///
/// Addresses come from the device, not from an attacker, so a multiplicative hash is enough.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveBlocks {
    /// Empty, or a power of two of slots. Address 0 marks a vacant slot. At most half are occupied.
    slots: Vec<Slot>,
    /// Number of occupied slots.
    len: usize,
}

/// A slot of the hash table of allocated blocks: a block's first address and index; address 0 and
/// `None` if the slot is vacant.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    address: u64,
    index: Option<BlockIndex>,
}

/// 2^64 divided by the golden ratio. It makes multiples of a power of two differ in the high bits.
const HASH_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
/// Number of slots that the hash table of allocated blocks gets with its first entry; a power of
/// two.
const MIN_SLOTS: usize = 64;

impl LiveBlocks {
    /// Returns the index of the hash table's slot in which an address is stored unless another
    /// address occupies it.
    #[inline]
    fn preferred_slot(&self, address: u64) -> usize {
        (address.wrapping_mul(HASH_MULTIPLIER) >> (64 - self.slots.len().ilog2())) as usize
    }

    /// Returns the index of the hash table's slot that holds `address` or, if the address is
    /// absent, of the vacant slot where it belongs. The table must not be empty.
    #[inline]
    fn find(&self, address: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut position = self.preferred_slot(address);
        while self.slots[position].address != address && self.slots[position].address != 0 {
            position = (position + 1) & mask;
        }
        position
    }

    /// Returns the index of the allocated block that begins at exactly `address`, or `None`.
    pub(crate) fn get(&self, address: u64) -> Option<BlockIndex> {
        if self.slots.is_empty() || address == 0 {
            return None;
        }
        self.slots[self.find(address)].index
    }

    /// Inserts the block that begins at `address`. The address must be absent and not 0.
    #[inline]
    pub(crate) fn insert(&mut self, address: u64, index: BlockIndex) {
        debug_assert!(address != 0, "the pool refuses segments at address 0");
        if self.len * 2 >= self.slots.len() {
            self.grow();
        }
        let position = self.find(address);
        debug_assert!(self.slots[position].index.is_none(), "a block is allocated once");
        self.slots[position] = Slot { address, index: Some(index) };
        self.len += 1;
    }

    /// Doubles the number of slots of the hash table, at least to [`MIN_SLOTS`], and moves all
    /// entries to their new slots.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let len = (self.slots.len() * 2).max(MIN_SLOTS);
        let old = std::mem::replace(&mut self.slots, vec![Slot::default(); len]);
        for slot in old.into_iter().filter(|slot| slot.address != 0) {
            let position = self.find(slot.address);
            self.slots[position] = slot;
        }
    }

    /// Removes the allocated block that begins at exactly `address` and returns its index; `None`,
    /// changing nothing, if no block begins there.
    #[inline]
    pub(crate) fn remove(&mut self, address: u64) -> Option<BlockIndex> {
        if self.slots.is_empty() || address == 0 {
            return None;
        }
        let mut vacant = self.find(address);
        let index = self.slots[vacant].index?;
        let mask = self.slots.len() - 1;
        let mut position = vacant;
        loop {
            position = (position + 1) & mask;
            let slot = self.slots[position];
            if slot.address == 0 {
                break;
            }
            // Move the entry back if its preferred slot is at or before the vacant one, cyclically.
            if position.wrapping_sub(self.preferred_slot(slot.address)) & mask >= position.wrapping_sub(vacant) & mask {
                self.slots[vacant] = slot;
                vacant = position;
            }
        }
        self.slots[vacant] = Slot::default();
        self.len -= 1;
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::block::tests::block_index;

    proptest! {
        #[test]
        fn live_blocks_behave_like_a_hash_map(steps in prop::collection::vec((0..300u64, 9..22u32), 1..2000)) {
            let (mut live, mut map) = (LiveBlocks::default(), HashMap::new());
            for (step, (number, bits)) in steps.into_iter().enumerate() {
                let address = (number + 1) << bits;
                prop_assert_eq!(live.get(address), map.get(&address).copied());
                let removed = live.remove(address);
                prop_assert_eq!(removed, map.remove(&address));
                if removed.is_none() {
                    let index = block_index(step);
                    live.insert(address, index);
                    map.insert(address, index);
                }
                prop_assert_eq!(live.len, map.len());
            }
            prop_assert_eq!(live.remove(0), None);
            for (address, index) in map {
                prop_assert_eq!(live.remove(address), Some(index));
            }
            prop_assert!(live.slots.iter().all(|slot| slot.address == 0));
        }
    }
}
