//! Applies a chunk's operations to a memory state, and puts a block among the others only if it outlives the chunk.
//!
//! Of a chunk whose writer says that all of its events *fit*, so that none contradicts what was known before it, nothing has to be
//! looked up: a free says which of the chunk's allocations it frees, and nearly all blocks are gone again before the chunk ends. So a
//! replay keeps the chunk's own blocks in the order of their allocation, and has to find a place among all live blocks for few of them.
//! A chunk that says so and whose events do not fit is damaged.

use crate::device_state::DeviceState;
use crate::event::{DeviceId, Event, EventKind};
use crate::event_code::{Allocated, Operation};
use crate::state::{Block, MemoryState};

/// Where a block of the chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Here alone.
    Here,
    /// Among the state's live blocks.
    InState,
    /// Nowhere: it was freed.
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    allocated: Allocated,
    event: u64,
    time_ns: u64,
    pending_free: bool,
    place: Place,
}

/// The blocks that a chunk's operations allocated so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Newborn {
    rows: Vec<Row>,
    /// How many of them were put into the state or are gone.
    settled: usize,
    /// The chunk says that everything fits.
    fits: bool,
}

/// An event that does not fit, in a chunk that says that all do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Misfit;

/// What happens to a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Free {
    Requested,
    Completed,
    Both,
}

impl Newborn {
    /// Begins with a chunk's first operation.
    pub(crate) fn begin(&mut self, fits: bool) {
        self.rows.clear();
        (self.settled, self.fits) = (0, fits);
    }

    /// Takes note of an operation that the state has taken already.
    pub(crate) fn pass(&mut self, operation: &Operation) {
        if let (true, &Operation::Allocated { allocated, time_ns }) = (self.fits, operation) {
            self.rows.push(Row { allocated, event: 0, time_ns, pending_free: false, place: Place::InState });
        }
    }

    /// Applies an operation's events.
    #[inline(always)]
    pub(crate) fn apply(&mut self, state: &mut MemoryState, operation: &Operation) -> Result<(), Misfit> {
        if !self.fits {
            operation.each(|event| state.apply(&event));
            return Ok(());
        }
        match *operation {
            Operation::Allocated { allocated, time_ns } => {
                if allocated.requested > allocated.size {
                    return Err(Misfit);
                }
                let device = state.device_mut(allocated.device);
                device.count(1);
                device.add(&allocated);
                self.rows.push(Row { allocated, event: state.event, time_ns, pending_free: false, place: Place::Here });
                state.pass(1, time_ns);
                Ok(())
            }
            Operation::Freed { row, device, address, requested_ns, completed_ns, .. } => {
                self.free(state, Free::Both, row, device, address)?;
                state.pass(2, requested_ns.max(completed_ns));
                Ok(())
            }
            Operation::FreeRequested { row, device, address, time_ns, .. } => {
                self.free(state, Free::Requested, row, device, address)?;
                state.pass(1, time_ns);
                Ok(())
            }
            Operation::FreeCompleted { row, device, address, time_ns, .. } => {
                self.free(state, Free::Completed, row, device, address)?;
                state.pass(1, time_ns);
                Ok(())
            }
            Operation::Rest(event) => self.rest(state, &event),
        }
    }

    /// Applies the first of the two events of a block that is freed.
    pub(crate) fn apply_first(&mut self, state: &mut MemoryState, operation: &Operation) -> Result<(), Misfit> {
        match *operation {
            Operation::Freed { row, device, address, site, requested_ns: time_ns, .. } => {
                self.apply(state, &Operation::FreeRequested { row, device, address, site, time_ns })
            }
            _ => self.apply(state, operation),
        }
    }

    /// Applies the second of the two events of a block that is freed.
    pub(crate) fn apply_second(&mut self, state: &mut MemoryState, operation: &Operation) -> Result<(), Misfit> {
        match *operation {
            Operation::Freed { row, device, address, site, completed_ns: time_ns, .. } => {
                self.apply(state, &Operation::FreeCompleted { row, device, address, site, time_ns })
            }
            _ => self.apply(state, operation),
        }
    }

    #[inline(always)]
    fn free(
        &mut self,
        state: &mut MemoryState,
        what: Free,
        row: Option<u32>,
        device: DeviceId,
        address: u64,
    ) -> Result<(), Misfit> {
        let device = state.device_mut(device);
        device.count(if what == Free::Both { 2 } else { 1 });
        let row = row.and_then(|row| self.rows.get_mut(row as usize));
        match row {
            Some(row) if row.place == Place::Here => {
                if what != Free::Completed {
                    if row.pending_free {
                        return Err(Misfit);
                    }
                    device.request_free(row.allocated.size);
                }
                if what == Free::Requested {
                    row.pending_free = true;
                } else {
                    let freed = what == Free::Both || row.pending_free;
                    device.subtract(&row.allocated, freed);
                    row.place = Place::Gone;
                }
                Ok(())
            }
            Some(row) if row.place == Place::Gone => Err(Misfit),
            row => {
                if let Some(row) = row
                    && what != Free::Requested
                {
                    row.place = Place::Gone;
                }
                free_in_state(device, what, address)
            }
        }
    }

    #[cold]
    fn rest(&mut self, state: &mut MemoryState, event: &Event) -> Result<(), Misfit> {
        let is_segment = matches!(
            event.kind,
            EventKind::SegmentAllocated { .. }
                | EventKind::SegmentMapped { .. }
                | EventKind::SegmentFreed { .. }
                | EventKind::SegmentUnmapped { .. }
        );
        if is_segment {
            // It concerns all blocks that lie there.
            self.settle(state)?;
        }
        let misfits = |state: &MemoryState| state.device(event.device).map_or(0, DeviceState::misfits);
        let before = misfits(state);
        state.apply(event);
        if misfits(state) == before { Ok(()) } else { Err(Misfit) }
    }

    /// Puts the blocks that are still there into the state.
    pub(crate) fn settle(&mut self, state: &mut MemoryState) -> Result<(), Misfit> {
        for row in &mut self.rows[self.settled..] {
            if row.place == Place::Here {
                let Allocated { device, address, size, requested, stream, pool, site } = row.allocated;
                let (pending_free, since_event, since_ns) = (row.pending_free, row.event, row.time_ns);
                let block = Block { address, size, requested, stream, pool, site, pending_free, since_event, since_ns };
                if !state.device_mut(device).settle(block) {
                    return Err(Misfit);
                }
                row.place = Place::InState;
            }
        }
        self.settled = self.rows.len();
        Ok(())
    }
}

fn free_in_state(device: &mut DeviceState, what: Free, address: u64) -> Result<(), Misfit> {
    if what != Free::Completed {
        let block = device.blocks.get_mut(address).filter(|block| !block.pending_free).ok_or(Misfit)?;
        block.pending_free = true;
        let size = block.size;
        device.request_free(size);
    }
    if what != Free::Requested && !device.forget_block(address) {
        return Err(Misfit);
    }
    Ok(())
}
