//! Values that come again and again, by number.

use std::collections::HashMap;
use std::hash::Hash;

/// Numbers looked up last, by some bits of the value.
const CACHED: usize = 4096;

/// Something with a quick, coarse hash.
pub(super) trait Mixed: Copy + Eq + Hash {
    /// Bits that differ where values do, mostly.
    fn mix(&self) -> u64;
}

/// Each different value once, numbered from 0 as they come.
#[derive(Clone, Debug)]
pub(super) struct Dictionary<T> {
    values: Vec<T>,
    numbers: HashMap<T, u32>,
    /// In front of `numbers`, whose hash withstands values made to meet and takes its time for it.
    cache: Vec<u32>,
}

impl<T> Default for Dictionary<T> {
    fn default() -> Self {
        Self { values: Vec::new(), numbers: HashMap::new(), cache: Vec::new() }
    }
}

impl<T: Mixed> Dictionary<T> {
    /// The number of a value.
    #[inline]
    pub(super) fn number(&mut self, value: T) -> u32 {
        let cached = (value.mix() >> (64 - CACHED.ilog2())) as usize;
        if let Some(&number) = self.cache.get(cached)
            && self.values.get(number as usize) == Some(&value)
        {
            return number;
        }
        self.look_up(value, cached)
    }

    #[inline(never)]
    fn look_up(&mut self, value: T, cached: usize) -> u32 {
        let number = *self.numbers.entry(value).or_insert_with(|| {
            self.values.push(value);
            self.values.len() as u32 - 1
        });
        if self.cache.is_empty() {
            self.cache = vec![u32::MAX; CACHED];
        }
        self.cache[cached] = number;
        number
    }

    /// The value of a number that was given out.
    #[inline]
    pub(super) fn value(&self, number: u32) -> &T {
        &self.values[number as usize]
    }

    /// Gives back what only adding needs.
    pub(super) fn finish(&mut self) {
        self.numbers = HashMap::new();
        self.cache = Vec::new();
        self.values.shrink_to_fit();
    }

    /// Bytes of memory that it occupies, about.
    pub(super) fn size_in_memory(&self) -> usize {
        self.values.capacity() * size_of::<T>()
            + self.numbers.capacity() * (size_of::<(T, u32)>() + 1)
            + self.cache.capacity() * 4
    }
}
