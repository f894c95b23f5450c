//! How large a block and a segment are for a request, and when a block is split: the rules that [`Settings`] turn.
//!
//! Everything that decides a size stands here once, because the pool and the readers that rebuild a recorded history must agree.

use vramscope_trace::PoolKind;

use crate::settings::Settings;

/// Every block has at least this size, and where no divisions are set is a multiple of it.
pub const MIN_BLOCK_BYTES: u64 = 512;
/// The largest rounded size that is served from the small pool.
pub const SMALL_REQUEST_BYTES: u64 = 1 << 20;
/// A segment of the small pool, and a page of an expandable one.
pub const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
/// Requests of this many bytes and more are refused unseen, as PyTorch does. Sums of sizes up to it cannot overflow.
pub const MAX_REQUEST_BYTES: u64 = 1 << 60;

/// Rounded sizes from here on get a segment of their own size.
pub(crate) const MIN_OWN_SEGMENT_BYTES: u64 = 10 << 20;
/// What a segment of the large pool has for smaller ones, unless set.
pub(crate) const LARGE_SEGMENT_BYTES: u64 = 20 << 20;
/// A segment of its own size is a multiple of this.
const OWN_SEGMENT_STEP_BYTES: u64 = 2 << 20;

/// The size of the block for a request of `bytes`, at most [`MAX_REQUEST_BYTES`].
#[inline]
#[must_use]
pub fn block_size(settings: &Settings, bytes: u64) -> u64 {
    debug_assert!(bytes <= MAX_REQUEST_BYTES, "larger requests are refused before they are rounded");
    if bytes < MIN_BLOCK_BYTES {
        return MIN_BLOCK_BYTES;
    }
    // The table begins at 1 MiB, and its ends hold for what lies beyond them.
    let place = bytes.ilog2().saturating_sub(SMALL_REQUEST_BYTES.ilog2()) as usize;
    let table = &settings.roundup_power2_divisions;
    let divisions = table[place.min(table.len() - 1)];
    // Divisions of fewer bytes than the smallest block would be of no use.
    if divisions > 1 && bytes > MIN_BLOCK_BYTES.saturating_mul(divisions) {
        next_division(bytes, divisions)
    } else {
        bytes.next_multiple_of(MIN_BLOCK_BYTES)
    }
}

/// The same for a request that stands in a recording, where it may be of any size.
pub(crate) fn recorded_block_size(settings: &Settings, bytes: u64) -> u64 {
    block_size(settings, bytes.min(MAX_REQUEST_BYTES))
}

/// The next of the `divisions` equal steps between two powers of two. A number of divisions that is no power of two counts as the
/// one below it.
#[cold]
fn next_division(bytes: u64, divisions: u64) -> u64 {
    // More than 512 bytes for each division, so a step is at least that.
    let step = 1 << (bytes.ilog2() - divisions.ilog2());
    bytes.next_multiple_of(step)
}

/// The pool that serves blocks of `size`.
#[inline]
#[must_use]
pub fn pool_kind(size: u64) -> PoolKind {
    if size <= SMALL_REQUEST_BYTES { PoolKind::Small } else { PoolKind::Large }
}

/// The segment to ask the device for where no free block holds `size`.
#[must_use]
pub fn segment_size(settings: &Settings, size: u64) -> u64 {
    if size <= SMALL_REQUEST_BYTES {
        SMALL_SEGMENT_BYTES
    } else if size < MIN_OWN_SEGMENT_BYTES {
        settings.large_segment_size
    } else {
        size.next_multiple_of(OWN_SEGMENT_STEP_BYTES)
    }
}

/// Whether the `remaining` bytes of a free block of `kind` behind a block of `size` become a free block of their own. In a large
/// pool of ordinary segments a remainder that only the small pool could use stays with the block, and from `max_split_size` on
/// everything does. `expandable`: whether such segments are in use. Blocks of a pool that is marked as not to be split are not asked
/// about: they are never split.
#[inline]
#[must_use]
pub fn splits(settings: &Settings, kind: PoolKind, expandable: bool, size: u64, remaining: u64) -> bool {
    if kind == PoolKind::Small || expandable {
        remaining >= MIN_BLOCK_BYTES
    } else {
        remaining > SMALL_REQUEST_BYTES && settings.max_split_size.is_none_or(|max| size < max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn sizes_are_those_of_pytorch() {
        // Request, block, segment, segment under large_segment_size_mb:64.
        let table = [
            (1, 512, 2 * MIB, 2 * MIB),
            (512, 512, 2 * MIB, 2 * MIB),
            (513, 1024, 2 * MIB, 2 * MIB),
            (MIB - 1, MIB, 2 * MIB, 2 * MIB),
            (MIB, MIB, 2 * MIB, 2 * MIB),
            (MIB + 1, MIB + 512, 20 * MIB, 64 * MIB),
            (10 * MIB - 512, 10 * MIB - 512, 20 * MIB, 64 * MIB),
            (10 * MIB - 511, 10 * MIB, 10 * MIB, 10 * MIB),
            (10 * MIB + 1, 10 * MIB + 512, 12 * MIB, 12 * MIB),
            (MAX_REQUEST_BYTES, MAX_REQUEST_BYTES, MAX_REQUEST_BYTES, MAX_REQUEST_BYTES),
        ];
        let default = Settings::default();
        let larger = Settings { large_segment_size: 64 * MIB, ..Settings::default() };
        for (request, block, segment, larger_segment) in table {
            assert_eq!(block_size(&default, request), block, "block for {request}");
            assert_eq!(segment_size(&default, block), segment, "segment for {request}");
            assert_eq!(segment_size(&larger, block), larger_segment, "segment for {request} under a larger size");
        }
    }

    #[test]
    fn requests_are_rounded_up_to_a_division() {
        // Divisions, request, block.
        let table = [
            (0, 1, 512),
            (0, MIB + 1, MIB + 512),
            (1, MIB + 1, MIB + 512),
            // 512 bytes for each division and no more: the smallest block's step.
            (4, 2048, 2048),
            (4, 1200, 1536),
            (4, 2049, 2560),
            (4, 5000, 5120),
            (4, 8192, 8192),
            (4, 8193, 10240),
            (4, 3 * GIB, 3 * GIB),
            (4, 3 * GIB + 1, 3 * GIB + GIB / 2),
            (2, 2 * MIB + 1, 3 * MIB),
            (2, 3 * MIB + 1, 4 * MIB),
            // Steps that are no multiple of 512 do not come about: their number would have to be over a 512th of the request.
            (1 << 50, 2 * MIB + 1, 2 * MIB + 512),
            (u64::MAX, MAX_REQUEST_BYTES, MAX_REQUEST_BYTES),
            (2, MAX_REQUEST_BYTES - 1, MAX_REQUEST_BYTES),
        ];
        for (divisions, request, block) in table {
            let settings = Settings { roundup_power2_divisions: [divisions; 16], ..Settings::default() };
            assert_eq!(block_size(&settings, request), block, "{request} under {divisions} divisions");
        }
    }

    #[test]
    fn the_power_of_two_of_a_request_chooses_the_divisions() {
        // Only this place of the table is set, and these requests are rounded by it.
        let table: [(usize, &[u64]); 4] = [
            (0, &[4096 + 1, MIB + 1, 2 * MIB - 1]),
            (1, &[2 * MIB + 1]),
            (14, &[16 * GIB + 1]),
            (15, &[32 * GIB + 1, GIB << 20 | 1]),
        ];
        for (place, requests) in table {
            let mut settings = Settings::default();
            settings.roundup_power2_divisions[place] = 2;
            for &request in requests {
                let half = 1 << (request.ilog2() - 1);
                assert_eq!(
                    block_size(&settings, request),
                    request.next_multiple_of(half),
                    "{request} by place {place}"
                );
            }
            let elsewhere = if place == 15 { 16 * GIB + 1 } else { 32 * GIB + 1 };
            assert_eq!(block_size(&settings, elsewhere), elsewhere + 511, "{elsewhere} not by place {place}");
        }
    }

    #[test]
    fn a_remainder_is_split_off_where_its_pool_can_use_it() {
        let default = Settings::default();
        let limited = Settings { max_split_size: Some(32 * MIB), ..Settings::default() };
        // Settings, pool, expandable, size, remaining, split.
        let table = [
            (&default, PoolKind::Small, false, 512, 0, false),
            (&default, PoolKind::Small, false, 512, 512, true),
            (&default, PoolKind::Large, false, 2 * MIB, MIB, false),
            (&default, PoolKind::Large, false, 2 * MIB, MIB + 512, true),
            (&default, PoolKind::Large, true, 2 * MIB, 0, false),
            (&default, PoolKind::Large, true, 2 * MIB, 512, true),
            (&limited, PoolKind::Small, false, 512, 512, true),
            (&limited, PoolKind::Large, false, 32 * MIB - 512, MIB + 512, true),
            (&limited, PoolKind::Large, false, 32 * MIB, 100 * MIB, false),
            (&limited, PoolKind::Large, true, 32 * MIB, 512, true),
        ];
        for (settings, kind, expandable, size, remaining, split) in table {
            let case = format!("{size} and {remaining} of {kind:?}, expandable: {expandable}");
            assert_eq!(splits(settings, kind, expandable, size, remaining), split, "{case}");
        }
    }
}
