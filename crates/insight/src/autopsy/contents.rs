//! The memory when a request failed: bytes by site and category, and the sites that grew.

use std::collections::{BTreeMap, BTreeSet};

use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{
    Allocation, AllocationOrigin, Block, ByteSize, Category, Definitions, Frame, FrameOrigin, Recording, SiteId,
    StreamId, StringId, frame_origin, is_python_frame,
};

use crate::failures::Failure;
use crate::frames::{frame_label, innermost_own_frame};
use crate::group::{Confidence, DeviceCategories, GroupBy, Grouping, MergedSites};
use crate::steps::{GroupsByStep, Steps};

/// Maximum number of frames of a stack to examine; deeper recursion repeats them.
const MAX_FRAMES: usize = 256;
/// The number of the first line that stands for requests without a call stack.
const FIRST_UNNAMED: u32 = 1 << 31;

/// The function of PyTorch that calls a module's `forward`.
const MODULE_CALL: &str = "_call_impl";

/// Live memory of one line of the program and category at a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The line of the program, as groups by line are named; of requests without a call stack,
    /// their size and stream.
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

/// Names lines of a program, and knows the categories of a device's blocks. In a recording without
/// call stacks, requests are distinguished by size (a power of two) and stream.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    grouping: Grouping,
    /// The names of lines with their functions.
    labels: BTreeMap<u32, String>,
    /// The lines that stand for requests without a call stack, by logarithm of the size and stream.
    unnamed: BTreeMap<(u32, StreamId), u32>,
    /// The lines whose functions several others of the program call; `None` before they are needed.
    wrappers: Option<BTreeSet<(StringId, u32)>>,
}

impl Lines {
    /// Creates the lines of a recording, without any named so far.
    pub(super) fn new(recording: &Recording) -> Self {
        let grouping = Grouping::of(GroupBy::Line, recording);
        Self { grouping, labels: BTreeMap::new(), unnamed: BTreeMap::new(), wrappers: None }
    }

    /// Sets the inferred categories of a device, whose blocks are examined from now on.
    pub(super) fn set_categories(&mut self, categories: &DeviceCategories) {
        self.grouping.set_categories(categories);
    }

    /// Returns the number of the line that requested a block.
    pub(super) fn of_block(&mut self, definitions: &Definitions, block: &Block) -> u32 {
        let group = self.grouping.group_of(block);
        self.line(definitions, group, block.site, block.size, block.stream)
    }

    /// Returns the number of the line that requested an allocation.
    pub(super) fn of_allocation(&mut self, definitions: &Definitions, one: &Allocation) -> u32 {
        let group = self.grouping.group_of_allocation(one);
        self.line(definitions, group, one.site, one.size, one.stream)
    }

    /// Returns the number of the line that made a failed request.
    pub(super) fn of_request(&mut self, definitions: &Definitions, failure: &Failure) -> u32 {
        let origin = AllocationOrigin { stream: failure.stream, pool: failure.pool, site: failure.site };
        let group = self.grouping.group_of_origin(&origin, failure.rounded_bytes, false);
        self.line(definitions, group, failure.site, failure.rounded_bytes, failure.stream)
    }

    /// Returns the number of the line for a group of requests. Stores the line's name, with its
    /// function, from the first site of the group.
    fn line(&mut self, definitions: &Definitions, group: u32, site: SiteId, size: u64, stream: StreamId) -> u32 {
        if !self.has_stacks() && self.grouping.is_unknown(group) {
            let log2 = size.checked_ilog2().unwrap_or(0);
            let next = FIRST_UNNAMED.saturating_add(self.unnamed.len() as u32);
            let line = *self.unnamed.entry((log2, stream)).or_insert(next);
            self.labels.entry(line).or_insert_with(|| {
                let (from, to) = (ByteSize(1 << log2), ByteSize((1 << log2) << 1));
                let stream =
                    if stream.0 == 0 { "the default stream".to_owned() } else { format!("stream {}", stream.0) };
                format!("requests of {from} to {to} on {stream}")
            });
            return line;
        }
        let grouping = &mut self.grouping;
        self.labels.entry(group).or_insert_with(|| {
            let frame = innermost_own_frame(definitions, site);
            frame.map_or_else(
                || grouping.cached_name(definitions, group).to_string(),
                |frame| frame_label(definitions, frame),
            )
        });
        group
    }

    /// Returns true if the recording has call stacks.
    pub(super) fn has_stacks(&self) -> bool {
        self.grouping.recorded_stacks().has_stacks()
    }

    /// Returns true if a line stands for requests without a call stack.
    pub(super) fn is_unnamed(&self, line: u32) -> bool {
        line >= FIRST_UNNAMED || self.grouping.is_unknown(line)
    }

    /// Returns the name of the line of a request. If several functions of the program call the one
    /// that made it, such as one that allocates buffers for all, the name has the line that did.
    pub(super) fn name_of_request(&mut self, definitions: &Definitions, line: u32, site: SiteId) -> String {
        let name = self.name(line);
        let wrappers = self.wrappers.get_or_insert_with(|| wrappers(definitions));
        match own_and_caller(definitions, site).filter(|(own, _)| wrappers.contains(&(own.file, own.line))) {
            Some((_, caller)) => format!("{name}, called at {}", frame_label(definitions, caller)),
            None => name,
        }
    }

    /// Returns the name of a line.
    pub(super) fn name(&self, line: u32) -> String {
        self.labels.get(&line).cloned().unwrap_or_default()
    }

    /// Returns the category of a block, recorded or inferred.
    pub(super) fn category_of(&self, block: &Block) -> Category {
        self.grouping.category_of(block).category
    }

    /// Returns the category of most bytes that a site requested, recorded or inferred.
    pub(super) fn category_of_site(&self, site: SiteId) -> Category {
        self.grouping.category(site, false).category
    }

    /// Returns the category of an allocation, recorded or inferred.
    pub(super) fn category_of_allocation(&self, one: &Allocation) -> Category {
        self.grouping.category_of_allocation(one).category
    }

    /// Returns the category of an allocation that was recorded or that its stack names; else
    /// `Unknown`.
    pub(super) fn named_category(&self, one: &Allocation) -> Category {
        let known = self.grouping.categories().of_allocation(one);
        let named = known.filter(|known| known.confidence > Confidence::Likely);
        named.map_or(Category::Unknown, |known| known.category)
    }

    /// Returns live bytes by line and category, most first. They add up to the bytes of `blocks`.
    pub(super) fn holders<'b>(
        &mut self,
        definitions: &Definitions,
        blocks: impl Iterator<Item = &'b Block>,
    ) -> Vec<Holder> {
        let mut sums: BTreeMap<(u32, Category), (SiteId, u64, u64)> = BTreeMap::new();
        for block in blocks {
            let key = (self.of_block(definitions, block), self.category_of(block));
            let (_, bytes, blocks) = sums.entry(key).or_insert((block.site, 0, 0));
            *bytes = bytes.saturating_add(block.size);
            *blocks += 1;
        }
        let holder =
            |((line, category), (site, bytes, blocks))| Holder { name: self.name(line), site, category, bytes, blocks };
        let mut holders: Vec<Holder> = sums.into_iter().map(holder).collect();
        sort_by_key(&mut holders, |holder| std::cmp::Reverse(holder.bytes));
        holders
    }

    /// Returns the lines that grow in the comparison of steps `compared`; `None` without growth.
    pub(super) fn growing(&self, definitions: &Definitions, compared: &GroupsByStep) -> Option<Growing> {
        let growing = compared.growing(&MergedSites::new(&self.grouping, definitions));
        let mut found = Growing::default();
        for one in growing.as_slice() {
            found.bytes = found.bytes.saturating_add(one.last_bytes.saturating_sub(one.first_bytes));
            found.lines.insert(one.group);
        }
        (found.bytes > 0).then_some(found)
    }
}

/// Returns a comparison of the complete steps before event number `until`; `None` without steps.
pub(super) fn compared_steps(steps: &Steps, until: u64) -> Option<GroupsByStep> {
    let before: Vec<_> = steps.as_slice().iter().copied().filter(|step| step.to_event < until).collect();
    let before = Steps::new(steps.source()?.clone(), before);
    Some(GroupsByStep::new(&before, before.default_warm_up()))
}

/// The lines of a program that grow from step to step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Growing {
    /// Bytes by which they grew, all together, from the first to the last compared step.
    pub(crate) bytes: u64,
    /// The numbers of the lines, see [`Lines`].
    pub(super) lines: BTreeSet<u32>,
}

impl Growing {
    /// Returns true if a line grows.
    pub(crate) fn contains(&self, line: u32) -> bool {
        self.lines.contains(&line)
    }
}

/// Returns the innermost call of the program from which nearly all bytes of `requests` (site and
/// bytes of each) were requested; `None` without stacks.
pub(super) fn common_call(definitions: &Definitions, requests: impl Iterator<Item = (SiteId, u64)>) -> Option<String> {
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

/// Returns the frames of a site's stack that are the program's own, from the innermost on. For a
/// request within a module's call, returns only the frames of the module's caller: the module is
/// not at fault.
pub(super) fn calling_frames(definitions: &Definitions, site: SiteId) -> Vec<Frame> {
    let (mut calling, mut all) = (Vec::new(), Vec::new());
    for (frame, kind) in own_frames_and_calls(definitions, site) {
        match kind {
            FrameKind::Own => {
                calling.push(frame);
                all.push(frame);
            }
            FrameKind::ModuleCall => calling.clear(),
        }
    }
    if calling.is_empty() { all } else { calling }
}

/// Returns the lines of the program that call a module around a request, from the innermost on: the
/// frame of each line.
pub(super) fn module_calls(definitions: &Definitions, site: SiteId) -> Vec<Frame> {
    let (mut found, mut is_in_call) = (Vec::new(), false);
    for (frame, kind) in own_frames_and_calls(definitions, site) {
        match kind {
            FrameKind::ModuleCall => is_in_call = true,
            FrameKind::Own if is_in_call => {
                found.push(frame);
                is_in_call = false;
            }
            FrameKind::Own => {}
        }
    }
    found
}

/// Returns the file and line of each innermost frame of the program that several functions call.
fn wrappers(definitions: &Definitions) -> BTreeSet<(StringId, u32)> {
    let sites = (1..=u32::try_from(definitions.site_count()).unwrap_or(u32::MAX)).map(SiteId);
    let mut callers: BTreeMap<(StringId, u32), (StringId, StringId)> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for (own, caller) in sites.filter_map(|site| own_and_caller(definitions, site)) {
        let (own, caller) = ((own.file, own.line), (caller.file, caller.function));
        if *callers.entry(own).or_insert(caller) != caller {
            found.insert(own);
        }
    }
    found
}

/// Returns the innermost frame of the program in a site's stack and the one that called it; `None`
/// without both, and if the innermost one is that of a module.
fn own_and_caller(definitions: &Definitions, site: SiteId) -> Option<(Frame, Frame)> {
    let is_call = |(_, kind): &(Frame, FrameKind)| *kind == FrameKind::ModuleCall;
    let mut frames = own_frames_and_calls(definitions, site).into_iter().skip_while(is_call);
    match (frames.next()?, frames.next()?) {
        ((own, FrameKind::Own), (caller, FrameKind::Own)) => Some((own, caller)),
        _ => None,
    }
}

/// The kind of a stack frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameKind {
    /// A frame of the program.
    Own,
    /// PyTorch's call of a module.
    ModuleCall,
}

/// Returns the program's frames of a site's stack and PyTorch's calls of modules, from the
/// innermost on.
fn own_frames_and_calls(definitions: &Definitions, site: SiteId) -> Vec<(Frame, FrameKind)> {
    let stack = definitions.site(site).stack;
    let has_python = definitions.stack(stack).any(|frame| is_python_frame(definitions, frame));
    let kind = |frame: Frame| {
        if frame_origin(definitions, frame, has_python) == FrameOrigin::Own {
            Some((frame, FrameKind::Own))
        } else if definitions.string(frame.function) == MODULE_CALL {
            Some((frame, FrameKind::ModuleCall))
        } else {
            None
        }
    };
    definitions.stack(stack).filter_map(kind).take(MAX_FRAMES).collect()
}
