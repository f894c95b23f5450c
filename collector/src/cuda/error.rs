//! Errors of the CUDA driver.

use cudarc::driver::{DriverError, sys};
use vramscope_pool::DeviceError;

/// Why a GPU cannot be opened as a [`CudaDevice`](super::CudaDevice).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// This machine has no NVIDIA driver.
    #[error("CUDA is not available: the driver's library (libcuda.so.1) cannot be loaded; install the NVIDIA driver")]
    NoDriver,
    /// The driver is older than CUDA 11.4.
    #[error(
        "the NVIDIA driver supports CUDA {}.{}; CUDA 11.4 or newer is required: update the driver",
        cuda_version / 1000,
        cuda_version % 1000 / 10
    )]
    OldDriver {
        /// Newest CUDA version it supports: 1000 × major + 10 × minor, so 10020 is CUDA 10.2.
        cuda_version: i32,
    },
    /// The driver has no device with this number.
    #[error("{}", no_device(*ordinal, *devices))]
    NoDevice {
        /// The requested device's number.
        ordinal: usize,
        /// Number of devices on this machine.
        devices: usize,
    },
    /// A driver function failed.
    #[error("the CUDA driver failed: {description}")]
    Driver {
        /// The driver function, with the driver's name and description of the error.
        description: String,
        /// The error that the driver returned.
        source: DriverError,
    },
}

/// Returns the text of [`CudaError::NoDevice`], in singular or plural.
fn no_device(ordinal: usize, devices: usize) -> String {
    match devices {
        0 => "CUDA is not available: the driver finds no device".to_owned(),
        1 => format!("no CUDA device {ordinal}: this machine has 1 device"),
        _ => format!("no CUDA device {ordinal}: this machine has {devices} devices"),
    }
}

/// Returns the text `CALL: NAME, DESCRIPTION` for a failure of the driver function `call`, with the
/// driver's name and description of the error.
fn describe(call: &str, error: DriverError) -> String {
    let words = |text: Result<&std::ffi::CStr, DriverError>| text.map(|text| text.to_string_lossy().into_owned());
    let name = words(error.error_name()).unwrap_or_else(|_| format!("error {}", error.0 as u32));
    match words(error.error_string()) {
        Ok(text) => format!("{call}: {name}, {text}"),
        Err(_) => format!("{call}: {name}"),
    }
}

/// A driver function that failed, and its error.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailedCall {
    call: &'static str,
    error: DriverError,
}

/// Names the driver function `call` in the error of its result.
pub(super) fn of_call<T>(call: &'static str, result: Result<T, DriverError>) -> Result<T, FailedCall> {
    result.map_err(|error| FailedCall { call, error })
}

impl From<FailedCall> for DeviceError {
    fn from(FailedCall { call, error }: FailedCall) -> Self {
        device_error(call, error)
    }
}

impl From<FailedCall> for CudaError {
    fn from(FailedCall { call, error }: FailedCall) -> Self {
        Self::Driver { description: describe(call, error), source: error }
    }
}

/// Converts a failure of the driver function `call` to the pool's error type, which distinguishes
/// out of memory from all other failures.
pub(super) fn device_error(call: &str, error: DriverError) -> DeviceError {
    match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => DeviceError::OutOfMemory,
        _ => DeviceError::driver(describe(call, error), error),
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use vramscope_pool::AllocateError;

    use super::*;

    #[test]
    fn source_is_the_drivers_error() {
        // Without a driver, its errors have no text and cannot be displayed.
        let invalid = DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE);
        let check = |error: &dyn Error| {
            let source = error.source().and_then(|source| source.downcast_ref::<DriverError>());
            assert!(source.is_some_and(|source| *source == invalid));
        };
        check(&CudaError::Driver { description: String::new(), source: invalid });
        check(&DeviceError::driver("cuMemCreate", invalid));
        check(&AllocateError::from(DeviceError::driver("cuMemCreate", invalid)));
    }

    #[test]
    fn errors_name_the_missing_driver_or_device() {
        let check = |error: CudaError, expected: &str| assert_eq!(error.to_string(), expected);
        check(
            CudaError::NoDriver,
            "CUDA is not available: the driver's library (libcuda.so.1) cannot be loaded; install the NVIDIA driver",
        );
        check(CudaError::NoDevice { ordinal: 0, devices: 0 }, "CUDA is not available: the driver finds no device");
        check(CudaError::NoDevice { ordinal: 2, devices: 1 }, "no CUDA device 2: this machine has 1 device");
        check(
            CudaError::OldDriver { cuda_version: 10020 },
            "the NVIDIA driver supports CUDA 10.2; CUDA 11.4 or newer is required: update the driver",
        );
    }
}
