//! The cross-entropy loss, and argmax.

use super::reduce::sum_of;
use super::{arguments, check_floats, check_indices, reuse};
use crate::autograd::{Node, Saved};
use crate::dtype::DType;
use crate::error::Result;
use crate::operation::Operation;
use crate::tensor::Tensor;

impl Tensor {
    /// Computes the mean cross entropy of logits `[…, classes]` and target classes (one `u32` for
    /// each row), like `torch.nn.functional.cross_entropy`. The result has one `f32` element.
    ///
    /// # Errors
    /// If the shapes or types do not fit, there are no rows, or memory or kernels fail. On the
    /// host, if a target is no class; a GPU returns NaN then.
    #[track_caller]
    pub fn cross_entropy(&self, targets: &Self) -> Result<Self> {
        let _operation = Operation::enter("cross_entropy");
        let rows = self.rows();
        check_indices("cross_entropy", self, targets)?;
        if targets.len() != rows || rows == 0 {
            return Err(arguments("cross_entropy", format!("{} targets for {rows} rows of logits", targets.len())));
        }
        let one_per_row = || Self::empty(self.device(), &[rows], DType::F32);
        let (log_sums, losses) = (one_per_row()?, one_per_row()?);
        self.device().kernels().cross_entropy(self.raw(), targets.raw(), log_sums.raw(), losses.raw())?;
        let scale = 1.0 / rows as f32;
        let loss = sum_of(&losses, scale)?;
        let node = Node::record("cross_entropy", &[self], || {
            let saved = [self, targets, &log_sums].map(Saved::new);
            move |grad: Self| {
                let [logits, targets, log_sums] = saved;
                let logits = logits.unpack("cross_entropy")?;
                let (targets, log_sums) = (targets.unpack("cross_entropy")?, log_sums.unpack("cross_entropy")?);
                // Uses the memory of the logits, if the program has dropped them.
                let d_logits = reuse(&logits)?;
                let arguments = [logits.raw(), targets.raw(), log_sums.raw()];
                grad.device().kernels().cross_entropy_backward(arguments, grad.raw(), scale, d_logits.raw())?;
                Ok(vec![Some(d_logits)])
            }
        });
        Ok(loss.with_history(node))
    }

    /// Returns the index (`u32`) of the largest element of each row, like `torch.argmax` of the
    /// last dimension. The result has one dimension. Of equal elements, the first counts; NaN
    /// counts as the largest.
    ///
    /// # Errors
    /// If the elements are integers, rows are empty, or memory or kernels fail.
    #[track_caller]
    pub fn argmax(&self) -> Result<Self> {
        let _operation = Operation::enter("argmax");
        check_floats("argmax", &[self])?;
        if self.columns() == 0 {
            return Err(arguments("argmax", "rows without elements have no largest one"));
        }
        let columns = Self::empty(self.device(), &[self.rows()], DType::U32)?;
        self.device().kernels().argmax_rows(self.raw(), columns.raw())?;
        Ok(columns)
    }
}
