//! Storage: an allocation that one or more tensors share.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::panic::Location;

use crate::backend::RawSlice;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::operation::{MemoryChangeKind, change_memory, line};

/// One allocation of a device's memory, which one or more tensors share. Dropping it frees the
/// memory.
pub(crate) struct Storage {
    device: Device,
    /// Address on the device; 0 if there are no bytes, or if they are in `host_copy`.
    address: Cell<u64>,
    bytes: usize,
    /// Number of in-place changes; see [`Saved`](crate::autograd::Saved).
    version: Cell<u64>,
    /// The source line of the request. It is also recorded for the free, because a drop has none.
    location: Cell<&'static Location<'static>>,
    /// The bytes while they are on the host: see [`move_to_host`](Self::move_to_host).
    host_copy: RefCell<Option<Vec<u8>>>,
}

impl Storage {
    /// Allocates `bytes` on the device's current stream, without initializing them.
    #[track_caller]
    pub(crate) fn allocate(device: &Device, bytes: usize) -> Result<Self> {
        let storage = Self {
            device: device.clone(),
            address: Cell::new(0),
            bytes,
            version: Cell::new(0),
            location: Cell::new(line()),
            host_copy: RefCell::new(None),
        };
        storage.request()?;
        Ok(storage)
    }

    /// Requests the memory from the device's allocator, unless the size is 0.
    fn request(&self) -> Result {
        if self.bytes > 0 {
            let (device, bytes, location) = (&self.device, self.bytes as u64, self.location.get());
            let address = change_memory(device, MemoryChangeKind::Allocate, bytes, location, || {
                device.memory().allocate(bytes, device.stream(), location)
            })?;
            self.address.set(address);
        }
        Ok(())
    }

    /// Frees the memory on the device, if there is any.
    fn release(&self) {
        let (address, location) = (self.address.take(), self.location.get());
        if address == 0 {
            return;
        }
        let Ok(_) = change_memory(&self.device, MemoryChangeKind::Free, self.bytes as u64, location, || {
            // SAFETY: `request` set the address, and this function has removed it. Nothing uses the
            // memory but work that was queued before: either the last tensor in it is dropped, or
            // its numbers were copied to the host.
            unsafe { self.device.memory().free(address, location) };
            Ok::<u64, Infallible>(address)
        });
    }

    /// Returns the memory as bytes.
    fn raw_bytes(&self) -> RawSlice<'_> {
        // SAFETY: The memory has this many bytes and is only freed by `release`, which nothing
        // calls while the result is in use.
        unsafe { RawSlice::new(self.address.get(), self.bytes, DType::U8) }
    }

    /// Copies the bytes to the host and frees the memory on the device. Does nothing if the bytes
    /// are on the host.
    ///
    /// # Errors
    /// If the copy fails. The bytes then stay on the device.
    pub(crate) fn move_to_host(&self) -> Result {
        if self.address.get() != 0 {
            let mut bytes = vec![0; self.bytes];
            self.device.backend().download(self.raw_bytes(), &mut bytes)?;
            self.host_copy.replace(Some(bytes));
            self.release();
        }
        Ok(())
    }

    /// Copies the bytes from the host to new memory on the device. Does nothing if they are there.
    ///
    /// # Errors
    /// If the memory cannot be allocated or written.
    #[track_caller]
    pub(crate) fn move_to_device(&self) -> Result {
        if self.host_copy.borrow().is_some() {
            self.location.set(line());
            self.request()?;
        }
        match self.host_copy.take() {
            Some(bytes) => Ok(self.device.backend().upload(&bytes, self.raw_bytes())?),
            None => Ok(()),
        }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the address on the device; 0 if there are no bytes, or if they are on the host.
    pub(crate) fn address(&self) -> u64 {
        self.address.get()
    }

    /// Returns the number of in-place changes so far.
    pub(crate) fn version(&self) -> u64 {
        self.version.get()
    }

    /// Counts an in-place change.
    pub(crate) fn bump_version(&self) {
        self.version.set(self.version.get() + 1);
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.release();
    }
}
