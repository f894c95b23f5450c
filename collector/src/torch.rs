//! What PyTorch's users ask its allocator, under the same names as in `torch.cuda`.

use std::error::Error;
use std::fmt;

use vramscope_pool::{ConfError, DeviceMemory, MemoryStats, Settings};

use crate::memory::MemoryDevice;
use crate::pool::DevicePool;

impl<D: MemoryDevice> DevicePool<D> {
    /// Bytes that the program has and has not freed.
    #[must_use]
    pub fn memory_allocated(&self) -> u64 {
        self.stats().allocated_bytes.all.current
    }

    /// The most of them that there were at once, since the beginning or since [`reset_peak_memory_stats`](Self::reset_peak_memory_stats).
    #[must_use]
    pub fn max_memory_allocated(&self) -> u64 {
        self.stats().allocated_bytes.all.peak
    }

    /// Bytes of the pool's segments.
    #[must_use]
    pub fn memory_reserved(&self) -> u64 {
        self.stats().reserved_bytes.all.current
    }

    /// The most of them that there were at once, since the beginning or since [`reset_peak_memory_stats`](Self::reset_peak_memory_stats).
    #[must_use]
    pub fn max_memory_reserved(&self) -> u64 {
        self.stats().reserved_bytes.all.peak
    }

    /// Lets every peak begin anew from what there is now.
    pub fn reset_peak_memory_stats(&self) {
        self.lock().pool.reset_peak_stats();
    }

    /// Lets every sum of what came and what went begin anew from 0.
    pub fn reset_accumulated_memory_stats(&self) {
        self.lock().pool.reset_accumulated_stats();
    }

    /// Every counter, under the keys of `torch.cuda.memory_stats()` once it is serialized.
    #[must_use]
    pub fn memory_stats(&self) -> MemoryStats {
        MemoryStats::from(self.stats())
    }

    /// The table of `torch.cuda.memory_summary()`. `abbreviated` leaves out what is in the large and in the small pool.
    #[must_use]
    pub fn memory_summary(&self, abbreviated: bool) -> String {
        let inner = self.lock();
        let (stats, device) = (inner.pool.stats(), inner.pool.id());
        drop(inner);
        vramscope_pool::memory_summary(&stats, device, abbreviated)
    }

    /// Bytes of the device that are free, for this and every other program, and bytes in all.
    #[must_use]
    pub fn mem_get_info(&self) -> DeviceMemory {
        self.lock().pool.device().memory()
    }

    /// Limits the pool's segments to a share of the device's memory, from 0 to 1; what is there already stays.
    ///
    /// # Errors
    /// When `fraction` is no such share.
    pub fn set_per_process_memory_fraction(&self, fraction: f64) -> Result<(), InvalidFraction> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(InvalidFraction { fraction });
        }
        let mut inner = self.lock();
        let settings = Settings { per_process_memory_fraction: fraction, ..inner.pool.settings().clone() };
        inner.pool.set_settings(settings);
        Ok(())
    }

    /// Sets what `PYTORCH_ALLOC_CONF` would, for the requests from now on. The limit on what the pool may hold stays as it is, as
    /// in PyTorch, which looks at the fraction in its settings only when it begins.
    ///
    /// # Errors
    /// When `conf` is no settings; nothing is then set.
    pub fn set_allocator_settings(&self, conf: &str) -> Result<(), ConfError> {
        let settings = Settings::parse(conf)?;
        let mut inner = self.lock();
        let &Settings { per_process_memory_fraction, limit_bytes, .. } = inner.pool.settings();
        inner.pool.set_settings(Settings { per_process_memory_fraction, limit_bytes, ..settings });
        Ok(())
    }

    /// The settings.
    #[must_use]
    pub fn allocator_settings(&self) -> Settings {
        self.lock().pool.settings().clone()
    }
}

/// What is no share of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InvalidFraction {
    /// What was given.
    pub fraction: f64,
}

impl fmt::Display for InvalidFraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is no share of the device's memory: it must lie from 0 to 1", self.fraction)
    }
}

impl Error for InvalidFraction {}
