//! Live blocks by address.

use crate::block::BlockIndex;

/// Live blocks by the address that the program knows them by: a hash table with linear probing, in which a removal moves up what was
/// put off by it, so that no probe ever walks over what is gone. An allocation and its free take one insertion and one removal, and the
/// standard library's table takes 16 ns more for the two (`benches/allocate.rs`, `live_blocks`).
///
/// Addresses come from the device and not from a stranger, so that a multiplication spreads them well enough.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveBlocks {
    /// A power of two of places, or none; an address of 0 is a vacant place. At most half are taken.
    slots: Vec<Slot>,
    len: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    address: u64,
    index: Option<BlockIndex>,
}

/// 2^64 divided by the golden ratio: multiples of a power of two then differ in the high bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
const MIN_SLOTS: usize = 64;

impl LiveBlocks {
    /// Where an address would be if its place is not taken.
    #[inline]
    fn home(&self, address: u64) -> usize {
        (address.wrapping_mul(SPREAD) >> (64 - self.slots.len().ilog2())) as usize
    }

    /// The place of an address, or else the vacant one where it would go. There must be places.
    #[inline]
    fn find(&self, address: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut place = self.home(address);
        while self.slots[place].address != address && self.slots[place].address != 0 {
            place = (place + 1) & mask;
        }
        place
    }

    /// The live block that begins at `address`.
    pub(crate) fn get(&self, address: u64) -> Option<BlockIndex> {
        if self.slots.is_empty() || address == 0 {
            return None;
        }
        self.slots[self.find(address)].index
    }

    /// Enters a block that is not there; its address is not 0.
    #[inline]
    pub(crate) fn insert(&mut self, address: u64, index: BlockIndex) {
        debug_assert!(address != 0, "segments at address 0 are refused");
        if self.len * 2 >= self.slots.len() {
            self.grow();
        }
        let place = self.find(address);
        debug_assert!(self.slots[place].index.is_none(), "a block is live once");
        self.slots[place] = Slot { address, index: Some(index) };
        self.len += 1;
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let len = (self.slots.len() * 2).max(MIN_SLOTS);
        let old = std::mem::replace(&mut self.slots, vec![Slot::default(); len]);
        for slot in old.into_iter().filter(|slot| slot.address != 0) {
            let place = self.find(slot.address);
            self.slots[place] = slot;
        }
    }

    /// Takes out the block that begins at `address`.
    #[inline]
    pub(crate) fn remove(&mut self, address: u64) -> Option<BlockIndex> {
        if self.slots.is_empty() || address == 0 {
            return None;
        }
        let mut vacant = self.find(address);
        let index = self.slots[vacant].index?;
        let mask = self.slots.len() - 1;
        let mut place = vacant;
        loop {
            place = (place + 1) & mask;
            let slot = self.slots[place];
            if slot.address == 0 {
                break;
            }
            // Whether its own place lies at or before the vacant one, going round.
            if place.wrapping_sub(self.home(slot.address)) & mask >= place.wrapping_sub(vacant) & mask {
                self.slots[vacant] = slot;
                vacant = place;
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
    use crate::block::tests::index_at;

    proptest! {
        #[test]
        fn answers_as_a_map_does(steps in prop::collection::vec((0..300u64, 9..22u32), 1..2000)) {
            let (mut live, mut map) = (LiveBlocks::default(), HashMap::new());
            for (step, (number, bits)) in steps.into_iter().enumerate() {
                let address = (number + 1) << bits;
                prop_assert_eq!(live.get(address), map.get(&address).copied());
                let removed = live.remove(address);
                prop_assert_eq!(removed, map.remove(&address));
                if removed.is_none() {
                    let index = index_at(step);
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
