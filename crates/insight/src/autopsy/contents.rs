//! What filled the memory when a request failed: by site and category, by age, by growth.

use std::collections::{BTreeMap, BTreeSet};

use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{
    Allocation, AllocationOrigin, Block, Category, Definitions, DeviceLifetimes, Frame, FrameOrigin, Recording, SiteId,
    frame_origin, is_python_frame,
};

use crate::failures::Failure;
use crate::frames::{frame_label, innermost_own_frame};
use crate::group::{GroupBy, Grouping, MergedSites};
use crate::steps::{GroupsByStep, Steps};

/// The most frames of a stack that are looked at; deeper recursion repeats them.
const MAX_FRAMES: usize = 256;

/// The function of PyTorch that calls a module's `forward`.
const MODULE_CALL: &str = "_call_impl";

/// Live memory of one line of the program and category at a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The line of the program, as groups by line are named.
    pub name: String,
    /// The first of its allocation sites.
    pub site: SiteId,
    /// The category, recorded or inferred.
    pub category: Category,
    /// Live bytes: allocated or pending free.
    pub bytes: u64,
    /// Number of live blocks.
    pub blocks: u64,
}

/// Names lines of a program and infers categories.
pub(crate) struct Lines<'r> {
    recording: &'r Recording,
    grouping: Grouping,
    /// The names of lines with their functions.
    labels: BTreeMap<u32, String>,
}

impl<'r> Lines<'r> {
    pub(crate) fn new(recording: &'r Recording) -> Self {
        Self { recording, grouping: Grouping::of(GroupBy::Line, recording), labels: BTreeMap::new() }
    }

    /// Returns the group of a block: its line.
    pub(crate) fn group_of(&mut self, block: &Block) -> u32 {
        let group = self.grouping.group_of(block);
        self.add_label(group, block.site);
        group
    }

    /// Returns the group of an allocation: its line.
    pub(crate) fn group_of_allocation(&mut self, one: &Allocation) -> u32 {
        let group = self.grouping.group_of_allocation(one);
        self.add_label(group, one.site);
        group
    }

    /// Keeps the name of a line, with its function, from the first of its sites.
    fn add_label(&mut self, group: u32, site: SiteId) {
        if !self.labels.contains_key(&group) {
            let definitions = self.recording.definitions();
            let frame = innermost_own_frame(definitions, site);
            let label = frame.map_or_else(
                || self.grouping.cached_name(definitions, group).to_string(),
                |frame| frame_label(definitions, frame),
            );
            self.labels.insert(group, label);
        }
    }

    /// Returns true if a line is not known: the request had no stack of the program.
    pub(crate) fn is_unknown(&self, group: u32) -> bool {
        self.grouping.is_unknown(group)
    }

    /// Returns the name of a line.
    pub(crate) fn name(&mut self, group: u32) -> String {
        self.labels.get(&group).cloned().unwrap_or_default()
    }

    /// Returns the innermost call of the program from which nearly all of some bytes were
    /// requested; `None` without stacks.
    pub(crate) fn common_call(&self, requests: impl Iterator<Item = (SiteId, u64)>) -> Option<String> {
        let definitions = self.recording.definitions();
        let mut by_site: BTreeMap<SiteId, u64> = BTreeMap::new();
        for (site, bytes) in requests {
            let sum = by_site.entry(site).or_default();
            *sum = sum.saturating_add(bytes);
        }
        // Bytes and distance from the outermost frame, by function.
        let mut calls: BTreeMap<(u32, u32), (u64, usize, Frame)> = BTreeMap::new();
        let mut total = 0u64;
        for (site, bytes) in by_site {
            let own = calling_frames(definitions, site);
            if own.is_empty() {
                continue;
            }
            total = total.saturating_add(bytes);
            let mut seen = BTreeSet::new();
            for (index, frame) in own.iter().enumerate() {
                let key = (frame.file.0, frame.function.0);
                if seen.insert(key) {
                    let call = calls.entry(key).or_insert((0, 0, *frame));
                    call.0 = call.0.saturating_add(bytes);
                    call.1 = call.1.max(own.len() - index);
                }
            }
        }
        let is_common = |&&(bytes, ..): &&(u64, usize, Frame)| bytes >= total / 10 * 9;
        let innermost = calls.values().filter(is_common).max_by_key(|&&(_, depth, _)| depth)?;
        Some(frame_label(definitions, innermost.2))
    }

    /// Returns the line that made a failed request.
    pub(crate) fn name_of_request(&mut self, failure: &Failure) -> String {
        let origin = AllocationOrigin { stream: failure.stream, pool: failure.pool, site: failure.site };
        let group = self.grouping.group_of_origin(&origin, failure.rounded_bytes, false);
        self.add_label(group, failure.site);
        self.name(group)
    }

    pub(crate) fn category_of(&self, block: &Block) -> Category {
        self.grouping.category_of(block).category
    }

    pub(crate) fn category(&self, site: SiteId) -> Category {
        self.grouping.category(site, false).category
    }

    /// Returns live bytes by line and category, most first. They add up to the bytes of `blocks`.
    pub(crate) fn holders<'b>(&mut self, blocks: impl Iterator<Item = &'b Block>) -> Vec<Holder> {
        let mut sums: BTreeMap<(u32, Category), (SiteId, u64, u64)> = BTreeMap::new();
        for block in blocks {
            let key = (self.group_of(block), self.category_of(block));
            let (_, bytes, blocks) = sums.entry(key).or_insert((block.site, 0, 0));
            *bytes = bytes.saturating_add(block.size);
            *blocks += 1;
        }
        let mut holders: Vec<Holder> = Vec::with_capacity(sums.len());
        for ((group, category), (site, bytes, blocks)) in sums {
            holders.push(Holder { name: self.name(group), site, category, bytes, blocks });
        }
        sort_by_key(&mut holders, |holder| std::cmp::Reverse(holder.bytes));
        holders
    }

    /// Returns the lines that grow from step to step until event `until`, with the bytes by which
    /// they grew.
    pub(crate) fn growth(&mut self, lifetimes: &DeviceLifetimes, steps: &Steps, until: u64) -> Option<Growing> {
        let before: Vec<_> = steps.as_slice().iter().copied().filter(|step| step.to_event < until).collect();
        let before = Steps::new(steps.source()?.clone(), before);
        let mut by_step = GroupsByStep::new(&before, before.default_warm_up());
        while !by_step.step(lifetimes, |one| self.grouping.group_of_allocation(one)) {}
        let growing = by_step.growing(&MergedSites::new(&self.grouping, self.recording.definitions()));
        let mut found = Growing::default();
        for one in growing.as_slice() {
            found.bytes = found.bytes.saturating_add(one.last_bytes.saturating_sub(one.first_bytes));
            found.lines.insert(one.group);
        }
        (found.bytes > 0).then_some(found)
    }
}

/// The lines of a program that grow from step to step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Growing {
    /// Bytes by which they grew until the last step.
    pub(crate) bytes: u64,
    lines: BTreeSet<u32>,
}

impl Growing {
    /// Iterates over the lines that grow.
    pub(crate) fn lines(&self) -> impl Iterator<Item = u32> + '_ {
        self.lines.iter().copied()
    }

    /// Returns true if a line grows.
    pub(crate) fn contains(&self, line: u32) -> bool {
        self.lines.contains(&line)
    }
}

/// Returns the frames of a site's stack that are the program's own, from the innermost on. Of a
/// request within a module's call, only those of its caller: the module is not at fault.
fn calling_frames(definitions: &Definitions, site: SiteId) -> Vec<Frame> {
    let stack = definitions.site(site).stack;
    let has_python = definitions.stack(stack).any(|frame| is_python_frame(definitions, frame));
    let (mut calling, mut all) = (Vec::new(), Vec::new());
    for frame in definitions.stack(stack) {
        if frame_origin(definitions, frame, has_python) == FrameOrigin::Own {
            calling.push(frame);
            all.push(frame);
        } else if definitions.string(frame.function) == MODULE_CALL {
            calling.clear();
        }
        if all.len() == MAX_FRAMES {
            break;
        }
    }
    if calling.is_empty() { all } else { calling }
}

/// The ages of the blocks that are live at a failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ages {
    /// Bytes of all allocations that began before the failure.
    pub(super) allocated_bytes: u64,
    /// Bytes of those that were freed before it.
    pub(super) freed_bytes: u64,
    /// The moment of least memory in the second half of the allocations: the begin of the last
    /// step, approximately.
    pub(super) step_began: u64,
    /// Bytes of live allocations that are younger.
    pub(super) young_bytes: u64,
}

impl Ages {
    /// Computes the ages at the moment before event number `failed`.
    pub(super) fn new(lifetimes: &DeviceLifetimes, failed: u64) -> Self {
        let moment = failed.saturating_sub(1);
        let mut ages = Self::default();
        let mut changes: Vec<(u64, i64)> = Vec::new();
        for one in lifetimes.iter().take_while(|one| one.first_moment <= moment) {
            ages.allocated_bytes = ages.allocated_bytes.saturating_add(one.size);
            let size = i64::try_from(one.size).unwrap_or(i64::MAX);
            changes.push((one.first_moment, size));
            if let Some(end) = one.allocated_until.filter(|&end| end <= moment) {
                ages.freed_bytes = ages.freed_bytes.saturating_add(one.size);
                changes.push((end, -size));
            }
        }
        sort_by_key(&mut changes, |&(at, bytes)| (at, bytes));
        let half = changes.len() / 2;
        let (mut live, mut least) = (0i64, i64::MAX);
        for (index, &(at, bytes)) in changes.iter().enumerate() {
            live = live.saturating_add(bytes);
            if index >= half && live <= least {
                (least, ages.step_began) = (live, at);
            }
        }
        let young = |one: &Allocation| one.first_moment > ages.step_began;
        ages.young_bytes =
            lifetimes.live_at(moment).filter(young).fold(0, |sum: u64, one| sum.saturating_add(one.size));
        ages
    }
}

/// Returns the bytes of the live blocks that look like an optimizer's state that is being created:
/// the newest live blocks, all of sizes that the oldest ones have, with as many bytes again between
/// both (the gradients). 0 if they do not look so.
///
/// Used where stacks are missing.
pub(super) fn state_like_bytes(lifetimes: &DeviceLifetimes, failed: u64, requested: u64) -> u64 {
    let moment = failed.saturating_sub(1);
    let first_free = lifetimes.iter().filter_map(|one| one.allocated_until).min().unwrap_or(u64::MAX);
    let live: Vec<Allocation> = lifetimes.live_at(moment).collect();
    let oldest: BTreeSet<u64> = live.iter().filter(|one| one.first_moment < first_free).map(|one| one.size).collect();
    if !oldest.contains(&requested) {
        return 0;
    }
    // What follows the last free is the state: nothing is freed while it is created.
    let last_free = lifetimes
        .iter()
        .filter_map(|one| one.allocated_until.filter(|&end| end <= moment).map(|end| (end, one.size)))
        .filter(|&(_, size)| oldest.contains(&size) || size > 1 << 20)
        .map(|(end, _)| end)
        .max();
    let Some(last_free) = last_free else { return 0 };
    let newest = live.iter().filter(|one| one.first_moment > last_free);
    let (mut bytes, mut other_bytes) = (0u64, 0u64);
    for one in newest {
        let sum = if oldest.contains(&one.size) { &mut bytes } else { &mut other_bytes };
        *sum = sum.saturating_add(one.size);
    }
    if other_bytes > bytes / 8 { 0 } else { bytes }
}
