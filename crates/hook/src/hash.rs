//! The hash of the tracker's tables. It is fast, and does not resist keys that are chosen to
//! collide.

/// The multiplier of hashes, an odd number whose bits are spread evenly (2^64 / golden ratio).
pub(crate) const HASH_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns `hash` combined with another word.
#[inline]
pub(crate) fn mix(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(5) ^ word).wrapping_mul(HASH_MULTIPLIER)
}
