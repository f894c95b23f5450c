//! Elementwise functions on the host.

use super::HostBackend;
use super::slices::{count_rows, floats, floats_mut, maybe_in_place};
use super::tasks::{BLOCK, COSTLY, FloatRows, Reader, SIMPLE, load, map_rows, parallel, parallel_rows};
use super::vector::{exp, sum};
use crate::backend::{Binary, ElementwiseKernels, RawSlice, Result, Unary};

/// The constants of GELU's tanh approximation: sqrt(2 / pi), and the factor of the cube.
const GELU: [f32; 2] = [0.797_884_6, 0.044_715];

impl ElementwiseKernels for HostBackend {
    fn unary(&self, function: Unary, x: RawSlice<'_>, y: RawSlice<'_>) -> Result {
        match function {
            Unary::Copy => map(SIMPLE, [x], y, |[x], y| y.copy_from_slice(x)),
            Unary::Relu => map(SIMPLE, [x], y, |[x], y| each(x, y, relu)),
            Unary::Gelu => map(COSTLY, [x], y, |[x], y| each(x, y, gelu)),
        }
        Ok(())
    }

    fn binary(&self, function: Binary, a: RawSlice<'_>, b: RawSlice<'_>, out: RawSlice<'_>) -> Result {
        match function {
            Binary::Multiply => map(SIMPLE, [a, b], out, |[a, b], y| each_pair(a, b, y, |a, b| a * b)),
            Binary::ReluBackward => {
                map(SIMPLE, [a, b], out, |[a, b], y| each_pair(a, b, y, |a, b| if a > 0.0 { b } else { 0.0 }));
            }
            Binary::GeluBackward => {
                map(COSTLY, [a, b], out, |[a, b], y| each_pair(a, b, y, |a, b| b * gelu_derivative(a)));
            }
        }
        Ok(())
    }

    fn combine(&self, alpha: f32, a: RawSlice<'_>, b: Option<(f32, RawSlice<'_>)>, out: RawSlice<'_>) -> Result {
        match b {
            None => map(SIMPLE, [a], out, |[a], y| each(a, y, |a| alpha * a)),
            Some((beta, b)) => {
                map(SIMPLE, [a, b], out, |[a, b], y| each_pair(a, b, y, |a, b| alpha * a + beta * b));
            }
        }
        Ok(())
    }

    fn add_bias(&self, x: RawSlice<'_>, bias: RawSlice<'_>, y: RawSlice<'_>) -> Result {
        assert_eq!(x.len(), y.len(), "a sum has the length of its argument");
        let columns = bias.len();
        let rows = count_rows(x, columns);
        let (inputs, result) = maybe_in_place([x], y, &[bias]);
        let mut reader = Reader::new(floats(bias));
        let bias = reader.read(0..columns);
        parallel_rows(rows, columns, SIMPLE, FloatRows::new(result, columns), |units, result| {
            map_rows(units, &inputs, result, |_, [x], y| each_pair(x, bias, y, |x, bias| x + bias));
        });
        Ok(())
    }

    fn average_groups(&self, x: RawSlice<'_>, y: RawSlice<'_>, group: usize) -> Result {
        assert_eq!(x.len(), y.len() * group, "each result is the average of one group");
        let (from, scale) = (floats(x), 1.0 / group as f32);
        let result = FloatRows::new(floats_mut(y, &[x]), 1);
        parallel_rows(y.len(), group, SIMPLE, result, |units, result| {
            let (mut reader, first) = (Reader::new(from), units.start);
            map_rows(units, &[], result, |row, [], y| {
                let start = (first + row) * group;
                y[0] = sum(reader.read(start..start + group), |x| x) * scale;
            });
        });
        Ok(())
    }

    fn spread_groups(&self, y: RawSlice<'_>, x: RawSlice<'_>, group: usize, scale: f32) -> Result {
        assert_eq!(x.len(), y.len() * group, "each number goes to one group");
        let from = floats(y);
        let result = FloatRows::new(floats_mut(x, &[y]), group);
        parallel_rows(y.len(), group, SIMPLE, result, |units, result| {
            let first = units.start;
            map_rows(units, &[], result, |row, [], x| {
                let mut value = [0.0];
                load(from, first + row..first + row + 1, &mut value);
                x.fill(value[0] * scale);
            });
        });
        Ok(())
    }
}

/// Computes `result` from the elements of `inputs` in blocks, divided into parallel tasks of about
/// `task` elements.
fn map<'a, const INPUTS: usize>(
    task: usize,
    inputs: [RawSlice<'a>; INPUTS],
    result: RawSlice<'a>,
    compute: impl Fn([&[f32]; INPUTS], &mut [f32]) + Sync,
) {
    assert!(inputs.iter().all(|input| input.len() == result.len()), "arguments and result have one length");
    let (inputs, result) = maybe_in_place(inputs, result, &[]);
    let blocks = result.len().div_ceil(BLOCK);
    parallel(blocks, task / BLOCK, FloatRows::new(result, BLOCK), |units, result| {
        map_rows(units, &inputs, result, |_, inputs, result| compute(inputs, result));
    });
}

/// Sets `y[i]` to `function(x[i])` for all `i`.
#[inline(always)]
fn each(x: &[f32], y: &mut [f32], function: impl Fn(f32) -> f32) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = function(*x);
    }
}

/// Sets `y[i]` to `function(a[i], b[i])` for all `i`.
#[inline(always)]
fn each_pair(a: &[f32], b: &[f32], y: &mut [f32], function: impl Fn(f32, f32) -> f32) {
    for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
        *y = function(*a, *b);
    }
}

/// Returns the larger of `x` and 0; NaN for NaN, as in PyTorch.
#[inline(always)]
fn relu(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}

/// Returns 1 / (1 + exp(-2u)) for the argument u of GELU's tanh: (1 + tanh(u)) / 2, without the
/// loss of precision where tanh is near -1.
#[inline(always)]
fn gelu_share(x: f32) -> f32 {
    let u = GELU[0] * (x + GELU[1] * x * x * x);
    1.0 / (1.0 + exp(-2.0 * u))
}

#[inline(always)]
fn gelu(x: f32) -> f32 {
    x * gelu_share(x)
}

#[inline(always)]
fn gelu_derivative(x: f32) -> f32 {
    let share = gelu_share(x);
    let u_derivative = GELU[0] * (1.0 + 3.0 * GELU[1] * x * x);
    share + 2.0 * x * share * (1.0 - share) * u_derivative
}
