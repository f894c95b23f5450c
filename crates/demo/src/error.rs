//! Errors of tensor operations.

use thiserror::Error;
use vramscope_collector::{AllocateError, DeviceError, FreeError, MempoolError};

use crate::backend::BackendError;

/// An error of a tensor operation.
#[derive(Debug, Error)]
pub enum TensorError {
    /// The memory for a result could not be allocated. The operation has changed no tensor.
    #[error(transparent)]
    Memory(#[from] AllocateError),
    /// A kernel, a copy or a library failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The pool's device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Memory could not be freed, or its use on another stream could not be recorded.
    #[error(transparent)]
    Free(#[from] FreeError),
    /// A private pool could not be used.
    #[error(transparent)]
    Mempool(#[from] MempoolError),
    /// The shapes or types of the arguments do not fit.
    #[error("{operation}: {reason}")]
    Arguments {
        /// The operation.
        operation: &'static str,
        /// The reason why the arguments do not fit, for the message.
        reason: String,
    },
    /// An in-place operation has changed a tensor that the backward pass needs.
    #[error(
        "{operation}: its backward pass needs a tensor that was changed in place afterwards: \
         change a copy instead"
    )]
    ChangedInPlace {
        /// The operation whose backward pass needs the tensor.
        operation: &'static str,
    },
    /// An in-place operation on a leaf: a tensor that requires a gradient and was not computed.
    #[error("{operation}: a parameter cannot be changed in place while gradients are recorded: use no_grad")]
    InPlaceOnLeaf {
        /// The in-place operation.
        operation: &'static str,
    },
    /// An earlier backward pass has freed the saved tensors of the graph.
    #[error("{operation}: an earlier backward pass has freed the graph: compute the loss again")]
    GraphFreed {
        /// The operation whose saved tensors were freed.
        operation: &'static str,
    },
    /// A backward pass of a tensor without a gradient graph.
    #[error("backward: the tensor depends on no tensor that requires a gradient: see Tensor::with_grad")]
    NoGraph,
}

/// Returns an error about the arguments of `operation`.
pub(crate) fn arguments(operation: &'static str, reason: impl Into<String>) -> TensorError {
    TensorError::Arguments { operation, reason: reason.into() }
}

impl TensorError {
    /// Returns true if the device or the pool's limit had no memory left.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Memory(AllocateError::OutOfMemory(_)))
    }
}

/// The result of a tensor operation.
pub type Result<T = (), E = TensorError> = std::result::Result<T, E>;
