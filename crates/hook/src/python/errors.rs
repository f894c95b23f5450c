//! The errors that the functions raise.

use pyo3::PyErr;
use pyo3::exceptions::PyRuntimeError;

/// Creates a `RuntimeError`.
pub(super) fn error(reason: impl ToString) -> PyErr {
    PyRuntimeError::new_err(reason.to_string())
}
