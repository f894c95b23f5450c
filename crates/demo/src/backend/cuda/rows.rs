//! Launches the kernels that compute rows of a matrix: softmax, layer norm, and argmax.

use super::kernels::{Kernel, Variant};
use super::launch::{
    Floats, Launcher, MOST_THREADS, ROW_NUMBERS, RowGrid, dimension, f32s, launch, rows_aligned, u32s,
};
use super::sums::column_totals;
use crate::backend::{Norm, NormBackward, RawSlice, Result, RowKernels, Softmax, partial_rows};
use crate::dtype::DType;

/// Maximum number of threads for a row that is kept in registers.
const ROW_THREADS: u32 = 512;
/// Maximum length of a row that is kept in registers, in elements.
const LONGEST_ROW: usize = ROW_NUMBERS * ROW_THREADS as usize;
/// Number of threads for a row longer than [`LONGEST_ROW`].
const LARGE_ROW_THREADS: u32 = 1024;

/// Returns the kernels' parameters of the causal mask: the number of queries of a sequence, and the
/// position of the first one.
fn mask(shape: &Softmax) -> Result<(u32, u32)> {
    assert!(shape.queries > 0, "a sequence has queries");
    // The position after the last query must be a u32, too.
    dimension(shape.first.saturating_add(shape.queries))?;
    Ok((dimension(shape.queries)?, dimension(shape.first)?))
}

impl RowKernels for Launcher {
    fn softmax(&self, x: RawSlice<'_>, y: RawSlice<'_>, shape: &Softmax) -> Result {
        let &Softmax { rows, columns, scale, .. } = shape;
        assert_eq!((x.len(), y.len()), (rows * columns, rows * columns), "the tensors have another shape");
        if x.len() == 0 {
            return Ok(());
        }
        let (queries, first) = mask(shape)?;
        let width = dimension(columns)?;
        if columns > LONGEST_ROW {
            return launch!(
                self, Kernel::LargeSoftmax, Variant::Any, [rows, 1], LARGE_ROW_THREADS;
                Floats::of(x), Floats::of(y), width, scale, queries, first
            );
        }
        let variant = Variant::of(&[x, y]);
        let grid = RowGrid::new(rows, columns, ROW_NUMBERS, ROW_THREADS);
        launch!(
            self, Kernel::Softmax, variant, grid.blocks, grid.block_threads;
            Floats::of(x), Floats::of(y), rows as u64, width, scale, queries, first, grid.row_threads,
            rows_aligned(&[x, y], columns, variant)
        )
    }

    fn softmax_backward(&self, y: RawSlice<'_>, dy: RawSlice<'_>, dx: RawSlice<'_>, shape: &Softmax) -> Result {
        let &Softmax { rows, columns, scale, .. } = shape;
        assert!([y, dy, dx].iter().all(|slice| slice.len() == rows * columns), "the tensors have another shape");
        if dx.len() == 0 {
            return Ok(());
        }
        let (queries, first) = mask(shape)?;
        let width = dimension(columns)?;
        if columns > LONGEST_ROW {
            return launch!(
                self, Kernel::LargeSoftmaxBackward, Variant::Any, [rows, 1], LARGE_ROW_THREADS;
                Floats::of(y), Floats::of(dy), Floats::of(dx), width, scale, queries, first
            );
        }
        let variant = Variant::of(&[y, dy, dx]);
        let grid = RowGrid::new(rows, columns, ROW_NUMBERS, ROW_THREADS);
        launch!(
            self, Kernel::SoftmaxBackward, variant, grid.blocks, grid.block_threads;
            Floats::of(y), Floats::of(dy), Floats::of(dx), rows as u64, width, scale, queries, first, grid.row_threads,
            rows_aligned(&[y, dy, dx], columns, variant)
        )
    }

    fn layer_norm(&self, norm: &Norm<'_>, epsilon: f32) -> Result {
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
                self, Kernel::LargeLayerNorm, Variant::Any, [rows, 1], LARGE_ROW_THREADS;
                Floats::of(x), f32s(weight), f32s(bias), Floats::of(y), f32s(statistics), width, epsilon
            );
        }
        let variant = Variant::of(&[x, y]);
        let grid = RowGrid::new(rows, columns, ROW_NUMBERS, ROW_THREADS);
        assert_eq!((weight.dtype(), bias.dtype()), (DType::F32, DType::F32), "weight and bias are f32");
        launch!(
            self, Kernel::LayerNorm, variant, grid.blocks, grid.block_threads;
            Floats::of(x), Floats::of(weight), Floats::of(bias), Floats::of(y), f32s(statistics), rows as u64, width,
            epsilon, grid.row_threads, rows_aligned(&[x, y, weight, bias], columns, variant)
        )
    }

    fn layer_norm_backward(&self, norm: &NormBackward<'_>, partials: RawSlice<'_>) -> Result {
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
            self, Kernel::LayerNormPartials, variant, [parts, columns.div_ceil(32 * variant.pack())], 256;
            Floats::of(x), Floats::of(dy), f32s(statistics), f32s(partials), rows as u64, width,
            rows_aligned(&[x, dy], columns, variant)
        )?;
        column_totals(self, partials, parts, &[d_weight, d_bias])?;
        if dx.len() == 0 {
            return Ok(());
        }
        if columns > LONGEST_ROW {
            return launch!(
                self, Kernel::LargeLayerNormBackward, Variant::Any, [rows, 1], LARGE_ROW_THREADS;
                Floats::of(x), Floats::of(dy), f32s(weight), f32s(statistics), Floats::of(dx), width
            );
        }
        let variant = Variant::of(&[x, dy, dx]);
        let grid = RowGrid::new(rows, columns, ROW_NUMBERS, ROW_THREADS);
        assert_eq!(weight.dtype(), DType::F32, "the weight is f32");
        launch!(
            self, Kernel::LayerNormBackward, variant, grid.blocks, grid.block_threads;
            Floats::of(x), Floats::of(dy), Floats::of(weight), f32s(statistics), Floats::of(dx), rows as u64, width,
            grid.row_threads, rows_aligned(&[x, dy, dx, weight], columns, variant)
        )
    }

    fn argmax_rows(&self, x: RawSlice<'_>, columns: RawSlice<'_>) -> Result {
        let rows = columns.len();
        let Some(width) = x.len().checked_div(rows) else { return Ok(()) };
        assert!(width > 0 && rows * width == x.len(), "there is one column a row, and rows have numbers");
        let grid = RowGrid::new(rows, width, 2 * ROW_NUMBERS, MOST_THREADS);
        launch!(
            self, Kernel::ArgmaxRows, Variant::Any, grid.blocks, grid.block_threads;
            Floats::of(x), u32s(columns), rows as u64, dimension(width)?, grid.row_threads
        )
    }
}
