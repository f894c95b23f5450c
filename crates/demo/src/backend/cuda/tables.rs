//! Launches the kernels of cross entropy, and the kernels that access rows of a table by index.

use super::kernels::{Kernel, Variant};
use super::launch::{
    FLAT_THREADS, Floats, Launcher, MOST_THREADS, ROW_NUMBERS, RowGrid, aligned, dimension, f32s, flat_blocks, launch,
    rows_aligned, u32s,
};
use crate::backend::{RawSlice, Result, TableKernels};

impl TableKernels for Launcher {
    fn gather_rows(&self, table: RawSlice<'_>, indices: RawSlice<'_>, rows: RawSlice<'_>) -> Result {
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
            self, Kernel::GatherRows, Variant::Any, flat_blocks(count * columns.div_ceil(pack), 1), FLAT_THREADS;
            Floats::of(table), u32s(indices), Floats::of(rows), count as u64, dimension(columns)?, table_rows,
            rows_aligned(&[table, rows], columns, Variant::Any)
        )
    }

    /// Sums the rows of each index into the table.
    fn scatter_add_rows(&self, rows: RawSlice<'_>, indices: RawSlice<'_>, table: RawSlice<'_>) -> Result {
        let count = indices.len();
        if table.len() == 0 {
            return Ok(());
        }
        // Without rows to add, the kernel fills the table with zeros, as a single row.
        let columns = rows.len().checked_div(count).unwrap_or(table.len());
        assert_eq!(count * columns, rows.len(), "there is one index a row");
        if columns == 0 {
            return Ok(());
        }
        assert!(table.len().is_multiple_of(columns), "the rows of the table have another length");
        launch!(
            self, Kernel::ScatterAddRows, Variant::Any, [table.len() / columns, 1], 128;
            Floats::of(rows), u32s(indices), Floats::of(table), count as u64, dimension(columns)?,
            rows_aligned(&[rows, table], columns, Variant::Any)
        )
    }

    fn cross_entropy(
        &self,
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
            self, Kernel::CrossEntropy, variant, grid.blocks, grid.block_threads;
            Floats::of(logits), u32s(targets), f32s(log_sums), f32s(losses), rows as u64, dimension(columns)?,
            grid.row_threads, rows_aligned(&[logits], columns, variant)
        )
    }

    fn cross_entropy_backward(
        &self,
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
            self, Kernel::CrossEntropyBackward, variant, flat_blocks(logits.len(), variant.pack()), FLAT_THREADS;
            Floats::of(logits), u32s(targets), f32s(log_sums), f32s(d_loss), scale, Floats::of(d_logits),
            logits.len() as u64, dimension(columns)?, aligned(&[logits, d_logits])
        )
    }
}
