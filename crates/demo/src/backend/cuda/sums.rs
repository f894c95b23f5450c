//! Launches the kernels that sum columns and whole tensors.

use super::kernels::{Kernel, Variant};
use super::launch::{Floats, Launcher, aligned, dimension, f32s, launch, rows_aligned};
use crate::backend::{NUMBERS_PER_PARTIAL, RawSlice, Result, SumKernels, partial_rows};

/// Adds `parts` rows of partial sums into the one or two `results`, which have equal lengths.
pub(super) fn column_totals(
    launcher: &Launcher,
    partials: RawSlice<'_>,
    parts: usize,
    results: &[RawSlice<'_>],
) -> Result {
    let (&[first] | &[first, _]) = results else { panic!("the kernel has one or two results") };
    let second = results.get(1).map_or(Floats::NONE, |&second| Floats::of(second));
    let columns = first.len();
    launch!(
        launcher, Kernel::ColumnTotals, Variant::Any, [columns.div_ceil(32), results.len()], 1024;
        f32s(partials), parts as u64, dimension(columns)?, Floats::of(first), second
    )
}

impl SumKernels for Launcher {
    fn column_sums(&self, x: RawSlice<'_>, partials: RawSlice<'_>, sums: RawSlice<'_>) -> Result {
        let columns = sums.len();
        let Some(rows) = x.len().checked_div(columns) else { return Ok(()) };
        assert_eq!(rows * columns, x.len(), "there is one sum a column");
        let parts = partial_rows(rows);
        assert_eq!(partials.len(), parts * columns, "the scratch memory has another length");
        let variant = Variant::of(&[x]);
        launch!(
            self, Kernel::ColumnPartials, variant, [parts, columns.div_ceil(32 * variant.pack())], 256;
            Floats::of(x), f32s(partials), rows as u64, dimension(columns)?, rows_aligned(&[x], columns, variant)
        )?;
        column_totals(self, partials, parts, &[sums])
    }

    fn sum(&self, x: RawSlice<'_>, partials: RawSlice<'_>, sum: RawSlice<'_>, scale: f32) -> Result {
        let parts = x.len().div_ceil(NUMBERS_PER_PARTIAL);
        assert_eq!((partials.len(), sum.len()), (parts, 1), "the scratch memory or the result has another length");
        launch!(
            self, Kernel::PartialSums, Variant::Any, [parts, 1], 256;
            Floats::of(x), f32s(partials), x.len() as u64, aligned(&[x])
        )?;
        launch!(
            self, Kernel::TotalSum, Variant::Any, [1, 1], 1024;
            f32s(partials), parts as u64, scale, Floats::of(sum)
        )
    }
}
