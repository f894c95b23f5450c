//! The devices of the process, which are listed when the program first uses one.
//!
//! Listing initializes the driver, and CUDA does not work in a child that is forked later. So
//! nothing lists the devices before the program uses one.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use vramscope_collector::{DevicePool, MemoryDevice};
use vramscope_trace::DeviceInfo;

/// A device's pool, if it has been created, and the memory fraction to create it with.
pub(super) struct DeviceSlot<D: MemoryDevice> {
    /// The share of the device's memory that the pool may reserve, if it was set.
    fraction: Mutex<Option<f64>>,
    /// The pool, from the first use on, or why it could not be created.
    pub(super) pool: OnceLock<Result<DevicePool<D>, String>>,
}

impl<D: MemoryDevice> DeviceSlot<D> {
    /// Returns the device's pool; `None` if the device was not used yet or its pool could not be
    /// created.
    pub(super) fn existing_pool(&self) -> Option<&DevicePool<D>> {
        self.pool.get()?.as_ref().ok()
    }

    /// Locks the memory fraction, also after a thread panicked while it held the lock. Until the
    /// lock is released, no other thread creates the pool.
    pub(super) fn lock_fraction(&self) -> MutexGuard<'_, Option<f64>> {
        self.fraction.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Descriptions of every device, by number, or in words why no device can be used.
pub(super) type DeviceInfos = Result<Vec<DeviceInfo>, String>;

/// The listed devices.
struct DeviceList<D: MemoryDevice> {
    infos: Vec<DeviceInfo>,
    /// One for each device, by number.
    slots: Vec<DeviceSlot<D>>,
}

/// The devices of the process, which are listed at the first use of a device.
pub(super) struct Devices<D: MemoryDevice> {
    /// The devices, or why none can be used.
    listed: OnceLock<Result<DeviceList<D>, String>>,
    /// Locked while the devices are listed.
    listing: Mutex<()>,
}

/// A guard that keeps other threads from listing the devices and creating pools until it is
/// dropped.
pub(super) struct PoolCreationLock<'a> {
    _fractions: Vec<MutexGuard<'a, Option<f64>>>,
    _listing: MutexGuard<'a, ()>,
}

impl<D: MemoryDevice> Devices<D> {
    /// Creates devices that have not been listed. With a `failure`, the reason why none can be
    /// used, they are never listed.
    pub(super) fn new(failure: Option<String>) -> Self {
        let listed = failure.map_or_else(OnceLock::new, |reason| OnceLock::from(Err(reason)));
        Self { listed, listing: Mutex::default() }
    }

    /// Returns the slots of all devices, by number. The first call lists them with `list`, which
    /// describes every device. Fails with the reason why no device can be used.
    #[inline]
    pub(super) fn list(&self, list: impl FnOnce() -> DeviceInfos) -> Result<&[DeviceSlot<D>], &str> {
        let listed = self.listed.get().unwrap_or_else(|| self.list_first(list));
        listed.as_ref().map(|list| list.slots.as_slice()).map_err(String::as_str)
    }

    /// Lists the devices, unless another thread has just done so, and returns the result.
    #[cold]
    fn list_first(&self, list: impl FnOnce() -> DeviceInfos) -> &Result<DeviceList<D>, String> {
        let _listing = self.lock_listing();
        self.listed.get_or_init(|| {
            let infos = list()?;
            let slot = |_: &DeviceInfo| DeviceSlot { fraction: Mutex::new(None), pool: OnceLock::new() };
            let slots = infos.iter().map(slot).collect();
            Ok(DeviceList { infos, slots })
        })
    }

    /// Returns the slots of all devices, by number; none before they are listed and after a
    /// failure.
    #[inline]
    pub(super) fn slots(&self) -> &[DeviceSlot<D>] {
        self.listed.get().and_then(|listed| listed.as_ref().ok()).map_or(&[], |list| &list.slots)
    }

    /// Returns the descriptions of all devices, by number; none before they are listed and after a
    /// failure.
    pub(super) fn infos(&self) -> &[DeviceInfo] {
        self.listed.get().and_then(|listed| listed.as_ref().ok()).map_or(&[], |list| &list.infos)
    }

    /// Locks the listing of devices, so that no other thread lists them.
    fn lock_listing(&self) -> MutexGuard<'_, ()> {
        self.listing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps other threads from listing the devices and from creating pools.
    pub(super) fn lock_pool_creation(&self) -> PoolCreationLock<'_> {
        let listing = self.lock_listing();
        let fractions = self.slots().iter().map(DeviceSlot::lock_fraction).collect();
        PoolCreationLock { _fractions: fractions, _listing: listing }
    }

    /// Returns true while a thread lists the devices or keeps others from listing them.
    #[cfg(test)]
    pub(super) fn is_listing_held(&self) -> bool {
        self.listing.try_lock().is_err()
    }
}
