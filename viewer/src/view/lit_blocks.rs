//! Which blocks are lit, because an element or the block under the pointer stands for their memory.

use vramscope_insight::flame::{FlameGraph, StackWeights};
use vramscope_insight::group::{GroupBy, Grouping, Groupings};
use vramscope_insight::incremental::RecordingIdentity;
use vramscope_insight::pools::PartKind;
use vramscope_trace::{Allocation, AllocationOrigin, AllocationRow, Block, Recording, SiteId};

use crate::linked_memory::LinkedMemory;

/// A cache of the sites below the lit node of a flame graph.
#[derive(Default)]
pub(crate) struct LitSites {
    /// The recording with its number of sites, and whether the graph folds frames of libraries.
    key: Option<(RecordingIdentity, usize, bool)>,
    /// The graph of all sites.
    graph: FlameGraph,
    /// The path id of the node, and the sites below it, each with whether the blocks are older than
    /// the recording, ascending.
    sites: (u64, Vec<(SiteId, bool)>),
}

impl LitSites {
    /// Returns the sites whose blocks are in the node with the path id `path_id`, or below it, in a
    /// flame graph of call stacks, each with whether these are older than the recording, ascending.
    fn get(&mut self, recording: &Recording, path_id: u64, is_folded: bool) -> &[(SiteId, bool)] {
        let definitions = recording.definitions();
        let key = Some((RecordingIdentity::of(recording), definitions.site_count(), is_folded));
        if self.key != key {
            self.graph = FlameGraph::new(definitions, &StackWeights::of_sites(definitions), is_folded);
            (self.key, self.sites) = (key, (0, Vec::new()));
        }
        if self.sites.0 != path_id {
            self.sites = (path_id, self.graph.sites_below(path_id));
        }
        &self.sites.1
    }
}

/// The properties of a block or an allocation by which it is grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockOrigin {
    origin: AllocationOrigin,
    /// Bytes, after rounding.
    size: u64,
    first_moment: u64,
}

impl From<&Block> for BlockOrigin {
    fn from(block: &Block) -> Self {
        let origin = AllocationOrigin { site: block.site, stream: block.stream, pool: block.pool };
        Self { origin, size: block.size, first_moment: block.since_event.saturating_add(1) }
    }
}

impl From<&Allocation> for BlockOrigin {
    fn from(one: &Allocation) -> Self {
        let origin = AllocationOrigin { site: one.site, stream: one.stream, pool: one.pool };
        Self { origin, size: one.size, first_moment: one.first_moment }
    }
}

impl From<(&AllocationOrigin, &AllocationRow)> for BlockOrigin {
    fn from((origin, row): (&AllocationOrigin, &AllocationRow)) -> Self {
        Self { origin: *origin, size: row.size, first_moment: row.first_moment }
    }
}

/// Tells which blocks are lit.
pub(crate) struct LitBlocks<'a> {
    memory: LinkedMemory,
    grouping: &'a mut Grouping,
    sites: &'a [(SiteId, bool)],
}

impl<'a> LitBlocks<'a> {
    /// Prepares the search for the blocks of `memory`.
    pub(crate) fn new(
        memory: LinkedMemory,
        recording: &Recording,
        (groupings, sites): (&'a mut Groupings, &'a mut LitSites),
    ) -> Self {
        let by = if let LinkedMemory::Group(by, _) = memory { by } else { GroupBy::Category };
        let sites = match memory {
            LinkedMemory::Call { path_id, is_folded } => sites.get(recording, path_id, is_folded),
            _ => &[],
        };
        Self { memory, grouping: groupings.get(by, recording), sites }
    }

    /// Returns true if an allocation is lit.
    pub(crate) fn has(&mut self, one: impl Into<BlockOrigin>) -> bool {
        let BlockOrigin { origin, size, first_moment } = one.into();
        let is_older = self.grouping.is_older(first_moment);
        match self.memory {
            LinkedMemory::Group(_, group) => self.grouping.group_of_origin(&origin, size, is_older) == group,
            LinkedMemory::Part(PartKind::Category(category)) => {
                self.grouping.category(origin.site, is_older).category == category
            }
            LinkedMemory::Part(_) => self.memory.is_whole(),
            LinkedMemory::Call { .. } => self.sites.binary_search(&(origin.site, is_older)).is_ok(),
        }
    }
}

/// Returns the memory that an allocation is a part of, that of its line first: the groups of all
/// groupings in use, and its category.
pub(crate) fn memory_of(
    groupings: &mut Groupings,
    recording: &Recording,
    one: impl Into<BlockOrigin>,
) -> Vec<LinkedMemory> {
    let BlockOrigin { origin, size, first_moment } = one.into();
    let others = GroupBy::ALL.into_iter().filter(|by| *by != GroupBy::Line && groupings.known(*by).is_some());
    let others: Vec<GroupBy> = others.collect();
    let mut group = |by: GroupBy| {
        let grouping = groupings.get(by, recording);
        let is_older = grouping.is_older(first_moment);
        let category = grouping.category(origin.site, is_older).category;
        (LinkedMemory::Group(by, grouping.group_of_origin(&origin, size, is_older)), category)
    };
    let (line, category) = group(GroupBy::Line);
    let mut memory = vec![line, LinkedMemory::Part(PartKind::Category(category))];
    memory.extend(others.into_iter().map(|by| group(by).0));
    memory
}
