//! Sums of columns, and of all elements of a tensor, on the host.

use super::HostBackend;
use super::slices::{count_rows, floats, floats_mut, numbers_mut};
use super::tasks::{Reader, Rows, SIMPLE, parallel, parallel_rows, store};
use super::vector::{add, sum as sum_of};
use crate::backend::{NUMBERS_PER_PARTIAL, ROWS_PER_PARTIAL, RawSlice, Result, SumKernels, partial_rows};

impl SumKernels for HostBackend {
    fn column_sums(&self, x: RawSlice<'_>, partials: RawSlice<'_>, sums: RawSlice<'_>) -> Result {
        let columns = sums.len();
        let rows = count_rows(x, columns);
        assert_eq!(partials.len(), partial_rows(rows) * columns, "the scratch memory has one row a partial sum");
        let (from, partials_slice) = (floats(x), partials);
        let partials = numbers_mut::<f32>(partials, &[x]);
        let results = Rows::new(&mut *partials, columns);
        parallel_rows(partial_rows(rows), ROWS_PER_PARTIAL * columns, SIMPLE, results, |units, mut results| {
            let mut reader = Reader::new(from);
            for (index, partial) in units.enumerate() {
                let sums = results.row(index);
                sums.fill(0.0);
                for row in partial * ROWS_PER_PARTIAL..rows.min((partial + 1) * ROWS_PER_PARTIAL) {
                    add(sums, reader.read(row * columns..(row + 1) * columns));
                }
            }
        });
        let sum = add_partials(partials, columns);
        store(&sum, &mut floats_mut(sums, &[x, partials_slice]), 0..columns);
        Ok(())
    }

    fn sum(&self, x: RawSlice<'_>, partials: RawSlice<'_>, sum: RawSlice<'_>, scale: f32) -> Result {
        let count = x.len().div_ceil(NUMBERS_PER_PARTIAL);
        assert_eq!(partials.len(), count, "the scratch memory has one number a partial sum");
        assert_eq!(sum.len(), 1, "the sum is one number");
        let (from, partials_slice) = (floats(x), partials);
        let partials = numbers_mut::<f32>(partials, &[x]);
        parallel(count, SIMPLE / NUMBERS_PER_PARTIAL, Rows::new(&mut *partials, 1), |units, results| {
            let mut reader = Reader::new(from);
            for (partial, result) in units.zip(results.numbers) {
                let start = partial * NUMBERS_PER_PARTIAL;
                let end = (start + NUMBERS_PER_PARTIAL).min(x.len());
                *result = sum_of(reader.read(start..end), |x| x);
            }
        });
        let total = sum_of(partials, |x| x);
        store(&[total * scale], &mut floats_mut(sum, &[x, partials_slice]), 0..1);
        Ok(())
    }
}

/// Adds the rows of `partials`, which have `columns` partial sums each, from first to last.
pub(super) fn add_partials(partials: &[f32], columns: usize) -> Vec<f32> {
    let mut sums = vec![0.0; columns];
    for partial in partials.chunks_exact(columns.max(1)) {
        add(&mut sums, partial);
    }
    sums
}
