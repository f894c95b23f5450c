//! A fast hash function for addresses.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Hashes addresses with one multiplication. The standard library's hash function takes a quarter
/// of the time of some passes over a recording.
///
/// Each table has a random key, so that a file cannot choose addresses that all collide.
#[derive(Clone, Copy, Debug)]
pub struct AddressHash {
    key: u64,
}

impl Default for AddressHash {
    fn default() -> Self {
        Self { key: RandomState::new().hash_one(0) }
    }
}

impl BuildHasher for AddressHash {
    type Hasher = AddressHasher;

    fn build_hasher(&self) -> AddressHasher {
        AddressHasher { hash: self.key }
    }
}

/// The hash of one address; see [`AddressHash`].
#[derive(Clone, Debug)]
pub struct AddressHasher {
    hash: u64,
}

/// An odd number with random bits: 2⁶⁴ divided by the golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for AddressHasher {
    #[inline]
    fn write_u64(&mut self, number: u64) {
        let product = u128::from(number ^ self.hash) * u128::from(MULTIPLIER);
        // Both halves: the low one does not depend on the high bits of the address, and the high
        // one little on the low bits.
        self.hash = product as u64 ^ (product >> 64) as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn addresses_are_spread_over_a_table() {
        let hash = AddressHash::default();
        for shift in [0, 9, 21, 40] {
            let slots: HashSet<u64> = (0..1024u64).map(|number| hash.hash_one(number << shift) % 4096).collect();
            // Random numbers fill 906 slots on average.
            assert!(slots.len() > 700, "{} slots at shift {shift}", slots.len());
            let tags: HashSet<u64> = (0..1024u64).map(|number| hash.hash_one(number << shift) >> 57).collect();
            assert!(tags.len() > 64, "{} tags at shift {shift}", tags.len());
        }
    }
}
