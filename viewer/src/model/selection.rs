//! The selection: an allocation or a free range, a range of moments, and a group of blocks.

use vramscope_insight::group::GroupBy;
use vramscope_trace::Block;

use super::state::Model;
use crate::device_map::{Hit, hit_at};

impl Model {
    /// Selects the allocation that is live at a device address, or the address itself if none is.
    /// `None` clears the selection. A selected allocation stays selected at moments at which it is
    /// not live.
    pub fn select(&mut self, address: Option<u64>) {
        self.selection = address;
        let block = self.at_selection().and_then(|hit| hit.block);
        self.selected_since = block.map(|block| block.since_event.saturating_add(1));
        self.moment_changed();
    }

    /// Selects the allocation at `address` that exists from event number `since` on.
    pub fn select_allocation(&mut self, address: u64, since: u64) {
        (self.selection, self.selected_since) = (Some(address), Some(since));
        self.moment_changed();
    }

    /// Returns the selected address in the device's memory; `None` without a selection.
    pub fn selection(&self) -> Option<u64> {
        self.selection
    }

    /// Returns the event number from which the selected allocation exists; `None` if no allocation
    /// is selected.
    pub fn selected_since(&self) -> Option<u64> {
        self.selected_since.filter(|_| self.selection.is_some())
    }

    /// Returns the selected allocation's block, if the allocation is live at the moment on the
    /// screen; if only an address is selected, the block or free range there. `None` without a
    /// selection, if the selected allocation is not live, and outside of all segments.
    pub fn selected(&self) -> Option<Hit> {
        let is_selected = |hit: &Hit| match (self.selected_since, hit.block) {
            (Some(since), Some(block)) => self.exists_since(&block, since),
            (Some(_), None) => false,
            (None, _) => true,
        };
        self.at_selection().filter(is_selected)
    }

    /// Returns the block or free range at the selected address at the moment on the screen, even if
    /// it does not belong to the selected allocation.
    fn at_selection(&self) -> Option<Hit> {
        hit_at(self.device_state(), self.selection?)
    }

    /// Returns true if event number `since` allocated `block`. If both are before the recording's
    /// first event, true as well, since such events are not known.
    fn exists_since(&self, block: &Block, since: u64) -> bool {
        let first = self.recording().first_event();
        block.since_event.saturating_add(1) == since || (block.since_event <= first && since <= first)
    }

    /// Selects the next block or free range by address, or the previous one unless `forward`. If
    /// `whole_segments`, selects the first one of the next or previous segment.
    ///
    /// Without a selection, selects the first one of all. Does nothing if there is no next one.
    pub fn select_neighbor(&mut self, forward: bool, whole_segments: bool) {
        let device = self.device_state();
        let mut addresses: Box<dyn Iterator<Item = u64>> = if whole_segments {
            Box::new(device.segments().map(|segment| segment.address))
        } else {
            Box::new(device.segments().flat_map(|segment| device.extents(segment)).map(|extent| extent.address))
        };
        let current = self.at_selection().map(|hit| if whole_segments { hit.segment.address } else { hit.address });
        let next = match current {
            None => addresses.next(),
            Some(current) if forward => addresses.find(|&address| address > current),
            Some(current) => addresses.by_ref().take_while(|&address| address < current).last(),
        };
        drop(addresses);
        if next.is_some() {
            self.select(next);
        }
    }

    /// Selects the range of moments between two event numbers, which may be in any order; `None`
    /// clears it. Event numbers beyond the recording are clamped.
    pub fn select_range(&mut self, range: Option<(u64, u64)>) {
        let (first, last) = (self.recording().first_event(), self.recording().end_event());
        let within = |event: u64| event.clamp(first, last);
        self.selected_range = range.map(|(from, to)| (within(from.min(to)), within(from.max(to))));
        self.moment_changed();
    }

    /// Returns the first and the last event number of the selected range; `None` if no range is
    /// selected.
    pub fn selected_range(&self) -> Option<(u64, u64)> {
        self.selected_range
    }

    /// Selects a group of blocks, given by the property of a grouping and the group's number in it;
    /// `None` clears it.
    pub fn select_group(&mut self, group: Option<(GroupBy, u32)>) {
        self.selected_group = group;
        self.moment_changed();
    }

    /// Returns the selected group of blocks: the property of its grouping, and its number in it.
    pub fn selected_group(&self) -> Option<(GroupBy, u32)> {
        self.selected_group
    }
}
