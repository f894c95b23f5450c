//! Checks of the cross-entropy kernels.

use super::tester::{Argument, FLOAT_PAIRS, Tester, all_rounded, random};
use crate::dtype::DType;

pub(super) fn check(tester: &Tester<'_>) {
    for [rows, columns] in [[0, 3], [1, 1], [5, 10], [64, 1000], [3, 8193], [2, 50_257], [300, 129]] {
        for types in FLOAT_PAIRS {
            check_loss(tester, types, rows, columns);
        }
    }
}

fn check_loss(tester: &Tester<'_>, [logit_type, gradient_type]: [DType; 2], rows: usize, columns: usize) {
    let kernels = tester.kernels;
    let logits = random(logit_type, rows * columns, 10.0);
    let targets = random(DType::U32, rows, columns as f64);
    let log_sum = |row: &[f64]| {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        largest + row.iter().map(|x| (x - largest).exp()).sum::<f64>().ln()
    };
    let log_sums: Vec<f64> = logits.chunks_exact(columns).map(log_sum).collect();
    let losses = (0..rows).map(|row| log_sums[row] - logits[row * columns + targets[row] as usize]).collect();
    let case = format!("cross_entropy {logit_type} {gradient_type} {rows}x{columns}");
    let arguments = [
        Argument::input(logit_type, &logits),
        Argument::input(DType::U32, &targets),
        Argument::output(DType::F32, log_sums.clone()),
        Argument::output(DType::F32, losses),
    ];
    tester.run(&case, &arguments, |s| kernels.cross_entropy(s[0], s[1], s[2], s[3]));
    let log_sums = all_rounded(DType::F32, &log_sums);
    let gradient = |(index, logit): (usize, &f64)| {
        let (row, column) = (index / columns, index % columns);
        let target = if column == targets[row] as usize { 1.0 } else { 0.0 };
        0.5 * 3.0 * ((logit - log_sums[row]).exp() - target)
    };
    let gradients: Vec<f64> = logits.iter().enumerate().map(gradient).collect();
    let inputs = || {
        [
            Argument::input(DType::U32, &targets),
            Argument::input(DType::F32, &log_sums),
            Argument::input(DType::F32, &[3.0]),
        ]
    };
    let [targets, sums, d_loss] = inputs();
    let output = Argument::output(gradient_type, gradients.clone());
    let arguments = [Argument::input(logit_type, &logits), targets, sums, d_loss, output];
    tester.run(&format!("{case} backward"), &arguments, |s| {
        kernels.cross_entropy_backward([s[0], s[1], s[2]], s[3], 0.5, s[4])
    });
    let [targets, sums, d_loss] = inputs();
    let arguments = [Argument::in_place(logit_type, &logits, gradients), targets, sums, d_loss];
    tester.run(&format!("{case} backward in place"), &arguments, |s| {
        kernels.cross_entropy_backward([s[0], s[1], s[2]], s[3], 0.5, s[0])
    });
}
