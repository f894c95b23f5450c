//! Where segments come from.

use std::fmt;

/// A source of segments: a GPU through its driver, the host's memory, or [numbers alone](crate::SimulatedDevice).
pub trait Device {
    /// Reserves `bytes`, returning the address of the first. Ranges handed out and not yet released never overlap.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] where there is no room, upon which the pool gives back what it can spare and asks again.
    fn reserve(&mut self, bytes: u64) -> Result<u64, DeviceError>;

    /// Takes back a range that [`reserve`](Self::reserve) handed out, whole.
    ///
    /// # Errors
    /// The range then still counts as reserved.
    fn release(&mut self, address: u64, bytes: u64) -> Result<(), DeviceError>;

    /// How much memory there is.
    fn memory(&self) -> DeviceMemory;
}

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
