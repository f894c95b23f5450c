//! Access to rows of a table by index, and cross entropy, on the host.

use super::HostBackend;
use super::slices::{count_rows, floats, floats_mut, maybe_in_place, numbers, numbers_mut};
use super::tasks::{COSTLY, FloatRows, Reader, Rows, SIMPLE, load, map_rows, parallel_rows};
use super::vector::{add, exp, max, sum};
use crate::backend::{BackendError, RawSlice, Result, TableKernels};

impl TableKernels for HostBackend {
    fn gather_rows(&self, table: RawSlice<'_>, indices: RawSlice<'_>, rows: RawSlice<'_>) -> Result {
        let positions = numbers::<u32>(indices);
        let columns = count_rows(rows, positions.len());
        check_indices("gather_rows", positions, table.len().checked_div(columns).unwrap_or(0))?;
        let from = floats(table);
        let result = FloatRows::new(floats_mut(rows, &[table, indices]), columns);
        parallel_rows(positions.len(), columns, SIMPLE, result, |units, result| {
            let positions = &positions[units.clone()];
            map_rows(units, &[], result, |row, [], result| {
                let start = positions[row] as usize * columns;
                load(from, start..start + columns, result);
            });
        });
        Ok(())
    }

    fn scatter_add_rows(&self, rows: RawSlice<'_>, indices: RawSlice<'_>, table: RawSlice<'_>) -> Result {
        let positions = numbers::<u32>(indices);
        let from = floats(rows);
        let result = floats_mut(table, &[rows, indices]);
        let Some(columns) = rows.len().checked_div(positions.len()) else {
            assert_eq!(rows.len(), 0, "there is a row for each index");
            map_rows(0..1, &[], FloatRows::new(result, table.len()), |_, [], table| table.fill(0.0));
            return Ok(());
        };
        let Some(table_rows) = table.len().checked_div(columns) else { return Ok(()) };
        assert_eq!(positions.len() * columns, rows.len(), "there is a row for each index");
        assert_eq!(table_rows * columns, table.len(), "the table has whole rows");
        check_indices("scatter_add_rows", positions, table_rows)?;
        let starts = row_starts(positions, table_rows);
        let sources = sources(positions, &starts);
        let result = FloatRows::new(result, columns);
        parallel_rows(table_rows, columns, SIMPLE, result, |units, result| {
            let (mut reader, first) = (Reader::new(from), units.start);
            map_rows(units, &[], result, |row, [], sums| {
                sums.fill(0.0);
                for &source in &sources[starts[first + row]..starts[first + row + 1]] {
                    add(sums, reader.read(source * columns..(source + 1) * columns));
                }
            });
        });
        Ok(())
    }

    fn cross_entropy(
        &self,
        logits: RawSlice<'_>,
        targets: RawSlice<'_>,
        log_sums: RawSlice<'_>,
        losses: RawSlice<'_>,
    ) -> Result {
        let target_columns = numbers::<u32>(targets);
        let columns = count_columns("cross_entropy", logits, target_columns)?;
        let rows = target_columns.len();
        assert!(log_sums.len() == rows && losses.len() == rows, "there is one result a row");
        let from = floats(logits);
        let results = (
            Rows::new(numbers_mut::<f32>(log_sums, &[logits, targets, losses]), 1),
            Rows::new(numbers_mut::<f32>(losses, &[logits, targets]), 1),
        );
        parallel_rows(rows, columns, COSTLY, results, |units, (log_sums, losses)| {
            let mut reader = Reader::new(from);
            for (row, (log_sum, loss)) in units.zip(log_sums.numbers.iter_mut().zip(losses.numbers)) {
                let logits = reader.read(row * columns..(row + 1) * columns);
                let largest = max(logits, |x| x);
                let log = sum(logits, |x| exp(x - largest)).ln();
                *log_sum = largest + log;
                // Not `log_sum - logit`: the difference of large numbers would lose precision.
                *loss = log + (largest - logits[target_columns[row] as usize]);
            }
        });
        Ok(())
    }

    fn cross_entropy_backward(
        &self,
        [logits, targets, log_sums]: [RawSlice<'_>; 3],
        d_loss: RawSlice<'_>,
        scale: f32,
        d_logits: RawSlice<'_>,
    ) -> Result {
        let target_columns = numbers::<u32>(targets);
        let columns = count_columns("cross_entropy_backward", logits, target_columns)?;
        let rows = target_columns.len();
        assert!(log_sums.len() == rows && d_loss.len() == 1, "there is one logarithm a row, and one loss");
        assert_eq!(d_logits.len(), logits.len(), "the gradient has the length of the logits");
        let (inputs, result) = maybe_in_place([logits], d_logits, &[targets, log_sums, d_loss]);
        let factor = scale * numbers::<f32>(d_loss)[0];
        let log_sums = numbers::<f32>(log_sums);
        parallel_rows(rows, columns, COSTLY, FloatRows::new(result, columns), |units, result| {
            let first = units.start;
            map_rows(units, &inputs, result, |row, [logits], gradient| {
                let (log_sum, target) = (log_sums[first + row], target_columns[first + row] as usize);
                for (gradient, logit) in gradient.iter_mut().zip(logits) {
                    *gradient = factor * exp(logit - log_sum);
                }
                gradient[target] = factor * (exp(logits[target] - log_sum) - 1.0);
            });
        });
        Ok(())
    }
}

/// Returns `table_rows + 1` counts: count `r` says how many of `positions` are less than `r`.
fn row_starts(positions: &[u32], table_rows: usize) -> Vec<usize> {
    let mut starts = vec![0; table_rows + 1];
    for &position in positions {
        starts[position as usize + 1] += 1;
    }
    for row in 0..table_rows {
        starts[row + 1] += starts[row];
    }
    starts
}

/// Returns the indices of the rows to add, sorted by the table's row that they are added to, then
/// by index. `starts` is the result of [`row_starts`].
fn sources(positions: &[u32], starts: &[usize]) -> Vec<usize> {
    let (mut next, mut sources) = (starts.to_vec(), vec![0; positions.len()]);
    for (source, &position) in positions.iter().enumerate() {
        let next = &mut next[position as usize];
        sources[*next] = source;
        *next += 1;
    }
    sources
}

/// Returns the number of logits in a row. Returns an error if a target is no column.
fn count_columns(call: &str, logits: RawSlice<'_>, targets: &[u32]) -> Result<usize> {
    let columns = count_rows(logits, targets.len());
    check_indices(call, targets, columns)?;
    Ok(columns)
}

/// Returns an error that names `call` if an index is not less than `len`.
fn check_indices(call: &str, indices: &[u32], len: usize) -> Result {
    match indices.iter().find(|&&index| index as usize >= len) {
        None => Ok(()),
        Some(index) => {
            let reason = format!("index {index} is out of range for {len} entries");
            Err(BackendError { call: call.to_owned(), reason })
        }
    }
}
