//! A random number generator with a seed, so that runs can be repeated.

/// A small random number generator (xorshift). The generated seeds and the inputs saved in
/// `artifacts` depend on the numbers that it generates.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator with a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// Creates a generator whose seed is derived from bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self::new(xxhash_rust::xxh3::xxh3_64(bytes))
    }

    /// Returns the next random number, from all 64-bit numbers.
    #[expect(clippy::should_implement_trait, reason = "a generator has no end")]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a random number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns a random index below `len`, which must not be 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Returns a random element.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }
}
