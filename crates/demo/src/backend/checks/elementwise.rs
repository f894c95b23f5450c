//! Checks of the elementwise kernels.

use super::tester::{Argument, FLOAT_PAIRS, FLOATS, Tester, random};
use crate::backend::{Binary, Unary};
use crate::dtype::DType;

/// Tensor lengths near the sizes of vector loads, blocks of threads, and tasks of host threads.
const LENGTHS: [usize; 7] = [0, 1, 7, 257, 4099, 70_001, 300_008];

/// A kernel's unary function, and the function in `f64` that it must equal.
type UnaryCase = (Unary, fn(f64) -> f64);
/// A kernel's binary function, and the function in `f64` that it must equal.
type BinaryCase = (Binary, fn(f64, f64) -> f64);

pub(super) fn check(tester: &Tester<'_>) {
    let (backend, kernels) = (tester.backend, tester.kernels);
    for dtype in FLOATS {
        for len in LENGTHS {
            let arguments = [Argument::output(dtype, vec![-2.5; len])];
            tester.run(&format!("fill {dtype} {len}"), &arguments, |slices| backend.fill(slices[0], -2.5));
        }
    }
    for (pair, len) in FLOAT_PAIRS.iter().flat_map(|pair| LENGTHS.map(|len| (*pair, len))) {
        check_unary(tester, pair, len);
        check_pairs(tester, pair, len);
    }
    check_bias(tester);
    check_groups(tester);
    let arguments = [
        Argument::input(DType::F32, &[f64::NAN, f64::INFINITY, -f64::INFINITY, -0.0]),
        Argument::output(DType::Bf16, vec![f64::NAN, f64::INFINITY, -f64::INFINITY, 0.0]),
    ];
    tester.run("copy of special numbers", &arguments, |s| kernels.unary(Unary::Copy, s[0], s[1]));
}

/// Checks all unary functions on `len` elements.
fn check_unary(tester: &Tester<'_>, [x_type, y_type]: [DType; 2], len: usize) {
    let functions: [UnaryCase; 3] = [(Unary::Copy, |x| x), (Unary::Gelu, gelu), (Unary::Relu, |x| x.max(0.0))];
    for (function, reference) in functions {
        let x = random(x_type, len, 12.0);
        let expected: Vec<f64> = x.iter().map(|&x| reference(x)).collect();
        let case = format!("{function:?} {x_type} {y_type} {len}");
        let arguments = [Argument::input(x_type, &x), Argument::output(y_type, expected.clone())];
        tester.run(&case, &arguments, |s| tester.kernels.unary(function, s[0], s[1]));
        if x_type == y_type {
            let arguments = [Argument::in_place(x_type, &x, expected)];
            let case = format!("{case} in place");
            tester.run(&case, &arguments, |s| tester.kernels.unary(function, s[0], s[0]));
        }
    }
}

/// Checks all binary functions, and linear combinations, on `len` pairs of elements.
fn check_pairs(tester: &Tester<'_>, [a_type, out_type]: [DType; 2], len: usize) {
    let kernels = tester.kernels;
    let a = random(a_type, len, 4.0);
    let b: Vec<f64> = random(out_type, len, 3.0).into_iter().rev().collect();
    let zip = |function: fn(f64, f64) -> f64| -> Vec<f64> { a.iter().zip(&b).map(|(&a, &b)| function(a, b)).collect() };
    let functions: [BinaryCase; 3] = [
        (Binary::Multiply, |a, b| a * b),
        (Binary::GeluBackward, |a, b| b * gelu_derivative(a)),
        (Binary::ReluBackward, |a, b| if a > 0.0 { b } else { 0.0 }),
    ];
    let [a_input, b_input] = [(a_type, &a), (out_type, &b)];
    for (function, reference) in functions {
        let expected = zip(reference);
        let case = format!("{function:?} {a_type} {out_type} {len}");
        let [a, b] = [a_input, b_input].map(|(dtype, values)| Argument::input(dtype, values));
        let arguments = [a, b, Argument::output(out_type, expected.clone())];
        tester.run(&case, &arguments, |s| kernels.binary(function, s[0], s[1], s[2]));
        let [a, b] = [a_input, b_input].map(|(dtype, values)| Argument::in_place(dtype, values, expected.clone()));
        let arguments = [Argument::input(a_type, a_input.1), b];
        let name = format!("{case} in place of b");
        tester.run(&name, &arguments, |s| kernels.binary(function, s[0], s[1], s[1]));
        let arguments = [a, Argument::input(out_type, b_input.1)];
        let name = format!("{case} in place of a");
        tester.run(&name, &arguments, |s| kernels.binary(function, s[0], s[1], s[0]));
    }
    let sum = zip(|a, b| 0.75 * a - 2.0 * b);
    let case = format!("combine {a_type} {out_type} {len}");
    let inputs = || [Argument::input(a_type, &a), Argument::input(out_type, &b)];
    let [first, second] = inputs();
    let arguments = [first, second, Argument::output(out_type, sum.clone())];
    tester.run(&case, &arguments, |s| kernels.combine(0.75, s[0], Some((-2.0, s[1])), s[2]));
    let arguments = [Argument::input(a_type, &a), Argument::in_place(out_type, &b, sum.clone())];
    let name = format!("{case} in place of b");
    tester.run(&name, &arguments, |s| kernels.combine(0.75, s[0], Some((-2.0, s[1])), s[1]));
    let arguments = [Argument::in_place(a_type, &a, sum), Argument::input(out_type, &b)];
    let name = format!("{case} in place of a");
    tester.run(&name, &arguments, |s| kernels.combine(0.75, s[0], Some((-2.0, s[1])), s[0]));
    let scaled = a.iter().map(|a| 0.3f32 as f64 * a).collect();
    let arguments = [Argument::input(a_type, &a), Argument::output(out_type, scaled)];
    tester.run(&format!("{case} one"), &arguments, |s| kernels.combine(0.3, s[0], None, s[1]));
    let negative = a.iter().map(|a| -a).collect();
    let arguments = [Argument::in_place(a_type, &a, negative)];
    tester.run(&format!("{case} one in place"), &arguments, |s| kernels.combine(-1.0, s[0], None, s[0]));
}

/// Checks the addition of a bias to rows.
fn check_bias(tester: &Tester<'_>) {
    let kernels = tester.kernels;
    let shapes = [[0, 5], [1, 1], [3, 7], [130, 64], [33, 1025], [2, 70_000]];
    for ([x_type, y_type], [rows, columns]) in FLOAT_PAIRS.iter().flat_map(|pair| shapes.map(|shape| (*pair, shape))) {
        let x = random(x_type, rows * columns, 4.0);
        let bias = random(y_type, columns, 2.0);
        let expected: Vec<f64> = x.iter().enumerate().map(|(index, x)| x + bias[index % columns]).collect();
        let case = format!("add_bias {x_type} {y_type} {rows}x{columns}");
        let bias = || Argument::input(y_type, &bias);
        let arguments = [Argument::input(x_type, &x), bias(), Argument::output(y_type, expected.clone())];
        tester.run(&case, &arguments, |s| kernels.add_bias(s[0], s[1], s[2]));
        let arguments = [Argument::in_place(x_type, &x, expected), bias()];
        tester.run(&format!("{case} in place"), &arguments, |s| kernels.add_bias(s[0], s[1], s[0]));
    }
}

/// Checks averages of groups, and their gradient.
fn check_groups(tester: &Tester<'_>) {
    let kernels = tester.kernels;
    let shapes = [[0, 4], [1, 1], [5, 3], [64, 49], [3, 5000], [1000, 256]];
    for ([x_type, y_type], [groups, group]) in FLOAT_PAIRS.iter().flat_map(|pair| shapes.map(|shape| (*pair, shape))) {
        let x = random(x_type, groups * group, 4.0);
        let averages = x.chunks_exact(group).map(|x| x.iter().sum::<f64>() / group as f64).collect();
        let arguments = [Argument::input(x_type, &x), Argument::output(y_type, averages)];
        let case = format!("average_groups {x_type} {y_type} {groups}x{group}");
        tester.run(&case, &arguments, |s| kernels.average_groups(s[0], s[1], group));
        let y = random(y_type, groups, 4.0);
        let spread = y.iter().flat_map(|y| std::iter::repeat_n(0.25 * y, group)).collect();
        let arguments = [Argument::input(y_type, &y), Argument::output(x_type, spread)];
        let case = format!("spread_groups {y_type} {x_type} {groups}x{group}");
        tester.run(&case, &arguments, |s| kernels.spread_groups(s[0], s[1], group, 0.25));
    }
}

/// Returns the argument of tanh in GELU, and the derivative of this argument.
fn gelu_argument(x: f64) -> [f64; 2] {
    let factor = (2.0 / std::f64::consts::PI).sqrt();
    [factor * (x + 0.044_715 * x.powi(3)), factor * (1.0 + 3.0 * 0.044_715 * x * x)]
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + gelu_argument(x)[0].tanh())
}

fn gelu_derivative(x: f64) -> f64 {
    let [u, derivative] = gelu_argument(x);
    0.5 * (1.0 + u.tanh()) + 0.5 * x * (1.0 - u.tanh().powi(2)) * derivative
}
