//! Bytes and blocks by site, from which a flame graph is built.

use std::collections::BTreeMap;

use vramscope_trace::{
    Allocation, AllocationOrigin, AllocationRow, Block, Definitions, DeviceLifetimes, DeviceState, SiteId,
};

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

/// The bytes and number of blocks by site, separately for blocks older than the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackWeights {
    /// By site, and whether the blocks are older than the recording.
    sums: BTreeMap<(SiteId, bool), Weight>,
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

    /// Sums up a device's live blocks; `first_event` is the index (from 0) of the recording's first
    /// event. The total is the device's active bytes.
    #[must_use]
    pub fn live(device: &DeviceState, first_event: u64) -> Self {
        Self::live_among(device, first_event, |_| true)
    }

    /// Sums up a device's live blocks for which `matches` returns true; `first_event` is the index
    /// (from 0) of the recording's first event.
    #[must_use]
    pub fn live_among(device: &DeviceState, first_event: u64, mut matches: impl FnMut(&Block) -> bool) -> Self {
        let mut weights = Self::default();
        let mut by_site: Vec<[Weight; 2]> = Vec::new();
        for block in device.blocks() {
            if !matches(block) {
                continue;
            }
            let (weight, before_recording) =
                (Weight { bytes: block.size, blocks: 1 }, block.since_event <= first_event);
            // Sites are numbered from 0 on, except in recordings that are damaged.
            let number = block.site.0 as usize;
            if number >= MAX_NUMBERED_SITES {
                weights.add(block.site, before_recording, weight);
                continue;
            }
            if number >= by_site.len() {
                by_site.resize(number + 1, [Weight::default(); 2]);
            }
            by_site[number][usize::from(before_recording)].add(weight);
        }
        weights.extend((0..).map(SiteId).zip(by_site));
        weights
    }

    /// Sums up the blocks that are live at a moment: the result equals that of [`live`](Self::live)
    /// for the memory state of that moment.
    #[must_use]
    pub fn live_at(lifetimes: &DeviceLifetimes, moment: u64, first_event: u64) -> Self {
        Self::live_at_among(lifetimes, moment, first_event, |_| true)
    }

    /// Sums up the blocks that are live at a moment and for which `matches` returns true.
    #[must_use]
    pub fn live_at_among(
        lifetimes: &DeviceLifetimes,
        moment: u64,
        first_event: u64,
        mut matches: impl FnMut(&Allocation) -> bool,
    ) -> Self {
        let mut weights = Self::default();
        for one in lifetimes.live_at(moment).filter(|one| matches(one)) {
            let weight = Weight { bytes: one.size, blocks: 1 };
            weights.add(one.site, is_older(one.first_moment, first_event), weight);
        }
        weights
    }

    /// Sums up the allocations made after the moment `from` and up to the moment `to`, whose events
    /// were recorded. Takes about 10 ns for each.
    #[must_use]
    pub fn allocated_between(lifetimes: &DeviceLifetimes, from: u64, to: u64, first_event: u64) -> Self {
        Self::allocated_among(lifetimes, (from, to), first_event, |_, _| true)
    }

    /// Sums up the allocations made after the first and up to the second moment for which `matches`
    /// returns true and whose events were recorded.
    #[must_use]
    pub fn allocated_among(
        lifetimes: &DeviceLifetimes,
        (from, to): (u64, u64),
        first_event: u64,
        mut matches: impl FnMut(&AllocationOrigin, &AllocationRow) -> bool,
    ) -> Self {
        let origins: Vec<AllocationOrigin> = lifetimes.origins().collect();
        let mut by_origin = vec![[Weight::default(); 2]; origins.len()];
        lifetimes.for_each_row(lifetimes.rows_started_in(from, to), |row| {
            let index = row.origin as usize;
            let is_counted = row.start_observed && origins.get(index).is_some_and(|origin| matches(origin, &row));
            if let Some(sums) = by_origin.get_mut(index).filter(|_| is_counted) {
                let weight = Weight { bytes: row.size, blocks: 1 };
                sums[usize::from(is_older(row.first_moment, first_event))].add(weight);
            }
        });
        let mut weights = Self::default();
        weights.extend(origins.iter().map(|origin| origin.site).zip(by_origin));
        weights
    }

    /// Adds the blocks of sites. Each site has two weights: of blocks made by recorded events, and
    /// of blocks older than the recording.
    fn extend(&mut self, sites: impl Iterator<Item = (SiteId, [Weight; 2])>) {
        for (site, [recorded, older]) in sites {
            for (before_recording, weight) in [(false, recorded), (true, older)] {
                if weight.blocks > 0 {
                    self.add(site, before_recording, weight);
                }
            }
        }
    }

    /// Adds blocks of a site; `before_recording` tells whether they are older than the recording.
    pub fn add(&mut self, site: SiteId, before_recording: bool, weight: Weight) {
        self.sums.entry((site, before_recording)).or_default().add(weight);
    }

    /// Returns the sum over all sites.
    #[must_use]
    pub fn total(&self) -> Weight {
        let mut total = Weight::default();
        self.sums.values().for_each(|&weight| total.add(weight));
        total
    }

    /// Returns each site, whether its blocks are older than the recording, and their sum.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (SiteId, bool, Weight)> + '_ {
        self.sums.iter().map(|(&(site, before_recording), &weight)| (site, before_recording, weight))
    }
}

/// Returns true if an allocation with this first moment counts as older than the recording.
fn is_older(first_moment: u64, first_event: u64) -> bool {
    first_moment.saturating_sub(1) <= first_event
}
