//! The allocations of a device while its lifetimes are built.

use std::convert::Infallible;

use super::allocation_table::AllocationTable;
use super::change_list::ChangeList;
use super::device_trackers::{AllocationStore, ChangeTime, Evidence, OpenAllocation};
use super::labels::Label;
use super::open_allocations::OpenAllocations;
use super::queries::DeviceLifetimes;
use crate::event::DeviceId;
use crate::segment::Block;
use crate::site::SiteId;

/// Minimum number of new allocations between two stored sets of active allocations
/// ([`LiveSets`](super::live_sets::LiveSets)).
const LIVE_SET_ROWS: usize = 4096;

/// All allocations of one device, and which of them have not ended (are open).
#[derive(Clone, Debug, Default)]
pub(super) struct IndexedAllocations {
    lifetimes: DeviceLifetimes,
    open: OpenAllocations,
    /// The moment of the last change; never decreases.
    moment: u64,
}

impl IndexedAllocations {
    /// Creates an empty store. With `keeps_changes`, it lists all starts and ends in order.
    pub(super) fn new(keeps_changes: bool) -> Self {
        let changes = keeps_changes.then(ChangeList::default);
        Self { lifetimes: DeviceLifetimes { changes, ..DeviceLifetimes::default() }, ..Self::default() }
    }

    /// Returns the lifetimes of the allocations added so far.
    pub(super) fn lifetimes(&self) -> &DeviceLifetimes {
        &self.lifetimes
    }

    /// Frees the memory that only adding allocations needs.
    pub(super) fn finish(&mut self) {
        self.open = OpenAllocations::default();
        self.lifetimes.rows.finish();
        self.lifetimes.live_sets.finish();
        if let Some(changes) = &mut self.lifetimes.changes {
            changes.finish();
        }
    }

    /// Returns the memory that the allocations occupy, in bytes, approximately.
    pub(super) fn memory_bytes(&self) -> usize {
        self.lifetimes.memory_bytes() + self.open.memory_bytes()
    }

    /// Advances `moment` to the moment of the change `at` and returns it. Moments never decrease:
    /// an earlier change gets the moment of the last change.
    #[inline]
    fn advance(&mut self, at: ChangeTime) -> u64 {
        self.moment = self.moment.max(at.moment);
        self.moment
    }

    /// Ends the allocation in row `row` at `moment`; the caller has removed it from the open
    /// allocations. `end_unobserved` is true if no event recorded the end.
    #[inline]
    fn end_row(&mut self, row: u32, moment: u64, end_unobserved: bool) {
        self.lifetimes.rows.end(row, moment, end_unobserved);
        if let Some(changes) = &mut self.lifetimes.changes {
            changes.push_end(row);
        }
    }
}

impl AllocationStore<()> for IndexedAllocations {
    type Error = Infallible;

    fn open_at(&self, address: u64) -> Option<OpenAllocation> {
        let row = self.open.get(address)?;
        let (group, index) = AllocationTable::position(row);
        let known = self.lifetimes.rows.get(group, index);
        Some(OpenAllocation {
            size: known.size,
            requested: known.requested,
            stream: known.stream,
            pool: known.pool,
            allocation_site: self.lifetimes.site_at(row, None),
            is_freed: known.allocated_until.is_some(),
            // For an allocation that a full state revealed, the index does not store when it began.
            since_event: known.allocating_event().unwrap_or(0)..=known.allocating_event().unwrap_or(known.first_moment),
        })
    }

    fn addresses(&self) -> impl Iterator<Item = u64> {
        self.open.iter().map(|(address, _)| address)
    }

    #[inline]
    fn start(&mut self, _: DeviceId, block: &Block, at: ChangeTime, (): &mut ()) -> Result<(), Infallible> {
        let first_moment = self.advance(at);
        let start_unobserved = at.evidence != Evidence::Event;
        let Some(row) = self.lifetimes.rows.push(first_moment, start_unobserved, block) else {
            self.lifetimes.omitted_allocations += 1;
            return Ok(());
        };
        if let Some(contradicted) = self.open.insert(block.address, row) {
            self.end_row(contradicted, first_moment, true);
        }
        let DeviceLifetimes { rows, live_sets, changes, .. } = &mut self.lifetimes;
        if let Some(changes) = changes {
            changes.push_start(row);
        }
        if block.pending_free {
            rows.free(row, first_moment);
        }
        // Sets are stored so rarely that all of them take no more memory than one column.
        if rows.len() - live_sets.rows() >= LIVE_SET_ROWS.max(2 * self.open.slot_count()) {
            live_sets.store(first_moment, rows, self.open.iter().map(|(_, row)| row));
        }
        Ok(())
    }

    // Cold, so that building lifetimes without relabels takes no longer.
    #[cold]
    fn relabel(&mut self, address: u64, site: SiteId, at: ChangeTime, (): &mut ()) -> Result<(), Infallible> {
        let Some(row) = self.open.get(address) else { return Ok(()) };
        let DeviceLifetimes { rows, changes, labels, .. } = &mut self.lifetimes;
        if let Some((from, to)) = rows.relabel(row, site) {
            self.moment = self.moment.max(at.moment);
            let position = changes.as_mut().map_or(0, ChangeList::push_relabel);
            labels.push(Label { moment: self.moment, row, from, to, position });
        }
        Ok(())
    }

    #[inline]
    fn free(&mut self, address: u64, at: ChangeTime) {
        if let Some(row) = self.open.get(address) {
            let moment = self.advance(at);
            self.lifetimes.rows.free(row, moment);
        }
    }

    #[inline]
    fn end(&mut self, address: u64, at: ChangeTime, (): &mut ()) -> Result<(), Infallible> {
        if let Some(row) = self.open.remove(address) {
            let moment = self.advance(at);
            self.end_row(row, moment, at.evidence != Evidence::Event);
        }
        Ok(())
    }
}
