//! The block that a free event frees, which the event itself does not describe.

use std::collections::HashMap;

use vramscope_trace::{Block, DeviceId, Event, EventKind, FormatError, Recording, Relabel, Replay};

use crate::history::History;

/// Maximum number of events after the moment of the replay for which changed blocks are kept; then
/// the replay moves on. About the number of events between two full states of a recording.
const MAX_DISTANCE: u64 = 16_384;
/// Number of events after a requested free among which its completion is looked for first.
const NEAR_EVENTS: u64 = 64;

/// Finds the block that each free frees, while events are visited in order.
///
/// The replay holds the blocks at an earlier moment; the blocks that have changed since are kept
/// here.
#[derive(Clone, Debug, Default)]
pub(super) struct FreedBlocks {
    /// The moment of the replay's state, if it is in use.
    base: Option<u64>,
    /// Index (from 0) of the event that is expected next.
    next: u64,
    /// Blocks that have changed since `base`; `None` for a block that no longer exists.
    changed: HashMap<(DeviceId, u64), Option<Block>>,
}

impl FreedBlocks {
    /// Visits the event with index `index` (from 0), and returns the block that it frees, as it was
    /// before. Fast if the events are visited in order.
    ///
    /// # Errors
    /// If a chunk cannot be read.
    pub(super) fn visit(
        &mut self,
        recording: &Recording,
        replay: &mut Replay,
        index: u64,
        event: &Event,
    ) -> Result<Option<Block>, FormatError> {
        let is_usable = self.base.is_some_and(|base| {
            index == self.next
                && replay.state().event() == base
                && index - base < MAX_DISTANCE
                && !recording.has_correction_at(index)
        });
        if !is_usable {
            self.changed.clear();
            self.base = None;
            self.base = Some(replay.seek(recording, index)?.event().min(index));
        }
        self.next = index.saturating_add(1);
        for Relabel { device, address, site, .. } in replay.relabels_before(recording, index)? {
            if let Some(block) = self.block_at(replay, device, address) {
                self.changed.insert((device, address), Some(Block { site, ..block }));
            }
        }
        let device = event.device;
        Ok(match event.kind {
            EventKind::BlockAllocated { address, size, requested, stream, pool, site } => {
                let (since_event, since_ns) = (index, event.time_ns);
                let block =
                    Block { address, size, requested, stream, pool, site, pending_free: false, since_event, since_ns };
                self.changed.insert((device, address), Some(block));
                None
            }
            EventKind::FreeRequested { address, .. } => {
                let block = self.block_at(replay, device, address);
                if let Some(block) = block {
                    self.changed.insert((device, address), Some(Block { pending_free: true, ..block }));
                }
                block
            }
            EventKind::FreeCompleted { address, .. } => {
                let block = self.block_at(replay, device, address);
                self.changed.insert((device, address), None);
                block
            }
            _ => None,
        })
    }

    /// Returns the block that begins at an address before the event that is being visited.
    fn block_at(&self, replay: &Replay, device: DeviceId, address: u64) -> Option<Block> {
        match self.changed.get(&(device, address)) {
            Some(changed) => *changed,
            None => replay.state().device(device)?.block(address).copied(),
        }
    }
}

/// Returns the block that a free of `address` on `device` by the event with index `index` (from 0)
/// frees, from the history; `None` if no allocation begins there.
#[must_use]
pub fn freed_allocation(history: &History, device: DeviceId, address: u64, index: u64) -> Option<Block> {
    let lifetimes = history.lifetimes(device)?;
    let is_it = |row: u32| lifetimes.address_of_row(row) == Some(address);
    let near = lifetimes.changes(index, index.saturating_add(NEAR_EVENTS)).and_then(|mut changes| {
        changes
            .find(|change| !change.is_start && !change.is_relabel && is_it(change.row))
            .and_then(|change| lifetimes.row(change.row))
    });
    let one = near
        .filter(|one| one.first_moment <= index)
        .or_else(|| lifetimes.find(address, index).map(|(_, one)| one).filter(|one| one.address == address))?;
    Some(Block {
        address,
        size: one.size,
        requested: one.requested,
        stream: one.stream,
        pool: one.pool,
        site: one.site,
        pending_free: !one.is_allocated_at(index),
        since_event: one.first_moment.saturating_sub(1),
        since_ns: history.time_ns(one.first_moment),
    })
}
