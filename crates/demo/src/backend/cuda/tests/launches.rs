//! Checks the arguments of all launches against the kernels' parameters, without a GPU.

use std::cell::Cell;
use std::rc::Rc;

use super::super::compiler::Target;
use super::super::launch::{Functions, Launcher, RowGrid};
use super::super::{elementwise, images, optimizers, rows, sums};
use super::{Signatures, compiled_for};
use crate::backend::{
    AdamStep, Binary, ChannelNorm, Norm, NormBackward, QuantizedMoments, RawSlice, Result, SgdStep, Softmax,
    StridedCopy, Unary, Window, partial_rows,
};
use crate::dtype::DType;

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

fn slice(len: usize, dtype: DType) -> RawSlice<'static> {
    // SAFETY: Without a GPU, nothing reads the memory.
    unsafe { RawSlice::new(1 << 20, len, dtype) }
}

#[test]
fn launches_match_kernels() {
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

/// Launches every kernel with arguments of two types.
fn launch_all(launcher: &Launcher, t: DType, u: DType) -> Result {
    let f32s = |len| slice(len, DType::F32);
    let u32s = |len| slice(len, DType::U32);
    let (x, y) = (slice(64 * 96, t), slice(64 * 96, u));
    for function in [Unary::Copy, Unary::Gelu, Unary::Relu] {
        elementwise::unary(launcher, function, x, y)?;
    }
    for function in [Binary::Multiply, Binary::GeluBackward, Binary::ReluBackward] {
        elementwise::binary(launcher, function, [x, x], y)?;
    }
    elementwise::combine(launcher, (1.0, x), None, y)?;
    elementwise::combine(launcher, (1.0, x), Some((2.0, x)), y)?;
    elementwise::add_bias(launcher, x, slice(96, u), y)?;
    elementwise::spread_groups(launcher, slice(64, t), y, 96, 0.5)?;
    elementwise::dequantize_rows(launcher, slice(64 * 96, DType::I8), f32s(64), y)?;
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
            elementwise::copy_strided(launcher, slice(64 * 96, dtype), slice(64 * 96, dtype), &strided)?;
        }
    }
    sums::column_sums(launcher, x, f32s(partial_rows(64) * 96), slice(96, u))?;
    sums::sum(launcher, x, f32s(2), slice(1, u), 1.0)?;
    sums::average_groups(launcher, x, slice(64, u), 96)?;
    for columns in [96, 700, 9000] {
        launch_rows(launcher, t, u, columns)?;
    }
    rows::gather_rows(launcher, x, u32s(16), slice(16 * 96, u))?;
    rows::scatter_add_rows(launcher, slice(16 * 96, t), u32s(16), y)?;
    let window = Window { images: 2, channels: 3, input: [8, 8], output: [4, 4], kernel: 3, stride: 2, padding: 1 };
    let (input, output) = (2 * 3 * 64, 2 * 3 * 16);
    images::image_to_columns(launcher, slice(input, t), slice(9 * output, u), &window)?;
    images::columns_to_image(launcher, slice(9 * output, t), slice(input, u), &window)?;
    images::max_pool(launcher, slice(input, t), slice(output, u), u32s(output), &window)?;
    images::max_pool_backward(launcher, slice(output, t), u32s(output), slice(input, u), &window)?;
    let shape = ChannelNorm { images: 2, channels: 3, pixels: 64, epsilon: 1e-5 };
    let (norm, backward) = norms(slice(input, t), slice(input, u), f32s(3), f32s(6));
    images::batch_norm(launcher, &norm, &shape)?;
    images::batch_norm_backward(launcher, &backward, &shape)?;
    let (parameter, count) = (f32s(1000), 1000);
    let adam = AdamStep { rate: 0.1, decay: 0.1, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, root_scale: 1.0 };
    optimizers::adam(launcher, parameter, slice(count, t), [f32s(count); 2], &adam)?;
    let moments = QuantizedMoments {
        mean: slice(count, DType::I8),
        mean_scales: f32s(4),
        variance: slice(count, DType::U8),
        variance_scales: f32s(4),
    };
    optimizers::adam_8bit(launcher, parameter, slice(count, t), moments, &adam)?;
    let sgd = SgdStep { rate: 0.1, momentum: 0.9 };
    optimizers::sgd(launcher, slice(count, u), slice(count, t), None, &sgd)?;
    optimizers::sgd(launcher, slice(count, u), slice(count, t), Some(f32s(count)), &sgd)?;
    optimizers::unscale(launcher, slice(count, t), 0.5, u32s(1))
}

/// Returns the tensors of a norm from `x` to `y` and of its backward pass.
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

/// Launches the kernels of rows with `columns` columns.
fn launch_rows(launcher: &Launcher, t: DType, u: DType, columns: usize) -> Result {
    let f32s = |len| slice(len, DType::F32);
    let rows = 40;
    let (x, y) = (slice(rows * columns, t), slice(rows * columns, u));
    let shape = Softmax { rows, columns, scale: 0.1, queries: 8, first: 3 };
    rows::softmax(launcher, x, y, &shape)?;
    rows::softmax_backward(launcher, [x, x], y, &shape)?;
    let (norm, backward) = norms(x, y, f32s(columns), f32s(2 * rows));
    rows::layer_norm(launcher, &norm, 1e-5)?;
    rows::layer_norm_backward(launcher, &backward, f32s(2 * partial_rows(rows) * columns))?;
    let targets = slice(rows, DType::U32);
    rows::cross_entropy(launcher, x, targets, f32s(rows), f32s(rows))?;
    rows::cross_entropy_backward(launcher, [x, targets, f32s(rows)], f32s(1), 0.1, y)?;
    rows::argmax_rows(launcher, x, targets)?;
    rows::quantize_rows(launcher, x, slice(rows * columns, DType::I8), f32s(rows))
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
