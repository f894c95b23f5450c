//! The buffers to place, and the check of a placement.

use std::collections::BTreeMap;

use thiserror::Error;

/// A buffer to place: its size, and the time during which it needs its memory.
///
/// Times have no unit; only their order matters. For recordings they are event numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The time at which it starts to need its memory.
    pub lower: u64,
    /// The time from which another buffer can have the memory; after `lower`.
    pub upper: u64,
    /// Size in bytes.
    pub size: u64,
}

/// Buffers that cannot be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidBuffer {
    /// A buffer ends before it starts, or as it starts.
    #[error("buffer {index} lives from {lower} to {upper}: its end must be after its start")]
    EmptyLifetime {
        /// Position of the buffer, from 0.
        index: usize,
        /// The time of its start.
        lower: u64,
        /// The time of its end.
        upper: u64,
    },
    /// The sizes add up to more than 2^62 bytes.
    #[error("the buffers have more than 2^62 bytes in all")]
    TooManyBytes,
    /// More buffers than this module can number.
    #[error("{count} buffers are more than the limit of {limit}")]
    TooManyBuffers {
        /// Number of buffers.
        count: usize,
        /// Maximum number of buffers.
        limit: usize,
    },
}

/// The mistake in a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlacementError {
    /// Not every buffer has an offset.
    #[error("{offsets} offsets for {buffers} buffers")]
    WrongNumber {
        /// Number of buffers.
        buffers: usize,
        /// Number of offsets.
        offsets: usize,
    },
    /// A buffer ends beyond the last address.
    #[error("buffer {index} at offset {offset} ends beyond the last address")]
    BeyondLastAddress {
        /// Position of the buffer, from 0.
        index: usize,
        /// Its offset in bytes.
        offset: u64,
    },
    /// Two buffers have a byte in common while both need it.
    #[error("buffers {one} and {other} overlap in time and in memory")]
    Overlap {
        /// Position of the first buffer, from 0.
        one: usize,
        /// Position of the second buffer.
        other: usize,
    },
}

/// Maximum alignment that [`common_alignment`] returns, in bytes.
const MAX_ALIGNMENT: u64 = 1 << 20;

/// Returns the greatest common divisor; that of 0 and a number is the number.
pub(super) fn greatest_common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// Returns the least common multiple of two alignments (at least 1); `None` if it is more than 1
/// MiB.
///
/// Buffers whose sizes are multiples of it get offsets that are multiples of it.
#[must_use]
pub fn common_alignment(one: u64, other: u64) -> Option<u64> {
    let multiple = (one / greatest_common_divisor(one, other)).checked_mul(other);
    multiple.filter(|&multiple| multiple <= MAX_ALIGNMENT)
}

/// Returns the height of a placement in bytes: the end of the highest buffer.
///
/// # Errors
/// [`PlacementError`] if two buffers that live at one time overlap in memory.
pub fn check_placement(buffers: &[Buffer], offsets: &[u64]) -> Result<u64, PlacementError> {
    if buffers.len() != offsets.len() {
        return Err(PlacementError::WrongNumber { buffers: buffers.len(), offsets: offsets.len() });
    }
    let mut changes: Vec<(u64, bool, usize)> = Vec::with_capacity(buffers.len() * 2);
    for (index, buffer) in buffers.iter().enumerate().filter(|(_, buffer)| buffer.size > 0) {
        changes.push((buffer.lower, true, index));
        changes.push((buffer.upper, false, index));
    }
    // Ends come before starts at the same time.
    changes.sort_unstable();
    let mut live: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    let mut height = 0;
    for (_, starts, index) in changes {
        let offset = offsets[index];
        if !starts {
            live.remove(&offset);
            continue;
        }
        let size = buffers[index].size;
        let end = offset.checked_add(size).ok_or(PlacementError::BeyondLastAddress { index, offset })?;
        let below = live.range(..end).next_back();
        if let Some((_, &(_, other))) = below.filter(|(_, (other_end, _))| *other_end > offset) {
            return Err(PlacementError::Overlap { one: other.min(index), other: other.max(index) });
        }
        live.insert(offset, (end, index));
        height = height.max(end);
    }
    Ok(height)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignments_have_a_common_multiple() {
        for (one, other, expected) in
            [(1, 1, Some(1)), (1, 64, Some(64)), (64, 256, Some(256)), (6, 4, Some(12)), (1 << 20, 3, None)]
        {
            assert_eq!(common_alignment(one, other), expected);
        }
    }

    #[test]
    fn overlaps_in_time_and_memory_are_found() {
        let buffer = |lower, upper, size| Buffer { lower, upper, size };
        let buffers = [buffer(0, 2, 4), buffer(1, 3, 4), buffer(2, 4, 4), buffer(0, 9, 0)];
        let check = |offsets: [u64; 4]| check_placement(&buffers, &offsets);
        assert_eq!(check([0, 4, 0, 0]), Ok(8));
        assert_eq!(check([0, 3, 0, 0]), Err(PlacementError::Overlap { one: 0, other: 1 }));
        assert_eq!(check([0, 4, 5, 0]), Err(PlacementError::Overlap { one: 1, other: 2 }));
        let beyond = PlacementError::BeyondLastAddress { index: 0, offset: u64::MAX };
        assert_eq!(check([u64::MAX, 4, 0, 0]), Err(beyond));
        assert_eq!(check_placement(&buffers, &[0]), Err(PlacementError::WrongNumber { buffers: 4, offsets: 1 }));
    }
}
