//! Errors of the driver, cuBLAS and NVRTC as [`BackendError`]s.

use std::ffi::CStr;

use cudarc::cublas::sys as cublas;
use cudarc::driver::DriverError;

use crate::backend::BackendError;

/// Returns the error for a failure of the driver function `call`.
#[cold]
pub(super) fn driver_error(call: &str, error: DriverError) -> BackendError {
    let words = |text: Result<&CStr, DriverError>| text.map(|text| text.to_string_lossy().into_owned());
    let name = words(error.error_name()).unwrap_or_else(|_| format!("error {}", error.0 as u32));
    let reason = match words(error.error_string()) {
        Ok(text) => format!("{name}, {text}"),
        Err(_) => name,
    };
    BackendError { call: call.to_owned(), reason }
}

/// Returns an error unless the cuBLAS function `call` succeeded.
pub(super) fn check_cublas(call: &str, status: cublas::cublasStatus_t) -> Result<(), BackendError> {
    match status {
        cublas::cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        status => Err(BackendError { call: call.to_owned(), reason: format!("{status:?}") }),
    }
}

/// Returns the error of a call that cannot be made now.
#[cold]
pub(super) fn refused(call: &str, reason: impl Into<String>) -> BackendError {
    BackendError { call: call.to_owned(), reason: reason.into() }
}

/// An extension of driver results: adds the name of the driver function to the error.
pub(super) trait Context<T> {
    fn during(self, call: &str) -> Result<T, BackendError>;
}

impl<T> Context<T> for Result<T, DriverError> {
    fn during(self, call: &str) -> Result<T, BackendError> {
        self.map_err(|error| driver_error(call, error))
    }
}
