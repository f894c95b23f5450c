//! Why a GPU cannot be had, and the driver's errors in words.

use std::fmt;

use cudarc::driver::{DriverError, sys};
use vramscope_pool::DeviceError;

/// Why there is no such device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CudaError {
    /// This machine has no NVIDIA driver.
    NoDriver,
    /// The driver is of before CUDA 11.4.
    OldDriver {
        /// The newest CUDA that it runs, 1000 times the major number and 10 times the minor one: 10020 is CUDA 10.2.
        cuda_version: i32,
    },
    /// The driver is there and the device is not.
    NoDevice {
        /// The number that was asked for.
        ordinal: usize,
        /// How many devices there are.
        devices: usize,
    },
    /// The driver refused.
    Driver(String),
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver => f.write_str("no CUDA here: the driver's library (libcuda.so.1) cannot be loaded"),
            Self::OldDriver { cuda_version: version } => {
                let (major, minor) = (version / 1000, version % 1000 / 10);
                write!(f, "the NVIDIA driver runs CUDA {major}.{minor} at most; 11.4 is needed")
            }
            Self::NoDevice { devices: 0, .. } => f.write_str("no CUDA here: the driver finds no device"),
            Self::NoDevice { ordinal, devices } => write!(f, "there is no CUDA device {ordinal}: there are {devices}"),
            Self::Driver(reason) => write!(f, "the CUDA driver failed: {reason}"),
        }
    }
}

impl std::error::Error for CudaError {}

/// What went wrong in the driver's function `call`, in the driver's words.
pub(super) fn describe(call: &str, error: DriverError) -> String {
    let words = |text: Result<&std::ffi::CStr, DriverError>| text.map(|text| text.to_string_lossy().into_owned());
    let name = words(error.error_name()).unwrap_or_else(|_| format!("error {}", error.0 as u32));
    match words(error.error_string()) {
        Ok(text) => format!("{call}: {name}, {text}"),
        Err(_) => format!("{call}: {name}"),
    }
}

/// The error of the driver's function `call` as a pool is told of it.
pub(super) fn refused(call: &str, error: DriverError) -> DeviceError {
    match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => DeviceError::OutOfMemory,
        _ => DeviceError::Failed(describe(call, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_is_missing() {
        let check = |error: CudaError, expected: &str| assert_eq!(error.to_string(), expected);
        check(CudaError::NoDriver, "no CUDA here: the driver's library (libcuda.so.1) cannot be loaded");
        check(CudaError::NoDevice { ordinal: 0, devices: 0 }, "no CUDA here: the driver finds no device");
        check(CudaError::NoDevice { ordinal: 2, devices: 1 }, "there is no CUDA device 2: there are 1");
        check(CudaError::OldDriver { cuda_version: 10020 }, "the NVIDIA driver runs CUDA 10.2 at most; 11.4 is needed");
    }
}
