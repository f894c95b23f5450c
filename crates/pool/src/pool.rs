//! The allocator's state, settings and statistics. Its operations are in the files of the phases.

use std::collections::BTreeMap;

use vramscope_trace::{DeviceId, Event, EventKind, PoolKey, PoolKind, Sink, SiteId};

use crate::block::{Block, Blocks};
use crate::device::Device;
use crate::index::{BlockIndex, BlockPoolIndex, StreamPoolIndex};
use crate::live_blocks::LiveBlocks;
use crate::private_pools::PrivatePools;
use crate::settings::Settings;
use crate::stats::{Counters, Stats};
use crate::stream_pool::BlockPools;
use crate::stream_uses::StreamUses;

/// The allocation site and the time of a call to the pool; copied into the events that the call
/// causes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The allocation site; `SiteId(0)` if unknown.
    pub site: SiteId,
    /// The time in nanoseconds on the recording's clock. The pool has no clock of its own.
    pub time_ns: u64,
}

/// A range of addresses obtained from the device; expandable if it has a page size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) size: u64,
    /// The page size of an expandable segment; `None` for an ordinary one.
    pub(crate) page_bytes: Option<u64>,
    pub(crate) stream_pool: StreamPoolIndex,
    pub(crate) site: SiteId,
    /// The lowest block. Its index never changes, because splits and merges keep the index of the
    /// lower block.
    pub(crate) first: BlockIndex,
}

/// A caching allocator for the memory of one device.
///
/// It obtains segments from the device `D`, serves requests with blocks of them, and keeps freed
/// blocks for later requests. Every decision is emitted as an event to the [`Sink`] that the caller
/// passes. An address is only a number to the pool; it never accesses memory.
///
/// ```
/// use vramscope_pool::{Origin, Pool, Settings, SimulatedDevice};
/// use vramscope_trace::{DeviceId, MemorySink, StreamId};
///
/// let device = SimulatedDevice::new(1 << 30);
/// let mut pool = Pool::new(DeviceId(0), Settings::default(), device);
/// let (origin, mut events) = (Origin::default(), MemorySink::default());
///
/// let block = pool.allocate(1000, StreamId(0), origin, &mut events)?;
/// let block = block.expect("1000 bytes are requested");
/// assert_eq!(block.size, 1024);
/// pool.free(block.address, origin, &mut events)?;
///
/// // The block is free, and its segment of 2 MiB stays cached for later requests.
/// assert_eq!(pool.stats().allocated_bytes.all.current, 0);
/// assert_eq!(pool.stats().reserved_bytes.all.current, 2 << 20);
/// // Segment allocated, block allocated, free requested, free completed.
/// assert_eq!(events.events.len(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pool<D> {
    pub(crate) id: DeviceId,
    pub(crate) device: D,
    pub(crate) settings: Settings,
    /// Limit of the reserved bytes, computed from the settings and the device's size.
    pub(crate) limit_bytes: Option<u64>,
    /// Whether searches for free blocks are counted: garbage collection needs the ages of free
    /// blocks under the present settings.
    pub(crate) counts_lookups: bool,
    /// Whether searches have ever been counted. If so, free blocks store when they were freed.
    pub(crate) tracks_ages: bool,
    pub(crate) blocks: Blocks,
    /// The block pools and their stream pools, with the free blocks.
    pub(crate) pools: BlockPools,
    /// Allocated blocks by address.
    pub(crate) live: LiveBlocks,
    /// Segments by address.
    pub(crate) segments: BTreeMap<u64, Segment>,
    pub(crate) counters: Counters,
    pub(crate) stream_uses: StreamUses,
    pub(crate) private_pools: PrivatePools,
}

impl<D: Device> Pool<D> {
    /// Creates a pool without segments. Its events carry `id` as their device.
    pub fn new(id: DeviceId, settings: Settings, device: D) -> Self {
        let mut pool = Self {
            id,
            device,
            settings: Settings::default(),
            limit_bytes: None,
            counts_lookups: false,
            tracks_ages: false,
            blocks: Blocks::default(),
            pools: BlockPools::new(),
            live: LiveBlocks::default(),
            segments: BTreeMap::new(),
            counters: Counters::new(settings.max_split_size_bytes),
            stream_uses: StreamUses::default(),
            private_pools: PrivatePools::default(),
        };
        pool.set_settings(settings);
        pool
    }

    /// Returns the device number that the pool's events carry.
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// Returns the device that the pool obtains its memory from.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Returns the device mutably, for device-specific calls.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Returns the settings in effect.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Replaces the settings for later calls. Existing blocks and segments stay as they are.
    pub fn set_settings(&mut self, settings: Settings) {
        let fraction = settings.per_process_memory_fraction;
        let share_bytes = (fraction < 1.0).then(|| (fraction * self.device.memory().total_bytes as f64) as u64);
        self.limit_bytes = [share_bytes, settings.limit_bytes].into_iter().flatten().min();
        self.counts_lookups = self.limit_bytes.is_some() && settings.garbage_collection_threshold > 0.0;
        self.tracks_ages |= self.counts_lookups;
        self.settings = settings;
    }

    /// Returns the limit of the reserved bytes under the pool's settings; `None` if only the device
    /// limits it.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.limit_bytes
    }

    /// Returns the pool's counters: the statistics of `torch.cuda.memory_stats`.
    pub fn stats(&self) -> Stats {
        self.counters.stats()
    }

    /// Sets every `peak` in [`stats`](Self::stats) to the current value, as
    /// `torch.cuda.reset_peak_memory_stats` does.
    pub fn reset_peak_stats(&mut self) {
        self.counters.reset_peaks();
    }

    /// Sets every `allocated`, `freed` and `num_` value in [`stats`](Self::stats) to 0, as
    /// `torch.cuda.reset_accumulated_memory_stats` does.
    pub fn reset_accumulated_stats(&mut self) {
        self.counters.reset_sums();
    }

    /// Sets the sites of all segments and blocks to `SiteId(0)`, before the pool's events go to
    /// another recording, which numbers sites anew.
    pub fn forget_sites(&mut self) {
        for segment in self.segments.values_mut() {
            segment.site = SiteId(0);
            let mut next = Some(segment.first);
            while let Some(index) = next {
                self.blocks[index].site = SiteId(0);
                next = self.blocks[index].next;
            }
        }
    }

    /// Returns the bytes that the pool holds from the device: all segments; of expandable segments,
    /// only the mapped pages.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.counters.reserved_bytes.current()
    }

    /// Sends an event of this kind, with the pool's device and the time of `origin`, to the sink.
    #[inline]
    pub(crate) fn emit(&self, origin: Origin, kind: EventKind, sink: &mut (impl Sink + ?Sized)) {
        sink.event(&Event { device: self.id, time_ns: origin.time_ns, kind });
    }

    /// Returns the size class (small or large) and the owner (the default pool or a private pool)
    /// of the pool that a block belongs to.
    pub(crate) fn key_of(&self, block: &Block) -> PoolKey {
        self.pools[block.stream_pool].key
    }

    /// Returns the size class of a block pool: small or large.
    pub(crate) fn kind_of(&self, pool: BlockPoolIndex) -> PoolKind {
        self.pools.block_pool(pool).key.kind
    }

    /// Returns the first address of the segment that contains `address`, and the segment; `None` if
    /// no segment does.
    pub(crate) fn segment_containing(&self, address: u64) -> Option<(u64, &Segment)> {
        let (&start, segment) = self.segments.range(..=address).next_back()?;
        (address - start < segment.size).then_some((start, segment))
    }
}
