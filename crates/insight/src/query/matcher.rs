//! A query prepared for a recording, which matches blocks, allocations and events.

use std::sync::Arc;

use vramscope_trace::{
    Allocation, Block, Category, Definitions, DeviceId, Event, EventKind, EventType, PoolKey, Recording, SiteId,
    StreamId,
};

use super::block_categories::BlockCategories;
use super::condition::{BlockUse, Condition, Span, category_bit, event_type_bit};
use super::site_bits::SiteBits;
use super::terms::Query;
use crate::group::RecordingCategories;
use crate::history::History;

/// The moment from which ages are counted, and the times of all moments.
#[derive(Clone, Copy, Debug)]
pub struct Now<'a> {
    /// Event number of the moment.
    pub moment: u64,
    /// The moment's time, in nanoseconds since the recording's time 0.
    pub time_ns: u64,
    /// The times of all moments.
    pub history: &'a History,
}

impl<'a> Now<'a> {
    /// Creates the moment with event number `moment`.
    #[must_use]
    pub fn new(moment: u64, history: &'a History) -> Self {
        Self { moment, time_ns: history.time_ns(moment), history }
    }
}

/// A condition on other properties than the site, and whether it is negated.
#[derive(Clone, Debug)]
struct ItemTerm {
    condition: Condition,
    is_negated: bool,
}

/// A [`Query`] prepared for a recording by [`Query::compile`].
///
/// Matching a block or an allocation costs a lookup for all terms about text and sites together,
/// and a comparison for each other term.
#[derive(Clone, Debug, Default)]
pub struct Matcher {
    sites: SiteBits,
    terms: Vec<ItemTerm>,
    /// The categories of blocks; empty if no term is about them.
    categories: BlockCategories,
    /// The moments at which training steps begin, ascending.
    steps: Vec<u64>,
    matches_everything: bool,
    needs_freed_block: bool,
    needs_address: bool,
}

impl Query {
    /// Prepares the query for a recording. `steps` are the moments at which training steps begin,
    /// in ascending order; without them, no age in steps matches. Without `categories`, only
    /// recorded categories are known.
    #[must_use]
    pub fn compile(
        &self,
        recording: &Recording,
        steps: &[u64],
        categories: Option<&Arc<RecordingCategories>>,
    ) -> Matcher {
        let about_site = self.terms().iter().filter(|term| SiteBits::is_about_site(&term.condition));
        let others = self.terms().iter().filter(|term| !SiteBits::is_about_site(&term.condition));
        let terms: Vec<ItemTerm> =
            others.map(|term| ItemTerm { condition: term.condition.clone(), is_negated: term.is_negated }).collect();
        let about_site = about_site.map(|term| (term.condition.clone(), term.is_negated));
        let has_categories = terms.iter().any(|term| matches!(term.condition, Condition::Categories(_)));
        let mut matcher = Matcher {
            sites: SiteBits::new(about_site),
            categories: if has_categories { BlockCategories::new(categories) } else { BlockCategories::default() },
            needs_freed_block: self.terms().iter().any(|term| depends_on_freed_block(&term.condition)),
            needs_address: terms
                .iter()
                .any(|term| matches!(term.condition, Condition::Address(_) | Condition::Categories(_))),
            terms,
            steps: steps.to_vec(),
            matches_everything: self.is_empty(),
        };
        matcher.update(recording.definitions());
        matcher
    }
}

/// Returns true if the answer about a free depends on the freed block, which the event itself does
/// not describe.
fn depends_on_freed_block(condition: &Condition) -> bool {
    use Condition::{Address, Age, Categories, Life, Pool, Requested, Size, Stream};
    matches!(condition, Address(_) | Age(_) | Categories(_) | Life(_) | Pool(_) | Requested(_) | Size(_) | Stream(_))
}

/// The properties of an item (a block, an allocation or an event) that terms are about. Methods
/// return `None` if the item lacks the property.
trait Item {
    /// Returns the address of the first byte and the number of bytes.
    fn range(&self) -> Option<(u64, u64)>;
    /// Returns the size in bytes, after rounding.
    fn size(&self) -> Option<u64>;
    /// Returns the requested size in bytes.
    fn requested(&self) -> Option<u64>;
    /// Returns the stream of the block or segment.
    fn stream(&self) -> Option<StreamId>;
    /// Returns the pool of the block or segment.
    fn pool(&self) -> Option<PoolKey>;
    /// Returns the item's device.
    fn device(&self) -> DeviceId;
    /// Returns the number of the event, or of the event that made the allocation.
    fn event_number(&self) -> u64;
    /// Returns the type of an event.
    fn event_type(&self) -> Option<EventType>;
    /// Returns whether a live block is allocated or pending free.
    fn block_use(&self) -> Option<BlockUse>;
    /// Returns whether the program has freed the block or allocation.
    fn is_freed(&self) -> Option<bool>;
    /// Returns the two moments between which the item's age is counted.
    fn age(&self) -> Option<(u64, u64)>;
    /// Returns the item's age in nanoseconds.
    fn age_ns(&self) -> Option<u64>;
    /// Returns the two moments between which the item's lifetime is counted; the second is `None`
    /// if the lifetime has not ended.
    fn life(&self) -> Option<(u64, Option<u64>)>;
    /// Returns the item's lifetime in nanoseconds; `u64::MAX` if it has not ended.
    fn life_ns(&self) -> Option<u64>;
    /// Returns the category of the item's memory; `None` if that is not known to exist.
    fn category(&self, categories: &BlockCategories) -> Option<Category>;
}

/// An active block of a device at a moment.
struct BlockItem<'a> {
    device: DeviceId,
    block: &'a Block,
    now: &'a Now<'a>,
}

impl Item for BlockItem<'_> {
    fn range(&self) -> Option<(u64, u64)> {
        Some((self.block.address, self.block.size))
    }
    fn size(&self) -> Option<u64> {
        Some(self.block.size)
    }
    fn requested(&self) -> Option<u64> {
        Some(self.block.requested)
    }
    fn stream(&self) -> Option<StreamId> {
        Some(self.block.stream)
    }
    fn pool(&self) -> Option<PoolKey> {
        Some(self.block.pool)
    }
    fn device(&self) -> DeviceId {
        self.device
    }
    fn event_number(&self) -> u64 {
        self.block.since_event.saturating_add(1)
    }
    fn event_type(&self) -> Option<EventType> {
        None
    }
    fn block_use(&self) -> Option<BlockUse> {
        Some(if self.block.pending_free { BlockUse::Pending } else { BlockUse::Allocated })
    }
    fn is_freed(&self) -> Option<bool> {
        Some(self.block.pending_free)
    }
    fn age(&self) -> Option<(u64, u64)> {
        Some((self.event_number(), self.now.moment))
    }
    fn age_ns(&self) -> Option<u64> {
        Some(self.now.time_ns.saturating_sub(self.block.since_ns))
    }
    fn life(&self) -> Option<(u64, Option<u64>)> {
        Some((self.event_number(), None))
    }
    fn life_ns(&self) -> Option<u64> {
        Some(u64::MAX)
    }
    fn category(&self, categories: &BlockCategories) -> Option<Category> {
        Some(categories.of_block(self.device, self.block))
    }
}

/// An allocation, with its whole lifetime.
struct AllocationItem<'a> {
    device: DeviceId,
    one: &'a Allocation,
    now: &'a Now<'a>,
}

impl Item for AllocationItem<'_> {
    fn range(&self) -> Option<(u64, u64)> {
        Some((self.one.address, self.one.size))
    }
    fn size(&self) -> Option<u64> {
        Some(self.one.size)
    }
    fn requested(&self) -> Option<u64> {
        Some(self.one.requested)
    }
    fn stream(&self) -> Option<StreamId> {
        Some(self.one.stream)
    }
    fn pool(&self) -> Option<PoolKey> {
        Some(self.one.pool)
    }
    fn device(&self) -> DeviceId {
        self.device
    }
    fn event_number(&self) -> u64 {
        self.one.first_moment
    }
    fn event_type(&self) -> Option<EventType> {
        None
    }
    fn block_use(&self) -> Option<BlockUse> {
        let now = self.now.moment;
        match (self.one.is_active_at(now), self.one.is_allocated_at(now)) {
            (false, _) => None,
            (true, true) => Some(BlockUse::Allocated),
            (true, false) => Some(BlockUse::Pending),
        }
    }
    fn is_freed(&self) -> Option<bool> {
        Some(self.one.allocated_until.is_some())
    }
    fn age(&self) -> Option<(u64, u64)> {
        age_of(self.one, self.now.moment)
    }
    fn age_ns(&self) -> Option<u64> {
        let (from, to) = self.age()?;
        Some(self.now.history.time_ns(to).saturating_sub(self.now.history.time_ns(from)))
    }
    fn life(&self) -> Option<(u64, Option<u64>)> {
        Some((self.one.first_moment, self.one.allocated_until))
    }
    fn life_ns(&self) -> Option<u64> {
        let Some(until) = self.one.allocated_until else { return Some(u64::MAX) };
        Some(self.now.history.time_ns(until).saturating_sub(self.now.history.time_ns(self.one.first_moment)))
    }
    fn category(&self, categories: &BlockCategories) -> Option<Category> {
        Some(categories.of_allocation(self.device, self.one))
    }
}

/// Returns the two moments between which the age of an allocation is counted at the moment `now`:
/// from its start to `now`, or to its free if that was before. `None` before it starts.
pub(crate) fn age_of(one: &Allocation, now: u64) -> Option<(u64, u64)> {
    let to = one.allocated_until.map_or(now, |until| until.min(now));
    (one.first_moment <= now).then_some((one.first_moment, to))
}

/// An event, with the block that it frees if that is known.
struct EventItem<'a> {
    number: u64,
    event: &'a Event,
    freed: Option<&'a Block>,
}

impl Item for EventItem<'_> {
    fn range(&self) -> Option<(u64, u64)> {
        use EventKind::{
            BlockAllocated, FreeCompleted, FreeRequested, Mark, SegmentAllocated, SegmentFreed, SegmentMapped,
            SegmentUnmapped,
        };
        match self.event.kind {
            SegmentAllocated { address, size, .. }
            | SegmentFreed { address, size, .. }
            | SegmentMapped { address, size, .. }
            | SegmentUnmapped { address, size, .. }
            | BlockAllocated { address, size, .. } => Some((address, size)),
            FreeRequested { address, .. } | FreeCompleted { address, .. } => {
                Some((address, self.freed.map_or(1, |block| block.size)))
            }
            Mark { address, .. } => Some((address, 1)).filter(|_| address != 0),
            EventKind::OutOfMemory { .. } | EventKind::MemorySample { .. } | EventKind::Gap { .. } => None,
        }
    }
    fn size(&self) -> Option<u64> {
        match self.event.kind {
            EventKind::SegmentAllocated { size, .. }
            | EventKind::SegmentFreed { size, .. }
            | EventKind::SegmentMapped { size, .. }
            | EventKind::SegmentUnmapped { size, .. }
            | EventKind::BlockAllocated { size, .. } => Some(size),
            EventKind::OutOfMemory { requested, .. } => Some(requested),
            _ => self.freed.map(|block| block.size),
        }
    }
    fn requested(&self) -> Option<u64> {
        match self.event.kind {
            EventKind::BlockAllocated { requested, .. } | EventKind::OutOfMemory { requested, .. } => Some(requested),
            _ => self.freed.map(|block| block.requested),
        }
    }
    fn stream(&self) -> Option<StreamId> {
        match self.event.kind {
            EventKind::SegmentAllocated { stream, .. }
            | EventKind::SegmentMapped { stream, .. }
            | EventKind::BlockAllocated { stream, .. }
            | EventKind::OutOfMemory { stream, .. } => Some(stream),
            _ => self.freed.map(|block| block.stream),
        }
    }
    fn pool(&self) -> Option<PoolKey> {
        match self.event.kind {
            EventKind::SegmentAllocated { pool, .. }
            | EventKind::SegmentMapped { pool, .. }
            | EventKind::BlockAllocated { pool, .. } => Some(pool),
            _ => self.freed.map(|block| block.pool),
        }
    }
    fn device(&self) -> DeviceId {
        self.event.device
    }
    fn event_number(&self) -> u64 {
        self.number
    }
    fn event_type(&self) -> Option<EventType> {
        Some(self.event.kind.event_type())
    }
    fn block_use(&self) -> Option<BlockUse> {
        None
    }
    fn is_freed(&self) -> Option<bool> {
        None
    }
    fn age(&self) -> Option<(u64, u64)> {
        self.freed.map(|block| (block.since_event.saturating_add(1), self.number))
    }
    fn age_ns(&self) -> Option<u64> {
        self.freed.map(|block| self.event.time_ns.saturating_sub(block.since_ns))
    }
    fn life(&self) -> Option<(u64, Option<u64>)> {
        self.age().map(|(from, to)| (from, Some(to)))
    }
    fn life_ns(&self) -> Option<u64> {
        self.age_ns()
    }
    fn category(&self, categories: &BlockCategories) -> Option<Category> {
        use EventKind::{
            BlockAllocated, FreeCompleted, FreeRequested, Mark, OutOfMemory, SegmentAllocated, SegmentFreed,
            SegmentMapped, SegmentUnmapped,
        };
        match self.event.kind {
            BlockAllocated { address, site, .. } => {
                let event = self.number.saturating_sub(1);
                Some(categories.of_request(self.event.device, site, (event, address)))
            }
            FreeRequested { .. } | FreeCompleted { .. } => {
                self.freed.map(|block| categories.of_block(self.event.device, block))
            }
            SegmentAllocated { site, .. } | SegmentMapped { site, .. } | OutOfMemory { site, .. } => {
                Some(categories.of_site(site))
            }
            Mark { site, .. } | SegmentFreed { site, .. } | SegmentUnmapped { site, .. } => {
                Some(categories.recorded(site))
            }
            _ => None,
        }
    }
}

impl Matcher {
    /// Adds the sites that a growing recording has defined since the last call.
    pub fn update(&mut self, definitions: &Definitions) {
        self.sites.extend(definitions);
        self.categories.update(definitions);
    }

    /// Returns true if the query has no terms, and so matches everything.
    #[must_use]
    pub fn matches_everything(&self) -> bool {
        self.matches_everything
    }

    /// Returns true if the answer about a free depends on the block that it frees, which
    /// [`matches_event`](Self::matches_event) then needs.
    #[must_use]
    pub fn needs_freed_block(&self) -> bool {
        self.needs_freed_block
    }

    /// Returns true if the answer about an allocation depends on its address.
    pub(crate) fn needs_address(&self) -> bool {
        self.needs_address
    }

    /// Returns true if an active block of a device matches at the moment `now`.
    ///
    /// Its lifetime counts as longer than any limit, because a block does not show when it ends,
    /// and it is freed if it is pending free.
    #[must_use]
    pub fn matches_block(&self, device: DeviceId, block: &Block, now: &Now<'_>) -> bool {
        let item = BlockItem { device, block, now };
        self.matches_site(block.site) && self.matches_item(&item)
    }

    /// Returns true if an allocation of a device matches at the moment `now`.
    ///
    /// Its age stops when the program frees it; before its start it has no age. The lifetime of an
    /// allocation that is never freed counts as longer than any limit.
    #[inline]
    #[must_use]
    pub fn matches_allocation(&self, device: DeviceId, one: &Allocation, now: &Now<'_>) -> bool {
        self.matches_site(one.site)
            && (self.terms.is_empty() || self.matches_item(&AllocationItem { device, one, now }))
    }

    /// Returns true if memory that was requested at a site matches the terms about text and sites.
    #[inline]
    #[must_use]
    pub fn matches_site(&self, site: SiteId) -> bool {
        self.sites.matches(site)
    }

    /// Returns true if an event matches; `number` is the event's number, counted from 1.
    ///
    /// `freed` is the block that the event frees, as it was before, if known: a free itself has
    /// only an address. Its age is that of the block when the event happens, and so is its
    /// lifetime. The size of an out-of-memory event is the requested size. Text is looked for at
    /// the event's own site and in the names of marks. The category of a free is that of the freed
    /// block. A mark or a released segment has the category that was recorded for its site.
    #[must_use]
    pub fn matches_event(&self, number: u64, event: &Event, freed: Option<&Block>, definitions: &Definitions) -> bool {
        let matches_site = match (event.kind, event.kind.site()) {
            (EventKind::Mark { name, site, .. }, _) => self.sites.matches_mark(site, definitions.string(name)),
            (_, Some(site)) => self.sites.matches(site),
            (_, None) => self.sites.matches_no_site(),
        };
        matches_site && self.matches_item(&EventItem { number, event, freed })
    }

    /// Returns true if an item matches all terms that are not about its site.
    #[inline]
    fn matches_item(&self, item: &impl Item) -> bool {
        self.terms.iter().all(|term| self.holds(&term.condition, item).unwrap_or(false) != term.is_negated)
    }

    /// Returns whether an item meets a condition; `None` if it lacks the property.
    #[inline]
    fn holds(&self, condition: &Condition, item: &impl Item) -> Option<bool> {
        Some(match *condition {
            Condition::Address(address) => {
                let (start, size) = item.range()?;
                start <= address && address - start < size
            }
            Condition::Size(comparison) => comparison.contains(item.size()?),
            Condition::Requested(comparison) => comparison.contains(item.requested()?),
            Condition::Age(Span::Time(comparison)) => comparison.contains(item.age_ns()?),
            Condition::Age(Span::Events(comparison)) => {
                let (from, to) = item.age()?;
                comparison.contains(to.saturating_sub(from))
            }
            Condition::Age(Span::Steps(comparison)) => {
                let (from, to) = item.age()?;
                comparison.contains(self.steps_begun(from, to)?)
            }
            Condition::Life(Span::Time(comparison)) => comparison.contains(item.life_ns()?),
            Condition::Life(Span::Events(comparison)) => {
                let (from, to) = item.life()?;
                comparison.contains(to.map_or(u64::MAX, |to| to.saturating_sub(from)))
            }
            Condition::Life(Span::Steps(comparison)) => {
                let steps = match item.life()? {
                    (from, Some(to)) => self.steps_begun(from, to)?,
                    (_, None) => Some(u64::MAX).filter(|_| !self.steps.is_empty())?,
                };
                comparison.contains(steps)
            }
            Condition::Event(comparison) => comparison.contains(item.event_number()),
            Condition::Stream(comparison) => comparison.contains(item.stream()?.0),
            Condition::Device(device) => item.device() == device,
            Condition::Pool(filter) => filter.contains(item.pool()?),
            Condition::EventTypes(types) => types & event_type_bit(item.event_type()?) != 0,
            Condition::Use(wanted) => item.block_use()? == wanted,
            Condition::Freed(wanted) => item.is_freed()? == wanted,
            Condition::Categories(wanted) => wanted & category_bit(item.category(&self.categories)?) != 0,
            // Conditions on text and sites are in `sites`, not in `terms`.
            Condition::Text { .. } | Condition::Site(_) => return None,
        })
    }

    /// Returns the number of steps that begin after the moment `from` and up to the moment `to`;
    /// `None` if the recording has no steps.
    fn steps_begun(&self, from: u64, to: u64) -> Option<u64> {
        let begun_by = |moment: u64| self.steps.partition_point(|&begin| begin <= moment) as u64;
        (!self.steps.is_empty()).then(|| begun_by(to).saturating_sub(begun_by(from)))
    }
}
