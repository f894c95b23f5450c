//! Weights as 8-bit integers.

use vramscope_collector::{Category, Scope};

use crate::dtype::DType;
use crate::error::Result;
use crate::operation::Operation;
use crate::tensor::Tensor;

impl Tensor {
    /// Quantizes the rows to 8-bit integers. Returns the integers and one scale (`f32`) for each
    /// row, without a gradient graph.
    ///
    /// # Errors
    /// If memory or kernels fail.
    #[track_caller]
    pub(crate) fn quantized(&self) -> Result<(Self, Self)> {
        let _operation = Operation::enter("quantize");
        let codes = Self::empty(self.device(), self.shape(), DType::I8)?;
        let scales = Self::empty(self.device(), &[self.rows()], DType::F32)?;
        self.device().kernels().quantize_rows(self.raw(), codes.raw(), scales.raw())?;
        Ok((codes, scales))
    }

    /// Converts 8-bit integers back to floats by the `scales` of their rows. The result is scratch
    /// memory without a gradient graph.
    ///
    /// # Errors
    /// If memory or kernels fail.
    #[track_caller]
    pub(crate) fn dequantized(&self, scales: &Self) -> Result<Self> {
        let _operation = Operation::enter("dequantize");
        let _category = Scope::of(Category::Temporary);
        let numbers = Self::empty(self.device(), self.shape(), DType::F32)?;
        self.device().kernels().dequantize_rows(self.raw(), scales.raw(), numbers.raw())?;
        Ok(numbers)
    }
}
