//! The pool's segments and blocks, in the shape of `torch.cuda.memory_snapshot()`.

use serde::Serialize;
use vramscope_pool::{BlockState, BlockView, SegmentView};
use vramscope_trace::{Definitions, PoolKind, SiteId};

use crate::memory::MemoryDevice;
use crate::pool::DevicePool;

/// A segment. Serialized, it has the keys of PyTorch's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SnapshotSegment {
    /// The device's number.
    pub device: u16,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub total_size: u64,
    /// Bytes of its blocks that the program has and has not freed.
    pub allocated_size: u64,
    /// Those, and bytes of blocks that were freed while a stream still uses them.
    pub active_size: u64,
    /// Bytes that the program asked for, before rounding, of active blocks.
    pub requested_size: u64,
    /// The stream whose requests it serves.
    pub stream: u64,
    /// Which requests it serves.
    pub segment_type: SegmentType,
    /// The private pool that it belongs to; (0, 0) is none.
    pub segment_pool_id: (u64, u64),
    /// Whether it grows and shrinks by mapping pages.
    pub is_expandable: bool,
    /// Where the request that made it came from.
    pub frames: Vec<SnapshotFrame>,
    /// Its blocks in address order; together they are the whole segment.
    pub blocks: Vec<SnapshotBlock>,
}

/// Which requests a segment serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SegmentType {
    /// Those of up to 1 MiB.
    Small,
    /// All others.
    Large,
}

/// A block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SnapshotBlock {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes that the program asked for; 0 where it is free.
    pub requested_size: u64,
    /// Whose it is.
    pub state: SnapshotState,
    /// Where the request came from; empty where it is free.
    pub frames: Vec<SnapshotFrame>,
}

/// Whose a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotState {
    /// The program's.
    ActiveAllocated,
    /// A stream's that still uses it; the program has freed it.
    ActivePendingFree,
    /// The pool's.
    Inactive,
}

/// A place in the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SnapshotFrame {
    /// The file.
    pub filename: String,
    /// The line, from 1.
    pub line: u32,
    /// The path of the scopes that were open, `step/forward/layer3`.
    pub name: String,
}

impl<D: MemoryDevice> DevicePool<D> {
    /// What the pool holds now: its segments, in the order of their addresses, and their blocks.
    #[must_use]
    pub fn memory_snapshot(&self) -> Vec<SnapshotSegment> {
        let inner = self.lock();
        let (device, segments, definitions) = (inner.pool.id().0, inner.pool.segments(), inner.sites.definitions());
        // The strings are made without the lock: other threads need not wait for them.
        drop(inner);
        segments.iter().map(|segment| snapshot_segment(device, segment, &definitions)).collect()
    }
}

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

fn snapshot_block(block: &BlockView, definitions: &Definitions) -> SnapshotBlock {
    let state = match block.state {
        BlockState::Allocated => SnapshotState::ActiveAllocated,
        BlockState::PendingFree => SnapshotState::ActivePendingFree,
        BlockState::Free => SnapshotState::Inactive,
    };
    let &BlockView { address, size, requested, site, .. } = block;
    SnapshotBlock { address, size, requested_size: requested, state, frames: frames(site, definitions) }
}

fn frames(site: SiteId, definitions: &Definitions) -> Vec<SnapshotFrame> {
    let site = definitions.site(site);
    let frames = definitions.stack(site.stack).map(|frame| SnapshotFrame {
        filename: definitions.string(frame.file).to_owned(),
        line: frame.line,
        name: definitions.string(site.scope).to_owned(),
    });
    frames.collect()
}
