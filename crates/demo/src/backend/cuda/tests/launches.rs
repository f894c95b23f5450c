//! Checks the arguments of all launches against the kernels' parameters, without a GPU.

use std::cell::Cell;
use std::rc::Rc;

use super::super::compiler::Target;
use super::super::launch::{Functions, Launcher, RowGrid};
use super::{Signatures, compiled_for};
use crate::backend::{
    AdamStep, Binary, ChannelNorm, Kernels, Norm, NormBackward, QuantizedMoments, RawSlice, Result, SgdStep, Softmax,
    StridedCopy, Unary, Window, partial_rows,
};
use crate::dtype::DType;

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// Returns a slice at an address without memory.
fn slice(len: usize, dtype: DType) -> RawSlice<'static> {
    // SAFETY: Without a GPU, nothing reads the memory.
    unsafe { RawSlice::new(1 << 20, len, dtype) }
}

#[test]
fn launch_arguments_match_kernel_parameters() {
    let Some(compiled) = compiled_for(Target::Ptx(90)) else { return };
    let launcher = Launcher {
        functions: Functions::Signatures(Signatures::new(&compiled)),
        stream: Rc::new(Cell::new(std::ptr::null_mut())),
    };
    for x in FLOATS {
        for y in FLOATS {
            launch_all(&launcher, x, y).unwrap();
        }
    }
}

/// Launches every kernel with arguments of the data types `t` and `u`.
fn launch_all(kernels: &dyn Kernels, t: DType, u: DType) -> Result {
    let f32s = |len| slice(len, DType::F32);
    let u32s = |len| slice(len, DType::U32);
    let (x, y) = (slice(64 * 96, t), slice(64 * 96, u));
    for function in [Unary::Copy, Unary::Gelu, Unary::Relu] {
        kernels.unary(function, x, y)?;
    }
    for function in [Binary::Multiply, Binary::GeluBackward, Binary::ReluBackward] {
        kernels.binary(function, x, x, y)?;
    }
    kernels.combine(1.0, x, None, y)?;
    kernels.combine(1.0, x, Some((2.0, x)), y)?;
    kernels.add_bias(x, slice(96, u), y)?;
    kernels.spread_groups(slice(64, t), y, 96, 0.5)?;
    kernels.dequantize_rows(slice(64 * 96, DType::I8), f32s(64), y)?;
    let strided = StridedCopy {
        dims: [4, 8, 4, 48],
        from_offset: 0,
        from_strides: [1536, 48, 384, 1],
        to_offset: 0,
        to_strides: [1536, 192, 48, 1],
    };
    for offset in [0, 1] {
        let strided = StridedCopy { dims: [4, 8, 4, 48 - offset], from_offset: offset, ..strided };
        for dtype in [t, DType::I8, DType::U32] {
            kernels.copy_strided(slice(64 * 96, dtype), slice(64 * 96, dtype), &strided)?;
        }
    }
    kernels.column_sums(x, f32s(partial_rows(64) * 96), slice(96, u))?;
    kernels.sum(x, f32s(2), slice(1, u), 1.0)?;
    kernels.average_groups(x, slice(64, u), 96)?;
    for columns in [96, 700, 9000] {
        launch_rows(kernels, t, u, columns)?;
    }
    kernels.gather_rows(x, u32s(16), slice(16 * 96, u))?;
    kernels.scatter_add_rows(slice(16 * 96, t), u32s(16), y)?;
    let window = Window { images: 2, channels: 3, input: [8, 8], output: [4, 4], kernel: 3, stride: 2, padding: 1 };
    let (input, output) = (2 * 3 * 64, 2 * 3 * 16);
    kernels.image_to_columns(slice(input, t), slice(9 * output, u), &window)?;
    kernels.columns_to_image(slice(9 * output, t), slice(input, u), &window)?;
    kernels.max_pool(slice(input, t), slice(output, u), u32s(output), &window)?;
    kernels.max_pool_backward(slice(output, t), u32s(output), slice(input, u), &window)?;
    let shape = ChannelNorm { images: 2, channels: 3, pixels: 64, epsilon: 1e-5 };
    let (norm, backward) = norms(slice(input, t), slice(input, u), f32s(3), f32s(6));
    kernels.batch_norm(&norm, &shape)?;
    kernels.batch_norm_backward(&backward, &shape)?;
    let (parameter, count) = (f32s(1000), 1000);
    let adam = AdamStep { rate: 0.1, decay: 0.1, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, root_scale: 1.0 };
    kernels.adam(parameter, slice(count, t), [f32s(count); 2], &adam)?;
    let moments = QuantizedMoments {
        mean: slice(count, DType::I8),
        mean_scales: f32s(4),
        variance: slice(count, DType::U8),
        variance_scales: f32s(4),
    };
    kernels.adam_8bit(parameter, slice(count, t), moments, &adam)?;
    let sgd = SgdStep { rate: 0.1, momentum: 0.9 };
    kernels.sgd(slice(count, u), slice(count, t), None, &sgd)?;
    kernels.sgd(slice(count, u), slice(count, t), Some(f32s(count)), &sgd)?;
    kernels.unscale(slice(count, t), 0.5, u32s(1))
}

/// Returns the tensors of a normalization from `x` to `y` and of its backward pass.
fn norms<'a>(
    x: RawSlice<'a>,
    y: RawSlice<'a>,
    parameter: RawSlice<'a>,
    statistics: RawSlice<'a>,
) -> (Norm<'a>, NormBackward<'a>) {
    let norm = Norm { x, weight: parameter, bias: parameter, y, statistics };
    let (d_weight, d_bias) = (parameter, parameter);
    (norm, NormBackward { x, dy: x, weight: parameter, statistics, dx: y, d_weight, d_bias })
}

/// Launches the kernels that compute rows, on matrices with `columns` columns.
fn launch_rows(kernels: &dyn Kernels, t: DType, u: DType, columns: usize) -> Result {
    let f32s = |len| slice(len, DType::F32);
    let rows = 40;
    let (x, y) = (slice(rows * columns, t), slice(rows * columns, u));
    let shape = Softmax { rows, columns, scale: 0.1, queries: 8, first: 3 };
    kernels.softmax(x, y, &shape)?;
    kernels.softmax_backward(x, x, y, &shape)?;
    let (norm, backward) = norms(x, y, f32s(columns), f32s(2 * rows));
    kernels.layer_norm(&norm, 1e-5)?;
    kernels.layer_norm_backward(&backward, f32s(2 * partial_rows(rows) * columns))?;
    let targets = slice(rows, DType::U32);
    kernels.cross_entropy(x, targets, f32s(rows), f32s(rows))?;
    kernels.cross_entropy_backward([x, targets, f32s(rows)], f32s(1), 0.1, y)?;
    kernels.argmax_rows(x, targets)?;
    kernels.quantize_rows(x, slice(rows * columns, DType::I8), f32s(rows))
}

#[test]
fn rows_have_enough_threads() {
    for columns in [1, 31, 511, 512, 513, 1000, 1024, 1025, 4097, 8192] {
        let grid = RowGrid::new(10, columns, 16, 512);
        assert!(16 * grid.row_threads as usize >= columns, "{columns}: {grid:?}");
        assert!(grid.row_threads == 32 || grid.row_threads == grid.block_threads, "{grid:?}");
        let rows_per_block = (grid.block_threads / grid.row_threads) as usize;
        assert!(grid.blocks[0] * rows_per_block >= 10, "{grid:?}");
    }
}
