//! The formulas that several types share: fragmentation and rounding waste.

/// Returns the external fragmentation, from 0 to 1: 1 − largest free block ÷ free bytes in
/// segments; 0 if nothing is free. Both arguments are in bytes.
///
/// [`FreeSpace::fragmentation`](crate::FreeSpace::fragmentation) computes it for a known
/// [`FreeSpace`](crate::FreeSpace).
#[must_use]
pub fn fragmentation(largest_free: u64, free: u64) -> f64 {
    if free == 0 { 0.0 } else { 1.0 - largest_free as f64 / free as f64 }
}

/// Returns the bytes that rounding adds to the requested bytes of active blocks: active −
/// requested, and 0 if a contradictory history has more requested than active bytes.
pub(crate) fn rounding_waste_bytes(active: u64, requested: u64) -> u64 {
    active.saturating_sub(requested)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragmentation_is_the_share_beside_the_largest_free_block() {
        for (largest, free, expected) in
            [(0, 0, 0.0), (4096, 4096, 0.0), (2048, 3072, 1.0 - 2048.0 / 3072.0), (1, 4, 0.75)]
        {
            assert_eq!(fragmentation(largest, free), expected, "{largest} of {free}");
        }
    }

    #[test]
    fn rounding_waste_is_never_negative() {
        assert_eq!((rounding_waste_bytes(512, 400), rounding_waste_bytes(400, 512)), (112, 0));
    }
}
