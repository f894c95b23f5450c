//! Applies a chunk's operations to a memory state without inserting short-lived blocks into it.
//!
//! A chunk whose writer marks it as *consistent* contains no event that contradicts the state
//! before it. A free in a consistent chunk states which allocation of the chunk it frees, so no
//! block has to be looked up by address. Nearly all blocks are freed before the chunk ends. These
//! blocks are kept in allocation order and inserted into the state's sorted map only if they
//! outlive the chunk. A chunk that is marked as consistent but contradicts the state is damaged.

use std::ops::Range;

use crate::address_map::Position;
use crate::device_state::DeviceState;
use crate::event::{AllocatedBlock, DeviceId, Event, EventKind, Relabel};
use crate::event_codec::{FreedBlock, Operation};
use crate::memory_state::MemoryState;
use crate::segment::Block;

/// The location of a block that the current chunk allocated: only in [`ChunkLocalBlocks`], in the
/// memory state, or nowhere because it was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockLocation {
    /// In [`ChunkLocalBlocks`] only.
    ChunkLocal,
    /// In the memory state.
    InState,
    /// Freed.
    Freed,
}

/// A block that the current chunk allocated: the event and time of its allocation, and where the
/// block is now.
#[derive(Clone, Copy, Debug)]
struct LocalBlock {
    allocated: AllocatedBlock,
    event: u64,
    time_ns: u64,
    pending_free: bool,
    location: BlockLocation,
}

impl LocalBlock {
    /// Creates a block that is not pending free. `event` is the index of the allocating event.
    #[inline]
    fn new(allocated: AllocatedBlock, event: u64, time_ns: u64, location: BlockLocation) -> Self {
        Self { allocated, event, time_ns, pending_free: false, location }
    }
}

/// The blocks that the current chunk has allocated, in the order of their allocations. They enter
/// the memory state only if they outlive the chunk, because most are freed before it ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChunkLocalBlocks {
    blocks: Vec<LocalBlock>,
    /// Number of leading blocks that are freed or in the state.
    flushed: usize,
    /// Whether the chunk is marked as consistent.
    is_consistent: bool,
    /// The only device whose operations are applied; `None` for all.
    only_device: Option<DeviceId>,
}

/// The block that [`flush`](ChunkLocalBlocks::flush) inserted into the memory state last. The next
/// block is often in its segment, after it.
struct LastInserted {
    device: DeviceId,
    /// The address range of the block's segment.
    segment: Range<u64>,
    position: Position,
}

/// The error for an event that contradicts the memory state although the writer marked its chunk as
/// consistent (free of contradictions).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event contradicts the memory state")]
pub(crate) struct InconsistentEvent;

/// The events of a free that are to be applied: its request, its completion, or both.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FreeStep {
    Requested,
    Completed,
    Both,
}

impl ChunkLocalBlocks {
    /// Creates an instance for a caller that applies only the operations of one device and
    /// [passes](Self::pass) the operations of other devices.
    pub(crate) fn of_device(device: DeviceId) -> Self {
        Self { only_device: Some(device), ..Self::default() }
    }

    /// Returns the only device whose operations are applied; `None` for all.
    pub(crate) fn only_device(&self) -> Option<DeviceId> {
        self.only_device
    }

    /// Starts a new chunk and forgets the blocks of the previous one. `is_consistent` is true if
    /// the writer marked the chunk as free of contradictions; if false, all events go straight to
    /// the state.
    pub(crate) fn begin(&mut self, is_consistent: bool) {
        self.blocks.clear();
        (self.flushed, self.is_consistent) = (0, is_consistent);
    }

    /// Skips an operation whose effect the state already contains or does not need. A skipped
    /// allocation still counts, because later frees refer to the chunk's allocations by index.
    pub(crate) fn skip(&mut self, operation: &Operation) {
        if let (true, &Operation::Allocated { allocated, time_ns }) = (self.is_consistent, operation) {
            self.blocks.push(LocalBlock::new(allocated, 0, time_ns, BlockLocation::InState));
        }
    }

    /// Moves the moment and time of `state` past the events of another device's operation, up to
    /// the moment `until`, without applying them. The operation's first event has index `index` in
    /// the recording; `each` receives the state after every event.
    // Cold, so that a replay of all devices takes no longer for the code that it never runs.
    #[cold]
    pub(crate) fn pass(
        &mut self,
        state: &mut MemoryState,
        operation: Operation,
        (index, until): (u64, u64),
        each: &mut impl FnMut(&MemoryState),
    ) {
        self.skip(&operation);
        let mut at = index;
        operation.for_each_event(|event| {
            if at == state.event && at < until {
                state.advance(1, event.time_ns);
                each(state);
            }
            at += 1;
        });
    }

    /// Applies all events of an operation to `state`; blocks that a consistent chunk allocates stay
    /// here until [`flush`](Self::flush).
    #[inline(always)]
    pub(crate) fn apply(&mut self, state: &mut MemoryState, operation: &Operation) -> Result<(), InconsistentEvent> {
        if !self.is_consistent {
            operation.for_each_event(|event| state.apply(&event));
            return Ok(());
        }
        match *operation {
            Operation::Allocated { allocated, time_ns } => {
                if allocated.requested > allocated.size {
                    return Err(InconsistentEvent);
                }
                let device = state.device_mut(allocated.device);
                device.count_events(1);
                device.counters.add_block(allocated.size, allocated.requested, false);
                self.blocks.push(LocalBlock::new(allocated, state.event, time_ns, BlockLocation::ChunkLocal));
                state.advance(1, time_ns);
            }
            Operation::Freed { block, completed_ns } => {
                self.free(state, FreeStep::Both, block)?;
                state.advance(2, block.time_ns.max(completed_ns));
            }
            Operation::FreeRequested(block) => {
                self.free(state, FreeStep::Requested, block)?;
                state.advance(1, block.time_ns);
            }
            Operation::FreeCompleted(block) => {
                self.free(state, FreeStep::Completed, block)?;
                state.advance(1, block.time_ns);
            }
            Operation::Other(event) => self.apply_other(state, &event)?,
        }
        Ok(())
    }

    /// Applies a relabel to a block, which the chunk or an earlier one allocated.
    #[cold]
    pub(crate) fn relabel(&mut self, state: &mut MemoryState, relabel: &Relabel) -> Result<(), InconsistentEvent> {
        self.flush(state)?;
        state.relabel(relabel);
        Ok(())
    }

    /// Applies only the free request of an operation that requests and completes a free; applies
    /// any other operation completely.
    pub(crate) fn apply_free_request(
        &mut self,
        state: &mut MemoryState,
        operation: &Operation,
    ) -> Result<(), InconsistentEvent> {
        match *operation {
            Operation::Freed { block, .. } => self.apply(state, &Operation::FreeRequested(block)),
            _ => self.apply(state, operation),
        }
    }

    /// Applies only the completion of an operation that requests and completes a free; applies any
    /// other operation completely.
    pub(crate) fn apply_free_completion(
        &mut self,
        state: &mut MemoryState,
        operation: &Operation,
    ) -> Result<(), InconsistentEvent> {
        match *operation {
            Operation::Freed { block, completed_ns: time_ns } => {
                self.apply(state, &Operation::FreeCompleted(FreedBlock { time_ns, ..block }))
            }
            _ => self.apply(state, operation),
        }
    }

    /// Applies the request, the completion, or both events of the free of a block.
    #[inline(always)]
    fn free(&mut self, state: &mut MemoryState, step: FreeStep, freed: FreedBlock) -> Result<(), InconsistentEvent> {
        let device = state.device_mut(freed.device);
        device.count_events(if step == FreeStep::Both { 2 } else { 1 });
        let block = freed.allocation.and_then(|index| self.blocks.get_mut(index as usize));
        match block {
            Some(block) if block.location == BlockLocation::ChunkLocal => {
                if step != FreeStep::Completed {
                    if block.pending_free {
                        return Err(InconsistentEvent);
                    }
                    device.subtract_allocated(block.allocated.size);
                }
                if step == FreeStep::Requested {
                    block.pending_free = true;
                } else {
                    let free_requested = step == FreeStep::Both || block.pending_free;
                    let AllocatedBlock { size, requested, .. } = block.allocated;
                    device.counters.subtract_block(size, requested, free_requested);
                    block.location = BlockLocation::Freed;
                }
                Ok(())
            }
            Some(block) if block.location == BlockLocation::Freed => Err(InconsistentEvent),
            block => {
                if let Some(block) = block
                    && step != FreeStep::Requested
                {
                    block.location = BlockLocation::Freed;
                }
                free_in_state(device, step, freed.address)
            }
        }
    }

    /// Applies an event that is neither an allocation nor a free to `state`.
    #[cold]
    fn apply_other(&mut self, state: &mut MemoryState, event: &Event) -> Result<(), InconsistentEvent> {
        let is_segment = matches!(
            event.kind,
            EventKind::SegmentAllocated { .. }
                | EventKind::SegmentMapped { .. }
                | EventKind::SegmentFreed { .. }
                | EventKind::SegmentUnmapped { .. }
        );
        if is_segment {
            // A change of a segment may affect every block in its range.
            self.flush(state)?;
        }
        let inconsistencies = |state: &MemoryState| state.device(event.device).map_or(0, DeviceState::inconsistencies);
        let before = inconsistencies(state);
        state.apply(event);
        if inconsistencies(state) == before { Ok(()) } else { Err(InconsistentEvent) }
    }

    /// Inserts the chunk's blocks that are still active into `state`, so that it is complete.
    /// Returns an error if one overlaps another block or is outside of every segment.
    pub(crate) fn flush(&mut self, state: &mut MemoryState) -> Result<(), InconsistentEvent> {
        // Most blocks are in the segment of the block inserted before them, at higher addresses.
        let mut last: Option<LastInserted> = None;
        for local in &mut self.blocks[self.flushed..] {
            if local.location == BlockLocation::ChunkLocal {
                let AllocatedBlock { device, address, size, requested, stream, pool, site } = local.allocated;
                let (pending_free, since_event, since_ns) = (local.pending_free, local.event, local.time_ns);
                let block = Block { address, size, requested, stream, pool, site, pending_free, since_event, since_ns };
                let state = state.device_mut(device);
                last = last.filter(|last| last.device == device && last.segment.contains(&address));
                let segment = match &last {
                    Some(last) => last.segment.clone(),
                    None => state.segment_at(address).map_or(0..0, |segment| segment.address..segment.end()),
                };
                let position = state.insert_counted_block(block, segment.end, last.map(|last| last.position));
                let position = position.ok_or(InconsistentEvent)?;
                last = Some(LastInserted { device, segment, position });
                local.location = BlockLocation::InState;
            }
        }
        self.flushed = self.blocks.len();
        Ok(())
    }
}

/// Applies the request, the completion, or both events of the free of the block at `address`; an
/// error if the device's state has no such block.
fn free_in_state(device: &mut DeviceState, step: FreeStep, address: u64) -> Result<(), InconsistentEvent> {
    if step != FreeStep::Completed {
        let block = device.blocks.get_mut(address).filter(|block| !block.pending_free).ok_or(InconsistentEvent)?;
        block.pending_free = true;
        let size = block.size;
        device.subtract_allocated(size);
    }
    if step != FreeStep::Requested && !device.remove_block(address) {
        return Err(InconsistentEvent);
    }
    Ok(())
}
