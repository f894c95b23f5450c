//! The allocations that have not ended, by address.

use std::collections::BTreeMap;

/// The row number that marks a [`Slot`] as empty.
const NO_ROW: u32 = u32::MAX;
/// Number of slots in a [`Bucket`]; they fill two cache lines.
const SLOTS_PER_BUCKET: usize = 8;
/// Number of buckets that an empty table of open allocations has.
const MIN_BUCKETS: usize = 32;
/// The factor by which an address is multiplied to select its bucket: 2⁶⁴ ÷ golden ratio (Fibonacci
/// hashing). It makes multiples of a power of two differ in the high bits.
const HASH_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// A slot of the hash table [`OpenAllocations`]: the address and row of an open allocation, or
/// empty.
#[derive(Clone, Copy, Debug)]
struct Slot {
    address: u64,
    row: u32,
}

/// A slot of the table of open allocations that is not used.
const EMPTY_SLOT: Slot = Slot { address: 0, row: NO_ROW };

/// A bucket of the hash table [`OpenAllocations`]; its used slots come first.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    slots: [Slot; SLOTS_PER_BUCKET],
    /// Number of addresses of this bucket that are in [`OpenAllocations::overflow`].
    overflow_count: u32,
}

/// A hash table from the addresses of allocations that have not ended (are open) to their row
/// numbers.
///
/// A full bucket overflows into a tree, so that even addresses crafted to share a bucket cost no
/// more than in a tree. Of real addresses, about one in a hundred overflows.
#[derive(Clone, Debug)]
pub(super) struct OpenAllocations {
    /// A power of two buckets; at most half of the slots are used.
    buckets: Vec<Bucket>,
    len: usize,
    /// Addresses and rows of the allocations that do not fit in their bucket.
    overflow: BTreeMap<u64, u32>,
}

impl Default for OpenAllocations {
    fn default() -> Self {
        Self { buckets: empty_buckets(MIN_BUCKETS), len: 0, overflow: BTreeMap::new() }
    }
}

/// Returns `count` empty buckets. Not inlined, because the compiler would unroll the creation of a
/// fixed number of buckets.
#[inline(never)]
fn empty_buckets(count: usize) -> Vec<Bucket> {
    vec![Bucket { slots: [EMPTY_SLOT; SLOTS_PER_BUCKET], overflow_count: 0 }; count]
}

impl OpenAllocations {
    /// Returns the index of the bucket in which an address is stored.
    #[inline]
    fn bucket_index(&self, address: u64) -> usize {
        (address.wrapping_mul(HASH_MULTIPLIER) >> (64 - self.buckets.len().ilog2())) as usize
    }

    /// Returns the number of slots, used and empty, all of which [`iter`](Self::iter) visits.
    pub(super) fn slot_count(&self) -> usize {
        self.buckets.len() * SLOTS_PER_BUCKET
    }

    /// Returns the row number of the open allocation at exactly `address`, or `None`.
    #[inline]
    pub(super) fn get(&self, address: u64) -> Option<u32> {
        let bucket = &self.buckets[self.bucket_index(address)];
        for slot in &bucket.slots {
            if slot.row == NO_ROW {
                break;
            }
            if slot.address == address {
                return Some(slot.row);
            }
        }
        if bucket.overflow_count > 0 { self.overflow.get(&address).copied() } else { None }
    }

    /// Adds an open allocation at `address`. Returns the row number of the allocation that it
    /// replaces there, if any.
    #[inline]
    pub(super) fn insert(&mut self, address: u64, row: u32) -> Option<u32> {
        debug_assert!(row != NO_ROW, "row numbers are below NO_ROW");
        let bucket_index = self.bucket_index(address);
        let bucket = &mut self.buckets[bucket_index];
        if bucket.overflow_count > 0
            && let Some(known) = self.overflow.get_mut(&address)
        {
            return Some(std::mem::replace(known, row));
        }
        for slot in &mut bucket.slots {
            if slot.row == NO_ROW {
                *slot = Slot { address, row };
                self.added();
                return None;
            }
            if slot.address == address {
                return Some(std::mem::replace(&mut slot.row, row));
            }
        }
        bucket.overflow_count += 1;
        self.overflow.insert(address, row);
        self.added();
        None
    }

    /// Counts an allocation that was added, and grows the table if more than half of the slots are
    /// used.
    #[inline]
    fn added(&mut self) {
        self.len += 1;
        if self.len * 2 > self.slot_count() {
            self.grow();
        }
    }

    /// Doubles the number of buckets and moves every open allocation to its new bucket.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let buckets = empty_buckets(self.buckets.len() * 2);
        let old = Self {
            buckets: std::mem::replace(&mut self.buckets, buckets),
            len: 0,
            overflow: std::mem::take(&mut self.overflow),
        };
        self.len = 0;
        for (address, row) in old.iter() {
            self.insert(address, row);
        }
    }

    /// Removes the open allocation at `address` and returns its row number; `None` if no open
    /// allocation begins there.
    #[inline]
    pub(super) fn remove(&mut self, address: u64) -> Option<u32> {
        let bucket_index = self.bucket_index(address);
        let bucket = &mut self.buckets[bucket_index];
        let used = bucket.slots.iter().position(|slot| slot.row == NO_ROW).unwrap_or(SLOTS_PER_BUCKET);
        if let Some(at) = bucket.slots[..used].iter().position(|slot| slot.address == address) {
            let row = bucket.slots[at].row;
            bucket.slots[at] = bucket.slots[used - 1];
            bucket.slots[used - 1] = EMPTY_SLOT;
            self.len -= 1;
            return Some(row);
        }
        if bucket.overflow_count == 0 {
            return None;
        }
        let row = self.overflow.remove(&address)?;
        bucket.overflow_count -= 1;
        self.len -= 1;
        Some(row)
    }

    /// Returns the memory that the table occupies, in bytes, approximately.
    pub(super) fn memory_bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket>() + self.overflow.len() * 2 * size_of::<(u64, u32)>()
    }

    /// Returns the addresses and row numbers of all open allocations, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let slots = self.buckets.iter().flat_map(|bucket| &bucket.slots).filter(|slot| slot.row != NO_ROW);
        slots.map(|slot| (slot.address, slot.row)).chain(self.overflow.iter().map(|(&address, &row)| (address, row)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Returns the inverse of `HASH_MULTIPLIER` modulo 2⁶⁴, to craft addresses that share a bucket.
    fn inverse() -> u64 {
        (0..6).fold(HASH_MULTIPLIER, |inverse, _| {
            inverse.wrapping_mul(2u64.wrapping_sub(HASH_MULTIPLIER.wrapping_mul(inverse)))
        })
    }

    /// Inserts and removes addresses, and compares the table with a sorted map after each step.
    fn check(steps: Vec<(u64, bool)>) -> Result<(), TestCaseError> {
        let (mut open, mut map) = (OpenAllocations::default(), BTreeMap::new());
        for (row, (address, is_insert)) in steps.into_iter().enumerate() {
            let row = row as u32;
            prop_assert_eq!(open.get(address), map.get(&address).copied());
            if is_insert {
                prop_assert_eq!(open.insert(address, row), map.insert(address, row));
            } else {
                prop_assert_eq!(open.remove(address), map.remove(&address));
            }
            prop_assert_eq!(open.len, map.len());
        }
        prop_assert_eq!(open.iter().collect::<BTreeMap<_, _>>(), map);
        Ok(())
    }

    proptest! {
        #[test]
        fn table_behaves_like_a_map(steps in prop::collection::vec((0..300u64, 0..22u32, any::<bool>()), 1..2000)) {
            check(steps.into_iter().map(|(number, bits, is_insert)| (number << bits, is_insert)).collect())?;
        }

        #[test]
        fn addresses_sharing_a_bucket_are_found(steps in prop::collection::vec((0..300u64, any::<bool>()), 1..2000)) {
            check(steps.into_iter().map(|(number, is_insert)| (number.wrapping_mul(inverse()), is_insert)).collect())?;
        }
    }

    #[test]
    fn addresses_in_one_bucket_are_as_fast_as_a_tree() {
        let mut open = OpenAllocations::default();
        for row in 0..300_000u32 {
            open.insert(u64::from(row).wrapping_mul(inverse()), row);
        }
        assert!(open.overflow.len() > 290_000, "the addresses share a bucket");
        assert!((0..300_000u32).all(|row| open.remove(u64::from(row).wrapping_mul(inverse())) == Some(row)));
        assert_eq!(open.len, 0);
    }
}
