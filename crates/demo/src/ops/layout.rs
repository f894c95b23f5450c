//! Changes of shape, and copies between tensors of different strides.

use std::cell::RefCell;
use std::rc::Rc;

use super::{arguments, check_floats};
use crate::autograd::Node;
use crate::backend::StridedCopy;
use crate::error::Result;
use crate::operation::Operation;
use crate::tensor::{Tensor, checked_len};

impl Tensor {
    /// Returns a tensor of another shape in this tensor's memory.
    ///
    /// # Errors
    /// If `shape` has more or fewer elements.
    #[track_caller]
    pub fn reshape(&self, shape: &[usize]) -> Result<Self> {
        let _operation = Operation::enter("reshape");
        if checked_len(shape) != Some(self.len()) {
            let reason = format!("{:?} does not have as many elements as {shape:?}", self.shape());
            return Err(arguments("reshape", reason));
        }
        let node = Node::record("reshape", &[self], || {
            let shape = self.shape().to_vec();
            move |grad: Self| Ok(vec![Some(grad.with_shape(shape))])
        });
        Ok(self.with_shape(shape.to_vec()).with_history(node))
    }

    /// Returns the part of `len` indices from `start` on in the first dimension, in this tensor's
    /// memory, like `torch.narrow` of dimension 0. Not differentiable.
    ///
    /// # Errors
    /// If the part exceeds the dimension, or the tensor requires a gradient.
    pub fn narrow(&self, start: usize, len: usize) -> Result<Self> {
        if self.requires_grad() {
            return Err(arguments("narrow", "it has no backward pass: use a tensor that requires no gradient"));
        }
        match self.shape().first() {
            Some(&count) if start.checked_add(len).is_some_and(|end| end <= count) => Ok(self.part(start, len)),
            _ => Err(arguments("narrow", format!("{:?} has no {len} elements from {start} on", self.shape()))),
        }
    }

    /// Splits a combined projection `[sequences, length, PARTS * heads * width]`, such as the
    /// queries, keys and values of attention, into copies of its parts: `[sequences * heads,
    /// length, width]`.
    ///
    /// # Errors
    /// If the shape does not fit, or memory or kernels fail.
    #[track_caller]
    pub fn split_heads<const PARTS: usize>(&self, heads: usize) -> Result<[Self; PARTS]> {
        let _operation = Operation::enter("split_heads");
        let (sequences, length, columns) = match *self.shape() {
            [sequences, length, columns] if heads > 0 && columns.is_multiple_of(PARTS * heads) => {
                (sequences, length, columns)
            }
            _ => return Err(arguments("split_heads", format!("{:?} has no {heads} heads", self.shape()))),
        };
        let heads = Heads { sequences, length, heads, width: columns / (PARTS * heads), parts: PARTS };
        // The gradients of all parts are written to one tensor, which the first part's backward
        // pass creates. The node `whole` runs after all parts and passes this tensor on.
        let whole = self.with_history(Node::record("split_heads", &[self], || |grad: Self| Ok(vec![Some(grad)])));
        let gradient = Rc::new(RefCell::new(None));
        let mut parts = Vec::with_capacity(PARTS);
        for part in 0..PARTS {
            let copied = Self::empty(self.device(), &[sequences * heads.heads, length, heads.width], self.dtype())?;
            self.device().kernels().copy_strided(self.raw(), copied.raw(), &heads.split(part))?;
            let node = Node::record("split_heads", &[&whole], || {
                let (shape, gradient) = (self.shape().to_vec(), Rc::clone(&gradient));
                move |grad: Self| {
                    let present = gradient.borrow().clone();
                    let (target, created) = match present {
                        Some(target) => (target, None),
                        None => {
                            let target = Self::empty(grad.device(), &shape, grad.dtype())?;
                            target.device().backend().fill(target.raw(), 0.0)?;
                            gradient.replace(Some(target.clone()));
                            (target.clone(), Some(target))
                        }
                    };
                    grad.device().kernels().copy_strided(grad.raw(), target.raw(), &heads.merge(part))?;
                    Ok(vec![created])
                }
            });
            parts.push(copied.with_history(node));
        }
        parts.try_into().map_err(|_| arguments("split_heads", "wrong number of parts"))
    }

    /// Merges the heads of attention's result: `[sequences * heads, length, width]` becomes
    /// `[sequences, length, heads * width]`.
    ///
    /// # Errors
    /// If the shape does not fit, or memory or kernels fail.
    #[track_caller]
    pub fn merge_heads(&self, heads: usize) -> Result<Self> {
        let _operation = Operation::enter("merge_heads");
        let (count, length, width) = match *self.shape() {
            [count, length, width] if heads > 0 && count.is_multiple_of(heads) => (count, length, width),
            _ => return Err(arguments("merge_heads", format!("{:?} has no {heads} heads", self.shape()))),
        };
        let heads = Heads { sequences: count / heads, length, heads, width, parts: 1 };
        let merged = Self::empty(self.device(), &[heads.sequences, length, heads.heads * width], self.dtype())?;
        self.device().kernels().copy_strided(self.raw(), merged.raw(), &heads.merge(0))?;
        let node = Node::record("merge_heads", &[self], || {
            move |grad: Self| {
                let split = Self::empty(grad.device(), &[count, length, width], grad.dtype())?;
                grad.device().kernels().copy_strided(grad.raw(), split.raw(), &heads.split(0))?;
                Ok(vec![Some(split)])
            }
        });
        Ok(merged.with_history(node))
    }

    /// Returns a copy with the dimensions in the order `order`, without a gradient graph.
    pub(super) fn permuted(&self, order: [usize; 4]) -> Result<Self> {
        let Ok(shape) = <[usize; 4]>::try_from(self.shape()) else {
            return Err(arguments("convolution", format!("{:?} does not have four dimensions", self.shape())));
        };
        let strides = contiguous(shape);
        let dims = order.map(|dimension| shape[dimension]);
        let copy = StridedCopy {
            dims,
            from_offset: 0,
            from_strides: order.map(|dimension| strides[dimension]),
            to_offset: 0,
            to_strides: contiguous(dims),
        };
        let permuted = Self::empty(self.device(), &dims, self.dtype())?;
        self.device().kernels().copy_strided(self.raw(), permuted.raw(), &copy)?;
        Ok(permuted)
    }

    /// Appends the rows of `other` `[batch, rows, width]` to a cache `[batch, capacity, width]`
    /// after its first `used` rows, in place; for inference.
    ///
    /// # Errors
    /// If the cache is too short, or kernels fail.
    pub(crate) fn append_rows(&self, other: &Self, used: usize) -> Result {
        let (&[batch, capacity, width], &[other_batch, rows, other_width]) = (self.shape(), other.shape()) else {
            return Err(arguments("append_rows", "caches have three dimensions"));
        };
        check_floats("append_rows", &[self, other])?;
        if [batch, width] != [other_batch, other_width] || self.dtype() != other.dtype() {
            let (cache, rows) = (self.shape(), other.shape());
            let reason = format!("{rows:?} of {} does not fit a cache of {cache:?} of {}", other.dtype(), self.dtype());
            return Err(arguments("append_rows", reason));
        }
        if used + rows > capacity {
            return Err(arguments("append_rows", format!("{rows} rows do not fit after {used} of {capacity}")));
        }
        self.storage().bump_version();
        let copy = StridedCopy {
            dims: [1, batch, rows, width],
            from_offset: 0,
            from_strides: [0, rows * width, width, 1],
            to_offset: used * width,
            to_strides: [0, capacity * width, width, 1],
        };
        Ok(self.device().kernels().copy_strided(other.raw(), self.raw(), &copy)?)
    }
}

/// Returns the strides of a contiguous tensor, in elements.
fn contiguous(dims: [usize; 4]) -> [usize; 4] {
    [dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1]
}

/// The layout of attention heads in a projection of `parts` parts.
#[derive(Clone, Copy)]
struct Heads {
    sequences: usize,
    length: usize,
    heads: usize,
    width: usize,
    parts: usize,
}

impl Heads {
    /// Returns the copy of one part from `[sequences, length, parts, heads, width]` to `[sequences,
    /// heads, length, width]`.
    fn split(&self, part: usize) -> StridedCopy {
        let Self { sequences, length, heads, width, parts } = *self;
        let row = parts * heads * width;
        StridedCopy {
            dims: [sequences, heads, length, width],
            from_offset: part * heads * width,
            from_strides: [length * row, width, row, 1],
            to_offset: 0,
            to_strides: contiguous([sequences, heads, length, width]),
        }
    }

    /// Returns the copy of one part from `[sequences, heads, length, width]` to `[sequences,
    /// length, parts, heads, width]`.
    fn merge(&self, part: usize) -> StridedCopy {
        let StridedCopy { dims, from_offset, from_strides, to_offset, to_strides } = self.split(part);
        StridedCopy {
            dims,
            from_offset: to_offset,
            from_strides: to_strides,
            to_offset: from_offset,
            to_strides: from_strides,
        }
    }
}
