//! Matrix multiplication. All matrices are in row-major order.

use vramscope_collector::{AllocateError, HostPool, PoolSlice};
use vramscope_trace::Category;

/// Rows of a tile, the part of a matrix product that is computed at once. Its 4 x 8 sums fill half
/// of the 16 vector registers of baseline x86-64; the factors use the rest.
const TILE_ROWS: usize = 4;
/// Columns of a tile, the part of a matrix product that is computed at once; see [`TILE_ROWS`].
const TILE_COLUMNS: usize = 8;
/// The most rows of the right matrix of a product that are processed at once, so that the elements
/// for one tile of the product stay in the first-level cache.
const DEPTH: usize = 256;

/// The dimensions of a matrix product: `rows` x `inner` times `inner` x `columns`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dimensions {
    pub(crate) rows: usize,
    pub(crate) inner: usize,
    pub(crate) columns: usize,
}

/// Adds the product of the matrices `a` and `b`, in row-major order, to `c`. Panics if the slices
/// do not have these dimensions.
pub(crate) fn multiply_add(a: &[f32], b: &[f32], c: &mut [f32], dimensions: Dimensions) {
    let Dimensions { rows, inner, columns } = dimensions;
    assert!(
        a.len() == rows * inner && b.len() == inner * columns && c.len() == rows * columns,
        "the slices have the given dimensions"
    );
    for start in (0..inner).step_by(DEPTH) {
        let depth = DEPTH.min(inner - start);
        let panel = Panel { a, b, inner, columns, start, depth };
        let whole_columns = columns - columns % TILE_COLUMNS;
        let whole_rows = rows - rows % TILE_ROWS;
        for column in (0..whole_columns).step_by(TILE_COLUMNS) {
            for row in (0..whole_rows).step_by(TILE_ROWS) {
                panel.tile::<TILE_ROWS, TILE_COLUMNS>(c, row, column);
            }
            for row in whole_rows..rows {
                panel.tile::<1, TILE_COLUMNS>(c, row, column);
            }
        }
        for column in whole_columns..columns {
            for row in 0..rows {
                panel.tile::<1, 1>(c, row, column);
            }
        }
    }
}

/// A part of the sum that is the matrix product `a` x `b`: the contribution of `depth` rows of `b`,
/// from row `start` on.
struct Panel<'a> {
    a: &'a [f32],
    b: &'a [f32],
    inner: usize,
    columns: usize,
    start: usize,
    depth: usize,
}

impl Panel<'_> {
    /// Adds the panel's part of the product to `ROWS` x `COLUMNS` elements of `c`, the first at
    /// `row` and `column`.
    fn tile<const ROWS: usize, const COLUMNS: usize>(&self, c: &mut [f32], row: usize, column: usize) {
        let a: [&[f32]; ROWS] =
            std::array::from_fn(|index| &self.a[(row + index) * self.inner + self.start..][..self.depth]);
        let mut sums = [[0.0f32; COLUMNS]; ROWS];
        let b = self.b[self.start * self.columns..].chunks_exact(self.columns).take(self.depth);
        for (depth, b) in b.enumerate() {
            let b = &b[column..column + COLUMNS];
            for (sums, a) in sums.iter_mut().zip(&a) {
                let factor = a[depth];
                for (sum, value) in sums.iter_mut().zip(b) {
                    *sum += factor * value;
                }
            }
        }
        for (index, sums) in sums.iter().enumerate() {
            let c = &mut c[(row + index) * self.columns + column..][..COLUMNS];
            c.iter_mut().zip(sums).for_each(|(c, sum)| *c += sum);
        }
    }
}

/// Returns the transpose of a row-major matrix, in a new buffer. `columns` is the number of columns
/// of `matrix`.
#[track_caller]
pub(crate) fn transpose(pool: &HostPool, matrix: &[f32], columns: usize) -> Result<PoolSlice<f32>, AllocateError> {
    let _temporary_category = pool.category(Category::Temporary);
    let rows = matrix.len() / columns;
    let mut transposed = pool.alloc_zeros(matrix.len())?;
    for (row, values) in matrix.chunks_exact(columns).enumerate() {
        for (target, value) in transposed[row..].iter_mut().step_by(rows).zip(values) {
            *target = *value;
        }
    }
    Ok(transposed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::symmetric;

    #[test]
    fn tiled_product_equals_the_plain_product_for_any_dimensions() {
        let mut rng = fastrand::Rng::with_seed(1);
        for (rows, inner, columns) in [(1, 1, 1), (4, 8, 8), (5, 3, 9), (13, 300, 17), (8, 513, 10), (3, 256, 24)] {
            let a: Vec<f32> = (0..rows * inner).map(|_| symmetric(&mut rng, 1.0)).collect();
            let b: Vec<f32> = (0..inner * columns).map(|_| symmetric(&mut rng, 1.0)).collect();
            let mut c = vec![1.0; rows * columns];
            multiply_add(&a, &b, &mut c, Dimensions { rows, inner, columns });
            for row in 0..rows {
                for column in 0..columns {
                    let sum: f32 = (0..inner).map(|k| a[row * inner + k] * b[k * columns + column]).sum();
                    assert!((c[row * columns + column] - 1.0 - sum).abs() < 1e-3, "{rows}x{inner}x{columns}");
                }
            }
        }
    }
}
