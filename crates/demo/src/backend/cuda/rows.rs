//! Launches the kernels that compute rows: softmax, layer norm, cross entropy, and tables.

use super::kernels::{Kernel, Variant};
use super::launch::{FLAT_THREADS, Floats, Launcher, RowGrid, aligned, dimension, f32s, flat_blocks, launch, u32s};
use super::sums::column_totals;
use crate::backend::{Norm, NormBackward, RawSlice, Result, Softmax, partial_rows};
use crate::dtype::DType;

/// Numbers of a row that a thread keeps in registers: `ROW_NUMBERS` in `prelude.cu`.
const ROW_NUMBERS: usize = 16;
/// The most threads that compute one row in registers.
const ROW_THREADS: u32 = 512;
/// The longest row that is kept in registers.
const LONGEST_ROW: usize = ROW_NUMBERS * ROW_THREADS as usize;
/// Threads for each longer row.
const LARGE_ROW_THREADS: u32 = 1024;
/// The most threads of a row in kernels that keep none of it.
const MOST_THREADS: u32 = 1024;

/// Returns 1 if rows of `columns` numbers can be loaded in packs.
fn rows_aligned(slices: &[RawSlice<'_>], columns: usize, variant: Variant) -> u32 {
    aligned(slices) & u32::from(columns.is_multiple_of(variant.pack()))
}

/// Returns the queries of a sequence and the position of the first.
fn mask(shape: &Softmax) -> Result<(u32, u32)> {
    assert!(shape.queries > 0, "a sequence has queries");
    // The position after the last query must be a u32, too.
    dimension(shape.first.saturating_add(shape.queries))?;
    Ok((dimension(shape.queries)?, dimension(shape.first)?))
}

pub(super) fn softmax(launcher: &Launcher, x: RawSlice<'_>, y: RawSlice<'_>, shape: &Softmax) -> Result {
    let &Softmax { rows, columns, scale, .. } = shape;
    assert_eq!((x.len(), y.len()), (rows * columns, rows * columns), "the tensors have another shape");
    if x.len() == 0 {
        return Ok(());
    }
    let (queries, first) = mask(shape)?;
    let width = dimension(columns)?;
    if columns > LONGEST_ROW {
        return launch!(
            launcher, Kernel::LargeSoftmax, Variant::Any, [rows, 1], LARGE_ROW_THREADS;
            Floats::of(x), Floats::of(y), width, scale, queries, first
        );
    }
    let variant = Variant::of(&[x, y]);
    let grid = RowGrid::new(rows, columns, ROW_NUMBERS, ROW_THREADS);
    launch!(
        launcher, Kernel::Softmax, variant, grid.blocks, grid.block_threads;
        Floats::of(x), Floats::of(y), rows as u64, width, scale, queries, first, grid.row_threads,
        rows_aligned(&[x, y], columns, variant)
    )
}

pub(super) fn softmax_backward(
    launcher: &Launcher,
    [y, dy]: [RawSlice<'_>; 2],
    dx: RawSlice<'_>,
    shape: &Softmax,
) -> Result {
    let &Softmax { rows, columns, scale, .. } = shape;
    assert!([y, dy, dx].iter().all(|slice| slice.len() == rows * columns), "the tensors have another shape");
    if dx.len() == 0 {
        return Ok(());
    }
    let (queries, first) = mask(shape)?;
    let width = dimension(columns)?;
    if columns > LONGEST_ROW {
        return launch!(
            launcher, Kernel::LargeSoftmaxBackward, Variant::Any, [rows, 1], LARGE_ROW_THREADS;
            Floats::of(y), Floats::of(dy), Floats::of(dx), width, scale, queries, first
        );
    }
    let variant = Variant::of(&[y, dy, dx]);
    let grid = RowGrid::new(rows, columns, ROW_NUMBERS, ROW_THREADS);
    launch!(
        launcher, Kernel::SoftmaxBackward, variant, grid.blocks, grid.block_threads;
        Floats::of(y), Floats::of(dy), Floats::of(dx), rows as u64, width, scale, queries, first, grid.row_threads,
        rows_aligned(&[y, dy, dx], columns, variant)
    )
}

pub(super) fn layer_norm(launcher: &Launcher, norm: &Norm<'_>, epsilon: f32) -> Result {
    let &Norm { x, weight, bias, y, statistics } = norm;
    let (rows, columns) = (statistics.len() / 2, weight.len());
    assert_eq!((bias.len(), statistics.len() % 2), (columns, 0), "weight, bias or statistics have another length");
    assert_eq!((x.len(), y.len()), (rows * columns, rows * columns), "the tensors have another shape");
    if x.len() == 0 {
        return Ok(());
    }
    let width = dimension(columns)?;
    if columns > LONGEST_ROW {
        return launch!(
            launcher, Kernel::LargeLayerNorm, Variant::Any, [rows, 1], LARGE_ROW_THREADS;
            Floats::of(x), f32s(weight), f32s(bias), Floats::of(y), f32s(statistics), width, epsilon
        );
    }
    let variant = Variant::of(&[x, y]);
    let grid = RowGrid::new(rows, columns, ROW_NUMBERS, ROW_THREADS);
    assert_eq!((weight.dtype(), bias.dtype()), (DType::F32, DType::F32), "weight and bias are f32");
    launch!(
        launcher, Kernel::LayerNorm, variant, grid.blocks, grid.block_threads;
        Floats::of(x), Floats::of(weight), Floats::of(bias), Floats::of(y), f32s(statistics), rows as u64, width,
        epsilon, grid.row_threads, rows_aligned(&[x, y, weight, bias], columns, variant)
    )
}

pub(super) fn layer_norm_backward(launcher: &Launcher, norm: &NormBackward<'_>, partials: RawSlice<'_>) -> Result {
    let &NormBackward { x, dy, weight, statistics, dx, d_weight, d_bias } = norm;
    let (rows, columns) = (statistics.len() / 2, weight.len());
    assert!([x, dy, dx].iter().all(|slice| slice.len() == rows * columns), "the tensors have another shape");
    assert_eq!((d_weight.len(), d_bias.len()), (columns, columns), "the gradients have another length");
    let parts = partial_rows(rows);
    assert_eq!(partials.len(), 2 * parts * columns, "the scratch memory has another length");
    assert_eq!((d_weight.dtype(), d_bias.dtype()), (DType::F32, DType::F32), "the gradients are f32");
    let width = dimension(columns)?;
    let variant = Variant::of(&[x, dy]);
    launch!(
        launcher, Kernel::LayerNormPartials, variant, [parts, columns.div_ceil(32 * variant.pack())], 256;
        Floats::of(x), Floats::of(dy), f32s(statistics), f32s(partials), rows as u64, width,
        rows_aligned(&[x, dy], columns, variant)
    )?;
    column_totals(launcher, partials, parts, &[d_weight, d_bias])?;
    if dx.len() == 0 {
        return Ok(());
    }
    if columns > LONGEST_ROW {
        return launch!(
            launcher, Kernel::LargeLayerNormBackward, Variant::Any, [rows, 1], LARGE_ROW_THREADS;
            Floats::of(x), Floats::of(dy), f32s(weight), f32s(statistics), Floats::of(dx), width
        );
    }
    let variant = Variant::of(&[x, dy, dx]);
    let grid = RowGrid::new(rows, columns, ROW_NUMBERS, ROW_THREADS);
    assert_eq!(weight.dtype(), DType::F32, "the weight is f32");
    launch!(
        launcher, Kernel::LayerNormBackward, variant, grid.blocks, grid.block_threads;
        Floats::of(x), Floats::of(dy), Floats::of(weight), f32s(statistics), Floats::of(dx), rows as u64, width,
        grid.row_threads, rows_aligned(&[x, dy, dx, weight], columns, variant)
    )
}

pub(super) fn cross_entropy(
    launcher: &Launcher,
    logits: RawSlice<'_>,
    targets: RawSlice<'_>,
    log_sums: RawSlice<'_>,
    losses: RawSlice<'_>,
) -> Result {
    let rows = targets.len();
    assert_eq!((log_sums.len(), losses.len()), (rows, rows), "there is one loss a row");
    let Some(columns) = logits.len().checked_div(rows) else { return Ok(()) };
    assert_eq!(rows * columns, logits.len(), "there is one target a row");
    let variant = Variant::of(&[logits]);
    let grid = RowGrid::new(rows, columns, 2 * ROW_NUMBERS, MOST_THREADS);
    launch!(
        launcher, Kernel::CrossEntropy, variant, grid.blocks, grid.block_threads;
        Floats::of(logits), u32s(targets), f32s(log_sums), f32s(losses), rows as u64, dimension(columns)?,
        grid.row_threads, rows_aligned(&[logits], columns, variant)
    )
}

pub(super) fn cross_entropy_backward(
    launcher: &Launcher,
    [logits, targets, log_sums]: [RawSlice<'_>; 3],
    d_loss: RawSlice<'_>,
    scale: f32,
    d_logits: RawSlice<'_>,
) -> Result {
    let rows = targets.len();
    assert_eq!((log_sums.len(), d_loss.len()), (rows, 1), "there is one sum a row, and one gradient");
    assert_eq!(logits.len(), d_logits.len(), "the tensors differ in length");
    let Some(columns) = logits.len().checked_div(rows) else { return Ok(()) };
    assert_eq!(rows * columns, logits.len(), "there is one target a row");
    let variant = Variant::of(&[logits, d_logits]);
    launch!(
        launcher, Kernel::CrossEntropyBackward, variant, flat_blocks(logits.len(), variant.pack()), FLAT_THREADS;
        Floats::of(logits), u32s(targets), f32s(log_sums), f32s(d_loss), scale, Floats::of(d_logits),
        logits.len() as u64, dimension(columns)?, aligned(&[logits, d_logits])
    )
}

pub(super) fn gather_rows(
    launcher: &Launcher,
    table: RawSlice<'_>,
    indices: RawSlice<'_>,
    rows: RawSlice<'_>,
) -> Result {
    let count = indices.len();
    let columns = rows.len().checked_div(count).unwrap_or(0);
    assert_eq!(count * columns, rows.len(), "there is one index a row");
    if columns == 0 {
        return Ok(());
    }
    assert!(table.len().is_multiple_of(columns), "the rows of the table have another length");
    let table_rows = u32::try_from(table.len() / columns).unwrap_or(u32::MAX);
    let pack = Variant::Any.pack();
    launch!(
        launcher, Kernel::GatherRows, Variant::Any, flat_blocks(count * columns.div_ceil(pack), 1), FLAT_THREADS;
        Floats::of(table), u32s(indices), Floats::of(rows), count as u64, dimension(columns)?, table_rows,
        rows_aligned(&[table, rows], columns, Variant::Any)
    )
}

/// Sums the rows of each index. `columns` is found from whichever tensor has rows.
pub(super) fn scatter_add_rows(
    launcher: &Launcher,
    rows: RawSlice<'_>,
    indices: RawSlice<'_>,
    table: RawSlice<'_>,
) -> Result {
    let count = indices.len();
    if table.len() == 0 {
        return Ok(());
    }
    // Without rows, the table is one row of zeros.
    let columns = rows.len().checked_div(count).unwrap_or(table.len());
    assert_eq!(count * columns, rows.len(), "there is one index a row");
    if columns == 0 {
        return Ok(());
    }
    assert!(table.len().is_multiple_of(columns), "the rows of the table have another length");
    launch!(
        launcher, Kernel::ScatterAddRows, Variant::Any, [table.len() / columns, 1], 128;
        Floats::of(rows), u32s(indices), Floats::of(table), count as u64, dimension(columns)?,
        rows_aligned(&[rows, table], columns, Variant::Any)
    )
}

pub(super) fn argmax_rows(launcher: &Launcher, x: RawSlice<'_>, columns: RawSlice<'_>) -> Result {
    let rows = columns.len();
    let Some(width) = x.len().checked_div(rows) else { return Ok(()) };
    assert!(width > 0 && rows * width == x.len(), "there is one column a row, and rows have numbers");
    let grid = RowGrid::new(rows, width, 2 * ROW_NUMBERS, MOST_THREADS);
    launch!(
        launcher, Kernel::ArgmaxRows, Variant::Any, grid.blocks, grid.block_threads;
        Floats::of(x), u32s(columns), rows as u64, dimension(width)?, grid.row_threads
    )
}

pub(super) fn quantize_rows(launcher: &Launcher, x: RawSlice<'_>, codes: RawSlice<'_>, scales: RawSlice<'_>) -> Result {
    let rows = scales.len();
    assert_eq!((codes.dtype(), codes.len()), (DType::I8, x.len()), "there is one code a number");
    let Some(columns) = x.len().checked_div(rows) else { return Ok(()) };
    assert_eq!(rows * columns, x.len(), "there is one scale a row");
    let grid = RowGrid::new(rows, columns, 2 * ROW_NUMBERS, MOST_THREADS);
    launch!(
        launcher, Kernel::QuantizeRows, Variant::Any, grid.blocks, grid.block_threads;
        Floats::of(x), codes.address(), f32s(scales), rows as u64, dimension(columns)?, grid.row_threads
    )
}
