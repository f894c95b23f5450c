//! Which blocks are lit, because an element or the block under the pointer stands for their memory.

use vramscope_insight::flame::{FlameGraph, StackWeights};
use vramscope_insight::group::{GroupBy, Grouping, Groupings};
use vramscope_insight::incremental::RecordingIdentity;
use vramscope_insight::pools::PartKind;
use vramscope_trace::{
    Allocation, AllocationOrigin, AllocationRow, Block, Category, DeviceLifetimes, Recording, SiteId,
};

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

/// A block or an allocation that may be lit.
pub(crate) trait LitBlock: Copy {
    /// Returns its group.
    fn group(self, grouping: &mut Grouping) -> u32;
    /// Returns its category, recorded or inferred.
    fn category(self, grouping: &Grouping) -> Category;
    /// Returns its site, and the first moment at which it exists.
    fn site_and_start(self) -> (SiteId, u64);
}

impl LitBlock for &Block {
    fn group(self, grouping: &mut Grouping) -> u32 {
        grouping.group_of(self)
    }
    fn category(self, grouping: &Grouping) -> Category {
        grouping.category_of(self).category
    }
    fn site_and_start(self) -> (SiteId, u64) {
        (self.site, self.since_event.saturating_add(1))
    }
}

impl LitBlock for &Allocation {
    fn group(self, grouping: &mut Grouping) -> u32 {
        grouping.group_of_allocation(self)
    }
    fn category(self, grouping: &Grouping) -> Category {
        grouping.category_of_allocation(self).category
    }
    fn site_and_start(self) -> (SiteId, u64) {
        (self.site, self.first_moment)
    }
}

impl LitBlock for (&DeviceLifetimes, &AllocationOrigin, &AllocationRow) {
    fn group(self, grouping: &mut Grouping) -> u32 {
        grouping.group_of_row(self.0, self.1, self.2)
    }
    fn category(self, grouping: &Grouping) -> Category {
        grouping.category_of_row(self.0, self.1, self.2).category
    }
    fn site_and_start(self) -> (SiteId, u64) {
        (self.1.site, self.2.first_moment)
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

    /// Returns true if a block is lit.
    pub(crate) fn has(&mut self, block: impl LitBlock) -> bool {
        match self.memory {
            LinkedMemory::Group(_, group) => block.group(self.grouping) == group,
            LinkedMemory::Part(PartKind::Category(category)) => block.category(self.grouping) == category,
            LinkedMemory::Part(_) => self.memory.is_whole(),
            LinkedMemory::Call { .. } => {
                let (site, first_moment) = block.site_and_start();
                self.sites.binary_search(&(site, self.grouping.is_older(first_moment))).is_ok()
            }
        }
    }
}

/// Returns the memory that a block is a part of, that of its line first: the groups of all
/// groupings in use, and its category.
pub(crate) fn memory_of(groupings: &mut Groupings, recording: &Recording, block: impl LitBlock) -> Vec<LinkedMemory> {
    let others = GroupBy::ALL.into_iter().filter(|by| *by != GroupBy::Line && groupings.known(*by).is_some());
    let others: Vec<GroupBy> = others.collect();
    let mut group = |by: GroupBy| {
        let grouping = groupings.get(by, recording);
        (LinkedMemory::Group(by, block.group(grouping)), block.category(grouping))
    };
    let (line, category) = group(GroupBy::Line);
    let mut memory = vec![line, LinkedMemory::Part(PartKind::Category(category))];
    memory.extend(others.into_iter().map(|by| group(by).0));
    memory
}
