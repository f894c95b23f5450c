//! Checks of the kernels that read and add rows of a table by index.

use super::tester::{Argument, FLOAT_PAIRS, Tester, random};
use crate::dtype::DType;

pub(super) fn check(tester: &Tester<'_>) {
    let kernels = tester.kernels;
    for [table_rows, columns, count] in
        [[1, 1, 1], [5, 3, 0], [10, 7, 4], [100, 64, 333], [1000, 33, 64], [8192, 16, 4096], [3, 9000, 5]]
    {
        let indices = random(DType::U32, count, table_rows as f64);
        let index = || Argument::input(DType::U32, &indices);
        for [table_type, row_type] in FLOAT_PAIRS {
            let table = random(table_type, table_rows * columns, 3.0);
            let rows = indices.iter().flat_map(|&index| &table[index as usize * columns..][..columns]);
            let arguments =
                [Argument::input(table_type, &table), index(), Argument::output(row_type, rows.copied().collect())];
            let case = format!("{table_type} {row_type} {count} of {table_rows}x{columns}");
            tester.run(&format!("gather_rows {case}"), &arguments, |s| kernels.gather_rows(s[0], s[1], s[2]));
            let rows = random(row_type, count * columns, 3.0);
            let mut sums = vec![0.0; table_rows * columns];
            for (row, &index) in rows.chunks_exact(columns).zip(&indices) {
                let sums = &mut sums[index as usize * columns..][..columns];
                sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
            }
            let tolerance = 1e-6 * count as f64;
            let arguments =
                [Argument::input(row_type, &rows), index(), Argument::output(table_type, sums).within(tolerance)];
            let name = format!("scatter_add_rows {case}");
            tester.run(&name, &arguments, |s| kernels.scatter_add_rows(s[0], s[1], s[2]));
        }
    }
}
