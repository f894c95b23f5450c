//! Sums, products and conversions.

use std::rc::Rc;

use super::{arguments, check_equal_shapes, check_floats};
use crate::autograd::{Node, Saved};
use crate::backend::{Binary, Unary};
use crate::dtype::DType;
use crate::error::Result;
use crate::operation::Operation;
use crate::tensor::Tensor;

/// Returns the data type of a sum or product of elements of types `a` and `b`: `a` if they are
/// equal, or else `f32`.
fn promoted(a: DType, b: DType) -> DType {
    if a == b { a } else { DType::F32 }
}

/// Returns the data types of the gradients of `a` and `b`: the tensors' own. `None` for a tensor
/// that needs no gradient.
fn gradient_types(a: &Tensor, b: &Tensor) -> [Option<DType>; 2] {
    [a, b].map(|argument| argument.requires_grad().then(|| argument.dtype()))
}

/// Records the sum of `a` and `b`. Both get the gradient of the sum, converted to their data types.
fn record_sum(operation: &'static str, a: &Tensor, b: &Tensor) -> Option<Rc<Node<Tensor>>> {
    Node::record(operation, &[a, b], || {
        let types = gradient_types(a, b);
        move |grad: Tensor| {
            types.into_iter().map(|dtype| dtype.map(|dtype| grad.converted(dtype)).transpose()).collect()
        }
    })
}

/// Returns the elementwise product of two tensors in `dtype`, without a gradient graph.
fn product(a: &Tensor, b: &Tensor, dtype: DType) -> Result<Tensor> {
    let product = Tensor::empty(a.device(), a.shape(), dtype)?;
    a.device().kernels().binary(Binary::Multiply, a.raw(), b.raw(), product.raw())?;
    Ok(product)
}

impl Tensor {
    /// Adds two tensors of equal shape. Elements of different types give an `f32`.
    ///
    /// # Errors
    /// If the shapes or devices differ, elements are integers, or memory or kernels fail.
    #[track_caller]
    pub fn add(&self, other: &Self) -> Result<Self> {
        let _operation = Operation::enter("add");
        check_equal_shapes("add", self, other)?;
        let sum = Self::empty(self.device(), self.shape(), promoted(self.dtype(), other.dtype()))?;
        self.device().kernels().combine(1.0, self.raw(), Some((1.0, other.raw())), sum.raw())?;
        Ok(sum.with_history(record_sum("add", self, other)))
    }

    /// Adds `other` to this tensor in place, like `torch.Tensor.add_`, and returns the tensor with
    /// this operation added to its gradient graph.
    ///
    /// # Errors
    /// As for [`add`](Self::add), and if the tensor is a leaf that requires a gradient.
    #[track_caller]
    pub fn add_in_place(self, other: &Self) -> Result<Self> {
        let _operation = Operation::enter("add_in_place");
        check_equal_shapes("add_in_place", &self, other)?;
        self.change_in_place("add_in_place")?;
        self.device().kernels().combine(1.0, self.raw(), Some((1.0, other.raw())), self.raw())?;
        let node = record_sum("add_in_place", &self, other);
        Ok(if node.is_some() { self.with_history(node) } else { self })
    }

    /// Adds the elements of `other` to this tensor's in place, without recording the operation.
    pub(crate) fn add_assign(&self, other: &Self) -> Result {
        let _operation = Operation::enter("add_assign");
        check_equal_shapes("add_assign", self, other)?;
        self.storage().bump_version();
        Ok(self.device().kernels().combine(1.0, self.raw(), Some((1.0, other.raw())), self.raw())?)
    }

    /// Subtracts a tensor of equal shape. Elements of different types give an `f32`.
    ///
    /// # Errors
    /// If the shapes or devices differ, elements are integers, or memory or kernels fail.
    #[track_caller]
    pub fn subtract(&self, other: &Self) -> Result<Self> {
        let _operation = Operation::enter("subtract");
        check_equal_shapes("subtract", self, other)?;
        let difference = Self::empty(self.device(), self.shape(), promoted(self.dtype(), other.dtype()))?;
        self.device().kernels().combine(1.0, self.raw(), Some((-1.0, other.raw())), difference.raw())?;
        let node = Node::record("subtract", &[self, other], || {
            let types = gradient_types(self, other);
            move |grad: Self| {
                let negative = types[1].map(|dtype| grad.scaled(-1.0, dtype)).transpose()?;
                Ok(vec![types[0].map(|dtype| grad.converted(dtype)).transpose()?, negative])
            }
        });
        Ok(difference.with_history(node))
    }

    /// Multiplies all elements by `factor`.
    ///
    /// # Errors
    /// If the elements are integers, or memory or kernels fail.
    #[track_caller]
    pub fn scale(&self, factor: f32) -> Result<Self> {
        let _operation = Operation::enter("scale");
        check_floats("scale", &[self])?;
        let scaled = self.scaled(factor, self.dtype())?;
        let node = Node::record("scale", &[self], || {
            let dtype = self.dtype();
            move |grad: Self| Ok(vec![Some(grad.scaled(factor, dtype)?)])
        });
        Ok(scaled.with_history(node))
    }

    /// Returns all elements times `factor`, in `dtype`, without a gradient graph.
    fn scaled(&self, factor: f32, dtype: DType) -> Result<Self> {
        let scaled = Self::empty(self.device(), self.shape(), dtype)?;
        self.device().kernels().combine(factor, self.raw(), None, scaled.raw())?;
        Ok(scaled)
    }

    /// Multiplies two tensors of equal shape, element by element. Elements of different types give
    /// an `f32`.
    ///
    /// # Errors
    /// If the shapes or devices differ, elements are integers, or memory or kernels fail.
    #[track_caller]
    pub fn multiply(&self, other: &Self) -> Result<Self> {
        let _operation = Operation::enter("multiply");
        check_equal_shapes("multiply", self, other)?;
        let result = product(self, other, promoted(self.dtype(), other.dtype()))?;
        let node = Node::record("multiply", &[self, other], || {
            // The gradient of each argument is a product with the other one.
            let [a, b] = gradient_types(self, other);
            let needed = [a.map(|dtype| (Saved::new(other), dtype)), b.map(|dtype| (Saved::new(self), dtype))];
            move |grad: Self| {
                let gradients = needed.into_iter().map(|needed| {
                    needed.map(|(factor, dtype)| product(&grad, &factor.unpack("multiply")?, dtype)).transpose()
                });
                gradients.collect()
            }
        });
        Ok(result.with_history(node))
    }

    /// Converts the elements to the floating-point type `dtype`. Returns this tensor if it already
    /// has this type.
    ///
    /// # Errors
    /// If a type is not a floating-point type, or memory or kernels fail.
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        let _operation = Operation::enter("to_dtype");
        let converted = self.converted(dtype)?;
        let node = Node::record("to_dtype", &[self], || {
            let from = self.dtype();
            move |grad: Self| Ok(vec![Some(grad.converted(from)?)])
        });
        Ok(converted.with_history(node))
    }

    /// Returns the elements in the floating-point type `dtype`, without a gradient graph. Shares
    /// this tensor's memory if it already has this type.
    pub(crate) fn converted(&self, dtype: DType) -> Result<Self> {
        if self.dtype() == dtype {
            return Ok(if self.requires_grad() { self.detach() } else { self.clone() });
        }
        if !self.dtype().is_float() || !dtype.is_float() {
            return Err(arguments("to_dtype", format!("cannot convert {} to {dtype}", self.dtype())));
        }
        let converted = Self::empty(self.device(), self.shape(), dtype)?;
        self.device().kernels().unary(Unary::Copy, self.raw(), converted.raw())?;
        Ok(converted)
    }
}
