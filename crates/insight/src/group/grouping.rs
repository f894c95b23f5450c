//! The group number of every block.

use std::collections::HashMap;
use std::sync::Arc;

use vramscope_trace::{
    Allocation, AllocationOrigin, AllocationRow, Block, Category, Definitions, Frame, FrameId, PoolKey, Site, SiteId,
    StackId, StreamId, StringId,
};

use super::group_by::GroupBy;
use super::inference::{Phase, SiteCategory, SiteRequest, category, named_phase, phase};
use crate::frames::{EnginePhase, FactsCache, OperationSource, RecordedStacks, StackFacts, operation_name};

/// Maximum number of streams or pools that are searched in a list, before the hash table.
const MAX_FIRST_KEYS: usize = 8;

/// The common property of the blocks of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum GroupKey {
    Site(SiteId),
    Stack(StackId),
    Function {
        function: StringId,
        file: StringId,
    },
    Line {
        file: StringId,
        line: u32,
    },
    File(StringId),
    Module(StringId),
    NoModule,
    Category(SiteCategory),
    Stream(StreamId),
    Pool(PoolKey),
    /// Sizes from this power of two to the next; 64 stands for the size 0.
    Size(u32),
    Phase(Phase),
    /// An operation, by the first function that was found to run it.
    Operation {
        function: StringId,
        file: StringId,
        /// Whether the operation's backward pass made the request, although the stack is that of
        /// the forward operation.
        is_backward: bool,
    },
    /// Requests without frames, if no other property determines the group.
    NoStack {
        before_recording: bool,
    },
    /// Stacks without a line of Python or of the program.
    LibraryOnly,
}

/// The properties of a block that determine its group.
#[derive(Clone, Copy, Debug)]
struct BlockProperties {
    site: SiteId,
    stream: StreamId,
    pool: PoolKey,
    size: u64,
    /// Whether the block is older than the recording.
    before_recording: bool,
}

/// The group and category of a site's blocks.
#[derive(Clone, Copy, Debug, Default)]
struct SiteEntry {
    /// Group number; 0 where blocks are not grouped by a property of their site.
    group: u32,
    category: SiteCategory,
}

/// A site's entries: for blocks made by recorded events, and for blocks older than the recording.
type SiteEntries = [SiteEntry; 2];

/// A mapping from blocks to groups.
///
/// ```
/// use vramscope_insight::group::{GroupBy, Grouping};
/// use vramscope_trace::Recording;
///
/// let recording = Recording::new();
/// let mut by_line = Grouping::of(GroupBy::Line, &recording);
/// for (_, device) in recording.end_state().devices() {
///     for block in device.blocks() {
///         let group = by_line.group_of(block);
///         println!("{}", by_line.group_name(recording.definitions(), group));
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Grouping {
    by: GroupBy,
    /// Index of the recording's first event.
    first_event: u64,
    /// By site number, from 0 (the unknown site).
    sites: Vec<SiteEntries>,
    /// The key of each group, by group number.
    pub(super) keys: Vec<GroupKey>,
    /// A representative site of each group, for details; the unknown site if blocks are not grouped
    /// by a property of their site.
    pub(super) representatives: Vec<SiteId>,
    /// The group number of each key.
    numbers: HashMap<GroupKey, u32>,
    /// The first streams or pools with their group numbers, to be searched before `numbers`.
    first_keys: Vec<(GroupKey, u32)>,
    /// The group number of each power of two; `None` if no block has had a size in that range.
    by_exponent: [Option<u32>; u64::BITS as usize + 1],
    /// Names of groups that have been asked for, by group number.
    cached_names: Vec<Option<Arc<str>>>,
    facts: FactsCache,
    /// The first function found for each operation that several functions run, by the operation's
    /// name.
    operations: HashMap<String, StringId>,
    pub(super) recorded: RecordedStacks,
}

impl Grouping {
    /// Creates a grouping without sites; `first_event` is the index (from 0) of the recording's
    /// first event. Call [`update`](Self::update) before use.
    #[must_use]
    pub fn new(by: GroupBy, first_event: u64) -> Self {
        Self {
            by,
            first_event,
            sites: Vec::new(),
            keys: Vec::new(),
            representatives: Vec::new(),
            numbers: HashMap::new(),
            first_keys: Vec::new(),
            by_exponent: [None; u64::BITS as usize + 1],
            cached_names: Vec::new(),
            facts: FactsCache::default(),
            operations: HashMap::new(),
            recorded: RecordedStacks::default(),
        }
    }

    /// Creates a grouping for a recording, with all sites defined so far.
    #[must_use]
    pub fn of(by: GroupBy, recording: &vramscope_trace::Recording) -> Self {
        let mut grouping = Self::new(by, recording.first_event());
        grouping.update(recording.definitions());
        grouping
    }

    /// Returns the property by which blocks are grouped.
    #[must_use]
    pub fn by(&self) -> GroupBy {
        self.by
    }

    /// Returns the index (from 0) of the recording's first event.
    #[must_use]
    pub fn first_event(&self) -> u64 {
        self.first_event
    }

    /// Sets the index (from 0) of the recording's first event, which increases when the oldest part
    /// of a live recording is dropped. Blocks without a stack may move to other groups.
    pub fn set_first_event(&mut self, first_event: u64) {
        self.first_event = first_event;
    }

    /// Returns the number of groups so far; group numbers are below it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns true if there is no group yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Adds the sites that were defined since the last call, of a recording that grows.
    ///
    /// Returns true if blocks of earlier sites may have moved to other groups, so that stored group
    /// numbers are out of date. That happens at most twice: when the first site with a stack, and
    /// the first with a Python stack, tell what sites without one mean.
    pub fn update(&mut self, definitions: &Definitions) -> bool {
        let changed = self.recorded.update(definitions) && !self.sites.is_empty();
        if changed {
            self.sites.clear();
            self.cached_names.clear();
        }
        let sites = definitions.site_count().saturating_add(1);
        while self.sites.len() < sites {
            let Ok(number) = u32::try_from(self.sites.len()) else { break };
            let entries = [false, true].map(|before| self.site_entry(definitions, SiteId(number), before));
            self.sites.push(entries);
        }
        changed
    }

    /// Computes the entry of a site.
    fn site_entry(&mut self, definitions: &Definitions, id: SiteId, before_recording: bool) -> SiteEntry {
        let site = definitions.site(id);
        let facts = self.facts.get(definitions, site.stack);
        let lacks_python = facts.frames == 0 && self.recorded.has_python() && !before_recording;
        let request = SiteRequest { site, facts: &facts, lacks_python };
        let category = category(definitions, request);
        let no_stack = GroupKey::NoStack { before_recording };
        let key = match self.by {
            GroupBy::Stream | GroupBy::Pool | GroupBy::Size => return SiteEntry { group: 0, category },
            GroupBy::Site if Site { compile_context: StringId(0), ..site } == Site::default() => no_stack,
            GroupBy::Site => GroupKey::Site(id),
            GroupBy::Module if site.scope == StringId(0) => GroupKey::NoModule,
            GroupBy::Module => GroupKey::Module(site.scope),
            GroupBy::Category if category.category == Category::Unknown && facts.frames == 0 => no_stack,
            GroupBy::Category => GroupKey::Category(category),
            GroupBy::Phase => phase(definitions, request).map_or(no_stack, GroupKey::Phase),
            GroupBy::Stack | GroupBy::Function | GroupBy::Line | GroupBy::File | GroupBy::Operation
                if facts.frames == 0 =>
            {
                no_stack
            }
            GroupBy::Stack => GroupKey::Stack(site.stack),
            GroupBy::Function | GroupBy::Line | GroupBy::File => self.frame_key(definitions, &facts),
            GroupBy::Operation => self.site_operation_key(definitions, site, &facts),
        };
        SiteEntry { group: self.number_of(key, id), category }
    }

    /// Returns the key of a stack with frames, grouped by function, line or file.
    fn frame_key(&self, definitions: &Definitions, facts: &StackFacts) -> GroupKey {
        let frame = facts.best_frame().and_then(|frame| definitions.frame(frame));
        let has_file = |file: &StringId| !matches!(definitions.string(*file), "" | "??");
        match (self.by, frame) {
            (GroupBy::Function | GroupBy::Operation, Some(frame)) => {
                GroupKey::Function { function: frame.function, file: frame.file }
            }
            (by, Some(frame)) if has_file(&frame.file) && (frame.line > 0 || by == GroupBy::File) => match by {
                GroupBy::File => GroupKey::File(frame.file),
                _ => GroupKey::Line { file: frame.file, line: frame.line },
            },
            _ => GroupKey::LibraryOnly,
        }
    }

    /// Returns the key of a site with frames, grouped by operation.
    fn site_operation_key(&mut self, definitions: &Definitions, site: Site, facts: &StackFacts) -> GroupKey {
        let Some((frame, source)) = facts.operation() else { return self.frame_key(definitions, facts) };
        let is_backward = source != OperationSource::Dispatcher
            && facts.engine != Some(EnginePhase::Backward)
            && named_phase(definitions, site) == Some(Phase::Backward);
        self.operation_key(definitions, (frame, source), is_backward)
    }

    /// Returns the key of the operation that a frame names.
    fn operation_key(
        &mut self,
        definitions: &Definitions,
        (frame, source): (FrameId, OperationSource),
        is_backward: bool,
    ) -> GroupKey {
        let Frame { mut function, mut file, .. } = definitions.frame(frame).unwrap_or_default();
        if source == OperationSource::Dispatcher {
            // An operation has a function for each overload, and several for the steps of a call.
            let name = operation_name(definitions.string(function), "").unwrap_or_default();
            (function, file) = (*self.operations.entry(name).or_insert(function), StringId(0));
        }
        GroupKey::Operation { function, file, is_backward }
    }

    /// Returns the groups of the operations within which a site's operation runs, each once.
    ///
    /// A stack has operations of one kind only, see [`group`](crate::group); functions of the
    /// program are none. Empty unless blocks are grouped by operation.
    pub(crate) fn outer_operations(&mut self, definitions: &Definitions, id: SiteId) -> Vec<u32> {
        let mut outer = Vec::new();
        let site = definitions.site(id);
        let facts = self.facts.get(definitions, site.stack);
        let Some((_, kind)) = facts.operation().filter(|_| self.by == GroupBy::Operation) else { return outer };
        let own = self.site_operation_key(definitions, site, &facts);
        let is_backward = matches!(own, GroupKey::Operation { is_backward: true, .. });
        let kind = kind.max(OperationSource::Python);
        let mut next = site.stack;
        while let Some(stack) = definitions.stack_definition(next) {
            next = stack.caller;
            if self.facts.operation_source(stack.frame) == kind {
                let key = self.operation_key(definitions, (stack.frame, kind), is_backward);
                let group = self.number_of(key, id);
                if key != own && !outer.contains(&group) {
                    outer.push(group);
                }
            }
        }
        outer
    }

    /// Returns the number of the group with this key, giving it the next number if it is new.
    fn number_of(&mut self, key: GroupKey, representative: SiteId) -> u32 {
        *self.numbers.entry(key).or_insert_with(|| {
            self.keys.push(key);
            self.representatives.push(representative);
            u32::try_from(self.keys.len() - 1).unwrap_or(u32::MAX)
        })
    }

    /// Returns the number of a group that `other` knows as `group`: two groupings of one recording
    /// by stream, pool or size may count their groups in different orders. `None` if `other` has no
    /// such group.
    pub fn same_group(&mut self, other: &Self, group: u32) -> Option<u32> {
        let index = group as usize;
        let (&key, &representative) = other.keys.get(index).zip(other.representatives.get(index))?;
        Some(self.number_of(key, representative))
    }

    /// Returns a block's group.
    #[inline]
    pub fn group_of(&mut self, block: &Block) -> u32 {
        self.group(BlockProperties {
            site: block.site,
            stream: block.stream,
            pool: block.pool,
            size: block.size,
            before_recording: self.is_before_recording(block.since_event),
        })
    }

    /// Returns an allocation's group.
    #[inline]
    pub fn group_of_allocation(&mut self, one: &Allocation) -> u32 {
        self.group(BlockProperties {
            site: one.site,
            stream: one.stream,
            pool: one.pool,
            size: one.size,
            before_recording: self.is_older(one.first_moment),
        })
    }

    /// Returns the group of a row of lifetimes; `origin` is the origin with the row's number, see
    /// [`DeviceLifetimes::origins`](vramscope_trace::DeviceLifetimes::origins).
    #[inline]
    pub fn group_of_row(&mut self, origin: &AllocationOrigin, row: &AllocationRow) -> u32 {
        self.group(BlockProperties {
            site: origin.site,
            stream: origin.stream,
            pool: origin.pool,
            size: row.size,
            before_recording: self.is_older(row.first_moment),
        })
    }

    /// Returns the group of an allocation, from its origin, its size and whether it is
    /// [older](Self::is_older) than the recording.
    #[inline]
    pub fn group_of_origin(&mut self, origin: &AllocationOrigin, size: u64, before_recording: bool) -> u32 {
        let AllocationOrigin { site, stream, pool } = *origin;
        self.group(BlockProperties { site, stream, pool, size, before_recording })
    }

    /// Returns true if an allocation with this first moment counts as older than the recording.
    #[must_use]
    #[inline]
    pub fn is_older(&self, first_moment: u64) -> bool {
        self.is_before_recording(first_moment.saturating_sub(1))
    }

    /// Returns true if an allocation belongs to a group, for selections.
    #[inline]
    pub fn matches_allocation(&mut self, group: u32, one: &Allocation) -> bool {
        self.group_of_allocation(one) == group
    }

    /// Returns the category of a block's memory, recorded or inferred.
    #[must_use]
    #[inline]
    pub fn category_of(&self, block: &Block) -> SiteCategory {
        self.category(block.site, self.is_before_recording(block.since_event))
    }

    /// Returns the category of an allocation's memory, recorded or inferred.
    #[must_use]
    #[inline]
    pub fn category_of_allocation(&self, one: &Allocation) -> SiteCategory {
        self.category(one.site, self.is_older(one.first_moment))
    }

    /// Returns the category of a site's memory; `before_recording` tells whether the block is older
    /// than the recording.
    #[must_use]
    #[inline]
    pub fn category(&self, site: SiteId, before_recording: bool) -> SiteCategory {
        // An undefined site is the unknown site.
        let entries = self.sites.get(site.0 as usize).or(self.sites.first());
        entries.map_or_else(SiteCategory::default, |entries| entries[usize::from(before_recording)].category)
    }

    /// Returns which kinds of stacks the recording contains.
    #[must_use]
    pub fn recorded_stacks(&self) -> &RecordedStacks {
        &self.recorded
    }

    /// Returns a group's [name](Self::group_name), and keeps it for the next call.
    pub fn cached_name(&mut self, definitions: &Definitions, group: u32) -> Arc<str> {
        let index = group as usize;
        if index < self.keys.len() && self.cached_names.len() <= index {
            self.cached_names.resize(self.keys.len(), None);
        }
        if let Some(Some(name)) = self.cached_names.get(index) {
            return Arc::clone(name);
        }
        let name: Arc<str> = self.group_name(definitions, group).into();
        if let Some(cached) = self.cached_names.get_mut(index) {
            *cached = Some(Arc::clone(&name));
        }
        name
    }

    /// Returns true if a block that exists since the event with index `since_event` is older than
    /// the recording.
    #[inline]
    fn is_before_recording(&self, since_event: u64) -> bool {
        since_event <= self.first_event
    }

    /// Returns the number of a block's group.
    #[inline]
    fn group(&mut self, block: BlockProperties) -> u32 {
        match self.by {
            GroupBy::Stream => self.group_of_few(GroupKey::Stream(block.stream)),
            GroupBy::Pool => self.group_of_few(GroupKey::Pool(block.pool)),
            GroupBy::Size => {
                let exponent = block.size.checked_ilog2().unwrap_or(u64::BITS);
                if let Some(Some(number)) = self.by_exponent.get(exponent as usize) {
                    return *number;
                }
                let number = self.number_of(GroupKey::Size(exponent), SiteId(0));
                if let Some(known) = self.by_exponent.get_mut(exponent as usize) {
                    *known = Some(number);
                }
                number
            }
            _ => match self.sites.get(block.site.0 as usize) {
                Some(entries) => entries[usize::from(block.before_recording)].group,
                // The site is not defined, or was defined after the last update.
                None => self.number_of(GroupKey::NoStack { before_recording: block.before_recording }, SiteId(0)),
            },
        }
    }

    /// Returns the number of the group with a key, for a property that usually has few values.
    #[inline]
    fn group_of_few(&mut self, key: GroupKey) -> u32 {
        if let Some(&(_, number)) = self.first_keys.iter().find(|(known, _)| *known == key) {
            return number;
        }
        let number = self.number_of(key, SiteId(0));
        if self.first_keys.len() < MAX_FIRST_KEYS {
            self.first_keys.push((key, number));
        }
        number
    }
}
