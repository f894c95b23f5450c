//! Linear layers and matrix products.

use super::{arguments, check_floats, scratch};
use crate::autocast::autocast_type;
use crate::autograd::{Node, Saved};
use crate::backend::{Gemm, partial_rows};
use crate::dtype::DType;
use crate::error::Result;
use crate::operation::Operation;
use crate::tensor::Tensor;

/// Converts an argument of a linear layer or convolution to the data type of mixed precision, if
/// that is on.
#[track_caller]
pub(super) fn cast_argument(x: &Tensor) -> Result<Tensor> {
    autocast_type().map_or_else(|| Ok(x.clone()), |dtype| x.to_dtype(dtype))
}

/// Multiplies the matrices, or batches of matrices, `a` and `b`, each transposed first where
/// `transpose` is true. The result has the shape `shape` and no gradient graph.
pub(super) fn product(
    a: &Tensor,
    b: &Tensor,
    [rows, inner, columns]: [usize; 3],
    transpose: [bool; 2],
    batch: usize,
    shape: &[usize],
) -> Result<Tensor> {
    let c = Tensor::empty(a.device(), shape, a.dtype())?;
    let gemm = Gemm {
        rows,
        inner,
        columns,
        transpose_a: transpose[0],
        transpose_b: transpose[1],
        batch,
        strides: [rows * inner, inner * columns, rows * columns],
    };
    a.device().backend().gemm(a.raw(), b.raw(), c.raw(), &gemm)?;
    Ok(c)
}

/// Returns the sum of each column of a matrix, in the data type `dtype`.
pub(super) fn column_sums(x: &Tensor, dtype: DType) -> Result<Tensor> {
    let columns = x.columns();
    let sums = Tensor::empty(x.device(), &[columns], dtype)?;
    let partials = scratch(x.device(), partial_rows(x.rows()) * columns)?;
    x.device().kernels().column_sums(x.raw(), partials.raw(), sums.raw())?;
    Ok(sums)
}

impl Tensor {
    /// Computes attention scores `[batch, queries, used]` for inference: multiplies queries
    /// `[batch, queries, width]` by the transposed first `used` keys of a cache `[batch, capacity,
    /// width]`.
    ///
    /// # Errors
    /// If the shapes do not fit, or memory or kernels fail.
    pub(crate) fn scores_of_cached(&self, keys: &Self, used: usize) -> Result<Self> {
        self.product_with_cache(keys, used, true)
    }

    /// Multiplies attention weights `[batch, queries, used]` by the first `used` values of a cache
    /// `[batch, capacity, width]`. For inference.
    ///
    /// # Errors
    /// As for [`scores_of_cached`](Self::scores_of_cached).
    pub(crate) fn sum_of_cached(&self, values: &Self, used: usize) -> Result<Self> {
        self.product_with_cache(values, used, false)
    }

    /// Multiplies this tensor by the first `used` rows of each matrix in a cache, transposed if
    /// `transpose` is true.
    fn product_with_cache(&self, cache: &Self, used: usize, transpose: bool) -> Result<Self> {
        let _operation = Operation::enter("matmul");
        let (&[batch, rows, inner], &[cached, capacity, width]) = (self.shape(), cache.shape()) else {
            return Err(arguments("matmul", "attention with a cache needs three dimensions"));
        };
        let columns = if transpose { used } else { width };
        if batch != cached || used > capacity || inner != if transpose { width } else { used } {
            let reason = format!("{:?} does not fit a cache of {:?}", self.shape(), cache.shape());
            return Err(arguments("matmul", reason));
        }
        let c = Self::empty(self.device(), &[batch, rows, columns], self.dtype())?;
        let strides = [rows * inner, capacity * width, rows * columns];
        let gemm = Gemm { rows, inner, columns, transpose_a: false, transpose_b: transpose, batch, strides };
        self.device().backend().gemm(self.raw(), cache.raw(), c.raw(), &gemm)?;
        Ok(c)
    }

    /// Computes `x weight^T + bias` of this tensor `[…, inputs]`, like
    /// `torch.nn.functional.linear`. `weight` is `[outputs, inputs]`, `bias` is `[outputs]`, and
    /// the result is `[…, outputs]`. Computes in the data type of mixed precision, if that is on.
    ///
    /// # Errors
    /// If the shapes, types or devices do not fit, or memory or kernels fail.
    #[track_caller]
    pub fn linear(&self, weight: &Self, bias: Option<&Self>) -> Result<Self> {
        let _operation = Operation::enter("linear");
        check_floats("linear", &[&[self, weight], bias.as_slice()].concat())?;
        let &[outputs, inputs] = weight.shape() else {
            return Err(arguments("linear", format!("the weight's shape {:?} is not a matrix", weight.shape())));
        };
        if self.columns() != inputs || bias.is_some_and(|bias| bias.shape() != [outputs]) {
            let reason = format!("rows of {} numbers do not fit a weight of {:?}", self.columns(), weight.shape());
            return Err(arguments("linear", reason));
        }
        let (x, weight) = (cast_argument(self)?, cast_argument(weight)?);
        if x.dtype() != weight.dtype() {
            return Err(arguments("linear", format!("the input is {} and the weight {}", x.dtype(), weight.dtype())));
        }
        let rows = x.rows();
        let mut shape = x.shape().to_vec();
        *shape.last_mut().ok_or_else(|| arguments("linear", "a single number has no rows"))? = outputs;
        let y = product(&x, &weight, [rows, inputs, outputs], [false, true], 1, &shape)?;
        if let Some(bias) = bias {
            y.device().kernels().add_bias(y.raw(), bias.raw(), y.raw())?;
        }
        let node = Node::record("linear", &[&[&x, &weight], bias.as_slice()].concat(), || {
            // Each operation saves only the tensors that the required gradients depend on.
            let x_shape = x.shape().to_vec();
            let saved_weight = x.requires_grad().then(|| Saved::new(&weight));
            let saved_x = weight.requires_grad().then(|| Saved::new(&x));
            let bias_type = bias.filter(|bias| bias.requires_grad()).map(Self::dtype);
            move |dy: Self| {
                let d_weight = match saved_x {
                    Some(x) => {
                        let x = x.unpack("linear")?;
                        Some(product(&dy, &x, [outputs, rows, inputs], [true, false], 1, &[outputs, inputs])?)
                    }
                    None => None,
                };
                let d_bias = bias_type.map(|dtype| column_sums(&dy, dtype)).transpose()?;
                let dx = match saved_weight {
                    Some(weight) => {
                        let weight = weight.unpack("linear")?;
                        Some(product(&dy, &weight, [rows, outputs, inputs], [false, false], 1, &x_shape)?)
                    }
                    None => None,
                };
                Ok(vec![dx, d_weight, d_bias])
            }
        });
        Ok(y.with_history(node))
    }

    /// Multiplies batches of matrices, as `torch.bmm`: `[batch, rows, inner]` by `[batch, inner,
    /// columns]` is `[batch, rows, columns]`. With `transpose`, the second batch is `[batch,
    /// columns, inner]`, and its matrices are transposed first.
    ///
    /// # Errors
    /// If the shapes, types or devices do not fit, or memory or kernels fail.
    #[track_caller]
    pub fn matmul(&self, other: &Self, transpose: bool) -> Result<Self> {
        let _operation = Operation::enter("matmul");
        check_floats("matmul", &[self, other])?;
        let sizes = match (self.shape(), other.shape(), transpose) {
            (&[batch, rows, inner], &[other_batch, b0, b1], _)
                if batch == other_batch && inner == if transpose { b1 } else { b0 } =>
            {
                Some((batch, rows, inner, if transpose { b0 } else { b1 }))
            }
            _ => None,
        };
        let Some((batch, rows, inner, columns)) = sizes.filter(|_| self.dtype() == other.dtype()) else {
            let (a, b) = (self.shape(), other.shape());
            let reason = format!("{a:?} of {} does not fit {b:?} of {}", self.dtype(), other.dtype());
            return Err(arguments("matmul", reason));
        };
        let shape = [batch, rows, columns];
        let c = product(self, other, [rows, inner, columns], [false, transpose], batch, &shape)?;
        let node = Node::record("matmul", &[self, other], || {
            let shapes = [self.shape().to_vec(), other.shape().to_vec()];
            let saved_other = self.requires_grad().then(|| Saved::new(other));
            let saved_self = other.requires_grad().then(|| Saved::new(self));
            move |dc: Self| {
                let da = match saved_other {
                    Some(b) => {
                        let b = b.unpack("matmul")?;
                        Some(product(&dc, &b, [rows, columns, inner], [false, !transpose], batch, &shapes[0])?)
                    }
                    None => None,
                };
                let db = match saved_self {
                    Some(a) => {
                        let a = a.unpack("matmul")?;
                        Some(if transpose {
                            product(&dc, &a, [columns, rows, inner], [true, false], batch, &shapes[1])?
                        } else {
                            product(&a, &dc, [inner, rows, columns], [true, false], batch, &shapes[1])?
                        })
                    }
                    None => None,
                };
                Ok(vec![da, db])
            }
        });
        Ok(c.with_history(node))
    }
}
