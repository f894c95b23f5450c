//! Saved tensors: the tensors that an operation keeps for its backward pass.

use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

/// A tensor saved for the backward pass, with the version of its memory at that time.
///
/// The saved tensor has no gradient graph: a graph that saved its own results would never be freed.
pub(crate) struct Saved {
    tensor: Tensor,
    version: u64,
}

impl Saved {
    /// Saves a tensor with the present version of its memory.
    pub(crate) fn new(tensor: &Tensor) -> Self {
        Self { tensor: tensor.detach(), version: tensor.storage().version() }
    }

    /// Returns the tensor. An error names `operation`, whose backward pass needs the tensor.
    ///
    /// # Errors
    /// If the tensor was changed in place since it was saved.
    pub(crate) fn unpack(self, operation: &'static str) -> Result<Tensor> {
        if self.tensor.storage().version() == self.version {
            Ok(self.tensor)
        } else {
            Err(TensorError::ChangedInPlace { operation })
        }
    }
}
