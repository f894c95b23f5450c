//! Memory that is allocated and not freed: in a range of events, by group and singly, and blocks
//! older than some steps.
//!
//! Not everything that is never freed is a leak: weights and the optimizer's state live until the
//! end, and so does the last step's result. What leaks grows from step to step
//! ([`GroupsByStep::growing`](crate::steps::GroupsByStep::growing)).

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Allocation, Definitions, DeviceLifetimes};

use crate::frames::{FrameView, StackRow};
use crate::group::Grouping;
use crate::steps::{GrowingGroups, Growth, Steps};

/// Divisor of a leak's growth that gives the bytes other lines may contribute (a hundredth) while
/// one line is still named as the origin.
const NEGLIGIBLE_GROWTH_PART: u64 = 100;

/// The allocations to examine: made in a range of events, and not freed at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakSearch {
    /// The number of the first event.
    pub from_event: u64,
    /// The number of the last event.
    pub to_event: u64,
    /// The moment at which the allocations are still allocated; usually the recording's last one.
    pub at_event: u64,
}

impl LeakSearch {
    /// Creates a search for allocations of the whole recording, whose last moment is `end_event`.
    #[must_use]
    pub fn new(end_event: u64) -> Self {
        Self { from_event: 1, to_event: end_event, at_event: end_event }
    }

    /// Returns the search without allocations made before the first step and in the first `warm_up`
    /// steps. Without steps, or with fewer, the search stays as it is.
    #[must_use]
    pub fn after_warm_up(self, steps: &Steps, warm_up: usize) -> Self {
        let first = steps.as_slice().get(warm_up);
        Self {
            from_event: first.map_or(self.from_event, |step| self.from_event.max(step.from_event.saturating_add(1))),
            ..self
        }
    }

    /// Returns the indexes (from 0) of the events.
    fn event_indexes(&self) -> Range<u64> {
        self.from_event.saturating_sub(1)..self.to_event
    }
}

/// The allocations of a group that are not freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnfreedGroup {
    /// The group's number, as the caller's grouping defines it.
    pub group: u32,
    /// Allocated bytes.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Number of the event that made the oldest allocation.
    pub oldest_event: u64,
    /// Number of the event that made the newest allocation.
    pub newest_event: u64,
}

impl UnfreedGroup {
    /// Creates a group without allocations.
    fn new(group: u32) -> Self {
        Self { group, bytes: 0, blocks: 0, oldest_event: u64::MAX, newest_event: 0 }
    }

    /// Adds an allocation.
    fn add(&mut self, one: &Allocation) {
        self.bytes = self.bytes.saturating_add(one.size);
        self.blocks += 1;
        self.oldest_event = self.oldest_event.min(one.first_moment);
        self.newest_event = self.newest_event.max(one.first_moment);
    }
}

/// Adds allocations to the groups that `group_of` returns, and sorts the groups by bytes, most
/// first.
fn sum_by_group(
    allocations: impl Iterator<Item = Allocation>,
    mut group_of: impl FnMut(&Allocation) -> u32,
) -> Vec<UnfreedGroup> {
    let mut groups: HashMap<u32, UnfreedGroup> = HashMap::new();
    for one in allocations {
        let group = group_of(&one);
        groups.entry(group).or_insert_with(|| UnfreedGroup::new(group)).add(&one);
    }
    let mut groups: Vec<UnfreedGroup> = groups.into_values().collect();
    sort_by_key(&mut groups, |one| (std::cmp::Reverse((one.bytes, one.blocks)), one.group));
    groups
}

/// Returns the `count` largest allocations, largest first, then by address.
fn largest(allocations: impl Iterator<Item = Allocation>, count: usize) -> Vec<Allocation> {
    /// Number of allocations that are collected before the largest of them are selected.
    const SPARE: usize = 4096;
    let order = |one: &Allocation| (std::cmp::Reverse(one.size), one.address, one.first_moment);
    let mut kept: Vec<Allocation> = Vec::new();
    let select = |kept: &mut Vec<Allocation>| {
        sort_by_key(kept, order);
        kept.truncate(count);
    };
    let mut last = None;
    for one in allocations {
        if last.is_none_or(|last| order(&one) < last) {
            kept.push(one);
            if kept.len() >= count.saturating_add(SPARE) {
                select(&mut kept);
                last = kept.last().map(order);
            }
        }
    }
    select(&mut kept);
    kept
}

/// Returns the allocations of a search by group, the group with the most bytes first.
///
/// The cost is linear in the number of allocations made in the range of events.
pub fn unfreed_by_group(
    lifetimes: &DeviceLifetimes,
    search: &LeakSearch,
    group_of: impl FnMut(&Allocation) -> u32,
) -> Vec<UnfreedGroup> {
    sum_by_group(lifetimes.survivors(search.event_indexes(), search.at_event), group_of)
}

/// Returns the `count` largest allocations of a search, largest first.
///
/// The cost is linear in the number of allocations made in the range of events.
#[must_use]
pub fn largest_unfreed(lifetimes: &DeviceLifetimes, search: &LeakSearch, count: usize) -> Vec<Allocation> {
    largest(lifetimes.survivors(search.event_indexes(), search.at_event), count)
}

/// A group that leaks: it grows from step to step, and its allocations are not freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leak {
    /// How the group grows.
    pub growth: Growth,
    /// Allocations of the group in the range of events that were not freed.
    pub unfreed: UnfreedGroup,
}

/// Returns the groups that grow from step to step, with the unfreed allocations of each; the
/// fastest first. Empty if nothing leaks.
///
/// `growing` comes from [`GroupsByStep::growing`](crate::steps::GroupsByStep::growing), with the
/// same grouping. The unfreed allocations of groups that count as one are added up.
pub fn leaks(
    lifetimes: &DeviceLifetimes,
    search: &LeakSearch,
    growing: &GrowingGroups,
    mut group_of: impl FnMut(&Allocation) -> u32,
) -> Vec<Leak> {
    if growing.as_slice().is_empty() {
        return Vec::new();
    }
    let groups = unfreed_by_group(lifetimes, search, |one| growing.counted_as(group_of(one)));
    let unfreed: HashMap<u32, UnfreedGroup> = groups.into_iter().map(|one| (one.group, one)).collect();
    let leak = |growth: &Growth| Some(Leak { growth: *growth, unfreed: *unfreed.get(&growth.group)? });
    growing.as_slice().iter().filter_map(leak).collect()
}

/// Returns the innermost frame of the program's own code through which nearly all of the growth was
/// allocated, and that growth in bytes a step; `None` if there is no such frame. Up to a hundredth
/// of the growth may come from other lines.
#[must_use]
pub fn common_frame(definitions: &Definitions, leaks: &[Leak], by_site: &Grouping) -> Option<(FrameView, u64)> {
    let own_frames = |leak: &Leak| -> Vec<FrameView> {
        let stack = by_site.group_details(definitions, leak.growth.group).stack;
        let own = |row: StackRow| match row {
            StackRow::Own(frame) => Some(frame),
            StackRow::Folded(_) => None,
        };
        stack.rows.into_iter().filter_map(own).collect()
    };
    let key = |frame: &FrameView| (frame.file.clone(), frame.line, frame.function.clone());
    let mut growth_through: HashMap<(String, u32, String), u64> = HashMap::new();
    let mut all = 0_u64;
    for leak in leaks {
        let bytes = leak.growth.bytes_per_step;
        all = all.saturating_add(bytes);
        // A recursive function is in the stack several times.
        let keys: HashSet<_> = own_frames(leak).iter().map(key).collect();
        for key in keys {
            let through = growth_through.entry(key).or_default();
            *through = through.saturating_add(bytes);
        }
    }
    let least = all - all / NEGLIGIBLE_GROWTH_PART;
    own_frames(leaks.first()?).into_iter().find_map(|frame| {
        let through = growth_through[&key(&frame)];
        (through >= least).then_some((frame, through))
    })
}

/// The blocks that were live at a moment and allocated more than some steps before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldBlocks {
    /// The number of the last event that may have allocated them.
    pub allocated_by: u64,
    /// Live bytes.
    pub bytes: u64,
    /// The part of `bytes` that is pending free.
    pub pending_bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// The largest blocks, largest first.
    pub largest: Vec<Allocation>,
}

/// Returns the blocks that are live at the moment `at_event` and were allocated more than
/// `steps_ago` steps before the step of that moment, or `None` if fewer steps precede it. Blocks
/// older than the recording are among them; at most `count` blocks are listed.
///
/// After the last step, and between two steps, the step before counts. The cost is linear in the
/// number of live allocations.
#[must_use]
pub fn blocks_older_than(
    lifetimes: &DeviceLifetimes,
    steps: &Steps,
    at_event: u64,
    steps_ago: usize,
    count: usize,
) -> Option<OldBlocks> {
    let current = steps.begun_before(at_event).checked_sub(1)?;
    let allocated_by = steps.as_slice().get(current.checked_sub(steps_ago)?)?.from_event;
    let old = || lifetimes.live_at(at_event).filter(|one| one.first_moment <= allocated_by);
    let mut blocks = OldBlocks { allocated_by, bytes: 0, pending_bytes: 0, blocks: 0, largest: largest(old(), count) };
    for one in old() {
        blocks.blocks += 1;
        blocks.bytes = blocks.bytes.saturating_add(one.size);
        if !one.is_allocated_at(at_event) {
            blocks.pending_bytes = blocks.pending_bytes.saturating_add(one.size);
        }
    }
    Some(blocks)
}
