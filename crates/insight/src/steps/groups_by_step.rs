//! Groups of allocations by step: the bytes that each group (site, module, category) allocates in a
//! step and holds at its end, and which groups grow from step to step.

use std::collections::HashMap;

use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Allocation, DeviceLifetimes};

use super::step::{Step, Steps};
use crate::group::MergedSites;

/// Maximum number of steps that can be compared with each other.
pub const MAX_COMPARED_STEPS: usize = 64;
/// Minimum number of compared steps in which growth is recognized.
pub const MIN_GROWTH_STEPS: usize = 4;
/// Minimum share of the compared steps in which a growing group grows, in percent.
const MIN_GROWN_PERCENT: u64 = 80;
/// Minimum share of the highest growth that remains at the last step, in percent: a group that
/// returns to its former size does not leak.
const MIN_KEPT_PERCENT: u128 = 80;

/// Bytes that a group allocates in one step, and holds at the step's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupInStep {
    /// Number of allocations made by the step's events.
    pub allocations: u64,
    /// Bytes of the allocations made by the step's events, whether they were freed or not.
    pub allocated_bytes: u64,
    /// Live bytes (allocated and pending free) at the step's end.
    pub live_bytes: u64,
    /// The part of `live_bytes` that is pending free.
    pub pending_bytes: u64,
    /// Number of live blocks at the step's end.
    pub live_blocks: u64,
}

/// A group of allocations in each of the compared steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRow {
    /// The group's number, as the caller's grouping defines it.
    pub group: u32,
    /// One entry for each compared step.
    pub steps: Vec<GroupInStep>,
}

/// A group whose live bytes grow from step to step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// The group's number.
    pub group: u32,
    /// Average growth from one step of the recording to the next.
    pub bytes_per_step: u64,
    /// Live bytes at the end of the first compared step.
    pub first_bytes: u64,
    /// Live bytes at the end of the last compared step.
    pub last_bytes: u64,
    /// Number of compared steps at whose end the group holds more than at the compared step before.
    pub grown_steps: u64,
    /// Number of compared steps after the first.
    pub compared_steps: u64,
}

/// The groups that grow from step to step, with the groups that count as one with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrowingGroups {
    growing: Vec<Growth>,
    /// For a group that counts as one with a growing group: the growing group.
    representatives: HashMap<u32, u32>,
}

impl GrowingGroups {
    /// Returns the growing groups, the fastest first. Of groups that count as one, the group is
    /// listed that holds most at the last compared step, with the growth of all.
    #[must_use]
    pub fn as_slice(&self) -> &[Growth] {
        &self.growing
    }

    /// Returns the growing group that `group` counts as; `group` itself if it does not grow
    /// together with others.
    #[must_use]
    pub fn counted_as(&self, group: u32) -> u32 {
        self.representatives.get(&group).copied().unwrap_or(group)
    }
}

/// Compares steps of a device by group, a step at a time.
///
/// The live bytes of all groups at a step's end add up to the device's active bytes there.
#[derive(Clone, Debug)]
pub struct GroupsByStep {
    steps: Vec<Step>,
    /// Positions of the compared steps among all steps, for growth per step.
    positions: Vec<u64>,
    next: usize,
    groups: HashMap<u32, Vec<GroupInStep>>,
}

impl GroupsByStep {
    /// Creates a comparison of up to [`MAX_COMPARED_STEPS`] of all steps `all`, evenly spread over
    /// the steps after the first `warm_up`. The last step is always compared.
    #[must_use]
    pub fn new(all: &Steps, warm_up: usize) -> Self {
        Self::of(all, all.spread(warm_up, MAX_COMPARED_STEPS))
    }

    /// Creates a comparison of `steps`, which are some of `all`. Only the first
    /// [`MAX_COMPARED_STEPS`] of them are compared.
    #[must_use]
    pub fn of(all: &Steps, mut steps: Vec<Step>) -> Self {
        steps.truncate(MAX_COMPARED_STEPS);
        let positions = steps.iter().map(|step| all.begun_before(step.to_event) as u64).collect();
        Self { steps, positions, next: 0, groups: HashMap::new() }
    }

    /// Continues with the next step; returns true once all are compared. `group_of` returns the
    /// group of an allocation.
    ///
    /// The cost of a call is linear in the allocations that are made in the step or live at its
    /// end.
    pub fn step(&mut self, lifetimes: &DeviceLifetimes, mut group_of: impl FnMut(&Allocation) -> u32) -> bool {
        let Some(step) = self.steps.get(self.next).copied() else { return true };
        let (index, count) = (self.next, self.steps.len());
        let mut cell = |one: &Allocation, change: &mut dyn FnMut(&mut GroupInStep)| {
            let cells = self.groups.entry(group_of(one)).or_insert_with(|| vec![GroupInStep::default(); count]);
            change(&mut cells[index]);
        };
        for one in lifetimes.active_between(step.from_event, step.to_event) {
            if one.start_observed && one.first_moment > step.from_event {
                cell(&one, &mut |cell| {
                    cell.allocations += 1;
                    cell.allocated_bytes = cell.allocated_bytes.saturating_add(one.size);
                });
            }
            if one.is_active_at(step.to_event) {
                cell(&one, &mut |cell| {
                    cell.live_blocks += 1;
                    cell.live_bytes = cell.live_bytes.saturating_add(one.size);
                    if !one.is_allocated_at(step.to_event) {
                        cell.pending_bytes = cell.pending_bytes.saturating_add(one.size);
                    }
                });
            }
        }
        self.next += 1;
        self.next >= count
    }

    /// Returns the compared steps.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns a row for each group that allocates or holds memory in a compared step, sorted by
    /// the bytes held at the end of the last step, then by the allocated bytes.
    #[must_use]
    pub fn rows(&self) -> Vec<GroupRow> {
        let row = |(&group, steps): (&u32, &Vec<GroupInStep>)| {
            let live_bytes = steps.last().map_or(0, |last| last.live_bytes);
            let allocated_bytes = steps.iter().fold(0u64, |sum, one| sum.saturating_add(one.allocated_bytes));
            (std::cmp::Reverse((live_bytes, allocated_bytes)), GroupRow { group, steps: steps.clone() })
        };
        let mut rows: Vec<_> = self.groups.iter().map(row).collect();
        sort_by_key(&mut rows, |(rank, row)| (*rank, row.group));
        rows.into_iter().map(|(_, row)| row).collect()
    }

    /// Returns the groups that grow from step to step, the fastest first: what leaks.
    ///
    /// A group grows if its live bytes at the ends of at least 4 compared steps increase in at
    /// least 80% of them, and at the last step at least 80% of the highest growth remains. Compare
    /// steps after the warm-up: the first steps also allocate memory that a program keeps.
    ///
    /// Groups that count as one by `merged` are judged by the sum of their live bytes, and are one
    /// [`Growth`] if it grows. If it does not, each of them is judged by itself.
    #[must_use]
    pub fn growing(&self, merged: &MergedSites) -> GrowingGroups {
        let mut counted_as_one: HashMap<u32, Vec<u32>> = HashMap::new();
        for &group in self.groups.keys() {
            counted_as_one.entry(merged.first_of(group)).or_default().push(group);
        }
        let mut found = GrowingGroups::default();
        for mut groups in counted_as_one.into_values() {
            let last_bytes = |group: u32| self.live_bytes(&[group]).last().copied();
            sort_by_key(&mut groups, |&group| (std::cmp::Reverse(last_bytes(group)), group));
            let Some(&largest) = groups.first() else { continue };
            match self.growth(largest, &self.live_bytes(&groups)) {
                Some(growth) => {
                    found.growing.push(growth);
                    found.representatives.extend(groups.iter().skip(1).map(|&group| (group, largest)));
                }
                None if groups.len() > 1 => {
                    found.growing.extend(groups.iter().filter_map(|&one| self.growth(one, &self.live_bytes(&[one]))));
                }
                None => {}
            }
        }
        let order = |one: &Growth| (std::cmp::Reverse((one.bytes_per_step, one.last_bytes)), one.group);
        sort_by_key(&mut found.growing, order);
        found
    }

    /// Returns the sum of the live bytes of some groups at the end of each step compared so far.
    fn live_bytes(&self, groups: &[u32]) -> Vec<u64> {
        let mut sums = vec![0_u64; self.next];
        for cells in groups.iter().filter_map(|group| self.groups.get(group)) {
            for (sum, cell) in sums.iter_mut().zip(cells) {
                *sum = sum.saturating_add(cell.live_bytes);
            }
        }
        sums
    }

    /// Returns the growth of a group with these live bytes at the ends of the compared steps, or
    /// `None` if it does not grow.
    fn growth(&self, group: u32, live_bytes: &[u64]) -> Option<Growth> {
        if live_bytes.len() < MIN_GROWTH_STEPS {
            return None;
        }
        let (&first_bytes, &last_bytes) = (live_bytes.first()?, live_bytes.last()?);
        let grown_steps = live_bytes.windows(2).filter(|pair| pair[1] > pair[0]).count() as u64;
        let compared_steps = live_bytes.len() as u64 - 1;
        let highest_bytes = live_bytes.iter().max()?;
        let grown_bytes = last_bytes.checked_sub(first_bytes).filter(|&bytes| bytes > 0)?;
        let kept = u128::from(grown_bytes) * 100 >= u128::from(highest_bytes - first_bytes) * MIN_KEPT_PERCENT;
        let between = self.positions.get(self.next - 1)?.saturating_sub(*self.positions.first()?).max(1);
        (kept && grown_steps * 100 >= compared_steps * MIN_GROWN_PERCENT).then_some(Growth {
            group,
            bytes_per_step: grown_bytes / between,
            first_bytes,
            last_bytes,
            grown_steps,
            compared_steps,
        })
    }
}
