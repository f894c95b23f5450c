//! The softmax of causal attention.

use super::{arguments, check_floats, reuse};
use crate::autograd::{Node, Saved};
use crate::backend::Softmax;
use crate::error::Result;
use crate::operation::Operation;
use crate::tensor::Tensor;

impl Tensor {
    /// Computes the attention weights of scores `[batch, queries, keys]`: the softmax of each row
    /// times `scale`, over the keys up to the query's own position. Later keys get the weight 0.
    ///
    /// `first` is the position of the first query: the number of keys from earlier calls in a KV
    /// cache, or 0.
    ///
    /// # Errors
    /// If the tensor has another number of dimensions, or memory or kernels fail.
    #[track_caller]
    pub fn causal_softmax(&self, scale: f32, first: usize) -> Result<Self> {
        let _operation = Operation::enter("softmax");
        check_floats("softmax", &[self])?;
        let &[_, queries, keys] = self.shape() else {
            return Err(arguments("softmax", format!("the shape {:?} is not [batch, queries, keys]", self.shape())));
        };
        let shape = Softmax { rows: self.rows(), columns: keys, scale, queries: queries.max(1), first };
        let y = self.empty_like()?;
        self.device().kernels().softmax(self.raw(), y.raw(), &shape)?;
        let node = Node::record("softmax", &[self], || {
            let y = Saved::new(&y);
            move |grad: Self| {
                let y = y.unpack("softmax")?;
                let dx = reuse(&grad)?;
                grad.device().kernels().softmax_backward(y.raw(), grad.raw(), dx.raw(), &shape)?;
                drop(grad);
                Ok(vec![Some(dx)])
            }
        });
        Ok(y.with_history(node))
    }
}
