//! Statistics and settings of a pool, with the names and meanings of `torch.cuda`.

use vramscope_pool::{ConfError, DeviceMemory, MemoryStats, Settings};

use crate::memory::MemoryDevice;
use crate::pool::DevicePool;

impl<D: MemoryDevice> DevicePool<D> {
    /// Returns the allocated bytes: the sizes of all blocks that the program holds, after rounding.
    #[must_use]
    pub fn memory_allocated(&self) -> u64 {
        self.stats().allocated_bytes.all.current
    }

    /// Returns the peak of [`memory_allocated`](Self::memory_allocated) since the start or the last
    /// [`reset_peak_memory_stats`](Self::reset_peak_memory_stats).
    #[must_use]
    pub fn max_memory_allocated(&self) -> u64 {
        self.stats().allocated_bytes.all.peak
    }

    /// Returns the reserved bytes: the sizes of all segments that the pool holds from the device.
    #[must_use]
    pub fn memory_reserved(&self) -> u64 {
        self.stats().reserved_bytes.all.current
    }

    /// Returns the peak of [`memory_reserved`](Self::memory_reserved) since the start or the last
    /// [`reset_peak_memory_stats`](Self::reset_peak_memory_stats).
    #[must_use]
    pub fn max_memory_reserved(&self) -> u64 {
        self.stats().reserved_bytes.all.peak
    }

    /// Resets every peak in the statistics to the current value.
    pub fn reset_peak_memory_stats(&self) {
        self.lock().pool.reset_peak_stats();
    }

    /// Resets to 0 every total that only grows, such as the number of allocations or of freed
    /// bytes.
    pub fn reset_accumulated_memory_stats(&self) {
        self.lock().pool.reset_accumulated_stats();
    }

    /// Returns all counters of the pool. The result serializes with the keys of
    /// `torch.cuda.memory_stats()`.
    #[must_use]
    pub fn memory_stats(&self) -> MemoryStats {
        MemoryStats::from(self.stats())
    }

    /// Returns the text table of `torch.cuda.memory_summary()`. `abbreviated` leaves out the rows
    /// for the small and the large pool.
    #[must_use]
    pub fn memory_summary(&self, abbreviated: bool) -> String {
        let inner = self.lock();
        let (stats, device) = (inner.pool.stats(), inner.pool.id());
        drop(inner);
        vramscope_pool::memory_summary(&stats, device, abbreviated)
    }

    /// Returns the device's free and total bytes, whatever process holds them.
    #[must_use]
    pub fn mem_get_info(&self) -> DeviceMemory {
        self.lock().pool.device().memory()
    }

    /// Limits the pool's reserved bytes to `fraction` (0 to 1) of the device's memory. If the pool
    /// already has more, it keeps its segments but reserves no new ones.
    ///
    /// # Errors
    /// If `fraction` is not between 0 and 1.
    pub fn set_per_process_memory_fraction(&self, fraction: f64) -> Result<(), InvalidFraction> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(InvalidFraction { fraction });
        }
        let mut inner = self.lock();
        let settings = Settings { per_process_memory_fraction: fraction, ..inner.pool.settings().clone() };
        inner.pool.set_settings(settings);
        Ok(())
    }

    /// Changes the allocator settings for later requests. `conf` has the syntax of
    /// `PYTORCH_ALLOC_CONF`. The memory limit stays as it is: like PyTorch, the pool reads the
    /// fraction in its settings only when it is created.
    ///
    /// # Errors
    /// If `conf` is not valid. Nothing is changed then.
    pub fn set_allocator_settings(&self, conf: &str) -> Result<(), ConfError> {
        let settings = Settings::parse(conf)?;
        let mut inner = self.lock();
        let &Settings { per_process_memory_fraction, limit_bytes, .. } = inner.pool.settings();
        inner.pool.set_settings(Settings { per_process_memory_fraction, limit_bytes, ..settings });
        Ok(())
    }

    /// Returns the current allocator settings, as last set.
    #[must_use]
    pub fn allocator_settings(&self) -> Settings {
        self.lock().pool.settings().clone()
    }
}

/// A memory fraction that is not between 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("invalid memory fraction {fraction}: it must be between 0 and 1")]
pub struct InvalidFraction {
    /// The fraction that was passed.
    pub fraction: f64,
}
