//! Allocations that are not freed, by group and singly.

use vramscope_trace::{Allocation, DeviceId};

use super::{Categories, DeviceHistory, StepAnalysis};
use crate::group::{GroupBy, Grouping, MemoryCategory};
use crate::leaks::{Leak, LeakSearch, UnfreedGroup, largest_unfreed, leaks, unfreed_by_group};
use crate::steps::GrowingGroups;

/// Maximum number of unfreed allocations that are listed singly, the largest ones.
const LARGEST: usize = 10;

/// The inputs of a search for unfreed allocations, which is repeated when they change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UnfreedKey {
    device: DeviceId,
    /// The revision of the steps, which changes with the history.
    revision: u64,
    search: LeakSearch,
    by: GroupBy,
    /// Whether the growing groups are known: then groups that count as one are one row.
    is_growth_known: bool,
}

/// The allocations that a search found to be never freed: by group, and the largest ones singly.
#[derive(Clone, Debug, Default)]
pub struct UnfreedRows {
    /// By group, most bytes first, with the category that all of a group's allocations have.
    pub groups: Vec<(UnfreedGroup, Option<MemoryCategory>)>,
    /// The largest of them, largest first.
    pub largest: Vec<Allocation>,
}

/// The cached result of the last search for unfreed allocations, and the leaking sites.
#[derive(Default)]
pub struct UnfreedAnalysis {
    found: Option<(UnfreedKey, UnfreedRows)>,
    /// The leaking sites, and the device and revision of the steps for which they were found.
    leaks: Option<(DeviceId, u64, Vec<Leak>)>,
}

impl UnfreedAnalysis {
    /// Returns the unfreed allocations that `search` finds. `growing` are the growing groups of
    /// `grouping`, if they are known. The cost of a new search is linear in the number of
    /// allocations made in its range.
    pub fn rows(
        &mut self,
        source: &DeviceHistory<'_>,
        steps: &StepAnalysis,
        search: LeakSearch,
        grouping: &mut Grouping,
        growing: Option<&GrowingGroups>,
    ) -> &UnfreedRows {
        let key = UnfreedKey {
            device: source.device,
            revision: steps.revision(),
            search,
            by: grouping.by(),
            is_growth_known: growing.is_some(),
        };
        let known = self.found.take().filter(|(known, _)| *known == key);
        let (_, rows) = self.found.insert(known.unwrap_or_else(|| {
            let mut categories = Categories::default();
            let groups = unfreed_by_group(source.lifetimes, &search, |one| {
                let group = grouping.group_of_allocation(one);
                let group = growing.map_or(group, |growing| growing.counted_as(group));
                categories.add(group, grouping.category_of_allocation(one));
                group
            });
            let groups = groups.into_iter().map(|one| (one, categories.get(one.group))).collect();
            (key, UnfreedRows { groups, largest: largest_unfreed(source.lifetimes, &search, LARGEST) })
        }));
        rows
    }

    /// Returns the leaking sites: the sites in `growing` that also have allocations after the
    /// warm-up that were never freed. `by_site` must group by site.
    pub fn leaks(
        &mut self,
        source: &DeviceHistory<'_>,
        steps: &StepAnalysis,
        growing: &GrowingGroups,
        by_site: &mut Grouping,
    ) -> &[Leak] {
        let key = (source.device, steps.revision());
        let known = self.leaks.take().filter(|known| (known.0, known.1) == key);
        let (_, _, found) = self.leaks.insert(known.unwrap_or_else(|| {
            let warm_up = steps.steps().default_warm_up();
            let search = LeakSearch::new(steps.until()).after_warm_up(steps.steps(), warm_up);
            let found = leaks(source.lifetimes, &search, growing, |one| by_site.group_of_allocation(one));
            (key.0, key.1, found)
        }));
        found
    }
}
