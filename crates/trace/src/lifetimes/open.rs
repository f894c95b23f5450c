//! The allocations that are not over, by address.

use std::collections::BTreeMap;

/// No allocation: a vacant place.
const NONE: u32 = u32::MAX;
/// Places of a bucket; two cache lines.
const PLACES: usize = 8;
const MIN_BUCKETS: usize = 32;
/// 2⁶⁴ divided by the golden ratio: multiples of a power of two then differ in the high bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Clone, Copy, Debug)]
struct Place {
    address: u64,
    row: u32,
}

const VACANT: Place = Place { address: 0, row: NONE };

/// A bucket of addresses, its taken places first.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    places: [Place; PLACES],
    /// How many addresses that belong here found it full, and may still be among the spilled.
    spilled: u32,
}

/// A hash table from addresses to rows. A bucket that is full spills into a tree, so that addresses made to meet in one bucket cost
/// what they would cost in a tree; one of a hundred spills otherwise.
#[derive(Clone, Debug)]
pub(super) struct OpenAllocations {
    /// A power of two of them; at most half of the places are taken.
    buckets: Vec<Bucket>,
    len: usize,
    spilled: BTreeMap<u64, u32>,
}

impl Default for OpenAllocations {
    fn default() -> Self {
        Self {
            buckets: vec![Bucket { places: [VACANT; PLACES], spilled: 0 }; MIN_BUCKETS],
            len: 0,
            spilled: BTreeMap::new(),
        }
    }
}

impl OpenAllocations {
    #[inline]
    fn home(&self, address: u64) -> usize {
        (address.wrapping_mul(SPREAD) >> (64 - self.buckets.len().ilog2())) as usize
    }

    /// Places that a walk over all of them has to look at.
    pub(super) fn places(&self) -> usize {
        self.buckets.len() * PLACES
    }

    /// The row of the allocation at an address.
    #[inline]
    pub(super) fn get(&self, address: u64) -> Option<u32> {
        let bucket = &self.buckets[self.home(address)];
        for place in &bucket.places {
            if place.row == NONE {
                break;
            }
            if place.address == address {
                return Some(place.row);
            }
        }
        if bucket.spilled > 0 { self.spilled.get(&address).copied() } else { None }
    }

    /// Enters an allocation; returns the row of the one that was at its address.
    #[inline]
    pub(super) fn insert(&mut self, address: u64, row: u32) -> Option<u32> {
        debug_assert!(row != NONE, "rows are fewer");
        let home = self.home(address);
        let bucket = &mut self.buckets[home];
        if bucket.spilled > 0
            && let Some(spilled) = self.spilled.get_mut(&address)
        {
            return Some(std::mem::replace(spilled, row));
        }
        for place in &mut bucket.places {
            if place.row == NONE {
                *place = Place { address, row };
                self.added();
                return None;
            }
            if place.address == address {
                return Some(std::mem::replace(&mut place.row, row));
            }
        }
        bucket.spilled += 1;
        self.spilled.insert(address, row);
        self.added();
        None
    }

    #[inline]
    fn added(&mut self) {
        self.len += 1;
        if self.len * 2 > self.places() {
            self.grow();
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let buckets = vec![Bucket { places: [VACANT; PLACES], spilled: 0 }; self.buckets.len() * 2];
        let old = Self {
            buckets: std::mem::replace(&mut self.buckets, buckets),
            len: 0,
            spilled: std::mem::take(&mut self.spilled),
        };
        self.len = 0;
        for (address, row) in old.iter() {
            self.insert(address, row);
        }
    }

    /// Takes out the allocation at an address.
    #[inline]
    pub(super) fn remove(&mut self, address: u64) -> Option<u32> {
        let home = self.home(address);
        let bucket = &mut self.buckets[home];
        let taken = bucket.places.iter().position(|place| place.row == NONE).unwrap_or(PLACES);
        if let Some(at) = bucket.places[..taken].iter().position(|place| place.address == address) {
            let row = bucket.places[at].row;
            bucket.places[at] = bucket.places[taken - 1];
            bucket.places[taken - 1] = VACANT;
            self.len -= 1;
            return Some(row);
        }
        if bucket.spilled == 0 {
            return None;
        }
        let row = self.spilled.remove(&address)?;
        bucket.spilled -= 1;
        self.len -= 1;
        Some(row)
    }

    /// All of them, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let places = self.buckets.iter().flat_map(|bucket| &bucket.places).filter(|place| place.row != NONE);
        places.map(|place| (place.address, place.row)).chain(self.spilled.iter().map(|(&address, &row)| (address, row)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Undoes the multiplication by `SPREAD`, so that addresses can be made whose products are small.
    fn inverse() -> u64 {
        (0..6).fold(SPREAD, |inverse, _| inverse.wrapping_mul(2u64.wrapping_sub(SPREAD.wrapping_mul(inverse))))
    }

    fn check(steps: Vec<(u64, bool)>) -> Result<(), TestCaseError> {
        let (mut open, mut map) = (OpenAllocations::default(), BTreeMap::new());
        for (row, (address, comes)) in steps.into_iter().enumerate() {
            let row = row as u32;
            prop_assert_eq!(open.get(address), map.get(&address).copied());
            if comes {
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
        fn answers_as_a_map_does(steps in prop::collection::vec((0..300u64, 0..22u32, any::<bool>()), 1..2000)) {
            check(steps.into_iter().map(|(number, bits, comes)| (number << bits, comes)).collect())?;
        }

        #[test]
        fn addresses_that_all_meet_are_kept(steps in prop::collection::vec((0..300u64, any::<bool>()), 1..2000)) {
            check(steps.into_iter().map(|(number, comes)| (number.wrapping_mul(inverse()), comes)).collect())?;
        }
    }

    #[test]
    fn addresses_that_all_meet_take_no_longer_than_a_tree() {
        let mut open = OpenAllocations::default();
        for row in 0..300_000u32 {
            open.insert(u64::from(row).wrapping_mul(inverse()), row);
        }
        assert!(open.spilled.len() > 290_000, "they do meet");
        assert!((0..300_000u32).all(|row| open.remove(u64::from(row).wrapping_mul(inverse())) == Some(row)));
        assert_eq!(open.len, 0);
    }
}
