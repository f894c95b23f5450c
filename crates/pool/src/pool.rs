//! The allocator: a hit, a free, and the state that both work on.

use std::collections::BTreeMap;

use vramscope_trace::{DeviceId, Event, EventKind, MempoolId, Pool as PoolKey, PoolKind, Sink, SiteId, StreamId};

use crate::block::{Block, BlockIndex, BlockState, Blocks};
use crate::device::Device;
use crate::error::{AllocateError, FreeError};
use crate::free_blocks::{Fit, FitKey};
use crate::home::{BlockPoolIndex, HomeIndex, Homes};
use crate::live_blocks::LiveBlocks;
use crate::mempool::Mempools;
use crate::settings::Settings;
use crate::size::{self, MAX_REQUEST_BYTES};
use crate::stats::{Counters, Stats};
use crate::streams::Uses;

/// Where in the program, and when, something was asked of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Where.
    pub site: SiteId,
    /// When.
    pub time_ns: u64,
}

/// A block handed to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// First byte; this is what [`Pool::free`] takes.
    pub address: u64,
    /// Bytes, at least as many as were asked for.
    pub size: u64,
}

/// Asks the program for memory that it can spare: the addresses of blocks to free, or `None` for none.
pub type AskForMemory<'a> = &'a mut dyn FnMut() -> Option<Vec<u64>>;

/// A request as the pool sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// What the program asked for.
    pub(crate) requested: u64,
    /// The block that it needs.
    pub(crate) size: u64,
    pub(crate) stream: StreamId,
    pub(crate) pool: BlockPoolIndex,
    pub(crate) home: HomeIndex,
    /// Whether it may be served from expandable segments.
    pub(crate) expandable: bool,
}

/// A range of addresses that the device gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) size: u64,
    /// The pages in which an expandable segment is mapped.
    pub(crate) page_bytes: Option<u64>,
    pub(crate) home: HomeIndex,
    pub(crate) site: SiteId,
    /// Its lowest block. Splits and merges keep the lowest block's index, so that this never changes.
    pub(crate) first: BlockIndex,
}

/// A caching allocator for the memory of one device.
#[derive(Clone, Debug)]
pub struct Pool<D> {
    pub(crate) id: DeviceId,
    pub(crate) device: D,
    pub(crate) settings: Settings,
    /// What the settings limit the pool to on this device.
    pub(crate) limit: Option<u64>,
    /// Whether the age of free blocks matters: only then are look-ups counted.
    counts_lookups: bool,
    /// Whether it ever did: only then does a free block need to know since when it is free.
    knows_ages: bool,
    pub(crate) blocks: Blocks,
    pub(crate) homes: Homes,
    pub(crate) live: LiveBlocks,
    /// By address.
    pub(crate) segments: BTreeMap<u64, Segment>,
    pub(crate) counters: Counters,
    pub(crate) uses: Uses,
    pub(crate) mempools: Mempools,
}

impl<D: Device> Pool<D> {
    /// A pool that holds nothing yet. Its events carry `id`.
    pub fn new(id: DeviceId, settings: Settings, device: D) -> Self {
        let mut pool = Self {
            id,
            device,
            settings: Settings::default(),
            limit: None,
            counts_lookups: false,
            knows_ages: false,
            blocks: Blocks::default(),
            homes: Homes::new(),
            live: LiveBlocks::default(),
            segments: BTreeMap::new(),
            counters: Counters::new(settings.max_split_size),
            uses: Uses::default(),
            mempools: Mempools::default(),
        };
        pool.set_settings(settings);
        pool
    }

    /// The device's number in events.
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device, for what is the device's own.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes the settings for what comes. Blocks and segments stay as they are.
    pub fn set_settings(&mut self, settings: Settings) {
        let fraction = settings.per_process_memory_fraction;
        let share = (fraction < 1.0).then(|| (fraction * self.device.memory().total_bytes as f64) as u64);
        self.limit = [share, settings.limit_bytes].into_iter().flatten().min();
        self.counts_lookups = self.limit.is_some() && settings.garbage_collection_threshold > 0.0;
        self.knows_ages |= self.counts_lookups;
        self.settings = settings;
    }

    /// The most bytes that the pool may hold; `None` for as many as the device has.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.limit
    }

    /// What the pool did so far.
    pub fn stats(&self) -> Stats {
        self.counters.stats()
    }

    /// Makes every peak what there is now.
    pub fn reset_peak_stats(&mut self) {
        self.counters.reset_peaks();
    }

    /// Makes every sum and number of happenings 0.
    pub fn reset_accumulated_stats(&mut self) {
        self.counters.reset_sums();
    }

    /// Bytes that the pool holds.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.counters.reserved_bytes.current()
    }

    /// Hands out a block of at least `bytes`, for work on `stream`; `None` where no byte was asked for.
    ///
    /// # Errors
    /// When the device has no room or fails.
    #[inline]
    pub fn allocate(
        &mut self,
        bytes: u64,
        stream: StreamId,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<Option<Allocated>, AllocateError> {
        self.serve(bytes, stream, None, origin, sink, None)
    }

    /// The same from a private pool, whatever is diverted.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate), and when nobody uses such a pool.
    pub fn allocate_in(
        &mut self,
        mempool: MempoolId,
        bytes: u64,
        stream: StreamId,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<Option<Allocated>, AllocateError> {
        self.serve(bytes, stream, Some(mempool), origin, sink, None)
    }

    /// The same from `mempool`, or where there is none named as [`allocate`](Self::allocate) does; but where no free block fits, the program
    /// is asked once whether it can spare memory, before the device is asked for more. What it names and is not a live block is passed
    /// over.
    ///
    /// # Errors
    /// As [`allocate_in`](Self::allocate_in).
    pub fn allocate_or_ask(
        &mut self,
        mempool: Option<MempoolId>,
        bytes: u64,
        stream: StreamId,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
        ask: AskForMemory<'_>,
    ) -> Result<Option<Allocated>, AllocateError> {
        self.serve(bytes, stream, mempool, origin, sink, Some(ask))
    }

    #[inline]
    fn serve(
        &mut self,
        bytes: u64,
        stream: StreamId,
        mempool: Option<MempoolId>,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
        ask: Option<AskForMemory<'_>>,
    ) -> Result<Option<Allocated>, AllocateError> {
        if bytes == 0 {
            return Ok(None);
        }
        if bytes >= MAX_REQUEST_BYTES {
            return Err(AllocateError::TooLarge { requested: bytes });
        }
        if self.uses.any_pending() {
            self.process_events(origin, sink)?;
        }
        let size = size::block_size(&self.settings, bytes);
        let kind = size::pool_kind(size);
        let pool = match mempool {
            Some(mempool) => self.mempools.used_pool(mempool, kind)?,
            None if self.mempools.is_capturing() => {
                self.mempools.diverted(stream, kind).unwrap_or(BlockPoolIndex::default_of(kind))
            }
            None => BlockPoolIndex::default_of(kind),
        };
        let (home, expandable) = (self.homes.of(pool, stream), self.settings.expandable_segments);
        let mut request = Request { requested: bytes, size, stream, pool, home, expandable };
        let index = match self.take_fit(&request) {
            Some(index) => index,
            None => self.miss(&mut request, origin, sink, ask)?,
        };
        Ok(Some(self.hand_out(index, &request, origin, sink)))
    }

    /// Takes the block that best fit finds out of its home.
    #[inline]
    pub(crate) fn take_fit(&mut self, request: &Request) -> Option<BlockIndex> {
        if self.counts_lookups {
            self.homes.pool_mut(request.pool).lookups += 1;
        }
        let (bin, index) = self.homes[request.home].free.best_fit(request.size)?;
        let &Block { size, address, expandable, .. } = &self.blocks[index];
        if expandable || self.settings.max_split_size.is_some() {
            return self.take_unless_refused(Fit { key: FitKey { size, address }, index }, request);
        }
        self.homes[request.home].free.take(bin, size, address, index);
        Some(index)
    }

    /// The same where more is to be looked at than size and address. `fit` is the first free block that holds the request.
    #[inline(never)]
    fn take_unless_refused(&mut self, mut fit: Fit, request: &Request) -> Option<BlockIndex> {
        if self.blocks[fit.index].expandable {
            fit = self.expandable_fit(fit, request)?;
        }
        if let Some(max) = self.settings.max_split_size {
            let (size, found) = (request.size, fit.key.size);
            let slack = self.settings.max_non_split_rounding.unwrap_or(self.settings.large_segment_size);
            if (size < max && found >= max) || (size >= max && found >= size.saturating_add(slack)) {
                return None;
            }
        }
        let Fit { key, index } = fit;
        self.homes[request.home].free.remove(key.size, key.address, index);
        Some(index)
    }

    /// Turns a free block that is in no home anymore into a live one, giving back what the request does not need.
    #[inline]
    fn hand_out(
        &mut self,
        index: BlockIndex,
        request: &Request,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Allocated {
        let &Request { requested, size, stream, expandable: in_use, .. } = request;
        let &Block { home, size: free_size, expandable, .. } = &self.blocks[index];
        let was_split = self.blocks[index].is_split();
        let key = self.homes[home].key;
        let kind = key.kind;
        if size::splits(&self.settings, kind, in_use, size, free_size - size) && self.mempools.splits(key.owner) {
            let rest = self.blocks.split(index, size);
            self.insert_free(home, rest);
            if !expandable && was_split {
                self.counters.inactive_split_bytes.decrease(kind, size);
            } else if !expandable {
                self.counters.inactive_split.increase(kind, 1);
                self.counters.inactive_split_bytes.increase(kind, free_size - size);
            }
        } else if !expandable && was_split {
            self.counters.inactive_split.decrease(kind, 1);
            self.counters.inactive_split_bytes.decrease(kind, free_size);
        }
        let block = &mut self.blocks[index];
        block.state = BlockState::Active;
        block.requested = requested;
        block.site = origin.site;
        let &mut Block { address, size, .. } = block;
        self.live.insert(address, index);
        let counters = &mut self.counters;
        counters.hand_out(kind, size, requested);
        if self.settings.max_split_size.is_some_and(|max| size >= max) {
            counters.oversize_allocations.increase(1);
        }
        let site = origin.site;
        self.tell(origin, EventKind::BlockAllocated { address, size, requested, stream, pool: key, site }, sink);
        Allocated { address, size }
    }

    /// Takes back the block at `address`. Where other streams have used it, it goes back to its home once they are done.
    ///
    /// # Errors
    /// When no live block begins there, or the device fails. Nothing has happened then.
    #[inline]
    pub fn free(&mut self, address: u64, origin: Origin, sink: &mut (impl Sink + ?Sized)) -> Result<(), FreeError> {
        let Some(index) = self.live.remove(address) else { return Err(self.why_not_live(address)) };
        let &Block { size, home, is_shared, .. } = &self.blocks[index];
        if is_shared && let Err(error) = self.free_shared(index, origin.site) {
            self.live.insert(address, index);
            return Err(FreeError::Device(error));
        }
        let kind = self.homes[home].key.kind;
        self.counters.take_back(kind, size);
        if self.settings.max_split_size.is_some_and(|max| size >= max) {
            self.counters.oversize_allocations.decrease_one();
        }
        self.tell(origin, EventKind::FreeRequested { address, site: origin.site }, sink);
        if !is_shared {
            self.complete_free(index, origin, sink);
        }
        Ok(())
    }

    /// Puts a block that nobody uses anymore back into its home, joined with its free neighbors.
    #[inline]
    pub(crate) fn complete_free(&mut self, index: BlockIndex, origin: Origin, sink: &mut (impl Sink + ?Sized)) {
        let &Block { address, size, requested, home: at, expandable, .. } = &self.blocks[index];
        self.tell(origin, EventKind::FreeCompleted { address, site: origin.site }, sink);
        let kind = self.homes[at].key.kind;
        let (index, merged, merged_bytes) = self.merge_free(index);
        let free = &mut self.blocks[index];
        free.state = BlockState::Inactive;
        free.is_shared = false;
        self.insert_free(at, index);
        let (free, counters) = (&self.blocks[index], &mut self.counters);
        if !expandable {
            let (split, split_bytes) = if free.is_split() { (1, free.size) } else { (0, 0) };
            counters.inactive_split.replace(kind, merged, split);
            counters.inactive_split_bytes.replace(kind, merged_bytes, split_bytes);
        }
        counters.complete_free(kind, size, requested);
    }

    /// Joins a block that is in no home with its free neighbors, taking them out of theirs. Returns the whole, how many they were, and their
    /// bytes.
    // Always, because every free goes through here.
    #[inline(always)]
    pub(crate) fn merge_free(&mut self, mut index: BlockIndex) -> (BlockIndex, u64, u64) {
        let &Block { prev, next, home, .. } = &self.blocks[index];
        let home = &mut self.homes[home];
        let (mut merged, mut merged_bytes) = (0, 0);
        if let Some(prev) = prev.filter(|&prev| self.blocks[prev].is_free()) {
            home.remove(&self.blocks[prev], prev);
            (merged, merged_bytes) = (1, self.blocks[prev].size);
            self.blocks.merge_next(prev);
            index = prev;
        }
        if let Some(next) = next.filter(|&next| self.blocks[next].is_free()) {
            home.remove(&self.blocks[next], next);
            merged += 1;
            merged_bytes += self.blocks[next].size;
            self.blocks.merge_next(index);
        }
        (index, merged, merged_bytes)
    }

    /// Puts a free block into its home.
    #[inline]
    pub(crate) fn insert_free(&mut self, home: HomeIndex, index: BlockIndex) {
        let block = &mut self.blocks[index];
        if self.knows_ages {
            block.free_since = self.homes.pool(self.homes[home].pool).lookups;
        }
        self.homes[home].insert(block, index);
    }

    #[inline]
    pub(crate) fn tell(&self, origin: Origin, kind: EventKind, sink: &mut (impl Sink + ?Sized)) {
        sink.event(&Event { device: self.id, time_ns: origin.time_ns, kind });
    }

    /// The pool that a block is of.
    pub(crate) fn key_of(&self, block: &Block) -> PoolKey {
        self.homes[block.home].key
    }

    /// The size class of a pool.
    pub(crate) fn kind_of(&self, pool: BlockPoolIndex) -> PoolKind {
        self.homes.pool(pool).key.kind
    }
}
