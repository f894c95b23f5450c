//! The interface to a device, from which the pool obtains its memory.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use vramscope_trace::StreamId;

/// A source of device memory: a GPU driver, host memory, or a [simulation](crate::SimulatedDevice).
///
/// Every device implements [`reserve`](Self::reserve), [`release`](Self::release) and
/// [`memory`](Self::memory). The methods for address ranges and mapping are called only with
/// `expandable_segments` on, the methods for stream events only for blocks that were used on
/// another stream than their own. A device without these features keeps the default
/// implementations.
pub trait Device {
    /// Reserves `bytes` of memory and returns its first address. Reserved ranges must never
    /// overlap.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] if there is not enough memory. The pool then releases cached
    /// segments and tries again.
    fn reserve(&mut self, bytes: u64) -> Result<u64, DeviceError>;

    /// Releases a whole range that [`reserve`](Self::reserve) returned, after all work queued on
    /// the device has finished.
    ///
    /// # Errors
    /// [`DeviceError`] if the device fails. The range then stays reserved.
    fn release(&mut self, address: u64, bytes: u64) -> Result<(), DeviceError>;

    /// Returns the device's free memory, at this moment, and its total memory, in bytes.
    fn memory(&self) -> DeviceMemory;

    /// Reserves an address range of `bytes` without physical memory and returns its first address.
    /// `bytes` is a multiple of the page size later passed to [`map`](Self::map).
    ///
    /// # Errors
    /// [`DeviceError`] if the device has no such range or does not support mapping.
    fn reserve_addresses(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        Err(DeviceError::Failed(format!(
            "it does not support expandable segments (requested {bytes} bytes of addresses)"
        )))
    }

    /// Releases a whole address range that [`reserve_addresses`](Self::reserve_addresses) returned
    /// and in which nothing is mapped.
    ///
    /// # Errors
    /// [`DeviceError`] if the device fails. The range then stays reserved.
    fn release_addresses(&mut self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        Err(DeviceError::Failed(format!("no address range of {bytes} bytes is reserved at {address:#x}")))
    }

    /// Maps physical memory to the `bytes` addresses from `address` on, which are part of a
    /// reserved range, in whole pages of `page_bytes`. Maps all of the pages or none.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] if there is not enough memory.
    fn map(&mut self, address: u64, bytes: u64, page_bytes: u64) -> Result<(), DeviceError> {
        let _ = page_bytes;
        Err(DeviceError::Failed(format!("no address range of {bytes} bytes is reserved at {address:#x}")))
    }

    /// Unmaps the `bytes` addresses from `address` on, whole pages of `page_bytes` each, and
    /// releases their memory, after the work queued on `stream` has finished.
    ///
    /// # Errors
    /// [`DeviceError`] if the device fails. The pages then stay mapped.
    fn unmap(&mut self, address: u64, bytes: u64, page_bytes: u64, stream: StreamId) -> Result<(), DeviceError> {
        let _ = (page_bytes, stream);
        Err(DeviceError::Failed(format!("no pages of {bytes} bytes are mapped at {address:#x}")))
    }

    /// Adds an event to the queue of `stream`; it passes when all work queued before it has
    /// finished. The device may forget the event once [`has_passed`](Self::has_passed) returned
    /// true or [`wait_for`](Self::wait_for) returned.
    ///
    /// # Errors
    /// [`DeviceError`] if the device has no such stream.
    fn record_event(&mut self, stream: StreamId) -> Result<StreamEvent, DeviceError> {
        let _ = stream;
        Ok(StreamEvent(0))
    }

    /// Returns true if all work queued before the event has finished, false if some has not.
    ///
    /// # Errors
    /// [`DeviceError`] if the work failed.
    fn has_passed(&mut self, event: StreamEvent) -> Result<bool, DeviceError> {
        let _ = event;
        Ok(true)
    }

    /// Blocks the calling thread until all work queued before the event has finished.
    ///
    /// # Errors
    /// [`DeviceError`] if the work failed.
    fn wait_for(&mut self, event: StreamEvent) -> Result<(), DeviceError> {
        let _ = event;
        Ok(())
    }
}

/// An event in a stream's work queue, identified by a number that the device assigned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamEvent(pub u64);

/// A device's free and total memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Free bytes, available to any process.
    pub free_bytes: u64,
    /// Total bytes.
    pub total_bytes: u64,
}

/// The error of a failed call to a [`Device`]: out of memory, or any other failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The device has not enough free memory.
    #[error("the device is out of memory")]
    OutOfMemory,
    /// The device refused the call or failed in another way, described by the text.
    #[error("the device failed: {0}")]
    Failed(String),
    /// The device's driver or the operating system returned an error, which is the `source()`.
    #[error(transparent)]
    Driver(DriverFailure),
}

/// The result of a call to a device, or of a pool operation that calls the device.
pub(crate) type DeviceResult<T = ()> = Result<T, DeviceError>;

impl DeviceError {
    /// Creates the error for a failed call of the device's driver or of the operating system.
    ///
    /// `description` is the text of the message, which names the call and the reason; `source` is
    /// the error that the call returned.
    #[cold]
    pub fn driver(description: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Driver(DriverFailure(Arc::new(FailedCall { description: description.into(), source: source.into() })))
    }
}

/// A failed call of a device's driver or of the operating system. Created by
/// [`DeviceError::driver`].
///
/// `source()` is the error that the call returned. Two failures are equal if their messages are.
// A pointer, because every request's result has room for this error and must stay small.
#[derive(Clone, Debug)]
pub struct DriverFailure(Arc<FailedCall>);

/// A failed call of a device's driver or of the operating system: the text of the message, and the
/// error that the call returned.
#[derive(Debug)]
struct FailedCall {
    description: String,
    source: Box<dyn Error + Send + Sync>,
}

impl fmt::Display for DriverFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the device failed: {}", self.0.description)
    }
}

impl Error for DriverFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0.source)
    }
}

impl PartialEq for DriverFailure {
    fn eq(&self, other: &Self) -> bool {
        self.0.description == other.0.description
    }
}

impl Eq for DriverFailure {}
