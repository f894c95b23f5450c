//! The counters of `torch.cuda.memory_stats`, kept by the same rules.

use vramscope_trace::PoolKind;

/// One quantity over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Now.
    pub current: u64,
    /// The most there ever was at once.
    pub peak: u64,
    /// The sum of all increases.
    pub allocated: u64,
    /// The sum of all decreases.
    pub freed: u64,
}

impl Stat {
    pub(crate) fn increase(&mut self, amount: u64) {
        self.current += amount;
        self.allocated += amount;
        self.peak = self.peak.max(self.current);
    }

    pub(crate) fn decrease(&mut self, amount: u64) {
        debug_assert!(amount <= self.current, "no more goes away than is there");
        self.current -= amount;
        self.freed += amount;
    }
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

impl StatBySize {
    fn of_kind(&mut self, kind: PoolKind) -> &mut Stat {
        match kind {
            PoolKind::Small => &mut self.small_pool,
            PoolKind::Large => &mut self.large_pool,
        }
    }

    pub(crate) fn increase(&mut self, kind: PoolKind, amount: u64) {
        self.all.increase(amount);
        self.of_kind(kind).increase(amount);
    }

    pub(crate) fn decrease(&mut self, kind: PoolKind, amount: u64) {
        self.all.decrease(amount);
        self.of_kind(kind).decrease(amount);
    }

    /// From one level to another in one step, so that what comes and goes at once does not show.
    pub(crate) fn replace(&mut self, kind: PoolKind, gone: u64, come: u64) {
        if come > gone {
            self.increase(kind, come - gone);
        } else if gone > come {
            self.decrease(kind, gone - come);
        }
    }
}

/// What the pool did so far. Names are PyTorch's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks handed to the program and not freed by it.
    pub allocation: StatBySize,
    /// Segments.
    pub segment: StatBySize,
    /// Blocks handed to the program and not back in the pool.
    pub active: StatBySize,
    /// Free blocks that share their segment with another block, so that the segment cannot be given back.
    pub inactive_split: StatBySize,
    /// Bytes of blocks handed to the program and not freed by it.
    pub allocated_bytes: StatBySize,
    /// Bytes of segments.
    pub reserved_bytes: StatBySize,
    /// Bytes of blocks handed to the program and not back in the pool.
    pub active_bytes: StatBySize,
    /// Bytes of free blocks that share their segment with another block.
    pub inactive_split_bytes: StatBySize,
    /// Bytes that the program asked for, before rounding, of active blocks.
    pub requested_bytes: StatBySize,
    /// How often everything cached was given back and the device asked again.
    pub num_alloc_retries: u64,
    /// How many requests failed for want of memory.
    pub num_ooms: u64,
    /// How often the pool waited for every stream.
    pub num_sync_all_streams: u64,
    /// How many segments the device gave.
    pub num_device_alloc: u64,
    /// How many segments were given back.
    pub num_device_free: u64,
}
