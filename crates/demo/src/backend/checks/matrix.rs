//! Checks of matrix products.

use super::tester::{Argument, FLOATS, Tester, random};
use crate::backend::Gemm;
use crate::dtype::DType;

/// Test cases: rows, inner dimension, columns, number of matrices in the batch, and elements
/// between two matrices of the batch. `None` for a batch that shares its second matrix.
const CASES: [(usize, usize, usize, usize, Option<usize>); 12] = [
    (3, 0, 5, 2, Some(0)),
    (1, 1, 1, 1, Some(0)),
    (1, 64, 33, 1, Some(0)),
    (33, 64, 1, 1, Some(0)),
    (5, 3, 9, 1, Some(0)),
    (64, 64, 64, 1, Some(0)),
    (129, 257, 65, 1, Some(0)),
    (200, 100, 300, 1, Some(0)),
    (16, 8, 24, 5, Some(0)),
    (33, 17, 29, 6, Some(0)),
    (7, 16, 5, 3, Some(8)),
    (12, 20, 8, 4, None),
];

pub(super) fn check(tester: &Tester<'_>) {
    for (rows, inner, columns, batch, gap) in CASES {
        for (dtype, transpose) in FLOATS.iter().flat_map(|dtype| [0, 1, 2, 3].map(|transpose| (*dtype, transpose))) {
            let second = gap.map_or(0, |gap| inner * columns + gap);
            let gap = gap.unwrap_or(0);
            let strides = [rows * inner + gap, second, rows * columns + gap];
            let (transpose_a, transpose_b) = (transpose & 1 != 0, transpose & 2 != 0);
            let gemm = Gemm { rows, inner, columns, transpose_a, transpose_b, batch, strides };
            check_product(tester, dtype, &gemm);
        }
    }
}

fn check_product(tester: &Tester<'_>, dtype: DType, gemm: &Gemm) {
    let &Gemm { rows, inner, columns, transpose_a, transpose_b, batch, strides } = gemm;
    let [a_len, b_len, c_len] = [(0, rows * inner), (1, inner * columns), (2, rows * columns)]
        .map(|(matrix, len)| (batch - 1) * strides[matrix] + len);
    let (a, b) = (random(dtype, a_len, 1.0), random(dtype, b_len, 1.0));
    // The product must not read `c`: a NaN would reach the result.
    let c = vec![f64::NAN; c_len];
    let mut expected = c.clone();
    for index in 0..batch * rows * columns {
        let (matrix, row, column) = (index / (rows * columns), index / columns % rows, index % columns);
        let a = |k: usize| a[matrix * strides[0] + if transpose_a { k * rows + row } else { row * inner + k }];
        let b = |k: usize| b[matrix * strides[1] + if transpose_b { column * inner + k } else { k * columns + column }];
        expected[matrix * strides[2] + row * columns + column] = (0..inner).map(|k| a(k) * b(k)).sum();
    }
    let arguments = [
        Argument::input(dtype, &a),
        Argument::input(dtype, &b),
        Argument::in_place(dtype, &c, expected).within(1e-6 * (10 + inner) as f64),
    ];
    let case = format!("gemm {dtype} {gemm:?}");
    tester.run(&case, &arguments, |s| tester.backend.gemm(s[0], s[1], s[2], gemm));
}
