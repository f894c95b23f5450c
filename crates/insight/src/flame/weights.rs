//! Bytes and blocks by site, from which a flame graph is built.

use std::collections::BTreeMap;

use vramscope_trace::{
    Allocation, AllocationOrigin, AllocationRow, Block, Definitions, DeviceLifetimes, DeviceState, SiteId,
};

use crate::group::{GroupBy, Grouping, MemoryCategory};

/// Number of sites that can be summed up in a list, which takes 32 bytes for each; sites with
/// higher numbers are in a map.
const MAX_NUMBERED_SITES: usize = 1 << 20;

/// Bytes and number of some blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Bytes, after rounding.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
}

impl Weight {
    /// Adds the bytes and the number of other blocks.
    pub fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.blocks = self.blocks.saturating_add(other.blocks);
    }
}

/// The common properties of blocks that are summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackKey {
    /// Where they were requested.
    pub site: SiteId,
    /// Whether they are older than the recording.
    pub is_older: bool,
    /// Their category, where blocks of a site are told apart by it; else the default.
    pub category: MemoryCategory,
}

/// Determines the [`StackKey`] of blocks.
#[derive(Clone, Debug, Default)]
pub struct StackKeys {
    first_event: u64,
    /// The grouping by category; `None` if blocks of a site are not told apart by their category.
    by_category: Option<Grouping>,
}

impl StackKeys {
    /// Creates keys of sites; `first_event` is the index (from 0) of the recording's first event.
    #[must_use]
    pub fn new(first_event: u64) -> Self {
        Self { first_event, by_category: None }
    }

    /// Creates keys for a flame graph by `grouping`: with categories if blocks are grouped by them.
    #[must_use]
    pub fn of(grouping: &Grouping) -> Self {
        let by_category = Some(grouping).filter(|grouping| grouping.by() == GroupBy::Category).cloned();
        Self { first_event: grouping.first_event(), by_category }
    }

    /// Returns the key of a site's blocks that exist since `first_moment`; `category` returns their
    /// category.
    #[inline]
    fn key(&self, site: SiteId, first_moment: u64, category: impl FnOnce(&Grouping) -> MemoryCategory) -> StackKey {
        let is_older = first_moment.saturating_sub(1) <= self.first_event;
        StackKey { site, is_older, category: self.by_category.as_ref().map(category).unwrap_or_default() }
    }
}

/// The bytes and number of blocks by site, separately for blocks older than the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackWeights {
    sums: BTreeMap<StackKey, Weight>,
}

impl StackWeights {
    /// Gives every site of a recording one block of one byte, to find the node of each.
    #[must_use]
    pub fn of_sites(definitions: &Definitions) -> Self {
        let mut weights = Self::default();
        let one = Weight { bytes: 1, blocks: 1 };
        let sites = 0..=u32::try_from(definitions.site_count()).unwrap_or(u32::MAX);
        weights.extend(sites.map(|site| (SiteId(site), [one; 2])));
        weights
    }

    /// Sums up a device's live blocks. The total is the device's active bytes.
    #[must_use]
    pub fn live(device: &DeviceState, keys: &StackKeys) -> Self {
        Self::live_among(device, keys, |_| true)
    }

    /// Sums up a device's live blocks for which `matches` returns true.
    #[must_use]
    pub fn live_among(device: &DeviceState, keys: &StackKeys, mut matches: impl FnMut(&Block) -> bool) -> Self {
        let mut weights = Self::default();
        let mut by_site: Vec<[Weight; 2]> = Vec::new();
        for block in device.blocks() {
            if !matches(block) {
                continue;
            }
            let weight = Weight { bytes: block.size, blocks: 1 };
            let key = keys.key(block.site, block.since_event.saturating_add(1), |by| by.category_of(block));
            // Sites are numbered from 0 on, except in recordings that are damaged.
            let number = block.site.0 as usize;
            if number >= MAX_NUMBERED_SITES || keys.by_category.is_some() {
                weights.add(key, weight);
                continue;
            }
            if number >= by_site.len() {
                by_site.resize(number + 1, [Weight::default(); 2]);
            }
            by_site[number][usize::from(key.is_older)].add(weight);
        }
        weights.extend((0..).map(SiteId).zip(by_site));
        weights
    }

    /// Sums up the blocks that are live at a moment: the result equals that of [`live`](Self::live)
    /// for the memory state of that moment.
    #[must_use]
    pub fn live_at(lifetimes: &DeviceLifetimes, moment: u64, keys: &StackKeys) -> Self {
        Self::live_at_among(lifetimes, moment, keys, |_| true)
    }

    /// Sums up the blocks that are live at a moment and for which `matches` returns true.
    #[must_use]
    pub fn live_at_among(
        lifetimes: &DeviceLifetimes,
        moment: u64,
        keys: &StackKeys,
        mut matches: impl FnMut(&Allocation) -> bool,
    ) -> Self {
        let mut weights = Self::default();
        for one in lifetimes.live_at(moment).filter(|one| matches(one)) {
            let key = keys.key(one.site, one.first_moment, |by| by.category_of_allocation(&one));
            weights.add(key, Weight { bytes: one.size, blocks: 1 });
        }
        weights
    }

    /// Sums up the allocations made after the moment `from` and up to the moment `to`, whose events
    /// were recorded. Takes about 10 ns for each.
    #[must_use]
    pub fn allocated_between(lifetimes: &DeviceLifetimes, from: u64, to: u64, keys: &StackKeys) -> Self {
        Self::allocated_among(lifetimes, (from, to), keys, |_, _| true)
    }

    /// Sums up the allocations made after the first and up to the second moment for which `matches`
    /// returns true and whose events were recorded.
    #[must_use]
    pub fn allocated_among(
        lifetimes: &DeviceLifetimes,
        (from, to): (u64, u64),
        keys: &StackKeys,
        mut matches: impl FnMut(&AllocationOrigin, &AllocationRow) -> bool,
    ) -> Self {
        let origins: Vec<AllocationOrigin> = lifetimes.origins().collect();
        let mut by_origin = vec![[Weight::default(); 2]; origins.len()];
        let mut weights = Self::default();
        lifetimes.for_each_row(lifetimes.rows_started_in(from, to), |row| {
            let index = row.origin as usize;
            let origin = origins.get(index).filter(|origin| row.start_observed && matches(origin, &row));
            let (Some(origin), Some(sums)) = (origin, by_origin.get_mut(index)) else { return };
            let weight = Weight { bytes: row.size, blocks: 1 };
            let key = keys.key(origin.site, row.first_moment, |by| by.category_of_row(lifetimes, origin, &row));
            match keys.by_category {
                Some(_) => weights.add(key, weight),
                None => sums[usize::from(key.is_older)].add(weight),
            }
        });
        weights.extend(origins.iter().map(|origin| origin.site).zip(by_origin));
        weights
    }

    /// Adds the blocks of sites. Each site has two weights: of blocks made by recorded events, and
    /// of blocks older than the recording.
    fn extend(&mut self, sites: impl Iterator<Item = (SiteId, [Weight; 2])>) {
        for (site, [recorded, older]) in sites {
            for (is_older, weight) in [(false, recorded), (true, older)] {
                if weight.blocks > 0 {
                    self.add(StackKey { site, is_older, ..StackKey::default() }, weight);
                }
            }
        }
    }

    /// Adds blocks.
    pub fn add(&mut self, key: StackKey, weight: Weight) {
        self.sums.entry(key).or_default().add(weight);
    }

    /// Returns the sum over all sites.
    #[must_use]
    pub fn total(&self) -> Weight {
        let mut total = Weight::default();
        self.sums.values().for_each(|&weight| total.add(weight));
        total
    }

    /// Returns the key and the sum of all blocks, by key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (StackKey, Weight)> + '_ {
        self.sums.iter().map(|(&key, &weight)| (key, weight))
    }
}
