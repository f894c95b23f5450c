//! Layer norm and batch norm.

use std::rc::Rc;

use super::{arguments, check_norm, scratch};
use crate::autocast::autocast_type;
use crate::autograd::{Node, Saved};
use crate::backend::{ChannelNorm, Norm, NormBackward, partial_rows};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::operation::Operation;
use crate::tensor::Tensor;

/// The value that norms add to the variance: PyTorch's default.
const EPSILON: f32 = 1e-5;

impl Tensor {
    /// Normalizes each row to mean 0 and variance 1, then multiplies it by `weight` and adds `bias`
    /// (`f32`, one row), like `torch.nn.functional.layer_norm` of the last dimension. In mixed
    /// precision, the result has the data type of mixed precision.
    ///
    /// # Errors
    /// If the shapes, types or devices do not fit, or memory or kernels fail.
    #[track_caller]
    pub fn layer_norm(&self, weight: &Self, bias: &Self) -> Result<Self> {
        let _operation = Operation::enter("layer_norm");
        check_norm("layer_norm", self, weight, bias)?;
        let (rows, columns) = (self.rows(), self.columns());
        if weight.shape() != [columns] || bias.shape() != [columns] {
            let reason = format!("rows of {columns} numbers do not fit a weight of {:?}", weight.shape());
            return Err(arguments("layer_norm", reason));
        }
        let y = Self::empty(self.device(), self.shape(), autocast_type().unwrap_or(self.dtype()))?;
        let statistics = Self::empty(self.device(), &[rows, 2], DType::F32)?;
        self.device().kernels().layer_norm(&norm(self, weight, bias, &y, &statistics), EPSILON)?;
        Ok(y.with_history(record("layer_norm", [self, weight, bias], &statistics, move |device, norm| {
            let partials = scratch(device, 2 * partial_rows(rows) * columns)?;
            Ok(device.kernels().layer_norm_backward(norm, partials.raw())?)
        })))
    }

    /// Normalizes each channel of images `[images, channels, height, width]` to mean 0 and variance
    /// 1 over the batch, then multiplies it by `weight` and adds `bias` (one `f32` for each
    /// channel), like `torch.nn.functional.batch_norm` in training.
    ///
    /// # Errors
    /// If the shapes, types or devices do not fit, or memory or kernels fail.
    #[track_caller]
    pub fn batch_norm(&self, weight: &Self, bias: &Self) -> Result<Self> {
        let _operation = Operation::enter("batch_norm");
        check_norm("batch_norm", self, weight, bias)?;
        let shape = match *self.shape() {
            [images, channels, height, width] if weight.shape() == [channels] && bias.shape() == [channels] => {
                ChannelNorm { images, channels, pixels: height * width, epsilon: EPSILON }
            }
            _ => {
                let reason = format!("{:?} does not fit a weight of {:?}", self.shape(), weight.shape());
                return Err(arguments("batch_norm", reason));
            }
        };
        let y = self.empty_like()?;
        let statistics = Self::empty(self.device(), &[shape.channels, 2], DType::F32)?;
        self.device().kernels().batch_norm(&norm(self, weight, bias, &y, &statistics), &shape)?;
        Ok(y.with_history(record("batch_norm", [self, weight, bias], &statistics, move |device, norm| {
            Ok(device.kernels().batch_norm_backward(norm, &shape)?)
        })))
    }
}

/// Returns the backend's description of a norm's tensors.
fn norm<'a>(x: &'a Tensor, weight: &'a Tensor, bias: &'a Tensor, y: &'a Tensor, statistics: &'a Tensor) -> Norm<'a> {
    Norm { x: x.raw(), weight: weight.raw(), bias: bias.raw(), y: y.raw(), statistics: statistics.raw() }
}

/// Adds a norm with the backward pass `backward` to the gradient graph.
fn record(
    operation: &'static str,
    [x, weight, bias]: [&Tensor; 3],
    statistics: &Tensor,
    backward: impl FnOnce(&Device, &NormBackward<'_>) -> Result + 'static,
) -> Option<Rc<Node<Tensor>>> {
    Node::record(operation, &[x, weight, bias], || {
        let saved = [x, weight, statistics].map(Saved::new);
        move |dy: Tensor| {
            let [x, weight, statistics] = saved;
            let x = x.unpack(operation)?;
            let (weight, statistics) = (weight.unpack(operation)?, statistics.unpack(operation)?);
            let dx = x.empty_like()?;
            let (d_weight, d_bias) = (weight.empty_like()?, weight.empty_like()?);
            let norm = NormBackward {
                x: x.raw(),
                dy: dy.raw(),
                weight: weight.raw(),
                statistics: statistics.raw(),
                dx: dx.raw(),
                d_weight: d_weight.raw(),
                d_bias: d_bias.raw(),
            };
            backward(x.device(), &norm)?;
            Ok(vec![Some(dx), Some(d_weight), Some(d_bias)])
        }
    })
}
