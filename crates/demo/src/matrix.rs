//! Products of matrices, all stored row after row.

use vramscope_collector::{AllocateError, HostPool, PoolSlice};
use vramscope_trace::Category;

/// Rows and columns of a tile of the product. 4 x 8 sums fill half of the 16 registers of plain x86-64, which leaves room for the
/// factors.
const TILE_ROWS: usize = 4;
const TILE_COLUMNS: usize = 8;
/// How much of the inner dimension is worked on at once: so many rows of a tile's columns stay in the first-level cache.
const DEPTH: usize = 256;

/// The sizes of a product: `rows` x `inner` times `inner` x `columns`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) rows: usize,
    pub(crate) inner: usize,
    pub(crate) columns: usize,
}

/// Adds the product of `a` and `b` to `c`.
pub(crate) fn multiply_add(a: &[f32], b: &[f32], c: &mut [f32], sizes: Sizes) {
    let Sizes { rows, inner, columns } = sizes;
    assert!(a.len() == rows * inner && b.len() == inner * columns && c.len() == rows * columns, "sizes fit");
    for begin in (0..inner).step_by(DEPTH) {
        let depth = DEPTH.min(inner - begin);
        let panel = Panel { a, b, inner, columns, begin, depth };
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

/// The part of a product that comes from `depth` of the inner dimension.
struct Panel<'a> {
    a: &'a [f32],
    b: &'a [f32],
    inner: usize,
    columns: usize,
    begin: usize,
    depth: usize,
}

impl Panel<'_> {
    /// Adds to `ROWS` x `COLUMNS` numbers of `c`.
    fn tile<const ROWS: usize, const COLUMNS: usize>(&self, c: &mut [f32], row: usize, column: usize) {
        let a: [&[f32]; ROWS] =
            std::array::from_fn(|number| &self.a[(row + number) * self.inner + self.begin..][..self.depth]);
        let mut sums = [[0.0f32; COLUMNS]; ROWS];
        let b = self.b[self.begin * self.columns..].chunks_exact(self.columns).take(self.depth);
        for (depth, b) in b.enumerate() {
            let b = &b[column..column + COLUMNS];
            for (sums, a) in sums.iter_mut().zip(&a) {
                let factor = a[depth];
                for (sum, value) in sums.iter_mut().zip(b) {
                    *sum += factor * value;
                }
            }
        }
        for (number, sums) in sums.iter().enumerate() {
            let c = &mut c[(row + number) * self.columns + column..][..COLUMNS];
            c.iter_mut().zip(sums).for_each(|(c, sum)| *c += sum);
        }
    }
}

/// `matrix`, which has `columns` columns, with rows and columns swapped.
#[track_caller]
pub(crate) fn transposed(pool: &HostPool, matrix: &[f32], columns: usize) -> Result<PoolSlice<f32>, AllocateError> {
    let _temporary = pool.category(Category::Temporary);
    let rows = matrix.len() / columns;
    let mut swapped = pool.alloc_zeros(matrix.len())?;
    for (row, values) in matrix.chunks_exact(columns).enumerate() {
        for (place, value) in swapped[row..].iter_mut().step_by(rows).zip(values) {
            *place = *value;
        }
    }
    Ok(swapped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn tiles_and_what_is_left_of_them_give_the_plain_product() {
        let mut random = Random::new(1);
        for (rows, inner, columns) in [(1, 1, 1), (4, 8, 8), (5, 3, 9), (13, 300, 17), (8, 513, 10), (3, 256, 24)] {
            let a: Vec<f32> = (0..rows * inner).map(|_| random.around_zero(1.0)).collect();
            let b: Vec<f32> = (0..inner * columns).map(|_| random.around_zero(1.0)).collect();
            let mut c = vec![1.0; rows * columns];
            multiply_add(&a, &b, &mut c, Sizes { rows, inner, columns });
            for row in 0..rows {
                for column in 0..columns {
                    let sum: f32 = (0..inner).map(|k| a[row * inner + k] * b[k * columns + column]).sum();
                    assert!((c[row * columns + column] - 1.0 - sum).abs() < 1e-3, "{rows}x{inner}x{columns}");
                }
            }
        }
    }
}
