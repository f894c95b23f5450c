//! The knobs of the allocator.

use crate::size::LARGE_SEGMENT_BYTES;

/// What a program may set. The default is PyTorch's; names are those of `PYTORCH_ALLOC_CONF`, sizes here in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Large blocks of this size and more are neither split nor handed out for smaller requests. `None`: every block is split.
    pub max_split_size: Option<u64>,
    /// How much larger than a request of `max_split_size` and more the block handed out for it must stay below. `None`: by
    /// `large_segment_size`.
    pub max_non_split_rounding: Option<u64>,
    /// Into how many steps each power of two is divided that requests are rounded up to; 0 and 1 for none. By the power of two of
    /// the request in MiB: the first is for all below 2 MiB, the last for 32 GiB and more.
    pub roundup_power2_divisions: [u64; 16],
    /// The share of the limit above which a miss first gives old unused segments back; 0 for never. Needs a limit.
    pub garbage_collection_threshold: f64,
    /// Whether segments grow and shrink by mapping pages.
    pub expandable_segments: bool,
    /// The size of a segment for requests over 1 MiB and under 10 MiB, and of a page of an expandable segment of the large pool.
    pub large_segment_size: u64,
    /// The share of the device's memory that the pool may hold, from 0 to 1. Below 1 it sets the limit.
    pub per_process_memory_fraction: f64,
    /// The most bytes that the pool may hold in segments, where it is known in bytes; the smaller of this and what
    /// `per_process_memory_fraction` says holds. A request that needs a segment beyond it is treated as if the device had refused.
    pub limit_bytes: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_split_size: None,
            max_non_split_rounding: None,
            roundup_power2_divisions: [0; 16],
            garbage_collection_threshold: 0.0,
            expandable_segments: false,
            large_segment_size: LARGE_SEGMENT_BYTES,
            per_process_memory_fraction: 1.0,
            limit_bytes: None,
        }
    }
}
