//! Functions that create tensors.

use std::rc::Rc;

use super::{Storage, Tensor};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Result, arguments};
use crate::operation::Operation;

/// Returns the number of elements of a tensor with this shape; `None` if it overflows.
pub(crate) fn checked_len(shape: &[usize]) -> Option<usize> {
    // Leaves out dimensions of 0: kernels also multiply parts of a shape, which must not overflow.
    shape.iter().filter(|&&size| size != 0).try_fold(1usize, |len, &size| len.checked_mul(size))?;
    Some(shape.iter().product())
}

/// Returns the size in bytes of a tensor with this shape.
///
/// # Errors
/// If the size exceeds `isize::MAX`.
fn size_in_bytes(operation: &'static str, shape: &[usize], dtype: DType) -> Result<usize> {
    // Addresses within a tensor are computed with signed offsets.
    let bytes = checked_len(shape).and_then(|len| len.checked_mul(dtype.bytes()));
    bytes
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or_else(|| arguments(operation, format!("the shape {shape:?} is too large")))
}

impl Tensor {
    /// Allocates a tensor without initializing it. The calling operation writes all elements.
    #[track_caller]
    pub(crate) fn empty(device: &Device, shape: &[usize], dtype: DType) -> Result<Self> {
        let storage = Storage::allocate(device, size_in_bytes("allocate", shape, dtype)?)?;
        Ok(Self::from_storage(Rc::new(storage), 0, shape.to_vec(), dtype))
    }

    /// Allocates a tensor with the shape, type and device of this one, without initializing it.
    #[track_caller]
    pub(crate) fn empty_like(&self) -> Result<Self> {
        Self::empty(self.device(), self.shape(), self.dtype())
    }

    /// Creates a tensor whose elements are all `value`.
    ///
    /// # Errors
    /// If `dtype` is not a floating-point type, or the memory cannot be allocated or written.
    #[track_caller]
    pub fn full(device: &Device, shape: &[usize], dtype: DType, value: f32) -> Result<Self> {
        let _operation = Operation::enter("full");
        if !dtype.is_float() {
            return Err(arguments("full", format!("{dtype} is not a floating-point type")));
        }
        let tensor = Self::empty(device, shape, dtype)?;
        device.backend().fill(tensor.raw(), value)?;
        Ok(tensor)
    }

    /// Creates a tensor of zeros.
    ///
    /// # Errors
    /// As for [`full`](Self::full).
    #[track_caller]
    pub fn zeros(device: &Device, shape: &[usize], dtype: DType) -> Result<Self> {
        Self::full(device, shape, dtype, 0.0)
    }

    /// Creates a tensor of `f32` from elements on the host.
    ///
    /// # Errors
    /// If `shape` does not have as many elements as `values`, or the memory cannot be allocated or
    /// written.
    #[track_caller]
    pub fn from_f32(device: &Device, shape: &[usize], values: &[f32]) -> Result<Self> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self::from_bytes(device, shape, DType::F32, &bytes)
    }

    /// Creates a tensor of `f32` whose elements `element` returns, one a call, in row-major order.
    /// Allocates the device's memory first, so that a tensor that is too large costs no host
    /// memory.
    #[track_caller]
    pub(crate) fn from_calls(device: &Device, shape: &[usize], mut element: impl FnMut() -> f32) -> Result<Self> {
        let _operation = Operation::enter("upload");
        let tensor = Self::empty(device, shape, DType::F32)?;
        let bytes: Vec<u8> = (0..tensor.len()).flat_map(|_| element().to_le_bytes()).collect();
        device.backend().upload(&bytes, tensor.raw())?;
        Ok(tensor)
    }

    /// Creates a tensor of indices ([`DType::U32`]) from elements on the host.
    ///
    /// # Errors
    /// As [`from_f32`](Self::from_f32).
    #[track_caller]
    pub fn from_u32(device: &Device, shape: &[usize], values: &[u32]) -> Result<Self> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self::from_bytes(device, shape, DType::U32, &bytes)
    }

    /// Creates a tensor from the little-endian bytes of its elements.
    ///
    /// # Errors
    /// If `shape` does not need as many bytes, or the memory cannot be allocated or written.
    #[track_caller]
    pub fn from_bytes(device: &Device, shape: &[usize], dtype: DType, bytes: &[u8]) -> Result<Self> {
        let _operation = Operation::enter("upload");
        let expected = size_in_bytes("upload", shape, dtype)?;
        if expected != bytes.len() {
            let reason = format!("shape {shape:?} of {dtype} needs {expected} bytes, not {}", bytes.len());
            return Err(arguments("upload", reason));
        }
        let tensor = Self::empty(device, shape, dtype)?;
        device.backend().upload(bytes, tensor.raw())?;
        Ok(tensor)
    }

    /// Returns a copy in new memory, without a gradient graph.
    ///
    /// # Errors
    /// If the memory cannot be allocated or copied.
    #[track_caller]
    pub fn copied(&self) -> Result<Self> {
        let _operation = Operation::enter("copy");
        let copy = self.empty_like()?;
        self.device().backend().copy(self.raw(), copy.raw())?;
        Ok(copy)
    }
}
