//! The group number of every block.

use std::collections::HashMap;
use std::sync::Arc;

use vramscope_trace::{
    Allocation, AllocationOrigin, AllocationRow, Block, Category, Definitions, DeviceLifetimes, PoolKey, Recording,
    SiteId, StackId, StreamId, StringId,
};

use super::backward_calls::BackwardCalls;
use super::group_by::GroupBy;
use super::memory_category::{CategorySource, KnownCategory, MemoryCategory};
use super::model_calls::ModelCalls;
use super::phase::Phase;
use super::recording_categories::DeviceCategories;
use crate::frames::{FactsCache, RecordedStacks};

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
    Category(MemoryCategory),
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
    /// Requests of the backward pass whose stack is that of the forward operation: the function
    /// that names it, and the line of the program.
    Backward {
        function: StringId,
        function_file: StringId,
        file: StringId,
        line: u32,
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

/// What is known about a site's blocks.
#[derive(Clone, Copy, Debug, Default)]
struct SiteEntry {
    /// Group numbers of blocks made by recorded events, and of blocks older than the recording; 0
    /// where blocks are not grouped by a property of their site. Grouped by category, the groups of
    /// blocks of unknown category.
    groups: [u32; 2],
    /// The category that the program recorded.
    category: Category,
}

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
    pub(super) by: GroupBy,
    /// Index of the recording's first event.
    first_event: u64,
    /// By site number, from 0 (the unknown site).
    sites: Vec<SiteEntry>,
    /// The inferred categories.
    categories: DeviceCategories,
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
    /// The group number of each category that was recorded, and that was inferred; `None` if no
    /// block has had it.
    by_category: [[Option<u32>; 2]; Category::ALL.len()],
    /// Names of groups that have been asked for, by group number.
    cached_names: Vec<Option<Arc<str>>>,
    pub(super) facts: FactsCache,
    /// The first function found for each operation that several functions run, by the operation's
    /// name.
    pub(super) operations: HashMap<String, StringId>,
    pub(super) recorded: RecordedStacks,
    /// The lines of the program that call the backward pass.
    pub(super) backward_calls: BackwardCalls,
    /// The lines of the program that call the model, if blocks are grouped by line.
    pub(super) model_calls: ModelCalls,
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
            categories: DeviceCategories::default(),
            keys: Vec::new(),
            representatives: Vec::new(),
            numbers: HashMap::new(),
            first_keys: Vec::new(),
            by_exponent: [None; u64::BITS as usize + 1],
            by_category: [[None; 2]; Category::ALL.len()],
            cached_names: Vec::new(),
            facts: FactsCache::default(),
            operations: HashMap::new(),
            recorded: RecordedStacks::default(),
            backward_calls: BackwardCalls::default(),
            model_calls: ModelCalls::default(),
        }
    }

    /// Creates a grouping for a recording, with all sites defined so far.
    #[must_use]
    pub fn of(by: GroupBy, recording: &Recording) -> Self {
        let mut grouping = Self::new(by, recording.first_event());
        grouping.update(recording.definitions());
        grouping
    }

    /// Adds the inferred categories of a device, whose blocks are grouped from now on. Without
    /// them, only recorded categories are known.
    #[must_use]
    pub fn with_categories(mut self, categories: &DeviceCategories) -> Self {
        self.set_categories(categories);
        self
    }

    /// Sets the inferred categories of a device, whose blocks are grouped from now on. Returns true
    /// if blocks may have moved to other groups, so that stored group numbers are out of date.
    pub fn set_categories(&mut self, categories: &DeviceCategories) -> bool {
        if self.categories.is_same(categories) {
            return false;
        }
        self.categories = categories.clone();
        self.by == GroupBy::Category
    }

    /// Returns the inferred categories.
    #[must_use]
    pub fn categories(&self) -> &DeviceCategories {
        &self.categories
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
            let groups = [false, true].map(|before| self.site_group(definitions, SiteId(number), before));
            if self.backward_calls.add(definitions, SiteId(number), &mut self.facts) {
                self.cached_names.clear();
            }
            self.add_model_call(definitions, SiteId(number), groups[0]);
            self.sites.push(SiteEntry { groups, category: definitions.site(SiteId(number)).category });
        }
        changed
    }

    /// Returns the number of the group with this key, giving it the next number if it is new.
    pub(super) fn number_of(&mut self, key: GroupKey, representative: SiteId) -> u32 {
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
        if self.by == GroupBy::Category {
            let known = self.categories.of_block(block);
            return self.group_of_category(block.site, known, self.is_before_recording(block.since_event));
        }
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
        if self.by == GroupBy::Category {
            let known = self.categories.of_allocation(one);
            return self.group_of_category(one.site, known, self.is_older(one.first_moment));
        }
        self.group(BlockProperties {
            site: one.site,
            stream: one.stream,
            pool: one.pool,
            size: one.size,
            before_recording: self.is_older(one.first_moment),
        })
    }

    /// Returns the group of a row of lifetimes; `origin` is the origin with the row's number, see
    /// [`DeviceLifetimes::origins`].
    #[inline]
    pub fn group_of_row(&mut self, lifetimes: &DeviceLifetimes, origin: &AllocationOrigin, row: &AllocationRow) -> u32 {
        if self.by == GroupBy::Category {
            let known = self.categories.of_row(lifetimes, origin.site, row);
            return self.group_of_category(origin.site, known, self.is_older(row.first_moment));
        }
        self.group(BlockProperties {
            site: origin.site,
            stream: origin.stream,
            pool: origin.pool,
            size: row.size,
            before_recording: self.is_older(row.first_moment),
        })
    }

    /// Returns the group of an allocation that is not known, from its origin, its size and whether
    /// it is [older](Self::is_older) than the recording. Grouped by category, that of most bytes
    /// with this origin.
    #[inline]
    pub fn group_of_origin(&mut self, origin: &AllocationOrigin, size: u64, before_recording: bool) -> u32 {
        let AllocationOrigin { site, stream, pool } = *origin;
        if self.by == GroupBy::Category {
            let known = self.categories.of_site(site, before_recording);
            return self.group_of_category(site, known, before_recording);
        }
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
    pub fn category_of(&self, block: &Block) -> MemoryCategory {
        self.category_of_known(block.site, || self.categories.of_block(block))
    }

    /// Returns the category of an allocation's memory, recorded or inferred.
    #[must_use]
    #[inline]
    pub fn category_of_allocation(&self, one: &Allocation) -> MemoryCategory {
        self.category_of_known(one.site, || self.categories.of_allocation(one))
    }

    /// Returns the category of the memory of a row of lifetimes; `origin` is the origin with the
    /// row's number.
    #[must_use]
    #[inline]
    pub fn category_of_row(
        &self,
        lifetimes: &DeviceLifetimes,
        origin: &AllocationOrigin,
        row: &AllocationRow,
    ) -> MemoryCategory {
        self.category_of_known(origin.site, || self.categories.of_row(lifetimes, origin.site, row))
    }

    /// Returns the category of most bytes that a site requested; `before_recording` tells whether
    /// the blocks are older than the recording.
    #[must_use]
    pub fn category(&self, site: SiteId, before_recording: bool) -> MemoryCategory {
        self.category_of_known(site, || self.categories.of_site(site, before_recording))
    }

    /// Returns true if the program recorded the category of a site.
    pub(crate) fn is_recorded(&self, site: SiteId) -> bool {
        self.sites.get(site.0 as usize).is_some_and(|entry| entry.category != Category::Unknown)
    }

    /// Returns the category that was recorded for a site, or else `known`.
    #[inline]
    fn category_of_known(&self, site: SiteId, known: impl FnOnce() -> Option<KnownCategory>) -> MemoryCategory {
        // An undefined site is the unknown site.
        match self.sites.get(site.0 as usize).or(self.sites.first()) {
            Some(SiteEntry { category, .. }) if *category != Category::Unknown => MemoryCategory::recorded(*category),
            _ => known().into(),
        }
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
            _ => self.group_of_site(block.site, block.before_recording),
        }
    }

    /// Returns the group of a site's blocks that recorded events made; `None` if the site is not
    /// defined, or blocks are not grouped by a property of their site.
    pub(super) fn known_group(&self, site: SiteId) -> Option<u32> {
        self.sites.get(site.0 as usize).map(|entry| entry.groups[0])
    }

    /// Returns the group of a site's blocks, see [`SiteEntry::groups`].
    #[inline]
    pub(crate) fn group_of_site(&mut self, site: SiteId, before_recording: bool) -> u32 {
        match self.sites.get(site.0 as usize) {
            Some(entry) => entry.groups[usize::from(before_recording)],
            // The site is not defined, or was defined after the last update.
            None => self.number_of(GroupKey::NoStack { before_recording }, SiteId(0)),
        }
    }

    /// Returns the group of a site's block, grouped by category; `known` is the inferred category.
    #[inline]
    fn group_of_category(&mut self, site: SiteId, known: Option<KnownCategory>, before_recording: bool) -> u32 {
        let category = self.category_of_known(site, || known);
        self.group_with_category(site, category, before_recording)
    }

    /// Returns the group of a site's blocks of a category, grouped by category.
    #[inline]
    pub(crate) fn group_with_category(
        &mut self,
        site: SiteId,
        category: MemoryCategory,
        before_recording: bool,
    ) -> u32 {
        if category.category == Category::Unknown {
            return self.group_of_site(site, before_recording);
        }
        let index = (category.category as usize, usize::from(category.source == CategorySource::Inferred));
        if let Some(number) = self.by_category[index.0][index.1] {
            return number;
        }
        let number = self.number_of(GroupKey::Category(category), SiteId(0));
        self.by_category[index.0][index.1] = Some(number);
        number
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
