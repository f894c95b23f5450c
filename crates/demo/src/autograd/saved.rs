//! Tensors that a backward pass needs.

use crate::error::{Result, TensorError};
use crate::tensor::Tensor;

/// A tensor saved for the backward pass, with the version of its memory.
///
/// It has no history: a graph that saved its own results would never be freed.
pub(crate) struct Saved {
    tensor: Tensor,
    version: u64,
}

impl Saved {
    /// Saves a tensor as it is now.
    pub(crate) fn new(tensor: &Tensor) -> Self {
        Self { tensor: tensor.detach(), version: tensor.storage().version() }
    }

    /// Returns the tensor, for the backward pass of `operation`.
    ///
    /// # Errors
    /// If its numbers were changed in place since.
    pub(crate) fn unpack(self, operation: &'static str) -> Result<Tensor> {
        if self.tensor.storage().version() == self.version {
            Ok(self.tensor)
        } else {
            Err(TensorError::ChangedInPlace { operation })
        }
    }
}
