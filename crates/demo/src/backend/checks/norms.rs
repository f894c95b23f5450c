//! Checks of the kernels of layer norm and batch norm.

use super::tester::{Argument, FLOAT_PAIRS, Tester, all_rounded, random};
use crate::backend::{ChannelNorm, Norm, NormBackward, RawSlice, partial_rows};
use crate::dtype::DType;

/// The value that norms add to the variance.
const EPSILON: f32 = 1e-5;

/// A normalization computed in `f64`, which the kernels must equal. Its groups are the rows of a
/// layer norm, or the channels of a batch norm.
struct Reference<'a> {
    x: &'a [f64],
    weight: &'a [f64],
    /// Maps the index of an element to the index of its group.
    group: &'a dyn Fn(usize) -> usize,
    /// Maps the index of an element to the index of its weight and bias.
    parameter: &'a dyn Fn(usize) -> usize,
    groups: usize,
}

impl Reference<'_> {
    /// Returns each group's mean of `map`, which is called with the index of every element.
    fn means(&self, map: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut sums = vec![0.0; self.groups];
        (0..self.x.len()).for_each(|index| sums[(self.group)(index)] += map(index));
        let count = self.x.len() as f64 / self.groups as f64;
        sums.iter().map(|sum| sum / count).collect()
    }

    /// Returns two consecutive values for each group: mean, and `1 / sqrt(variance + epsilon)`.
    fn statistics(&self) -> Vec<f64> {
        let means = self.means(|index| self.x[index]);
        let variances = self.means(|index| (self.x[index] - means[(self.group)(index)]).powi(2));
        let inverse = |variance: f64| 1.0 / (variance + f64::from(EPSILON)).sqrt();
        means.iter().zip(variances).flat_map(|(&mean, variance)| [mean, inverse(variance)]).collect()
    }

    /// Returns `(x - mean) / sqrt(variance + epsilon)` of each element.
    fn normalized(&self, statistics: &[f64]) -> Vec<f64> {
        let group = |index| 2 * (self.group)(index);
        let normalized = |index| (self.x[index] - statistics[group(index)]) * statistics[group(index) + 1];
        (0..self.x.len()).map(normalized).collect()
    }

    /// Returns the result of the norm.
    fn forward(&self, statistics: &[f64], bias: &[f64]) -> Vec<f64> {
        let numbers = self.normalized(statistics).into_iter().enumerate();
        numbers.map(|(index, x)| x * self.weight[(self.parameter)(index)] + bias[(self.parameter)(index)]).collect()
    }

    /// Returns the gradients of x, weight and bias.
    fn backward(&self, statistics: &[f64], dy: &[f64]) -> [Vec<f64>; 3] {
        let x = self.normalized(statistics);
        let (mut d_weight, mut d_bias) = (vec![0.0; self.weight.len()], vec![0.0; self.weight.len()]);
        for index in 0..x.len() {
            d_weight[(self.parameter)(index)] += dy[index] * x[index];
            d_bias[(self.parameter)(index)] += dy[index];
        }
        let weighted = |index: usize| dy[index] * self.weight[(self.parameter)(index)];
        let averages = self.means(weighted);
        let projections = self.means(|index| weighted(index) * x[index]);
        let gradient = |index: usize| {
            let group = (self.group)(index);
            statistics[2 * group + 1] * (weighted(index) - averages[group] - x[index] * projections[group])
        };
        [(0..x.len()).map(gradient).collect(), d_weight, d_bias]
    }
}

pub(super) fn check(tester: &Tester<'_>) {
    for [rows, columns] in [[0, 4], [3, 1], [1, 7], [5, 64], [33, 100], [70, 512], [300, 384], [3, 8200]] {
        for types in FLOAT_PAIRS {
            check_layer_norm(tester, types, rows, columns);
        }
    }
    for [images, channels, pixels] in [[1, 2, 1], [2, 3, 5], [4, 7, 49], [8, 3, 1024], [16, 64, 16], [3, 2, 9000]] {
        for types in FLOAT_PAIRS {
            let shape = ChannelNorm { images, channels, pixels, epsilon: EPSILON };
            check_batch_norm(tester, types, &shape);
        }
    }
}

fn check_layer_norm(tester: &Tester<'_>, [x_type, y_type]: [DType; 2], rows: usize, columns: usize) {
    let kernels = tester.kernels;
    let x: Vec<f64> =
        all_rounded(x_type, &random(x_type, rows * columns, 2.0).iter().map(|x| x + 0.5).collect::<Vec<_>>());
    let (weight, bias, dy) =
        (random(DType::F32, columns, 1.5), random(DType::F32, columns, 1.0), random(y_type, rows * columns, 1.0));
    let (group, parameter) = (|index| index / columns, |index| index % columns);
    let reference = Reference { x: &x, weight: &weight, group: &group, parameter: &parameter, groups: rows };
    let statistics = reference.statistics();
    let tolerance = tolerance(&statistics);
    let case = format!("layer_norm {x_type} {y_type} {rows}x{columns}");
    let y = Argument::output(y_type, reference.forward(&statistics, &bias)).within(tolerance);
    let statistics_output = Argument::output(DType::F32, statistics.clone());
    let [weight_input, bias_input] = [&weight, &bias].map(|numbers| Argument::input(DType::F32, numbers));
    let arguments = [Argument::input(x_type, &x), weight_input, bias_input, y, statistics_output];
    tester.run(&case, &arguments, |s| kernels.layer_norm(&norm(s), EPSILON));
    let statistics = all_rounded(DType::F32, &statistics);
    let [dx, d_weight, d_bias] = reference.backward(&statistics, &dy);
    let arguments = [
        Argument::input(x_type, &x),
        Argument::input(y_type, &dy),
        Argument::input(DType::F32, &weight),
        Argument::input(DType::F32, &statistics),
        Argument::output(y_type, dx).within(tolerance),
        Argument::output(DType::F32, d_weight).within(tolerance + 1e-6 * rows as f64),
        Argument::output(DType::F32, d_bias).within(1e-6 * rows as f64),
        Argument::scratch(2 * partial_rows(rows) * columns),
    ];
    tester.run(&format!("{case} backward"), &arguments, |s| kernels.layer_norm_backward(&norm_backward(s), s[7]));
}

fn check_batch_norm(tester: &Tester<'_>, [x_type, y_type]: [DType; 2], shape: &ChannelNorm) {
    let kernels = tester.kernels;
    let &ChannelNorm { images, channels, pixels, .. } = shape;
    let len = images * channels * pixels;
    let x: Vec<f64> = all_rounded(x_type, &random(x_type, len, 2.0).iter().map(|x| x - 0.5).collect::<Vec<_>>());
    let (weight, bias, dy) =
        (random(DType::F32, channels, 1.5), random(DType::F32, channels, 1.0), random(y_type, len, 1.0));
    let channel = |index| index / pixels % channels;
    let reference = Reference { x: &x, weight: &weight, group: &channel, parameter: &channel, groups: channels };
    let statistics = reference.statistics();
    let tolerance = tolerance(&statistics);
    let case = format!("batch_norm {x_type} {y_type} {images}x{channels}x{pixels}");
    let y = Argument::output(y_type, reference.forward(&statistics, &bias)).within(tolerance);
    let statistics_output = Argument::output(DType::F32, statistics.clone());
    let [weight_input, bias_input] = [&weight, &bias].map(|numbers| Argument::input(DType::F32, numbers));
    let arguments = [Argument::input(x_type, &x), weight_input, bias_input, y, statistics_output];
    tester.run(&case, &arguments, |s| kernels.batch_norm(&norm(s), shape));
    let statistics = all_rounded(DType::F32, &statistics);
    let [dx, d_weight, d_bias] = reference.backward(&statistics, &dy);
    let sum_tolerance = 1e-6 * (images * pixels) as f64;
    let arguments = [
        Argument::input(x_type, &x),
        Argument::input(y_type, &dy),
        Argument::input(DType::F32, &weight),
        Argument::input(DType::F32, &statistics),
        Argument::output(y_type, dx).within(tolerance),
        Argument::output(DType::F32, d_weight).within(tolerance + sum_tolerance),
        Argument::output(DType::F32, d_bias).within(sum_tolerance),
    ];
    tester.run(&format!("{case} backward"), &arguments, |s| kernels.batch_norm_backward(&norm_backward(s), shape));
}

/// Names the tensors of a forward pass: `slices` are x, weight, bias, y and statistics.
fn norm<'a>(slices: &[RawSlice<'a>]) -> Norm<'a> {
    Norm { x: slices[0], weight: slices[1], bias: slices[2], y: slices[3], statistics: slices[4] }
}

/// Names the tensors of a backward pass: `slices` are x, dy, weight, statistics, and the gradients
/// of x, weight and bias.
fn norm_backward<'a>(slices: &[RawSlice<'a>]) -> NormBackward<'a> {
    let &[x, dy, weight, statistics, dx, d_weight, d_bias, ..] = slices else {
        panic!("a backward pass has seven tensors, not {}", slices.len())
    };
    NormBackward { x, dy, weight, statistics, dx, d_weight, d_bias }
}

/// Returns the allowed absolute error. It is larger where a variance is 0, because
/// `1 / sqrt(variance + epsilon)` then multiplies rounding errors.
fn tolerance(statistics: &[f64]) -> f64 {
    statistics.chunks_exact(2).fold(1e-5, |tolerance, statistics| tolerance.max(1e-6 * statistics[1]))
}
