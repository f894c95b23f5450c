//! The counters of `torch.cuda.memory_stats`, with PyTorch's names and rules.

use vramscope_trace::PoolKind;

/// One quantity of a pool, in bytes or as a number of blocks or segments: its current value, its
/// peak, and the sums of its increases and decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// The current value.
    pub current: u64,
    /// The largest value since the peaks were last reset.
    pub peak: u64,
    /// The sum of all increases since the sums were last reset.
    pub allocated: u64,
    /// The sum of all decreases since the sums were last reset.
    pub freed: u64,
}

/// One quantity of a pool by size class: the small pool, the large pool, and both together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatBySize {
    /// Both size classes together.
    pub all: Stat,
    /// The small pool: requests up to 1 MiB.
    pub small_pool: Stat,
    /// The large pool: requests over 1 MiB.
    pub large_pool: Stat,
}

/// The counters of a pool, in bytes where the name says so and otherwise as numbers of blocks,
/// segments or calls. Field names come from `torch.cuda.memory_stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of allocated blocks.
    pub allocation: StatBySize,
    /// Number of segments. Expandable segments do not count.
    pub segment: StatBySize,
    /// Number of active blocks: allocated or pending free.
    pub active: StatBySize,
    /// Number of free blocks in segments that also have other blocks, so that the segment cannot be
    /// released. Blocks of expandable segments do not count, because their pages can be released.
    pub inactive_split: StatBySize,
    /// Bytes of allocated blocks, after rounding.
    pub allocated_bytes: StatBySize,
    /// Bytes that the pool holds from the device: all segments, and the mapped pages of expandable
    /// segments.
    pub reserved_bytes: StatBySize,
    /// Bytes of active blocks: allocated or pending free.
    pub active_bytes: StatBySize,
    /// Bytes of the blocks counted in `inactive_split`.
    pub inactive_split_bytes: StatBySize,
    /// Bytes that the program requested for the active blocks, before rounding.
    pub requested_bytes: StatBySize,
    /// Allocated blocks of at least `max_split_size` bytes.
    pub oversize_allocations: Stat,
    /// Segments of at least `max_split_size` bytes.
    pub oversize_segments: Stat,
    /// Number of retries: all cached segments were released and the device was asked again.
    pub num_alloc_retries: u64,
    /// Number of requests that failed with out of memory.
    pub num_ooms: u64,
    /// Number of times the pool waited for the events of all streams.
    pub num_sync_all_streams: u64,
    /// Number of times the device provided memory: segments and mapped ranges.
    pub num_device_alloc: u64,
    /// Number of times memory was returned to the device: segments and unmapped ranges.
    pub num_device_free: u64,
    /// The setting `max_split_size` in bytes when the pool was created; `None` if unlimited.
    pub max_split_size: Option<u64>,
}

/// A current value with its peak and the sums of its increases and decreases; [`Stat`] is the
/// public form. A decrease changes one stored number only, because the sum of decreases follows
/// from the others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counter {
    current: u64,
    peak: u64,
    allocated: u64,
    /// The current value at the moment when the sums were last reset.
    level_at_reset: u64,
}

impl Counter {
    /// Adds `amount` to the current value and the sum of increases, and raises the peak.
    #[inline]
    pub(crate) fn increase(&mut self, amount: u64) {
        // The requests of a damaged recording may add up to more than 64 bits.
        self.current = self.current.saturating_add(amount);
        self.allocated = self.allocated.wrapping_add(amount);
        self.peak = self.peak.max(self.current);
    }

    /// Subtracts `amount`. It exceeds the current value only if that was too large for 64 bits.
    #[inline]
    pub(crate) fn decrease(&mut self, amount: u64) {
        self.current = self.current.saturating_sub(amount);
    }

    /// Subtracts 1 from the current value, but not below 0: a block may be oversize under the
    /// present settings and not have been counted under earlier ones.
    pub(crate) fn decrease_by_one(&mut self) {
        self.current = self.current.saturating_sub(1);
    }

    /// Sets the current value and the peak to `amount`, and the sums of increases and decreases to
    /// 0.
    fn start_at(&mut self, amount: u64) {
        *self = Self { current: amount, peak: amount, allocated: 0, level_at_reset: amount };
    }

    /// Sets the counter's peak to its current value.
    fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    /// Sets the counter's sums of increases and decreases to 0.
    fn reset_sums(&mut self) {
        self.allocated = 0;
        self.level_at_reset = self.current;
    }

    /// Returns the counter's values as a [`Stat`].
    pub(crate) fn stat(&self) -> Stat {
        let Self { current, peak, allocated, level_at_reset } = *self;
        Stat { current, peak, allocated, freed: level_at_reset.wrapping_add(allocated).wrapping_sub(current) }
    }
}

/// A counter for each size class and for both together; [`StatBySize`] is the public form. The sums
/// for both together follow from each class, but their peak does not, so it is stored.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CounterBySize {
    /// The counters of the small and of the large pool.
    kinds: [Counter; 2],
    current: u64,
    peak: u64,
}

impl CounterBySize {
    /// Adds `amount` to the size class `kind` and to both classes together.
    #[inline]
    pub(crate) fn increase(&mut self, kind: PoolKind, amount: u64) {
        self.kinds[kind as usize].increase(amount);
        self.current = self.current.saturating_add(amount);
        self.peak = self.peak.max(self.current);
    }

    /// Subtracts `amount` from the size class `kind` and from both classes together.
    #[inline]
    pub(crate) fn decrease(&mut self, kind: PoolKind, amount: u64) {
        self.kinds[kind as usize].decrease(amount);
        self.current = self.current.saturating_sub(amount);
    }

    /// Changes the value of size class `kind` by `added - removed` in one step, so that the
    /// intermediate value does not count as a peak.
    #[inline]
    pub(crate) fn replace(&mut self, kind: PoolKind, removed: u64, added: u64) {
        if added > removed {
            self.increase(kind, added - removed);
        } else {
            self.decrease(kind, removed - added);
        }
    }

    /// Returns the current value of both size classes together.
    #[inline]
    pub(crate) fn current(&self) -> u64 {
        self.current
    }

    /// Sets the peaks to the current values and the sums to 0, as if nothing had happened before.
    fn start_at_current(&mut self) {
        self.kinds.iter_mut().for_each(|kind| kind.start_at(kind.current));
        self.peak = self.current;
    }

    /// Sets the peaks of each size class and of both together to the current values.
    fn reset_peak(&mut self) {
        self.kinds.iter_mut().for_each(Counter::reset_peak);
        self.peak = self.current;
    }

    /// Sets the sums of increases and decreases of each size class to 0.
    fn reset_sums(&mut self) {
        self.kinds.iter_mut().for_each(Counter::reset_sums);
    }

    /// Returns the counter's values as a [`StatBySize`].
    fn stat(&self) -> StatBySize {
        let [small_pool, large_pool] = self.kinds.map(|kind| kind.stat());
        let all = Stat {
            current: self.current,
            peak: self.peak,
            allocated: small_pool.allocated.wrapping_add(large_pool.allocated),
            freed: small_pool.freed.wrapping_add(large_pool.freed),
        };
        StatBySize { all, small_pool, large_pool }
    }
}

/// All counters of a pool; [`Stats`] is their public form.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    allocation: CounterBySize,
    allocated_bytes: CounterBySize,
    /// False until the first free is deferred. Until then active blocks are the allocated blocks,
    /// and the next two counters are not updated.
    active_is_separate: bool,
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
    /// Peak of the bytes that the pool would hold after each granted request to the device if it
    /// always obtained a whole segment. A limit of this many bytes grants all of these requests.
    granted_bytes: u64,
    max_split_size: Option<u64>,
}

impl Counters {
    pub(crate) fn new(max_split_size: Option<u64>) -> Self {
        Self { max_split_size, ..Self::default() }
    }

    /// Counts a newly allocated block of `size` bytes for a request of `requested` bytes.
    #[inline]
    pub(crate) fn block_allocated(&mut self, kind: PoolKind, size: u64, requested: u64) {
        self.allocation.increase(kind, 1);
        self.allocated_bytes.increase(kind, size);
        self.requested_bytes.increase(kind, requested);
        if self.active_is_separate {
            self.active.increase(kind, 1);
            self.active_bytes.increase(kind, size);
        }
    }

    /// Counts a free by the program of a block of `size` bytes, perhaps still in use by a stream.
    #[inline]
    pub(crate) fn free_requested(&mut self, kind: PoolKind, size: u64) {
        self.allocation.decrease(kind, 1);
        self.allocated_bytes.decrease(kind, size);
    }

    /// Counts that the memory of a freed block became reusable: a block of `size` bytes that was
    /// allocated for a request of `requested` bytes.
    #[inline]
    pub(crate) fn free_completed(&mut self, kind: PoolKind, size: u64, requested: u64) {
        self.requested_bytes.decrease(kind, requested);
        if self.active_is_separate {
            self.active.decrease(kind, 1);
            self.active_bytes.decrease(kind, size);
        }
    }

    /// Counts active blocks apart from allocated ones from now on. To be called before a free is
    /// deferred: from then on, the two differ.
    pub(crate) fn track_active_separately(&mut self) {
        if !self.active_is_separate {
            self.active_is_separate = true;
            (self.active, self.active_bytes) = (self.allocation, self.allocated_bytes);
        }
    }

    /// Notes that the device granted a request with which the pool would hold at most `bytes`.
    pub(crate) fn note_granted(&mut self, bytes: u64) {
        self.granted_bytes = self.granted_bytes.max(bytes);
    }

    /// Returns the smallest limit of reserved bytes under which the device would still have granted
    /// every request that it granted.
    pub(crate) fn sufficient_bytes(&self) -> u64 {
        self.granted_bytes.max(self.reserved_bytes.peak)
    }

    /// Returns the number of active blocks.
    pub(crate) fn active(&self) -> u64 {
        if self.active_is_separate { &self.active } else { &self.allocation }.current()
    }

    /// Returns the bytes of allocated blocks.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes.current()
    }

    /// Returns the bytes of active blocks.
    pub(crate) fn active_bytes(&self) -> u64 {
        if self.active_is_separate { &self.active_bytes } else { &self.allocated_bytes }.current()
    }

    /// Returns all counters that distinguish size classes, so that they can be changed together.
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

    /// Sets all peaks to the current values and all sums to 0.
    pub(crate) fn start_at_current(&mut self) {
        self.by_size().into_iter().for_each(CounterBySize::start_at_current);
        let oversize = [&mut self.oversize_allocations, &mut self.oversize_segments];
        oversize.into_iter().for_each(|counter| counter.start_at(counter.current));
        self.num_device_alloc = 0;
    }

    /// Sets every peak to the current value.
    pub(crate) fn reset_peaks(&mut self) {
        self.by_size().into_iter().for_each(CounterBySize::reset_peak);
        self.oversize_allocations.reset_peak();
        self.oversize_segments.reset_peak();
    }

    /// Sets every sum of increases and decreases, and every `num_` value, to 0.
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

    /// Returns all counters in their public form, with PyTorch's names.
    pub(crate) fn stats(&self) -> Stats {
        Stats {
            allocation: self.allocation.stat(),
            segment: self.segment.stat(),
            active: if self.active_is_separate { &self.active } else { &self.allocation }.stat(),
            inactive_split: self.inactive_split.stat(),
            allocated_bytes: self.allocated_bytes.stat(),
            reserved_bytes: self.reserved_bytes.stat(),
            active_bytes: if self.active_is_separate { &self.active_bytes } else { &self.allocated_bytes }.stat(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_over_64_bits_do_not_overflow() {
        let mut counters = Counters::default();
        for kind in [PoolKind::Small, PoolKind::Large, PoolKind::Large] {
            counters.block_allocated(kind, u64::MAX / 2 + 1, u64::MAX);
        }
        assert_eq!(counters.stats().allocated_bytes.all.peak, u64::MAX);
        for kind in [PoolKind::Small, PoolKind::Large, PoolKind::Large] {
            counters.free_requested(kind, u64::MAX / 2 + 1);
            counters.free_completed(kind, u64::MAX / 2 + 1, u64::MAX);
        }
        assert_eq!(counters.stats().allocated_bytes.all.current, 0);
    }
}
