//! The rules for block sizes, segment sizes and splitting, as functions of [`Settings`].
//!
//! All size rules are here, because the pool and the readers that reconstruct a recorded history
//! must agree on them.

use vramscope_trace::PoolKind;

use crate::settings::Settings;

/// The smallest block, in bytes. Block sizes are multiples of it unless `roundup_power2_divisions`
/// is set.
pub const MIN_BLOCK_BYTES: u64 = 512;
/// The largest rounded size that the small pool serves, in bytes.
pub const SMALL_REQUEST_BYTES: u64 = 1 << 20;
/// The size of a small pool's segments and of the pages of its expandable segments, in bytes.
pub const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
/// Requests of this many bytes or more are refused without an attempt, as in PyTorch. Sums of
/// smaller sizes cannot overflow.
pub const MAX_REQUEST_BYTES: u64 = 1 << 60;

/// The smallest rounded request, in bytes, that gets a segment of its own size.
pub const MIN_DEDICATED_SEGMENT_BYTES: u64 = 10 << 20;
/// The size of a segment made for one large request is a multiple of this many bytes.
const DEDICATED_SEGMENT_STEP_BYTES: u64 = 2 << 20;

/// Returns the block size in bytes for a request of `bytes`. PyTorch's `round_size`.
///
/// `bytes` must not exceed [`MAX_REQUEST_BYTES`].
///
/// ```
/// use vramscope_pool::{Settings, size};
///
/// assert_eq!(size::block_size(&Settings::default(), 1000), 1024);
/// ```
#[inline]
#[must_use]
pub fn block_size(settings: &Settings, bytes: u64) -> u64 {
    debug_assert!(bytes <= MAX_REQUEST_BYTES, "the pool refuses larger requests before rounding");
    if bytes < MIN_BLOCK_BYTES {
        return MIN_BLOCK_BYTES;
    }
    // The table begins at 1 MiB. Its first and last entries apply to all smaller and larger sizes.
    let row = bytes.ilog2().saturating_sub(SMALL_REQUEST_BYTES.ilog2()) as usize;
    let table = &settings.roundup_power2_divisions;
    let divisions = table[row.min(table.len() - 1)];
    // Rounding to divisions does not apply if a division would be smaller than the smallest block.
    if divisions > 1 && bytes > MIN_BLOCK_BYTES.saturating_mul(divisions) {
        next_division(bytes, divisions)
    } else {
        bytes.next_multiple_of(MIN_BLOCK_BYTES)
    }
}

/// Returns the block size in bytes for a recorded request of `bytes`. More than
/// [`MAX_REQUEST_BYTES`], which a damaged recording may contain, counts as that many.
pub(crate) fn recorded_block_size(settings: &Settings, bytes: u64) -> u64 {
    block_size(settings, bytes.min(MAX_REQUEST_BYTES))
}

/// Rounds `bytes` up to the next of `divisions` equal steps between the powers of two below and
/// above. If `divisions` is not a power of two, the next lower power of two is used.
#[cold]
fn next_division(bytes: u64, divisions: u64) -> u64 {
    // The caller ensured more than 512 bytes per division, so a step is at least 512 bytes.
    let step = 1 << (bytes.ilog2() - divisions.ilog2());
    bytes.next_multiple_of(step)
}

/// Returns the size class that serves blocks of `size` bytes. PyTorch's `get_pool`.
#[inline]
#[must_use]
pub fn pool_kind(size: u64) -> PoolKind {
    if size <= SMALL_REQUEST_BYTES { PoolKind::Small } else { PoolKind::Large }
}

/// Returns the size in bytes of the segment to obtain from the device if no free block holds `size`
/// bytes. PyTorch's `get_allocation_size`.
#[must_use]
pub fn segment_size(settings: &Settings, size: u64) -> u64 {
    if size <= SMALL_REQUEST_BYTES {
        SMALL_SEGMENT_BYTES
    } else if size < MIN_DEDICATED_SEGMENT_BYTES {
        settings.large_segment_size_bytes
    } else {
        size.next_multiple_of(DEDICATED_SEGMENT_STEP_BYTES)
    }
}

/// Returns true if the `remaining` bytes after a block of `size` bytes become a free block of their
/// own, false if they stay with the block. PyTorch's `should_split`.
///
/// In the small pool, and with expandable segments on (`expandable`), any remainder of at least
/// [`MIN_BLOCK_BYTES`] does. In the large pool, a remainder that only the small pool could use
/// stays with the block, and blocks of `max_split_size` and more are not split. Pools with
/// splitting disabled never split and do not call this.
#[inline]
#[must_use]
pub fn should_split(settings: &Settings, kind: PoolKind, expandable: bool, size: u64, remaining: u64) -> bool {
    if kind == PoolKind::Small || expandable {
        remaining >= MIN_BLOCK_BYTES
    } else {
        remaining > SMALL_REQUEST_BYTES && settings.max_split_size_bytes.is_none_or(|max| size < max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn block_and_segment_sizes_match_pytorch() {
        // Columns: request, block, segment, segment under large_segment_size_mb:64.
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
        let larger = Settings { large_segment_size_bytes: 64 * MIB, ..Settings::default() };
        for (request, block, segment, larger_segment) in table {
            assert_eq!(block_size(&default, request), block, "block for {request}");
            assert_eq!(segment_size(&default, block), segment, "segment for {request}");
            assert_eq!(segment_size(&larger, block), larger_segment, "segment for {request} under a larger size");
        }
    }

    #[test]
    fn requests_round_up_to_a_division() {
        // Columns: divisions, request, block.
        let table = [
            (0, 1, 512),
            (0, MIB + 1, MIB + 512),
            (1, MIB + 1, MIB + 512),
            // Exactly 512 bytes per division: rounding to the smallest block applies.
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
            // A step is never below 512 bytes: it would take more divisions than a 512th of the
            // request.
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
    fn divisions_are_chosen_by_power_of_two() {
        // Only this row of the table is set, and it rounds these requests.
        let table: [(usize, &[u64]); 4] = [
            (0, &[4096 + 1, MIB + 1, 2 * MIB - 1]),
            (1, &[2 * MIB + 1]),
            (14, &[16 * GIB + 1]),
            (15, &[32 * GIB + 1, GIB << 20 | 1]),
        ];
        for (row, requests) in table {
            let mut settings = Settings::default();
            settings.roundup_power2_divisions[row] = 2;
            for &request in requests {
                let half = 1 << (request.ilog2() - 1);
                assert_eq!(block_size(&settings, request), request.next_multiple_of(half), "{request}, row {row}");
            }
            let other = if row == 15 { 16 * GIB + 1 } else { 32 * GIB + 1 };
            assert_eq!(block_size(&settings, other), other + 511, "{other}, not row {row}");
        }
    }

    #[test]
    fn remainder_is_split_off_if_its_pool_can_use_it() {
        let default = Settings::default();
        let limited = Settings { max_split_size_bytes: Some(32 * MIB), ..Settings::default() };
        // Columns: settings, pool, expandable, size, remaining, split.
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
            assert_eq!(should_split(settings, kind, expandable, size, remaining), split, "{case}");
        }
    }
}
