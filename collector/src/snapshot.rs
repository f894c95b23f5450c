//! The pool's segments and blocks in the form of `torch.cuda.memory_snapshot()`.

use serde::Serialize;
use vramscope_pool::{BlockState, BlockView, SegmentView};
use vramscope_trace::{Definitions, PoolKind, SiteId};

use crate::memory::MemoryDevice;
use crate::pool::DevicePool;

/// A segment with its blocks. It serializes with the keys of PyTorch's `memory_snapshot()`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SnapshotSegment {
    /// Device number.
    pub device: u16,
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub total_size: u64,
    /// Bytes of allocated blocks.
    pub allocated_size: u64,
    /// Bytes of active blocks: allocated, or freed while a stream still uses them.
    pub active_size: u64,
    /// Bytes of active blocks before rounding.
    pub requested_size: u64,
    /// Stream whose requests the segment serves.
    pub stream: u64,
    /// Size class of the requests that the segment serves.
    pub segment_type: SegmentType,
    /// Id of the private pool that the segment belongs to; (0, 0) for the default pool.
    pub segment_pool_id: (u64, u64),
    /// True for an expandable segment, which grows and shrinks by mapping pages.
    pub is_expandable: bool,
    /// Call stack of the request that created the segment.
    pub frames: Vec<SnapshotFrame>,
    /// Blocks in address order; they cover the whole segment.
    pub blocks: Vec<SnapshotBlock>,
}

/// Size class of the requests that a segment serves: small (up to 1 MiB) or large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SegmentType {
    /// For requests of up to 1 MiB.
    Small,
    /// For larger requests.
    Large,
}

/// A block of a [`SnapshotSegment`]: address, sizes, state and call stack. It serializes with
/// PyTorch's keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SnapshotBlock {
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// Bytes that the program requested; 0 for a free block.
    pub requested_size: u64,
    /// Whether the block is allocated, pending free, or free.
    pub state: SnapshotState,
    /// Call stack of the request; empty for a free block.
    pub frames: Vec<SnapshotFrame>,
}

/// Whether a block is allocated, freed while a stream still uses it, or free. It serializes with
/// PyTorch's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotState {
    /// The program holds the block.
    ActiveAllocated,
    /// The program freed the block, but a stream still uses it.
    ActivePendingFree,
    /// The block is free.
    Inactive,
}

/// A source location on a request's call stack, and the path of the scopes that were open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SnapshotFrame {
    /// Source file.
    pub filename: String,
    /// Line, starting at 1.
    pub line: u32,
    /// Path of the open scopes, such as `step/forward/layer3`.
    pub name: String,
}

impl<D: MemoryDevice> DevicePool<D> {
    /// Returns all segments of the pool in address order, with their blocks.
    #[must_use]
    pub fn memory_snapshot(&self) -> Vec<SnapshotSegment> {
        let inner = self.lock();
        let (device, segments, definitions) = (inner.pool.id().0, inner.pool.segments(), inner.sites.definitions());
        // Strings are made after the lock is released, so that other threads do not wait for them.
        drop(inner);
        segments.iter().map(|segment| snapshot_segment(device, segment, &definitions)).collect()
    }
}

/// Converts a segment of device number `device`, with its blocks, to the form of PyTorch's
/// snapshots.
fn snapshot_segment(device: u16, segment: &SegmentView, definitions: &Definitions) -> SnapshotSegment {
    let sum = |of: fn(&BlockView) -> u64, counts: fn(BlockState) -> bool| {
        segment.blocks.iter().filter(|block| counts(block.state)).map(of).sum()
    };
    let is_active = |state| state != BlockState::Free;
    SnapshotSegment {
        device,
        address: segment.address,
        total_size: segment.size,
        allocated_size: sum(|block| block.size, |state| state == BlockState::Allocated),
        active_size: sum(|block| block.size, is_active),
        requested_size: sum(|block| block.requested, is_active),
        stream: segment.stream.0,
        segment_type: match segment.pool.kind {
            PoolKind::Small => SegmentType::Small,
            PoolKind::Large => SegmentType::Large,
        },
        segment_pool_id: (segment.pool.owner.0, segment.pool.owner.1),
        is_expandable: segment.expandable,
        frames: frames(segment.site, definitions),
        blocks: segment.blocks.iter().map(|block| snapshot_block(block, definitions)).collect(),
    }
}

/// Converts a block to the form of PyTorch's snapshots.
fn snapshot_block(block: &BlockView, definitions: &Definitions) -> SnapshotBlock {
    let state = match block.state {
        BlockState::Allocated => SnapshotState::ActiveAllocated,
        BlockState::PendingFree => SnapshotState::ActivePendingFree,
        BlockState::Free => SnapshotState::Inactive,
    };
    let &BlockView { address, size, requested, site, .. } = block;
    SnapshotBlock { address, size, requested_size: requested, state, frames: frames(site, definitions) }
}

/// Returns the call stack of the requests of a site, innermost frame first.
fn frames(site: SiteId, definitions: &Definitions) -> Vec<SnapshotFrame> {
    let site = definitions.site(site);
    let frames = definitions.stack(site.stack).map(|frame| SnapshotFrame {
        filename: definitions.string(frame.file).to_owned(),
        line: frame.line,
        name: definitions.string(site.scope).to_owned(),
    });
    frames.collect()
}
