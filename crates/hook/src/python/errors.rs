//! The errors that this module's Python functions raise.

use pyo3::PyErr;
use pyo3::exceptions::PyRuntimeError;

/// Creates a Python `RuntimeError` with this message.
pub(super) fn error(reason: impl ToString) -> PyErr {
    PyRuntimeError::new_err(reason.to_string())
}
