//! Functions that copy tensors' elements to the host.

use super::Tensor;
use crate::dtype::DType;
use crate::error::Result;

impl Tensor {
    /// Copies the elements to the host, as little-endian bytes. Waits for the work queued so far.
    ///
    /// # Errors
    /// If the work or the copy fails.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.bytes()];
        self.device().backend().download(self.raw(), &mut bytes)?;
        Ok(bytes)
    }

    /// Copies the elements to the host, converted to `f32`. Waits for the work queued so far.
    ///
    /// # Errors
    /// If the work or the copy fails.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        let bytes = self.to_bytes()?;
        let words = |size| bytes.chunks_exact(size);
        let half = |bytes: &[u8]| [bytes[0], bytes[1]];
        let word = |bytes: &[u8]| [bytes[0], bytes[1], bytes[2], bytes[3]];
        Ok(match self.dtype() {
            DType::F32 => words(4).map(|bytes| f32::from_le_bytes(word(bytes))).collect(),
            DType::F16 => words(2).map(|bytes| half::f16::from_le_bytes(half(bytes)).to_f32()).collect(),
            DType::Bf16 => words(2).map(|bytes| half::bf16::from_le_bytes(half(bytes)).to_f32()).collect(),
            DType::I8 => bytes.iter().map(|&byte| f32::from(byte as i8)).collect(),
            DType::U8 => bytes.iter().map(|&byte| f32::from(byte)).collect(),
            DType::U32 => words(4).map(|bytes| u32::from_le_bytes(word(bytes)) as f32).collect(),
        })
    }

    /// Copies the elements of a tensor of indices ([`DType::U32`]) to the host. Waits for the work
    /// queued so far.
    ///
    /// # Errors
    /// If the work or the copy fails.
    ///
    /// # Panics
    /// If the elements have another type.
    pub fn to_u32(&self) -> Result<Vec<u32>> {
        assert_eq!(self.dtype(), DType::U32, "to_u32() needs a tensor of u32");
        let bytes = self.to_bytes()?;
        Ok(bytes.chunks_exact(4).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect())
    }

    /// Returns the element of a tensor that has only one, as `torch.Tensor.item`. Waits for the
    /// work queued so far.
    ///
    /// # Errors
    /// If the work or the copy fails.
    ///
    /// # Panics
    /// If the tensor does not have exactly one element.
    pub fn item(&self) -> Result<f32> {
        assert_eq!(self.len(), 1, "item() needs a tensor with one element");
        Ok(self.to_f32()?[0])
    }
}
