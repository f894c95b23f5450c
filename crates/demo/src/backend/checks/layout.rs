//! Checks of copies between tensors of different strides.

use super::tester::{Argument, Tester, random};
use crate::backend::StridedCopy;
use crate::dtype::DType;

/// All data types.
const ALL: [DType; 6] = [DType::F32, DType::F16, DType::Bf16, DType::I8, DType::U8, DType::U32];

/// A test case: its name, the dimensions, and the offset and strides of source and destination.
type Case = (&'static str, [usize; 4], (usize, [usize; 4]), (usize, [usize; 4]));

const CASES: [Case; 15] = [
    ("one number", [1, 1, 1, 1], (0, [0; 4]), (0, [0; 4])),
    ("nothing", [2, 0, 3, 4], (0, [12, 12, 4, 1]), (0, [12, 12, 4, 1])),
    ("contiguous", [2, 3, 4, 5], (0, [60, 20, 5, 1]), (0, [60, 20, 5, 1])),
    ("split heads", [3, 17, 4, 16], (0, [1088, 64, 16, 1]), (0, [1088, 16, 272, 1])),
    ("split heads of joined rows", [3, 17, 4, 16], (64, [3264, 192, 16, 1]), (0, [1088, 16, 272, 1])),
    ("merge heads", [3, 4, 17, 16], (0, [1088, 272, 16, 1]), (0, [1088, 16, 64, 1])),
    ("transpose", [1, 1, 45, 67], (0, [0, 0, 67, 1]), (0, [0, 0, 1, 45])),
    ("transpose of a batch", [1, 7, 64, 33], (0, [0, 2112, 33, 1]), (0, [0, 2112, 1, 64])),
    ("narrow columns", [1, 1, 50, 20], (5, [0, 0, 64, 1]), (0, [0, 0, 20, 1])),
    ("concatenate columns", [1, 1, 50, 20], (0, [0, 0, 20, 1]), (13, [0, 0, 64, 1])),
    ("append to a cache", [2, 4, 3, 16], (0, [192, 48, 16, 1]), (160, [2560, 640, 16, 1])),
    ("permute images", [2, 3, 9, 11], (0, [297, 99, 11, 1]), (0, [297, 1, 33, 3])),
    ("repeat", [1, 1, 30, 40], (0, [0, 0, 0, 1]), (0, [0, 0, 40, 1])),
    ("large", [2, 8, 200, 64], (0, [102_400, 64, 512, 1]), (0, [102_400, 12_800, 64, 1])),
    ("strides of two", [2, 3, 5, 7], (1, [256, 80, 16, 2]), (2, [512, 150, 30, 3])),
];

pub(super) fn check(tester: &Tester<'_>) {
    let backend = tester.backend;
    for dtype in ALL {
        for len in [0, 1, 1001, 500_000] {
            let values = random(dtype, len, 100.0);
            let arguments = [Argument::input(dtype, &values), Argument::output(dtype, values.clone()).within(0.0)];
            tester.run(&format!("copy {dtype} {len}"), &arguments, |s| backend.copy(s[0], s[1]));
        }
    }
    for (name, dims, (from_offset, from_strides), (to_offset, to_strides)) in CASES {
        let copy = StridedCopy { dims, from_offset, from_strides, to_offset, to_strides };
        for dtype in ALL {
            check_copy(tester, name, dtype, &copy);
        }
    }
}

fn check_copy(tester: &Tester<'_>, name: &str, dtype: DType, copy: &StridedCopy) {
    let (from_offset, to_offset) = (copy.from_offset, copy.to_offset);
    let from = random(dtype, from_offset + span(copy.dims, copy.from_strides) + 3, 100.0);
    let to: Vec<f64> = random(dtype, to_offset + span(copy.dims, copy.to_strides) + 2, 100.0);
    let mut expected = to.clone();
    let [i_len, j_len, k_len, l_len] = copy.dims;
    for index in 0..i_len * j_len * k_len * l_len {
        let index =
            [index / (j_len * k_len * l_len), index / (k_len * l_len) % j_len, index / l_len % k_len, index % l_len];
        let place =
            |strides: [usize; 4]| index.iter().zip(strides).map(|(index, stride)| index * stride).sum::<usize>();
        let value = from[from_offset + place(copy.from_strides)];
        expected[to_offset + place(copy.to_strides)] = value;
    }
    let arguments = [Argument::input(dtype, &from), Argument::in_place(dtype, &to, expected).within(0.0)];
    let case = format!("copy_strided {name} {dtype}");
    tester.run(&case, &arguments, |s| tester.kernels.copy_strided(s[0], s[1], copy));
}

/// Returns the distance from a tensor's first element to behind its last one, in elements.
fn span(dims: [usize; 4], strides: [usize; 4]) -> usize {
    1 + dims.iter().zip(strides).map(|(dim, stride)| dim.saturating_sub(1) * stride).sum::<usize>()
}
