//! Activation functions.

use super::{check_floats, reuse};
use crate::autograd::{Node, Saved};
use crate::backend::{Binary, Unary};
use crate::error::Result;
use crate::operation::Operation;
use crate::tensor::Tensor;

impl Tensor {
    /// Computes GELU of each element in its tanh approximation, as
    /// `torch.nn.GELU(approximate="tanh")`.
    ///
    /// # Errors
    /// If the elements are integers, or memory or kernels fail.
    #[track_caller]
    pub fn gelu(&self) -> Result<Self> {
        let _operation = Operation::enter("gelu");
        check_floats("gelu", &[self])?;
        let y = self.empty_like()?;
        self.device().kernels().unary(Unary::Gelu, self.raw(), y.raw())?;
        let node = Node::record("gelu", &[self], || {
            let x = Saved::new(self);
            move |grad: Self| backward("gelu", Binary::GeluBackward, x, grad)
        });
        Ok(y.with_history(node))
    }

    /// Computes max(x, 0) of each element, as `torch.relu`.
    ///
    /// # Errors
    /// If the elements are integers, or memory or kernels fail.
    #[track_caller]
    pub fn relu(&self) -> Result<Self> {
        let _operation = Operation::enter("relu");
        check_floats("relu", &[self])?;
        let y = self.empty_like()?;
        self.device().kernels().unary(Unary::Relu, self.raw(), y.raw())?;
        let node = Node::record("relu", &[self], || {
            // The backward pass only needs the result, which the next operation often saves anyway.
            let y = Saved::new(&y);
            move |grad: Self| backward("relu", Binary::ReluBackward, y, grad)
        });
        Ok(y.with_history(node))
    }

    /// Computes max(x, 0) in place, like `torch.relu_`, and returns the tensor with this operation
    /// added to its gradient graph.
    ///
    /// # Errors
    /// If the elements are integers, the tensor is a leaf that requires a gradient, or kernels
    /// fail.
    #[track_caller]
    pub fn relu_in_place(self) -> Result<Self> {
        let _operation = Operation::enter("relu_in_place");
        check_floats("relu_in_place", &[&self])?;
        self.change_in_place("relu_in_place")?;
        self.device().kernels().unary(Unary::Relu, self.raw(), self.raw())?;
        let node = Node::record("relu_in_place", &[&self], || {
            let y = Saved::new(&self);
            move |grad: Self| backward("relu_in_place", Binary::ReluBackward, y, grad)
        });
        Ok(if node.is_some() { self.with_history(node) } else { self })
    }

    /// Computes GELU in place, for inference: a backward pass through it needs the overwritten
    /// argument, and returns [`ChangedInPlace`](crate::TensorError::ChangedInPlace).
    ///
    /// # Errors
    /// If the elements are integers, the tensor is a leaf that requires a gradient, or kernels
    /// fail.
    #[track_caller]
    pub fn gelu_in_place(self) -> Result<Self> {
        let _operation = Operation::enter("gelu_in_place");
        check_floats("gelu_in_place", &[&self])?;
        let saved = self.requires_grad().then(|| Saved::new(&self));
        self.change_in_place("gelu_in_place")?;
        self.device().kernels().unary(Unary::Gelu, self.raw(), self.raw())?;
        let node = Node::record("gelu_in_place", &[&self], || {
            move |grad: Self| match saved {
                Some(saved) => backward("gelu_in_place", Binary::GeluBackward, saved, grad),
                None => Ok(vec![None]),
            }
        });
        Ok(if node.is_some() { self.with_history(node) } else { self })
    }
}

/// Computes the gradient of an activation's argument: `function` applied to the tensor that the
/// forward pass has saved and to `grad`, the gradient of the result.
fn backward(operation: &'static str, function: Binary, saved: Saved, grad: Tensor) -> Result<Vec<Option<Tensor>>> {
    let saved = saved.unpack(operation)?;
    let dx = reuse(&grad)?;
    grad.device().kernels().binary(function, saved.raw(), grad.raw(), dx.raw())?;
    drop(grad);
    Ok(vec![Some(dx)])
}
