//! Differentiable operations on tensors.
//!
//! Every operation checks its arguments, allocates its result, runs kernels, and records its
//! backward pass. Scratch memory is in the category `temporary`.

mod activation;
mod arithmetic;
mod attention;
mod convolution;
mod embedding;
mod layout;
mod linear;
mod loss;
mod norm;
mod pooling;
mod quantization;
mod reduce;

pub use convolution::ConvolutionOptions;

use vramscope_collector::{Category, Scope};

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Result, arguments};
use crate::tensor::Tensor;

/// Returns an error unless the tensors are on one device and have floating-point elements.
fn check_floats(operation: &'static str, tensors: &[&Tensor]) -> Result {
    if let Some(tensor) = tensors.iter().find(|tensor| !tensor.dtype().is_float()) {
        let dtype = tensor.dtype();
        return Err(arguments(operation, format!("a tensor of {dtype} instead of a floating-point type")));
    }
    if tensors.windows(2).all(|pair| pair[0].device().is(pair[1].device())) {
        return Ok(());
    }
    Err(arguments(operation, "the tensors are on different devices"))
}

/// Returns an error unless the tensors are on one device, and have floating-point elements and
/// equal shapes.
fn check_equal_shapes(operation: &'static str, a: &Tensor, b: &Tensor) -> Result {
    check_floats(operation, &[a, b])?;
    if a.shape() == b.shape() {
        return Ok(());
    }
    Err(arguments(operation, format!("the shapes {:?} and {:?} differ", a.shape(), b.shape())))
}

/// Returns an error unless `x` has floating-point elements, and `indices` (`u32`) are on its
/// device.
fn check_indices(operation: &'static str, x: &Tensor, indices: &Tensor) -> Result {
    check_floats(operation, &[x])?;
    if indices.dtype() != DType::U32 {
        return Err(arguments(operation, format!("indices of {} instead of u32", indices.dtype())));
    }
    if x.device().is(indices.device()) {
        return Ok(());
    }
    Err(arguments(operation, "the indices are on another device"))
}

/// Returns an error unless the weight and bias of a norm are on the device of `x` and are `f32`.
fn check_norm(operation: &'static str, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result {
    check_floats(operation, &[x, weight, bias])?;
    if weight.dtype() == DType::F32 && bias.dtype() == DType::F32 {
        return Ok(());
    }
    Err(arguments(operation, format!("a weight of {} and a bias of {} instead of f32", weight.dtype(), bias.dtype())))
}

/// Allocates scratch memory of `len` elements (`f32`).
fn scratch(device: &Device, len: usize) -> Result<Tensor> {
    let _category = Scope::of(Category::Temporary);
    Tensor::empty(device, &[len], DType::F32)
}

/// Returns a tensor with the shape of `grad` for another result: `grad` itself if nothing else uses
/// it, or else a new tensor.
fn reuse(grad: &Tensor) -> Result<Tensor> {
    if grad.is_unique() { Ok(grad.clone()) } else { grad.empty_like() }
}
