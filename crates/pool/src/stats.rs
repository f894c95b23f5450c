//! The counters of `torch.cuda.memory_stats`, kept by the same rules.

use vramscope_trace::PoolKind;

/// One quantity over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Now.
    pub current: u64,
    /// The most there was at once since the peaks were reset.
    pub peak: u64,
    /// The sum of all increases since the sums were reset.
    pub allocated: u64,
    /// The sum of all decreases, likewise.
    pub freed: u64,
}

/// One quantity, by size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatBySize {
    /// Both size classes.
    pub all: Stat,
    /// The small pool.
    pub small_pool: Stat,
    /// The large pool.
    pub large_pool: Stat,
}

/// What the pool did so far. Names are PyTorch's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks handed to the program and not freed by it.
    pub allocation: StatBySize,
    /// Segments; expandable ones are not counted.
    pub segment: StatBySize,
    /// Blocks handed to the program and not back in the pool.
    pub active: StatBySize,
    /// Free blocks that share their segment with another block, so that the segment cannot be given back; those of expandable
    /// segments, whose pages can, are not counted.
    pub inactive_split: StatBySize,
    /// Bytes of blocks handed to the program and not freed by it.
    pub allocated_bytes: StatBySize,
    /// Bytes of segments; of expandable ones what is mapped.
    pub reserved_bytes: StatBySize,
    /// Bytes of blocks handed to the program and not back in the pool.
    pub active_bytes: StatBySize,
    /// Bytes of the blocks in `inactive_split`.
    pub inactive_split_bytes: StatBySize,
    /// Bytes that the program asked for, before rounding, of active blocks.
    pub requested_bytes: StatBySize,
    /// Allocated blocks of `max_split_size` and more.
    pub oversize_allocations: Stat,
    /// Segments of `max_split_size` and more.
    pub oversize_segments: Stat,
    /// How often everything cached was given back and the device asked again.
    pub num_alloc_retries: u64,
    /// How many requests failed for want of memory.
    pub num_ooms: u64,
    /// How often the pool waited for every stream.
    pub num_sync_all_streams: u64,
    /// How often the device gave memory: segments, and ranges mapped.
    pub num_device_alloc: u64,
    /// How often memory was given back: segments, and ranges unmapped.
    pub num_device_free: u64,
    /// The setting of that name when the pool was made; `None` for unlimited.
    pub max_split_size: Option<u64>,
}

/// A [`Stat`] as it is kept. A decrease touches one number: what was freed follows from the others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counter {
    current: u64,
    peak: u64,
    allocated: u64,
    /// What there was when the sums were reset.
    base: u64,
}

impl Counter {
    #[inline]
    pub(crate) fn increase(&mut self, amount: u64) {
        self.current += amount;
        self.allocated += amount;
        self.peak = self.peak.max(self.current);
    }

    #[inline]
    pub(crate) fn decrease(&mut self, amount: u64) {
        debug_assert!(amount <= self.current, "no more goes away than is there");
        self.current -= amount;
    }

    /// One less, where one was counted: what is oversize now need not have been under the settings of the time when it came.
    pub(crate) fn decrease_one(&mut self) {
        self.current = self.current.saturating_sub(1);
    }

    /// There was that much before anything was counted.
    fn begin_at(&mut self, amount: u64) {
        *self = Self { current: amount, peak: amount, allocated: 0, base: amount };
    }

    fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    fn reset_sums(&mut self) {
        self.allocated = 0;
        self.base = self.current;
    }

    pub(crate) fn stat(&self) -> Stat {
        let Self { current, peak, allocated, base } = *self;
        Stat { current, peak, allocated, freed: base + allocated - current }
    }
}

/// A [`StatBySize`] as it is kept: the sums of both size classes follow from the two, but their peak does not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CounterBySize {
    kinds: [Counter; 2],
    current: u64,
    peak: u64,
}

impl CounterBySize {
    #[inline]
    pub(crate) fn increase(&mut self, kind: PoolKind, amount: u64) {
        self.kinds[kind as usize].increase(amount);
        self.current += amount;
        self.peak = self.peak.max(self.current);
    }

    #[inline]
    pub(crate) fn decrease(&mut self, kind: PoolKind, amount: u64) {
        self.kinds[kind as usize].decrease(amount);
        self.current -= amount;
    }

    /// From one level to another in one step, so that what comes and goes at once does not show.
    #[inline]
    pub(crate) fn replace(&mut self, kind: PoolKind, gone: u64, come: u64) {
        if come > gone {
            self.increase(kind, come - gone);
        } else {
            self.decrease(kind, gone - come);
        }
    }

    /// Of both size classes, now.
    #[inline]
    pub(crate) fn current(&self) -> u64 {
        self.current
    }

    fn begin_at_current(&mut self) {
        self.kinds.iter_mut().for_each(|kind| kind.begin_at(kind.current));
        self.peak = self.current;
    }

    fn reset_peak(&mut self) {
        self.kinds.iter_mut().for_each(Counter::reset_peak);
        self.peak = self.current;
    }

    fn reset_sums(&mut self) {
        self.kinds.iter_mut().for_each(Counter::reset_sums);
    }

    fn stat(&self) -> StatBySize {
        let [small_pool, large_pool] = self.kinds.map(|kind| kind.stat());
        let all = Stat {
            current: self.current,
            peak: self.peak,
            allocated: small_pool.allocated + large_pool.allocated,
            freed: small_pool.freed + large_pool.freed,
        };
        StatBySize { all, small_pool, large_pool }
    }
}

/// [`Stats`] as they are kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    allocation: CounterBySize,
    allocated_bytes: CounterBySize,
    /// Whether any free had to wait yet. Until then a block is active as long as it is allocated, and the next two are not kept.
    active_apart: bool,
    active: CounterBySize,
    active_bytes: CounterBySize,
    requested_bytes: CounterBySize,
    pub(crate) inactive_split: CounterBySize,
    pub(crate) inactive_split_bytes: CounterBySize,
    pub(crate) segment: CounterBySize,
    pub(crate) reserved_bytes: CounterBySize,
    pub(crate) oversize_allocations: Counter,
    pub(crate) oversize_segments: Counter,
    pub(crate) num_alloc_retries: u64,
    pub(crate) num_ooms: u64,
    pub(crate) num_sync_all_streams: u64,
    pub(crate) num_device_alloc: u64,
    pub(crate) num_device_free: u64,
    max_split_size: Option<u64>,
}

impl Counters {
    pub(crate) fn new(max_split_size: Option<u64>) -> Self {
        Self { max_split_size, ..Self::default() }
    }

    /// A block was handed to the program.
    #[inline]
    pub(crate) fn hand_out(&mut self, kind: PoolKind, size: u64, requested: u64) {
        self.allocation.increase(kind, 1);
        self.allocated_bytes.increase(kind, size);
        self.requested_bytes.increase(kind, requested);
        if self.active_apart {
            self.active.increase(kind, 1);
            self.active_bytes.increase(kind, size);
        }
    }

    /// The program freed a block.
    #[inline]
    pub(crate) fn take_back(&mut self, kind: PoolKind, size: u64) {
        self.allocation.decrease(kind, 1);
        self.allocated_bytes.decrease(kind, size);
    }

    /// Nobody uses the block anymore.
    #[inline]
    pub(crate) fn complete_free(&mut self, kind: PoolKind, size: u64, requested: u64) {
        self.requested_bytes.decrease(kind, requested);
        if self.active_apart {
            self.active.decrease(kind, 1);
            self.active_bytes.decrease(kind, size);
        }
    }

    /// A free is about to wait: from now on a block can be active and not allocated.
    pub(crate) fn part_active(&mut self) {
        if !self.active_apart {
            self.active_apart = true;
            (self.active, self.active_bytes) = (self.allocation, self.allocated_bytes);
        }
    }

    /// Blocks handed to the program and not back in the pool.
    pub(crate) fn active(&self) -> u64 {
        if self.active_apart { &self.active } else { &self.allocation }.current()
    }

    /// Bytes handed to the program.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes.current()
    }

    /// Bytes handed to the program and not back in the pool.
    pub(crate) fn active_bytes(&self) -> u64 {
        if self.active_apart { &self.active_bytes } else { &self.allocated_bytes }.current()
    }

    fn by_size(&mut self) -> [&mut CounterBySize; 9] {
        [
            &mut self.allocation,
            &mut self.allocated_bytes,
            &mut self.active,
            &mut self.active_bytes,
            &mut self.requested_bytes,
            &mut self.inactive_split,
            &mut self.inactive_split_bytes,
            &mut self.segment,
            &mut self.reserved_bytes,
        ]
    }

    /// What there is now was there before anything was counted.
    pub(crate) fn begin_at_current(&mut self) {
        self.by_size().into_iter().for_each(CounterBySize::begin_at_current);
        let oversize = [&mut self.oversize_allocations, &mut self.oversize_segments];
        oversize.into_iter().for_each(|counter| counter.begin_at(counter.current));
        self.num_device_alloc = 0;
    }

    pub(crate) fn reset_peaks(&mut self) {
        self.by_size().into_iter().for_each(CounterBySize::reset_peak);
        self.oversize_allocations.reset_peak();
        self.oversize_segments.reset_peak();
    }

    pub(crate) fn reset_sums(&mut self) {
        self.by_size().into_iter().for_each(CounterBySize::reset_sums);
        self.oversize_allocations.reset_sums();
        self.oversize_segments.reset_sums();
        self.num_alloc_retries = 0;
        self.num_ooms = 0;
        self.num_sync_all_streams = 0;
        self.num_device_alloc = 0;
        self.num_device_free = 0;
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            allocation: self.allocation.stat(),
            segment: self.segment.stat(),
            active: if self.active_apart { &self.active } else { &self.allocation }.stat(),
            inactive_split: self.inactive_split.stat(),
            allocated_bytes: self.allocated_bytes.stat(),
            reserved_bytes: self.reserved_bytes.stat(),
            active_bytes: if self.active_apart { &self.active_bytes } else { &self.allocated_bytes }.stat(),
            inactive_split_bytes: self.inactive_split_bytes.stat(),
            requested_bytes: self.requested_bytes.stat(),
            oversize_allocations: self.oversize_allocations.stat(),
            oversize_segments: self.oversize_segments.stat(),
            num_alloc_retries: self.num_alloc_retries,
            num_ooms: self.num_ooms,
            num_sync_all_streams: self.num_sync_all_streams,
            num_device_alloc: self.num_device_alloc,
            num_device_free: self.num_device_free,
            max_split_size: self.max_split_size,
        }
    }
}
