//! How large a block is for a request: PyTorch's rules under the settings of the recorded program.

use vramscope_trace::PoolKind;

use crate::torch::snapshot::Settings;

/// Every block is a multiple of this.
const MIN_BLOCK_BYTES: u64 = 512;
/// The largest rounded size that the small pool serves. A remainder of this size or less is not split off in the large pool.
pub(super) const SMALL_BYTES: u64 = 1 << 20;
/// A segment of the small pool.
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;

/// The rules under one program's settings.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    max_split_size: u64,
    divisions: [u64; 16],
}

impl Sizes {
    pub(super) fn new(settings: &Settings) -> Self {
        Self { max_split_size: settings.max_split_size, divisions: settings.divisions }
    }

    /// The size that a request is rounded up to.
    pub(super) fn rounded(&self, requested: u64) -> u64 {
        if requested < MIN_BLOCK_BYTES {
            return MIN_BLOCK_BYTES;
        }
        // The table begins at 1 MiB, and its ends hold for what lies beyond them.
        let place = requested.ilog2().saturating_sub(20).min(15);
        let divisions = self.divisions[place as usize];
        if divisions > 1 && requested > MIN_BLOCK_BYTES.saturating_mul(divisions) {
            return round_to_division(requested, divisions);
        }
        requested.checked_next_multiple_of(MIN_BLOCK_BYTES).unwrap_or(requested)
    }

    /// Whether what remains behind `rounded` bytes of a free block becomes a free block of its own.
    pub(super) fn splits(&self, kind: PoolKind, expandable: bool, rounded: u64, remaining: u64) -> bool {
        if kind == PoolKind::Small || expandable {
            remaining >= MIN_BLOCK_BYTES
        } else {
            rounded < self.max_split_size && remaining > SMALL_BYTES
        }
    }

    /// Whether a block of this rounded size takes the whole of an ordinary segment's free block.
    pub(super) fn is_never_split(&self, rounded: u64) -> bool {
        rounded >= self.max_split_size
    }
}

/// The next of the `divisions` equal steps between two powers of two.
fn round_to_division(size: u64, divisions: u64) -> u64 {
    if size.is_power_of_two() {
        return size;
    }
    let floor = 1u64 << size.ilog2();
    let step = floor >> divisions.ilog2();
    if step == 0 { floor.saturating_mul(2) } else { size.checked_next_multiple_of(step).unwrap_or(size) }
}

/// The pool that serves blocks of `rounded` bytes.
pub(super) fn kind_of_block(rounded: u64) -> PoolKind {
    if rounded <= SMALL_BYTES { PoolKind::Small } else { PoolKind::Large }
}

/// The likely pool of a segment that no block was ever seen in.
pub(super) fn kind_of_segment(size: u64) -> PoolKind {
    if size <= SMALL_SEGMENT_BYTES { PoolKind::Small } else { PoolKind::Large }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(divisions: u64, requested: u64, rounded: u64) {
        let sizes = Sizes::new(&Settings { divisions: [divisions; 16], ..Settings::default() });
        assert_eq!(sizes.rounded(requested), rounded, "{requested} under {divisions} divisions");
    }

    #[test]
    fn sizes_are_rounded_as_pytorch_does() {
        for (requested, rounded) in [(1, 512), (512, 512), (513, 1024), (1 << 20, 1 << 20), ((1 << 20) + 1, 1_049_088)]
        {
            check(0, requested, rounded);
            check(1, requested, rounded);
        }
        // 1200 bytes are few for 4 divisions of at least 512; 5000 of 4096..8192 go up to the next 1024.
        for (requested, rounded) in [(1200, 1536), (5000, 5120), (8192, 8192), (8193, 10240), (3 << 30, 3 << 30)] {
            check(4, requested, rounded);
        }
        check(2, u64::MAX, u64::MAX);
        check(0, u64::MAX, u64::MAX);
    }

    #[test]
    fn remainders_are_split_off_where_they_are_of_use() {
        let sizes = Sizes::new(&Settings { max_split_size: 32 << 20, ..Settings::default() });
        assert!(sizes.splits(PoolKind::Small, false, 512, 512));
        assert!(!sizes.splits(PoolKind::Small, false, 512, 0));
        assert!(!sizes.splits(PoolKind::Large, false, 2 << 20, 1 << 20));
        assert!(sizes.splits(PoolKind::Large, false, 2 << 20, (1 << 20) + 512));
        assert!(!sizes.splits(PoolKind::Large, false, 32 << 20, 100 << 20));
        assert!(sizes.splits(PoolKind::Large, true, 32 << 20, 512));
    }
}
