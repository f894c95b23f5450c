//! Checks of the kernels that sum columns and whole tensors.

use super::tester::{Argument, FLOAT_PAIRS, Tester, random};
use crate::backend::{NUMBERS_PER_PARTIAL, partial_rows};

pub(super) fn check(tester: &Tester<'_>) {
    let kernels = tester.kernels;
    let shapes = [[0, 3], [1, 1], [31, 5], [32, 64], [33, 257], [1000, 129], [70, 9000], [4100, 8]];
    for ([x_type, sum_type], [rows, columns]) in FLOAT_PAIRS.iter().flat_map(|pair| shapes.map(|shape| (*pair, shape)))
    {
        let x = random(x_type, rows * columns, 1.0);
        let mut sums = vec![0.0; columns];
        for row in x.chunks_exact(columns) {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
        let arguments = [
            Argument::input(x_type, &x),
            Argument::scratch(partial_rows(rows) * columns),
            Argument::output(sum_type, sums).within(1e-6 * rows as f64),
        ];
        let case = format!("column_sums {x_type} {sum_type} {rows}x{columns}");
        tester.run(&case, &arguments, |s| kernels.column_sums(s[0], s[1], s[2]));
    }
    for ([x_type, sum_type], len) in
        FLOAT_PAIRS.iter().flat_map(|pair| [0, 1, 31, 4095, 4096, 4097, 100_003, 1_000_003].map(|len| (*pair, len)))
    {
        if len > 1_000_000 && x_type != sum_type {
            continue;
        }
        let x = random(x_type, len, 1.0);
        let sum = x.iter().sum::<f64>() * 0.125;
        let arguments = [
            Argument::input(x_type, &x),
            Argument::scratch(len.div_ceil(NUMBERS_PER_PARTIAL)),
            Argument::output(sum_type, vec![sum]).within(1e-7 * (1000.0 + len as f64).sqrt() * 10.0),
        ];
        let case = format!("sum {x_type} {sum_type} {len}");
        tester.run(&case, &arguments, |s| kernels.sum(s[0], s[1], s[2], 0.125));
    }
}
