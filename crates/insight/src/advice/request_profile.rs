//! Sizes and peaks of a recording's requests, to leave out settings that cannot change anything.

use std::collections::BTreeSet;

use vramscope_pool::rerun::Workload;
use vramscope_pool::{MAX_REQUEST_BYTES, Settings, size};
use vramscope_trace::PoolKind;

/// The distinct sizes of a program's requests, and its peaks.
#[derive(Clone, Debug)]
pub(super) struct RequestProfile {
    /// The distinct requested sizes in bytes, in ascending order.
    sizes: Vec<u64>,
    /// Peak of the live requests, each rounded up to 512 bytes.
    pub(super) floor_bytes: u64,
    /// Peak of the bytes that the recorded allocator held.
    recorded_peak_bytes: u64,
    /// Maximum bytes that the allocator may reserve; `None` if unlimited or unknown.
    capacity_bytes: Option<u64>,
}

impl RequestProfile {
    /// Collects the request sizes of a program whose allocator may reserve `capacity_bytes`.
    pub(super) fn new(workload: &Workload, capacity_bytes: Option<u64>) -> Self {
        let mut sizes = BTreeSet::new();
        let mut last = 0;
        for bytes in workload.requested_bytes() {
            // Programs often request one size several times in a row.
            if bytes != last && bytes > 0 && bytes <= MAX_REQUEST_BYTES {
                sizes.insert(bytes);
                last = bytes;
            }
        }
        Self {
            sizes: sizes.into_iter().collect(),
            floor_bytes: workload.floor_bytes,
            recorded_peak_bytes: workload.recorded.peak_reserved_bytes,
            capacity_bytes,
        }
    }

    /// Returns the size of the largest segment, in bytes, that one of the requests needs under
    /// `settings`; 0 without requests. The largest request does not always need the largest
    /// segment: requests below 10 MiB share segments, which may be larger.
    pub(super) fn largest_segment_bytes(&self, settings: &Settings) -> u64 {
        let segment = |&bytes: &u64| size::segment_size(settings, size::block_size(settings, bytes));
        self.sizes.iter().map(segment).max().unwrap_or(0)
    }

    /// Returns true if `settings` round any request up to another size than PyTorch's defaults do.
    fn rounds_differently(&self, settings: &Settings) -> bool {
        let default = Settings::default();
        self.sizes.iter().any(|&bytes| size::block_size(settings, bytes) != size::block_size(&default, bytes))
    }

    /// Returns the settings without the values that cannot change a decision for these requests.
    /// Two settings for which the result is equal lead to equal runs.
    pub(super) fn effective(&self, settings: &Settings) -> Settings {
        let (mut effective, default) = (settings.clone(), Settings::default());
        if !self.rounds_differently(settings) {
            effective.roundup_power2_divisions = default.roundup_power2_divisions;
        }
        if !self.uses_large_segment_size(settings) {
            effective.large_segment_size_bytes = default.large_segment_size_bytes;
        }
        if !self.splits_matter(settings) {
            effective.max_split_size_bytes = None;
            effective.max_non_split_rounding_bytes = None;
        } else if !self.reaches(settings, settings.max_split_size_bytes) {
            effective.max_non_split_rounding_bytes = None;
        }
        if !self.collects_garbage(settings) {
            effective.garbage_collection_threshold = default.garbage_collection_threshold;
        }
        effective
    }

    /// Returns true if a request needs a segment or pages of the size that `large_segment_size_mb`
    /// sets.
    fn uses_large_segment_size(&self, settings: &Settings) -> bool {
        self.sizes.iter().any(|&bytes| {
            let block = size::block_size(settings, bytes);
            let other = Settings { large_segment_size_bytes: u64::MAX, ..settings.clone() };
            let is_large = size::pool_kind(block) == PoolKind::Large;
            is_large && (settings.expandable_segments || size::segment_size(&other, block) == u64::MAX)
        })
    }

    /// Returns true if a block can be as large as `max_split_size`, from which on it is not split.
    fn splits_matter(&self, settings: &Settings) -> bool {
        // Blocks of an expandable segment can grow as large as all memory.
        let largest_block_bytes = match settings.expandable_segments {
            true => u64::MAX,
            false => self.largest_segment_bytes(settings),
        };
        settings.max_split_size_bytes.is_some_and(|max| max <= largest_block_bytes)
    }

    /// Returns true if a request has at least `bytes` after rounding; false for `None`.
    fn reaches(&self, settings: &Settings, bytes: Option<u64>) -> bool {
        let largest = self.sizes.last().map_or(0, |&largest| size::block_size(settings, largest));
        bytes.is_some_and(|bytes| largest >= bytes)
    }

    /// Returns true if the pool can hold so much memory that it collects garbage. Expandable
    /// segments are never collected.
    fn collects_garbage(&self, settings: &Settings) -> bool {
        let threshold = settings.garbage_collection_threshold;
        let Some(capacity) = self.capacity_bytes.filter(|_| threshold > 0.0) else { return false };
        !settings.expandable_segments && self.recorded_peak_bytes as f64 > threshold * capacity as f64
    }
}
