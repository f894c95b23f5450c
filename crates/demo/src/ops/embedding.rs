//! Embeddings: rows of a table, looked up by index.

use super::{arguments, check_indices};
use crate::autograd::{Node, Saved};
use crate::error::Result;
use crate::operation::Operation;
use crate::tensor::Tensor;

impl Tensor {
    /// Returns row `indices[n]` of this table `[rows, width]` for each index (`u32`), as
    /// `torch.nn.functional.embedding`. The result has the dimensions of the indices, then `width`.
    ///
    /// # Errors
    /// If the shapes or types do not fit, or memory or kernels fail. On the host, if an index is
    /// beyond the table; a GPU returns zeros for it.
    #[track_caller]
    pub fn embedding(&self, indices: &Self) -> Result<Self> {
        let _operation = Operation::enter("embedding");
        let &[rows, width] = self.shape() else {
            return Err(arguments("embedding", format!("the table's shape {:?} is not a matrix", self.shape())));
        };
        check_indices("embedding", self, indices)?;
        let shape = [indices.shape(), &[width]].concat();
        let found = Self::empty(self.device(), &shape, self.dtype())?;
        self.device().kernels().gather_rows(self.raw(), indices.raw(), found.raw())?;
        let node = Node::record("embedding", &[self], || {
            let (indices, dtype) = (Saved::new(indices), self.dtype());
            move |grad: Self| {
                let indices = indices.unpack("embedding")?;
                let d_table = Self::empty(grad.device(), &[rows, width], dtype)?;
                grad.device().kernels().scatter_add_rows(grad.raw(), indices.raw(), d_table.raw())?;
                Ok(vec![Some(d_table)])
            }
        });
        Ok(found.with_history(node))
    }
}
