//! Sums and means of all elements.

use super::{check_floats, scratch};
use crate::autograd::Node;
use crate::backend::NUMBERS_PER_PARTIAL;
use crate::dtype::DType;
use crate::error::Result;
use crate::operation::Operation;
use crate::tensor::Tensor;

/// Returns the sum of all elements, times `scale`, without a gradient graph.
pub(super) fn sum_of(x: &Tensor, scale: f32) -> Result<Tensor> {
    let sum = Tensor::empty(x.device(), &[1], DType::F32)?;
    let partials = scratch(x.device(), x.len().div_ceil(NUMBERS_PER_PARTIAL))?;
    x.device().kernels().sum(x.raw(), partials.raw(), sum.raw(), scale)?;
    Ok(sum)
}

impl Tensor {
    /// Returns the mean of all elements, as a tensor with one `f32` element.
    ///
    /// # Errors
    /// If the elements are integers, or memory or kernels fail.
    #[track_caller]
    pub fn mean(&self) -> Result<Self> {
        let _operation = Operation::enter("mean");
        check_floats("mean", &[self])?;
        let scale = 1.0 / self.len() as f32;
        let mean = sum_of(self, scale)?;
        let node = Node::record("mean", &[self], || {
            let (shape, dtype) = (self.shape().to_vec(), self.dtype());
            move |grad: Self| {
                let spread = Self::empty(grad.device(), &shape, dtype)?;
                let group = spread.len();
                grad.device().kernels().spread_groups(grad.raw(), spread.raw(), group, scale)?;
                Ok(vec![Some(spread)])
            }
        });
        Ok(mean.with_history(node))
    }
}
