//! The settings of the allocator.

/// The default size, in bytes, of segments for requests over 1 MiB and under 10 MiB.
pub(crate) const DEFAULT_LARGE_SEGMENT_BYTES: u64 = 20 << 20;

/// The allocator's options. The default is PyTorch's.
///
/// Fields have the names of `PYTORCH_CUDA_ALLOC_CONF`; sizes are in bytes instead of MiB.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Blocks of this size or more are neither split nor used for smaller requests. `None`: no
    /// limit, every block may be split. In bytes; PyTorch's `max_split_size_mb`.
    pub max_split_size_bytes: Option<u64>,
    /// A free block serves a request of `max_split_size_bytes` or more only if it is less than this
    /// much larger than the request. `None`: `large_segment_size_bytes`. In bytes; PyTorch's
    /// `max_non_split_rounding_mb`.
    pub max_non_split_rounding_bytes: Option<u64>,
    /// Number of steps between two powers of two to which requests are rounded up; 0 and 1 turn
    /// this off. Indexed by log2 of the request in MiB: element 0 applies to all requests below
    /// 2 MiB, element 15 to requests of 32 GiB and more.
    pub roundup_power2_divisions: [u64; 16],
    /// Share of the limit, from 0 to 1, above which the slow path first releases old cached
    /// segments. 0 turns it off. Has an effect only with a limit.
    pub garbage_collection_threshold: f64,
    /// Whether segments grow and shrink by mapping pages into a reserved address range.
    pub expandable_segments: bool,
    /// Size of the segments for requests over 1 MiB and under 10 MiB, and of the pages of large
    /// expandable segments. In bytes; PyTorch's `large_segment_size_mb`.
    pub large_segment_size_bytes: u64,
    /// Share of the device's memory that the pool may reserve, from 0 to 1. 1 means no limit.
    pub per_process_memory_fraction: f64,
    /// Limit of the reserved bytes, as an alternative to `per_process_memory_fraction`; the smaller
    /// of both applies. A request that needs a segment beyond it is treated as if the device were
    /// out of memory.
    pub limit_bytes: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_split_size_bytes: None,
            max_non_split_rounding_bytes: None,
            roundup_power2_divisions: [0; 16],
            garbage_collection_threshold: 0.0,
            expandable_segments: false,
            large_segment_size_bytes: DEFAULT_LARGE_SEGMENT_BYTES,
            per_process_memory_fraction: 1.0,
            limit_bytes: None,
        }
    }
}
