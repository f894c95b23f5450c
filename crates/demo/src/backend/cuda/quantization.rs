//! Launches the kernels of `kernels/quantization.cu`.

use super::kernels::{Kernel, Variant};
use super::launch::{
    FLAT_THREADS, Floats, Launcher, MOST_THREADS, ROW_NUMBERS, RowGrid, aligned, dimension, f32s, flat_blocks, launch,
};
use crate::backend::{QuantizationKernels, RawSlice, Result};
use crate::dtype::DType;

impl QuantizationKernels for Launcher {
    fn quantize_rows(&self, x: RawSlice<'_>, codes: RawSlice<'_>, scales: RawSlice<'_>) -> Result {
        let rows = scales.len();
        assert_eq!((codes.dtype(), codes.len()), (DType::I8, x.len()), "there is one code a number");
        let Some(columns) = x.len().checked_div(rows) else { return Ok(()) };
        assert_eq!(rows * columns, x.len(), "there is one scale a row");
        let grid = RowGrid::new(rows, columns, 2 * ROW_NUMBERS, MOST_THREADS);
        launch!(
            self, Kernel::QuantizeRows, Variant::Any, grid.blocks, grid.block_threads;
            Floats::of(x), codes.address(), f32s(scales), rows as u64, dimension(columns)?, grid.row_threads
        )
    }

    fn dequantize_rows(&self, codes: RawSlice<'_>, scales: RawSlice<'_>, y: RawSlice<'_>) -> Result {
        assert_eq!((codes.dtype(), codes.len()), (DType::I8, y.len()), "there is one code a number");
        if y.len() == 0 {
            return Ok(());
        }
        assert!(y.len().is_multiple_of(scales.len()), "there is one scale a row");
        launch!(
            self, Kernel::DequantizeRows, Variant::Any, flat_blocks(y.len(), Variant::Any.pack()), FLAT_THREADS;
            codes.address(), f32s(scales), Floats::of(y), y.len() as u64,
            dimension(y.len() / scales.len())?, aligned(&[codes, y])
        )
    }
}
