//! Live bytes, peaks and allocations by group.

use std::cmp::Reverse;
use std::sync::Arc;

use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{AllocationOrigin, Definitions, DeviceLifetimes, SiteId};

use crate::group::{GroupBy, Grouping};
use crate::sites::{GroupPeaks, GroupRow, groups_at};

/// The memory of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRow {
    /// Group number, see [`Grouping`].
    pub group: u32,
    /// Name of the group.
    pub name: Arc<str>,
    /// The lines of the program that call the model for this memory, see
    /// [`Grouping::model_calls`].
    pub model_calls: Option<String>,
    /// Bytes of its blocks that are live at the table's moment, blocks that are pending free
    /// included.
    pub bytes: u64,
    /// Number of its blocks that are live at the table's moment.
    pub blocks: u64,
    /// Peak of the group's live bytes in the recording.
    pub peak_bytes: u64,
    /// Bytes of all allocations made by recorded events, freed or not.
    pub allocated_bytes: u64,
    /// Number of allocations made by recorded events.
    pub allocations: u64,
    /// Live bytes at the table's moment of the operations that run inside this one, if the table is
    /// by operation. These bytes are also in the `bytes` of another row.
    pub nested_bytes: u64,
}

/// The memory of a device by group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupTable {
    /// The groups, most live bytes first, then by allocated bytes.
    pub rows: Vec<TableRow>,
    /// Live bytes of all groups at the moment: the device's active bytes.
    pub total_bytes: u64,
    /// The part of `total_bytes` that is pending free.
    pub pending_bytes: u64,
    /// Number of live blocks at the moment.
    pub blocks: u64,
    /// Bytes of all allocations made by recorded events.
    pub allocated_bytes: u64,
    /// Number of allocations made by recorded events.
    pub allocations: u64,
}

/// Returns the memory of a device by group: bytes that are live at `moment`, and the peaks and
/// allocations from the moment `from` to the moment `to`, usually the recording's first and last.
/// Groups without any of these have no row. `None` if the lifetimes lack the list of changes;
/// lifetimes of a [`History`](crate::history::History) have it.
///
/// Blocks that are older than the recording count in `bytes` and `peak_bytes` only. A relabelled
/// block counts in these two under the site that it had at each moment, and in `allocated_bytes`
/// under its last site. The cost is about 100 ns for each allocation. For recordings with millions
/// of them, use [`GroupTableScan`].
#[must_use]
pub fn group_table(
    lifetimes: &DeviceLifetimes,
    definitions: &Definitions,
    grouping: &mut Grouping,
    moment: u64,
    (from, to): (u64, u64),
) -> Option<GroupTable> {
    let mut scan = GroupTableScan::new(from, to);
    while !scan.step(lifetimes, grouping, u64::MAX)? {}
    let live = groups_at(lifetimes, moment, definitions, grouping);
    let mut sites = lifetimes.live_at(moment).map(|one| (one.site, one.size));
    Some(scan.table(definitions, grouping, &live, &mut sites))
}

/// The peaks and allocations by group from one moment to another, computed in steps.
#[derive(Clone, Debug, Default)]
pub struct GroupTableScan {
    peaks: GroupPeaks,
    /// The moment up to which the allocations have been added.
    at: u64,
    to: u64,
    /// Bytes and number of allocations, by group number.
    made: Vec<(u64, u64)>,
}

impl GroupTableScan {
    /// Prepares the peaks at the moments `from` to `to`, both included, and the sums of the
    /// allocations made between them.
    #[must_use]
    pub fn new(from: u64, to: u64) -> Self {
        Self { peaks: GroupPeaks::new(from, to), at: from, to, made: Vec::new() }
    }

    /// Visits the next `max_events` events (at least one), and returns true once all are visited.
    /// `None` if the lifetimes lack the list of changes.
    ///
    /// All steps need the same lifetimes and grouping; begin again if [`Grouping::update`] returns
    /// true in between. Takes about 100 ns for each allocation.
    pub fn step(&mut self, lifetimes: &DeviceLifetimes, grouping: &mut Grouping, max_events: u64) -> Option<bool> {
        let is_done = self.peaks.step(lifetimes, grouping, max_events)?;
        let until = self.at.saturating_add(max_events.max(1)).min(self.to).max(self.at);
        let origins: Vec<AllocationOrigin> = lifetimes.origins().collect();
        lifetimes.for_each_row(lifetimes.rows_started_in(self.at, until), |row| {
            let Some(origin) = origins.get(row.origin as usize).filter(|_| row.start_observed) else { return };
            let group = grouping.group_of_row(lifetimes, origin, &row) as usize;
            if self.made.len() <= group {
                self.made.resize(group + 1, (0, 0));
            }
            let (bytes, count) = &mut self.made[group];
            (*bytes, *count) = (bytes.saturating_add(row.size), *count + 1);
        });
        self.at = until;
        Some(is_done)
    }

    /// Returns the table with the groups `live` at a moment. `sites` are the site and bytes of each
    /// block that is live then; only a table by operation visits them.
    #[must_use]
    pub fn table(
        &self,
        definitions: &Definitions,
        grouping: &mut Grouping,
        live: &[GroupRow],
        sites: &mut dyn Iterator<Item = (SiteId, u64)>,
    ) -> GroupTable {
        let mut nested = Vec::new();
        if grouping.by() == GroupBy::Operation {
            nested = nested_bytes(definitions, grouping, sites);
        }
        let peaks = self.peaks.peaks();
        let mut rows: Vec<TableRow> = (0..grouping.len())
            .map(|group| {
                let (allocated_bytes, allocations) = self.made.get(group).copied().unwrap_or_default();
                TableRow {
                    group: group as u32,
                    name: grouping.cached_name(definitions, group as u32),
                    model_calls: grouping.model_calls(definitions, group as u32),
                    bytes: 0,
                    blocks: 0,
                    peak_bytes: peaks.get(group).map_or(0, |peak| peak.bytes),
                    allocated_bytes,
                    allocations,
                    nested_bytes: nested.get(group).copied().unwrap_or(0),
                }
            })
            .collect();
        let mut table = GroupTable::default();
        for one in live {
            let Some(row) = rows.get_mut(one.group as usize) else { continue };
            (row.bytes, row.blocks) = (one.bytes, one.blocks);
            table.pending_bytes = table.pending_bytes.saturating_add(one.pending_bytes);
        }
        rows.retain(|row| row.blocks > 0 || row.peak_bytes > 0 || row.allocations > 0 || row.nested_bytes > 0);
        for row in &rows {
            table.total_bytes = table.total_bytes.saturating_add(row.bytes);
            table.blocks += row.blocks;
            table.allocated_bytes = table.allocated_bytes.saturating_add(row.allocated_bytes);
            table.allocations += row.allocations;
        }
        sort_by_key(&mut rows, |row| (Reverse((row.bytes, row.nested_bytes, row.allocated_bytes)), row.group));
        GroupTable { rows, ..table }
    }
}

/// Returns the live bytes of the operations inside each operation, by group number; operations
/// numbered later have none.
fn nested_bytes(
    definitions: &Definitions,
    grouping: &mut Grouping,
    sites: &mut dyn Iterator<Item = (SiteId, u64)>,
) -> Vec<u64> {
    let mut bytes_by_site = vec![0u64; definitions.site_count().saturating_add(1)];
    for (SiteId(site), size) in sites {
        // A site that is not defined runs in no operation.
        if let Some(bytes) = bytes_by_site.get_mut(site as usize) {
            *bytes = bytes.saturating_add(size);
        }
    }
    let mut nested: Vec<u64> = Vec::new();
    for (site, bytes) in (0..).zip(bytes_by_site).filter(|(_, bytes)| *bytes > 0) {
        for group in grouping.outer_operations(definitions, SiteId(site)) {
            let group = group as usize;
            if nested.len() <= group {
                nested.resize(group + 1, 0);
            }
            nested[group] = nested[group].saturating_add(bytes);
        }
    }
    nested
}
