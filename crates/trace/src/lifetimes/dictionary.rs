//! A dictionary that numbers repeated values.

use std::collections::HashMap;
use std::hash::Hash;

/// Number of slots in the cache of recent lookups of a [`Dictionary`].
const CACHE_SLOTS: usize = 4096;

/// A value with a fast, coarse hash, to be looked up in a [`Dictionary`].
pub(super) trait CoarseHash: Copy + Eq + Hash {
    /// Returns a hash that mostly differs for different values; only its high bits are used.
    fn coarse_hash(&self) -> u64;
}

/// A list of distinct values, numbered from 0 in the order in which they were added.
#[derive(Clone, Debug)]
pub(super) struct Dictionary<T> {
    values: Vec<T>,
    numbers: HashMap<T, u32>,
    /// Recently used numbers by coarse hash. It avoids most lookups in `numbers`, whose hash is
    /// slower because it withstands crafted collisions.
    cache: Vec<u32>,
}

impl<T> Default for Dictionary<T> {
    fn default() -> Self {
        Self { values: Vec::new(), numbers: HashMap::new(), cache: Vec::new() }
    }
}

impl<T: CoarseHash> Dictionary<T> {
    /// Returns the number of a value in the dictionary, from 0, adding the value if it is new.
    #[inline]
    pub(super) fn number(&mut self, value: T) -> u32 {
        let cached = (value.coarse_hash() >> (64 - CACHE_SLOTS.ilog2())) as usize;
        if let Some(&number) = self.cache.get(cached)
            && self.values.get(number as usize) == Some(&value)
        {
            return number;
        }
        self.look_up(value, cached)
    }

    /// Returns the number of `value`, adding the value if it is new, and stores the number at index
    /// `cached` of the cache of recent lookups.
    #[inline(never)]
    fn look_up(&mut self, value: T, cached: usize) -> u32 {
        let number = *self.numbers.entry(value).or_insert_with(|| {
            self.values.push(value);
            self.values.len() as u32 - 1
        });
        if self.cache.is_empty() {
            self.cache = vec![u32::MAX; CACHE_SLOTS];
        }
        self.cache[cached] = number;
        number
    }

    /// Returns the value with the number `number`, which [`number`](Self::number) returned.
    #[inline]
    pub(super) fn value(&self, number: u32) -> &T {
        &self.values[number as usize]
    }

    /// Returns all values, in the order of their numbers.
    pub(super) fn values(&self) -> &[T] {
        &self.values
    }

    /// Frees spare memory, and the tables that only adding values needs.
    pub(super) fn finish(&mut self) {
        self.numbers = HashMap::new();
        self.cache = Vec::new();
        self.values.shrink_to_fit();
    }

    /// Returns the memory that the dictionary occupies, in bytes, approximately.
    pub(super) fn memory_bytes(&self) -> usize {
        self.values.capacity() * size_of::<T>()
            + self.numbers.capacity() * (size_of::<(T, u32)>() + 1)
            + self.cache.capacity() * 4
    }
}
