//! Matrix products on the host.

use super::slices::{Floats, FloatsMut, floats, floats_mut};
use super::tasks::{Rows, load, parallel, store};
use crate::backend::{Gemm, RawSlice};
use crate::dtype::DType;

/// Minimum number of multiplications of a matrix product that several threads compute.
const PARALLEL_PRODUCT: usize = 1 << 20;

/// Number of rows that the inner loop computes at once. A task's row count is a multiple of it.
const TASK_ROWS: usize = 16;

/// Approximate number of multiplications that one task computes in a batch of small products.
const TASK: usize = 1 << 18;

/// Buffers for matrices converted to `f32`, reused by later products. Their memory is not from the
/// pool.
#[derive(Default)]
pub(super) struct Scratch {
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
}

/// Strides of a matrix, in elements.
#[derive(Clone, Copy)]
struct Strides {
    row: usize,
    column: usize,
}

impl Strides {
    /// Returns the strides of `op(matrix)`, which has `rows` x `columns` elements.
    fn new(rows: usize, columns: usize, is_transposed: bool) -> Self {
        if is_transposed { Self { row: 1, column: rows } } else { Self { row: columns, column: 1 } }
    }
}

pub(super) fn multiply(a: RawSlice<'_>, b: RawSlice<'_>, c: RawSlice<'_>, gemm: &Gemm, scratch: &mut Scratch) {
    let dtype = c.dtype();
    assert!(dtype.is_float() && a.dtype() == dtype && b.dtype() == dtype, "the matrices have one float type");
    let (a_numbers, b_numbers) = (floats(a), floats(b));
    let mut c_numbers = floats_mut(c, &[a, b]);
    if let FloatsMut::F32(c) = &mut c_numbers {
        let (Floats::F32(a), Floats::F32(b)) = (a_numbers, b_numbers) else {
            unreachable!("all matrices have type {}", DType::F32)
        };
        return multiply_batch(a, b, c, gemm);
    }
    scratch.a.resize(a_numbers.len(), 0.0);
    scratch.b.resize(b_numbers.len(), 0.0);
    scratch.c.resize(c_numbers.len(), 0.0);
    load(a_numbers, 0..a_numbers.len(), &mut scratch.a);
    load(b_numbers, 0..b_numbers.len(), &mut scratch.b);
    multiply_batch(&scratch.a, &scratch.b, &mut scratch.c, gemm);
    for start in (0..gemm.batch).map(|product| product * gemm.strides[2]) {
        let range = start..start + gemm.rows * gemm.columns;
        store(&scratch.c[range.clone()], &mut c_numbers, range);
    }
}

/// Multiplies the matrices of a batch in parallel tasks of whole products.
fn multiply_batch(a: &[f32], b: &[f32], c: &mut [f32], gemm: &Gemm) {
    let &Gemm { rows, columns, inner, batch, strides: [a_stride, b_stride, c_stride], .. } = gemm;
    let c_numbers = rows * columns;
    if batch == 0 || c_numbers == 0 {
        return;
    }
    assert!(batch == 1 || c_stride >= c_numbers, "the products of a batch do not overlap");
    let c = &mut c[..(batch - 1) * c_stride + c_numbers];
    let grain = TASK / (c_numbers * inner).max(1);
    parallel(batch, grain, Rows::new(c, c_stride.max(c_numbers)), |units, mut products| {
        for (index, product) in units.enumerate() {
            let (a, b) = (&a[product * a_stride..], &b[product * b_stride..]);
            multiply_one(&a[..rows * inner], &b[..inner * columns], &mut products.row(index)[..c_numbers], gemm);
        }
    });
}

/// Multiplies two matrices, in parallel tasks if the product is large.
fn multiply_one(a: &[f32], b: &[f32], c: &mut [f32], gemm: &Gemm) {
    let &Gemm { rows, columns, inner, transpose_a, transpose_b, .. } = gemm;
    assert!(
        a.len() == rows * inner && b.len() == inner * columns && c.len() == rows * columns,
        "the matrices have the given dimensions"
    );
    let a_strides = Strides::new(rows, inner, transpose_a);
    let b_strides = Strides::new(inner, columns, transpose_b);
    let is_large = rows * columns * inner >= PARALLEL_PRODUCT;
    let tasks = if is_large { rayon::current_num_threads() } else { 1 };
    let grain = rows.div_ceil(tasks).next_multiple_of(TASK_ROWS);
    parallel(rows, grain, Rows::new(c, columns), |task, c| {
        // SAFETY: The lengths were just checked: with these strides, all numbers of the task's rows
        // of a `rows` x `inner` matrix and of an `inner` x `columns` matrix are in the slices, and
        // the numbers of its rows of `rows` x `columns` are exclusively its own.
        unsafe {
            matrixmultiply::sgemm(
                task.len(),
                inner,
                columns,
                1.0,
                a.as_ptr().add(task.start * a_strides.row),
                a_strides.row as isize,
                a_strides.column as isize,
                b.as_ptr(),
                b_strides.row as isize,
                b_strides.column as isize,
                0.0,
                c.numbers.as_mut_ptr(),
                columns as isize,
                1,
            );
        }
    });
}
