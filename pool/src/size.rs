//! How large a block and a segment are for a request, and when a block is split.

use vramscope_trace::PoolKind;

/// Every block is a multiple of this.
pub const MIN_BLOCK_BYTES: u64 = 512;
/// The largest rounded size that is served from the small pool.
pub const SMALL_REQUEST_BYTES: u64 = 1 << 20;
/// A segment of the small pool.
pub const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
/// The largest request that is looked at. Sums of sizes below it cannot overflow.
pub const MAX_REQUEST_BYTES: u64 = 1 << 60;

/// Rounded sizes from here on get a segment of their own size.
const MIN_OWN_SEGMENT_BYTES: u64 = 10 << 20;
/// What a segment of the large pool has for smaller ones.
pub(crate) const LARGE_SEGMENT_BYTES: u64 = 20 << 20;
/// A segment of its own size is a multiple of this.
const OWN_SEGMENT_STEP_BYTES: u64 = 2 << 20;

/// The size of the block for a request of `bytes`, which is neither 0 nor over [`MAX_REQUEST_BYTES`].
pub(crate) fn block_size(bytes: u64) -> u64 {
    bytes.next_multiple_of(MIN_BLOCK_BYTES)
}

/// The pool that serves blocks of `size`.
pub(crate) fn pool_kind(size: u64) -> PoolKind {
    if size <= SMALL_REQUEST_BYTES { PoolKind::Small } else { PoolKind::Large }
}

/// The segment to ask the device for where no free block holds `size`.
pub(crate) fn segment_size(size: u64) -> u64 {
    if size <= SMALL_REQUEST_BYTES {
        SMALL_SEGMENT_BYTES
    } else if size < MIN_OWN_SEGMENT_BYTES {
        LARGE_SEGMENT_BYTES
    } else {
        size.next_multiple_of(OWN_SEGMENT_STEP_BYTES)
    }
}

/// Whether what remains of a block of `kind` behind a request becomes a free block of its own. In the large pool a remainder that
/// only the small pool could use stays with the block.
pub(crate) fn splits(kind: PoolKind, remaining: u64) -> bool {
    match kind {
        PoolKind::Small => remaining >= MIN_BLOCK_BYTES,
        PoolKind::Large => remaining > SMALL_REQUEST_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_pytorch() {
        const MIB: u64 = 1 << 20;
        // Request, block, segment.
        let table = [
            (1, 512, 2 * MIB),
            (512, 512, 2 * MIB),
            (513, 1024, 2 * MIB),
            (MIB - 1, MIB, 2 * MIB),
            (MIB, MIB, 2 * MIB),
            (MIB + 1, MIB + 512, 20 * MIB),
            (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
            (10 * MIB - 511, 10 * MIB, 10 * MIB),
            (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
            (MAX_REQUEST_BYTES, MAX_REQUEST_BYTES, MAX_REQUEST_BYTES),
        ];
        for (request, block, segment) in table {
            assert_eq!(block_size(request), block, "block for {request}");
            assert_eq!(segment_size(block), segment, "segment for {request}");
        }
    }

    #[test]
    fn a_remainder_is_split_off_where_its_pool_can_use_it() {
        assert!(!splits(PoolKind::Small, 0));
        assert!(splits(PoolKind::Small, 512));
        assert!(!splits(PoolKind::Large, SMALL_REQUEST_BYTES));
        assert!(splits(PoolKind::Large, SMALL_REQUEST_BYTES + 512));
    }
}
