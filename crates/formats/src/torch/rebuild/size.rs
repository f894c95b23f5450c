//! Block sizes for requests that come from a file, by the pool's rules.

use std::collections::BTreeSet;

use vramscope_pool::{MAX_REQUEST_BYTES, Settings, size};
use vramscope_trace::{DeviceId, MempoolId, PoolKey, PoolKind};

use super::segments::{likely_pool, segment_of_row};
use crate::torch::snapshot::{BlockState, Snapshot};

/// The rules by which the allocator of one device, or of pinned host memory, determines the size of
/// a block.
#[derive(Clone, Debug)]
pub(crate) struct SizeRules {
    settings: Settings,
    is_host: bool,
    /// The private pools whose blocks are not split.
    no_split: BTreeSet<MempoolId>,
}

impl SizeRules {
    /// Creates the rules of a device under these settings; the host has its own rules.
    pub(crate) fn new(settings: Settings, device: DeviceId) -> Self {
        Self { settings, is_host: device == DeviceId::HOST, no_split: BTreeSet::new() }
    }

    /// Creates the rules of a device of a snapshot. A snapshot does not contain which private pools
    /// do not split their blocks (`torch.cuda.MemPool(no_split=True)`). A pool counts as one of
    /// these if, at the end, some block exceeds its request by so much that the rest would have
    /// been split off, and no segment of the pool has two blocks.
    pub(super) fn of_snapshot(snapshot: &Snapshot, device: DeviceId) -> Self {
        let mut rules = Self::new(snapshot.settings.effective(), device);
        let mut split = BTreeSet::new();
        for row in snapshot.segments_of(device.0).iter().filter(|row| row.mempool != MempoolId::default()) {
            let (pool, blocks) =
                (likely_pool(segment_of_row(row).pool, row.size), &snapshot.blocks[row.blocks.clone()]);
            let is_expandable = row.expandable == Some(true);
            if blocks.len() > 1 && !is_expandable {
                split.insert(row.mempool);
            }
            for block in blocks.iter().filter(|block| block.state != BlockState::Free) {
                let Some(rounded) = block.requested.map(|requested| rules.rounded(requested)) else { continue };
                let rest = block.size.saturating_sub(rounded);
                if size::should_split(&rules.settings, pool.kind, is_expandable, rounded, rest) {
                    rules.no_split.insert(row.mempool);
                }
            }
        }
        rules.no_split.retain(|pool| !split.contains(pool));
        rules
    }

    /// Returns the number of private pools whose blocks are not split.
    pub(super) fn no_split_pools(&self) -> usize {
        self.no_split.len()
    }

    /// Returns the size of a request after rounding, in bytes. A request above the allocator's
    /// maximum is not rounded.
    pub(super) fn rounded(&self, requested: u64) -> u64 {
        if requested > MAX_REQUEST_BYTES {
            requested
        } else if self.is_host {
            requested.next_power_of_two()
        } else {
            size::block_size(&self.settings, requested)
        }
    }

    /// Returns the size in bytes of the block that a request gets from a free range of `free`
    /// bytes; `None` if the range is too small.
    ///
    /// PyTorch's allocator of pinned memory creates a segment for each block: a power of two up to
    /// a size limit that a setting gives, and exactly the request above it. The sizes of blocks in
    /// segments that were reserved in advance are powers of two.
    pub(super) fn block_size(&self, pool: PoolKey, expandable: bool, requested: u64, free: u64) -> Option<u64> {
        let rounded = self.rounded(requested);
        if self.is_host {
            let is_whole_segment = free / 2 < rounded;
            return (free >= requested).then_some(if is_whole_segment { free } else { rounded });
        }
        let remaining = free.checked_sub(rounded)?;
        let splits = !self.no_split.contains(&pool.owner)
            && size::should_split(&self.settings, pool.kind, expandable, rounded, remaining);
        Some(if splits { rounded } else { free })
    }

    /// Returns true if a block of a segment may be larger than its rounded request, because the
    /// rest of the free range was too small to split off or the pool does not split; false if it
    /// always has the rounded size.
    pub(super) fn may_keep_tail(&self, pool: PoolKey, expandable: bool) -> bool {
        self.is_host || (pool.kind == PoolKind::Large && !expandable) || self.no_split.contains(&pool.owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounded_size_is_never_below_the_request() {
        for divisions in [0, 2, 3, u64::MAX] {
            let settings = Settings { roundup_power2_divisions: [divisions; 16], ..Settings::default() };
            for device in [DeviceId(0), DeviceId::HOST] {
                let rules = SizeRules::new(settings.clone(), device);
                for requested in [0, 1, 1200, MAX_REQUEST_BYTES - 1, MAX_REQUEST_BYTES, MAX_REQUEST_BYTES + 1, u64::MAX]
                {
                    assert!(rules.rounded(requested) >= requested, "{requested} under {divisions} divisions");
                    let block_size = rules.block_size(PoolKey::default_of(PoolKind::Large), false, requested, u64::MAX);
                    assert!(
                        block_size.is_some_and(|size| size >= requested),
                        "{requested} under {divisions} divisions"
                    );
                }
            }
        }
    }

    #[test]
    fn pinned_blocks_have_powers_of_two() {
        let rules = SizeRules::new(Settings::default(), DeviceId::HOST);
        let block_size =
            |requested, free| rules.block_size(PoolKey::default_of(PoolKind::Large), false, requested, free);
        assert_eq!(block_size(5000, 8192), Some(8192));
        // Above the size limit for rounding, a segment has exactly the requested size.
        assert_eq!(block_size(5000, 5000), Some(5000));
        assert_eq!(block_size(5000, 4096), None);
        assert_eq!(block_size(5000, 1 << 20), Some(8192));
    }
}
