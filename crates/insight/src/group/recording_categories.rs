//! The inferred categories of a recording's blocks, found by what identifies a block at any moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use vramscope_trace::{Allocation, AllocationRow, Block, Category, DeviceId, DeviceLifetimes, SiteId};

use super::memory_category::{Confidence, KnownCategory};

/// Bit of a code that stands for an allocation; its other bits are 0 if the category is unknown.
const IS_ALLOCATION: u8 = 0x80;
/// Number of events for each allocation up to which a byte for each event is kept.
const MAX_EVENTS_PER_ALLOCATION: u64 = 64;
/// Bit of an event's code: a full state at this moment also shows allocations that no event made.
const HAS_OTHERS: u8 = 0x40;
/// Bits of a code that hold the category, as in [`Category::ALL`].
const CATEGORY_BITS: u8 = 0x0f;

/// Returns the code of an allocation's category.
fn code_of(known: Option<KnownCategory>) -> u8 {
    let Some(KnownCategory { category, confidence }) = known else { return IS_ALLOCATION };
    IS_ALLOCATION | (confidence as u8) << 4 | category as u8
}

/// Returns the category with a code; `None` if it is unknown.
fn category_of(code: u8) -> Option<KnownCategory> {
    let category = *Category::ALL.get(usize::from(code & CATEGORY_BITS))?;
    let confidence = match code >> 4 & 3 {
        0 => Confidence::Likely,
        1 => Confidence::Named,
        _ => Confidence::Recorded,
    };
    (category != Category::Unknown).then_some(KnownCategory { category, confidence })
}

/// The inferred category of every allocation of a recording; see
/// [`categories`](crate::categories), which computes it.
///
/// An allocation is identified by the event that made it; without a recorded one, by device,
/// address and first moment. The size is about a byte for each event.
#[derive(Debug, Default)]
pub struct RecordingCategories {
    /// Blocks that exist since this event or before may be older than the recording.
    first_event: u64,
    /// Events from this index on are newer than the inference.
    until: u64,
    /// By the number of events since `first_event`, the code of the allocation that the event made;
    /// 0 if it made none.
    by_event: Vec<u8>,
    /// Maximum length of `by_event`. A recording may lack any number of events, which must not take
    /// memory.
    max_events: u64,
    /// The codes of all other allocations by device, address and first moment.
    by_address: BTreeMap<(DeviceId, u64, u64), u8>,
    /// By site, the code of most bytes that it requested, for requests without a block and for
    /// events that are newer than the inference: of recorded events, and older than the recording.
    by_site: Vec<[u8; 2]>,
}

impl RecordingCategories {
    /// Creates categories without allocations for the events from `first_event` on, the index (from
    /// 0) of the recording's first event, up to the moment `until`. About `allocations` will be
    /// added. `by_site` is the category of most of each site's bytes, of recorded events and of
    /// allocations older than the recording.
    pub(crate) fn new(
        (first_event, until): (u64, u64),
        allocations: usize,
        by_site: &[[Option<KnownCategory>; 2]],
    ) -> Self {
        let by_site = by_site.iter().map(|known| known.map(code_of)).collect();
        let max_events = (allocations as u64).saturating_mul(MAX_EVENTS_PER_ALLOCATION).saturating_add(1 << 16);
        let events = until.saturating_sub(first_event).min(max_events);
        let by_event = Vec::with_capacity(usize::try_from(events).unwrap_or(0));
        Self { first_event, until, by_event, max_events, by_address: BTreeMap::new(), by_site }
    }

    /// Marks the events at whose moments a full state shows further allocations. To be called once
    /// all allocations are added.
    pub(crate) fn finish(&mut self) {
        for (_, _, moment) in self.by_address.keys() {
            let index = moment.checked_sub(self.first_event).and_then(|index| usize::try_from(index).ok());
            if let Some(code) = index.and_then(|index| self.by_event.get_mut(index)).filter(|code| **code != 0) {
                *code |= HAS_OTHERS;
            }
        }
    }

    /// Returns the memory that the categories occupy, in bytes, approximately.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.by_event.capacity() + self.by_site.len() * 2 + self.by_address.len() * 40
    }

    /// Adds the category of a device's allocation.
    pub(crate) fn insert(&mut self, device: DeviceId, one: &Allocation, known: Option<KnownCategory>) {
        let index = one.allocating_event().and_then(|event| event.checked_sub(self.first_event));
        let index = index.filter(|index| (1..self.max_events).contains(index));
        let Some(index) = index.and_then(|index| usize::try_from(index).ok()) else {
            self.by_address.insert((device, one.address, one.first_moment), code_of(known));
            return;
        };
        if index >= self.by_event.len() {
            self.by_event.resize(index + 1, 0);
        }
        self.by_event[index] = code_of(known);
    }

    /// Returns the code of the allocation that an event made, or 0 if the event may have made none;
    /// `None` for an event that is newer than the inference.
    #[inline]
    fn code_of_event(&self, event: u64) -> Option<u8> {
        if event >= self.until {
            return None;
        }
        let index = event.checked_sub(self.first_event).and_then(|index| usize::try_from(index).ok());
        Some(index.and_then(|index| self.by_event.get(index)).copied().unwrap_or(0))
    }

    /// Returns the code of an allocation at an address that is first known to exist at or after a
    /// moment.
    fn code_of_address(&self, device: DeviceId, address: u64, moment: u64) -> Option<u8> {
        let same_address = (device, address, moment)..=(device, address, u64::MAX);
        self.by_address.range(same_address).next().map(|(_, code)| *code)
    }

    /// Returns the category of a device's block; `None` if it is unknown.
    #[must_use]
    #[inline]
    pub fn of_block(&self, device: DeviceId, block: &Block) -> Option<KnownCategory> {
        self.find((device, block.since_event, true), block.site, || Some(block.address))
    }

    /// Returns the category of a device's allocation; `None` if it is unknown.
    #[must_use]
    #[inline]
    pub fn of_allocation(&self, device: DeviceId, one: &Allocation) -> Option<KnownCategory> {
        self.find((device, one.first_moment.saturating_sub(1), one.start_observed), one.site, || Some(one.address))
    }

    /// Returns the category of a row of a device's lifetimes whose request was made at `site`;
    /// `None` if it is unknown.
    #[must_use]
    #[inline]
    pub fn of_row(
        &self,
        (device, lifetimes): (DeviceId, &DeviceLifetimes),
        site: SiteId,
        row: &AllocationRow,
    ) -> Option<KnownCategory> {
        let address = || lifetimes.address_of_row(row.row);
        self.find((device, row.first_moment.saturating_sub(1), row.start_observed), site, address)
    }

    /// Returns the category of the block that an event, given by its index, makes at an address;
    /// `None` if it is unknown.
    #[must_use]
    pub fn of_request(&self, device: DeviceId, site: SiteId, (event, address): (u64, u64)) -> Option<KnownCategory> {
        self.find((device, event, true), site, || Some(address))
    }

    /// Returns the category of most bytes that a site requested, before the recording if `is_older`
    /// is true; `None` if it is unknown.
    #[must_use]
    pub fn of_site(&self, site: SiteId, is_older: bool) -> Option<KnownCategory> {
        category_of(self.by_site.get(site.0 as usize)?[usize::from(is_older)])
    }

    /// Returns the category of memory of a device that exists since an event, which may have made
    /// the allocation if the last value is true.
    #[inline]
    fn find(
        &self,
        (device, since_event, is_made): (DeviceId, u64, bool),
        site: SiteId,
        address: impl FnOnce() -> Option<u64>,
    ) -> Option<KnownCategory> {
        match self.code_of_event(since_event) {
            None => return self.of_site(site, false),
            Some(code) if is_made && code & HAS_OTHERS != 0 => {
                // A block of a full state exists since the event that follows it.
                let other = self.by_address.get(&(device, address()?, since_event));
                return category_of(other.copied().unwrap_or(code));
            }
            Some(code) if is_made && code != 0 => return category_of(code),
            Some(_) => {}
        }
        category_of(self.code_of_address(device, address()?, since_event)?)
    }
}

/// The inferred categories of a device's blocks. Clones share them.
///
/// The default is that of a recording whose categories have not been inferred: all are unknown.
#[derive(Clone, Debug, Default)]
pub struct DeviceCategories {
    all: Option<Arc<RecordingCategories>>,
    device: DeviceId,
}

impl DeviceCategories {
    /// Creates the categories of a device.
    #[must_use]
    pub fn new(all: &Arc<RecordingCategories>, device: DeviceId) -> Self {
        Self { all: Some(Arc::clone(all)), device }
    }

    /// Returns true if `other` is about the same device and the same inference.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let is_same = match (&self.all, &other.all) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        is_same && self.device == other.device
    }

    /// Returns the category of a block; `None` if it is unknown.
    #[must_use]
    #[inline]
    pub fn of_block(&self, block: &Block) -> Option<KnownCategory> {
        self.all.as_ref()?.of_block(self.device, block)
    }

    /// Returns the category of an allocation; `None` if it is unknown.
    #[must_use]
    #[inline]
    pub fn of_allocation(&self, one: &Allocation) -> Option<KnownCategory> {
        self.all.as_ref()?.of_allocation(self.device, one)
    }

    /// Returns the category of a row of `lifetimes` whose request was made at `site`; `None` if it
    /// is unknown.
    #[must_use]
    #[inline]
    pub fn of_row(&self, lifetimes: &DeviceLifetimes, site: SiteId, row: &AllocationRow) -> Option<KnownCategory> {
        self.all.as_ref()?.of_row((self.device, lifetimes), site, row)
    }

    /// Returns the category of most bytes that a site requested, before the recording if `is_older`
    /// is true; `None` if it is unknown.
    #[must_use]
    pub fn of_site(&self, site: SiteId, is_older: bool) -> Option<KnownCategory> {
        self.all.as_ref()?.of_site(site, is_older)
    }
}

#[cfg(test)]
mod tests {
    use vramscope_trace::{PoolKey, StreamId};

    use super::*;

    /// Index of the first event of the recording.
    const FIRST: u64 = 100;
    const DEVICE: DeviceId = DeviceId(0);

    fn likely(category: Category) -> Option<KnownCategory> {
        Some(KnownCategory { category, confidence: Confidence::Likely })
    }

    /// Returns an allocation that exists since a moment.
    fn allocation(address: u64, first_moment: u64, start_observed: bool) -> Allocation {
        Allocation {
            address,
            size: 512,
            requested: 512,
            stream: StreamId(0),
            pool: PoolKey::default(),
            site: SiteId(1),
            first_moment,
            start_observed,
            allocated_until: None,
            active_until: None,
            end_observed: false,
        }
    }

    /// Returns a block that exists since an event.
    fn block(address: u64, since_event: u64) -> Block {
        Block {
            address,
            size: 512,
            requested: 512,
            stream: StreamId(0),
            pool: PoolKey::default(),
            site: SiteId(1),
            pending_free: false,
            since_event,
            since_ns: 0,
        }
    }

    #[test]
    fn blocks_are_found_by_their_event_or_address() {
        let by_site = [[None; 2], [likely(Category::Input), likely(Category::Cache)]];
        let until = 1 << 60;
        let mut all = RecordingCategories::new((FIRST, until), 8, &by_site);
        let far = 1 << 59;
        let added = [
            // Older than the recording, at two devices.
            (DEVICE, allocation(0, FIRST, false), likely(Category::Parameter)),
            (DeviceId(1), allocation(0, FIRST, false), likely(Category::OptimizerState)),
            (DEVICE, allocation(512, FIRST + 8, true), likely(Category::Activation)),
            (DEVICE, allocation(1024, FIRST + 9, true), None),
            // Found by a full state after missing events, and made after them.
            (DEVICE, allocation(0, far, false), likely(Category::Gradient)),
            (DEVICE, allocation(512, far + 2, true), likely(Category::Temporary)),
            // Shown by a full state; the event after it made another block.
            (DEVICE, allocation(2048, FIRST + 20, false), likely(Category::Workspace)),
            (DEVICE, allocation(2560, FIRST + 21, true), likely(Category::Input)),
        ];
        for (device, one, known) in &added {
            all.insert(*device, one, *known);
        }
        all.finish();
        assert!(all.memory_bytes() < 1 << 20, "missing events take no memory");
        for (device, one, known) in &added {
            assert_eq!(all.of_allocation(*device, one), *known, "{one:?}");
        }
        for (device, address, since_event, expected) in [
            (DEVICE, 0, 0, likely(Category::Parameter)),
            (DEVICE, 0, FIRST, likely(Category::Parameter)),
            (DeviceId(1), 0, FIRST, likely(Category::OptimizerState)),
            (DEVICE, 512, FIRST + 7, likely(Category::Activation)),
            (DEVICE, 1024, FIRST + 8, None),
            // Made by an event that is missing.
            (DEVICE, 0, far - 5, likely(Category::Gradient)),
            (DEVICE, 512, far + 1, likely(Category::Temporary)),
            (DEVICE, 2048, FIRST + 20, likely(Category::Workspace)),
            (DEVICE, 2560, FIRST + 20, likely(Category::Input)),
            (DEVICE, 4096, FIRST, None),
            // Newer than the inference.
            (DEVICE, 512, until, likely(Category::Input)),
        ] {
            assert_eq!(all.of_block(device, &block(address, since_event)), expected, "{address} since {since_event}");
        }
        assert_eq!(all.of_site(SiteId(1), true), likely(Category::Cache));
        assert_eq!(all.of_site(SiteId(9), true), None);
    }

    #[test]
    fn codes_stand_for_every_category() {
        for category in Category::ALL.into_iter().filter(|category| *category != Category::Unknown) {
            for confidence in [Confidence::Likely, Confidence::Named, Confidence::Recorded] {
                let known = Some(KnownCategory { category, confidence });
                assert_eq!(category_of(code_of(known)), known);
            }
        }
        assert_eq!((category_of(code_of(None)), category_of(0)), (None, None));
    }
}
