//! Choices that follow from a number, so that the same input does the same every time.

/// A small random number generator (xorshift).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The choices that follow from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// The choices that follow from some bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self::new(xxhash_rust::xxh3::xxh3_64(bytes))
    }

    /// Any number.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// An index below `len`, which is not 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// One of some.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.index(of.len())]
    }
}
