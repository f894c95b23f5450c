//! Where memory comes from.

use std::fmt;

use vramscope_trace::StreamId;

/// A source of memory: a GPU through its driver, the host's memory, or [numbers alone](crate::SimulatedDevice).
///
/// The first part is all that a pool needs. The second is asked for only under expandable segments, the third only where a block was
/// used on another stream than its own; a device that has none of that keeps what stands here.
pub trait Device {
    /// Reserves `bytes` of memory, returning the address of the first. Ranges handed out and not yet released never overlap.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] where there is no room, upon which the pool gives back what it can spare and asks again.
    fn reserve(&mut self, bytes: u64) -> Result<u64, DeviceError>;

    /// Takes back a range that [`reserve`](Self::reserve) handed out, whole, once all work queued on the device is done.
    ///
    /// # Errors
    /// The range then still counts as reserved.
    fn release(&mut self, address: u64, bytes: u64) -> Result<(), DeviceError>;

    /// How much memory there is.
    fn memory(&self) -> DeviceMemory;

    /// Reserves `bytes` of addresses with no memory behind them, a multiple of every page size that [`map`](Self::map) is given.
    ///
    /// # Errors
    /// When the device has no such addresses.
    fn reserve_addresses(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        Err(DeviceError::Failed(format!("it has no expandable segments ({bytes} bytes of addresses were asked for)")))
    }

    /// Takes back addresses that [`reserve_addresses`](Self::reserve_addresses) handed out, whole and with nothing mapped.
    ///
    /// # Errors
    /// The addresses then still count as reserved.
    fn release_addresses(&mut self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        Err(DeviceError::Failed(format!("no addresses are reserved at {address:#x} ({bytes} bytes)")))
    }

    /// Puts memory behind reserved addresses, a whole number of pages of `page_bytes` each; all of them or none.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] where there is no room.
    fn map(&mut self, address: u64, bytes: u64, page_bytes: u64) -> Result<(), DeviceError> {
        let _ = page_bytes;
        Err(DeviceError::Failed(format!("no addresses are reserved at {address:#x} ({bytes} bytes)")))
    }

    /// Takes the memory behind a whole number of mapped pages back, once the work queued on `stream` is done.
    ///
    /// # Errors
    /// The pages then still count as mapped.
    fn unmap(&mut self, address: u64, bytes: u64, page_bytes: u64, stream: StreamId) -> Result<(), DeviceError> {
        let _ = (page_bytes, stream);
        Err(DeviceError::Failed(format!("nothing is mapped at {address:#x} ({bytes} bytes)")))
    }

    /// Puts an event behind all work that is queued on `stream` now. It is gone once it was seen to have passed, or was waited for.
    ///
    /// # Errors
    /// When the device has no such stream.
    fn record_event(&mut self, stream: StreamId) -> Result<StreamEvent, DeviceError> {
        let _ = stream;
        Ok(StreamEvent(0))
    }

    /// Whether all work before an event is done.
    ///
    /// # Errors
    /// When the work failed.
    fn has_passed(&mut self, event: StreamEvent) -> Result<bool, DeviceError> {
        let _ = event;
        Ok(true)
    }

    /// Returns once all work before an event is done.
    ///
    /// # Errors
    /// When the work failed.
    fn wait_for(&mut self, event: StreamEvent) -> Result<(), DeviceError> {
        let _ = event;
        Ok(())
    }
}

/// An event in the work of a stream, by the number that its device gave it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamEvent(pub u64);

/// How much memory a device has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Bytes free, for this and every other program.
    pub free_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

/// Why a device refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// It has no room left.
    OutOfMemory,
    /// Something else went wrong, in the device's words.
    Failed(String),
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory => f.write_str("the device is out of memory"),
            Self::Failed(reason) => write!(f, "the device failed: {reason}"),
        }
    }
}

impl std::error::Error for DeviceError {}
