//! Checks of the kernels of softmax, argmax and quantization, which compute rows of a matrix.

use super::tester::{Argument, FLOAT_PAIRS, FLOATS, Tester, all_rounded, random};
use crate::backend::Softmax;
use crate::dtype::DType;

/// A test case: rows, columns, scale, number of queries of a sequence, and the position of the
/// first query in its sequence.
type SoftmaxCase = (usize, usize, f32, usize, usize);

/// Test cases of softmax.
const SOFTMAX: [SoftmaxCase; 14] = [
    // Nothing is masked.
    (0, 5, 1.0, 1, 4),
    (3, 1, 1.0, 3, 0),
    (7, 33, 0.5, 7, 32),
    (40, 64, 0.125, 8, 63),
    (5, 512, 1.0, 1, 511),
    (3, 2049, 2.0, 1, 4000),
    (2, 9000, 1.0, 2, 8999),
    // Later columns are masked.
    (24, 12, 0.25, 12, 0),
    (100, 50, 1.0, 50, 0),
    (6, 40, 0.5, 3, 37),
    (4, 21, 0.5, 1, 20),
    (1100, 550, 0.125, 550, 0),
    (6, 2049, 0.125, 3, 1024),
    (4, 9000, 0.125, 2, 4321),
];

pub(super) fn check(tester: &Tester<'_>) {
    for (rows, columns, scale, queries, first) in SOFTMAX {
        let shape = Softmax { rows, columns, scale, queries, first };
        for types in FLOAT_PAIRS {
            check_softmax(tester, types, &shape);
        }
    }
    check_argmax(tester);
    check_quantization(tester);
}

fn check_softmax(tester: &Tester<'_>, [x_type, y_type]: [DType; 2], shape: &Softmax) {
    let kernels = tester.kernels;
    let &Softmax { rows, columns, scale, queries, first } = shape;
    let scale = f64::from(scale);
    let mut x = random(x_type, rows * columns, 8.0);
    let (mut y, mut dx) = (Vec::new(), Vec::new());
    let dy = random(y_type, rows * columns, 2.0);
    for (row, x) in x.chunks_exact_mut(columns).enumerate() {
        let visible = columns.min(first + row % queries + 1);
        // A kernel must not use masked scores: a NaN would reach the result.
        x[visible..].fill(f64::NAN);
        let largest = x[..visible].iter().fold(f64::NEG_INFINITY, |one, x| one.max(x * scale));
        let sum: f64 = x[..visible].iter().map(|x| (x * scale - largest).exp()).sum();
        y.extend(x[..visible].iter().map(|x| (x * scale - largest).exp() / sum));
        y.extend(std::iter::repeat_n(0.0, columns - visible));
    }
    let case = format!("{x_type} {y_type} {shape:?}");
    let arguments = [Argument::input(x_type, &x), Argument::output(y_type, y.clone()).within(1e-6)];
    tester.run(&format!("softmax {case}"), &arguments, |s| kernels.softmax(s[0], s[1], shape));
    if x_type == y_type {
        let arguments = [Argument::in_place(x_type, &x, y.clone()).within(1e-6)];
        tester.run(&format!("softmax in place {case}"), &arguments, |s| kernels.softmax(s[0], s[0], shape));
    }
    let y = all_rounded(x_type, &y);
    for (y, dy) in y.chunks_exact(columns).zip(dy.chunks_exact(columns)) {
        let product: f64 = y.iter().zip(dy).map(|(y, dy)| y * dy).sum();
        dx.extend(y.iter().zip(dy).map(|(y, dy)| scale * y * (dy - product)));
    }
    let arguments =
        [Argument::input(x_type, &y), Argument::input(y_type, &dy), Argument::output(y_type, dx.clone()).within(4e-6)];
    let name = format!("softmax_backward {case}");
    tester.run(&name, &arguments, |s| kernels.softmax_backward(s[0], s[1], s[2], shape));
    let arguments = [Argument::input(x_type, &y), Argument::in_place(y_type, &dy, dx).within(4e-6)];
    let name = format!("softmax_backward in place {case}");
    tester.run(&name, &arguments, |s| kernels.softmax_backward(s[0], s[1], s[1], shape));
}

fn check_argmax(tester: &Tester<'_>) {
    for dtype in FLOATS {
        for [rows, columns] in [[0, 3], [1, 1], [50, 10], [9, 1000], [3, 9001], [5000, 7]] {
            // Few different values, so that a row has its largest value more than once.
            let x: Vec<f64> = random(dtype, rows * columns, 20.0).iter().map(|x| x.round()).collect();
            let largest = |row: &[f64]| {
                let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                row.iter().position(|&x| x == largest).expect("a row has numbers") as f64
            };
            let expected = x.chunks_exact(columns).map(largest).collect();
            let arguments = [Argument::input(dtype, &x), Argument::output(DType::U32, expected).within(0.0)];
            let case = format!("argmax_rows {dtype} {rows}x{columns}");
            tester.run(&case, &arguments, |s| tester.kernels.argmax_rows(s[0], s[1]));
        }
        // The first NaN counts as the largest.
        for (columns, first, second) in [(7, 2, 5), (1000, 600, 40), (9001, 31, 63)] {
            let mut x = random(dtype, columns, 20.0);
            (x[first], x[second]) = (f64::NAN, f64::NAN);
            let expected = vec![first.min(second) as f64];
            let arguments = [Argument::input(dtype, &x), Argument::output(DType::U32, expected).within(0.0)];
            let case = format!("argmax_rows {dtype} of {columns} with NaN");
            tester.run(&case, &arguments, |s| tester.kernels.argmax_rows(s[0], s[1]));
        }
    }
}

fn check_quantization(tester: &Tester<'_>) {
    let kernels = tester.kernels;
    for dtype in FLOATS {
        for [rows, columns] in [[0, 3], [1, 1], [5, 33], [64, 512], [3, 9000], [2000, 17]] {
            let mut x = random(dtype, rows * columns, 3.0);
            if let Some(row) = x.chunks_exact_mut(columns).nth(1) {
                row.fill(0.0);
            }
            let largest = |row: &[f64]| row.iter().fold(0.0f64, |one, x| one.max(x.abs()));
            let scale = |row: &[f64]| if largest(row) > 0.0 { largest(row) / 127.0 } else { 1.0 };
            let scales: Vec<f64> = x.chunks_exact(columns).map(scale).collect();
            // The expected values are not rounded: a code may differ from them by at most 1/2.
            let codes: Vec<f64> = (0..).zip(&x).map(|(index, x): (usize, _)| x / scales[index / columns]).collect();
            let arguments = [
                Argument::input(dtype, &x),
                Argument::output(DType::I8, codes).within(0.500_1),
                Argument::output(DType::F32, scales.clone()),
            ];
            let case = format!("{dtype} {rows}x{columns}");
            let name = format!("quantize_rows {case}");
            tester.run(&name, &arguments, |s| kernels.quantize_rows(s[0], s[1], s[2]));
            let codes: Vec<f64> =
                random(DType::I8, rows * columns, 128.0).iter().map(|code| -code.min(127.0)).collect();
            let y = (0..).zip(&codes).map(|(index, code): (usize, _)| code * scales[index / columns]).collect();
            let arguments = [
                Argument::input(DType::I8, &codes),
                Argument::input(DType::F32, &all_rounded(DType::F32, &scales)),
                Argument::output(dtype, y),
            ];
            let name = format!("dequantize_rows {case}");
            tester.run(&name, &arguments, |s| kernels.dequantize_rows(s[0], s[1], s[2]));
        }
    }
}
