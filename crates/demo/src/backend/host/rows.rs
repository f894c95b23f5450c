//! Softmax, layer norm and the largest number of each row of a matrix.

use super::HostBackend;
use super::slices::{count_rows, floats, floats_mut, maybe_in_place, numbers, numbers_mut};
use super::sums::add_partials;
use super::tasks::{COSTLY, FloatRows, Reader, Rows, map_rows, parallel, parallel_rows};
use super::vector::{exp, max, sum, sum_pairs};
use crate::backend::{Norm, NormBackward, ROWS_PER_PARTIAL, RawSlice, Result, RowKernels, Softmax, partial_rows};

impl Softmax {
    /// Returns the number of columns of row `row` that are not masked.
    fn visible(&self, row: usize) -> usize {
        self.columns.min(self.first.saturating_add(row % self.queries + 1))
    }
}

impl RowKernels for HostBackend {
    fn softmax(&self, x: RawSlice<'_>, y: RawSlice<'_>, shape: &Softmax) -> Result {
        let &Softmax { rows, columns, scale, .. } = shape;
        assert!([x, y].iter().all(|slice| slice.len() == rows * columns), "the matrices have the given shape");
        let (inputs, result) = maybe_in_place([x], y, &[]);
        parallel_rows(rows, columns, COSTLY, FloatRows::new(result, columns), |units, result| {
            let first = units.start;
            map_rows(units, &inputs, result, |row, [x], y| {
                let visible = shape.visible(first + row);
                let (x, (y, masked)) = (&x[..visible], y.split_at_mut(visible));
                let largest = max(x, |x| x * scale);
                for (y, x) in y.iter_mut().zip(x) {
                    *y = exp(x * scale - largest);
                }
                let factor = 1.0 / sum(y, |y| y);
                y.iter_mut().for_each(|y| *y *= factor);
                masked.fill(0.0);
            });
        });
        Ok(())
    }

    fn softmax_backward(&self, y: RawSlice<'_>, dy: RawSlice<'_>, dx: RawSlice<'_>, shape: &Softmax) -> Result {
        let &Softmax { rows, columns, scale, .. } = shape;
        let has_shape = |slice: &RawSlice<'_>| slice.len() == rows * columns;
        assert!([y, dy, dx].iter().all(has_shape), "the matrices have the given shape");
        let (inputs, result) = maybe_in_place([y, dy], dx, &[]);
        parallel_rows(rows, columns, COSTLY, FloatRows::new(result, columns), |units, result| {
            let first = units.start;
            map_rows(units, &inputs, result, |row, [y, dy], dx| {
                let visible = shape.visible(first + row);
                let (y, dy, (dx, masked)) = (&y[..visible], &dy[..visible], dx.split_at_mut(visible));
                let product = sum_pairs(y, dy, |y, dy| y * dy);
                for ((dx, y), dy) in dx.iter_mut().zip(y).zip(dy) {
                    *dx = scale * y * (dy - product);
                }
                masked.fill(0.0);
            });
        });
        Ok(())
    }

    fn layer_norm(&self, norm: &Norm<'_>, epsilon: f32) -> Result {
        let &Norm { x, weight, bias, y, statistics } = norm;
        let columns = weight.len();
        let rows = count_rows(x, columns);
        assert!(bias.len() == columns && y.len() == x.len(), "the bias is a row, the result as long as x");
        assert_eq!(statistics.len(), 2 * rows, "there are two statistics a row");
        let (from, inputs) = (Some(floats(x)), [x, weight, bias]);
        let result = FloatRows::new(floats_mut(y, &[x, weight, bias, statistics]), columns);
        let statistics = Rows::new(numbers_mut::<f32>(statistics, &inputs), 2);
        let (weight, bias) = (numbers::<f32>(weight), numbers::<f32>(bias));
        parallel_rows(rows, columns, COSTLY, (result, statistics), |units, (result, mut statistics)| {
            map_rows(units, &[from], result, |row, [x], y| {
                let mean = sum(x, |x| x) / columns as f32;
                let variance = sum(x, |x| (x - mean) * (x - mean)) / columns as f32;
                let inverse = 1.0 / (variance + epsilon).sqrt();
                for (((y, x), weight), bias) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                    *y = (x - mean) * inverse * weight + bias;
                }
                statistics.row(row).copy_from_slice(&[mean, inverse]);
            });
        });
        Ok(())
    }

    fn layer_norm_backward(&self, norm: &NormBackward<'_>, partials: RawSlice<'_>) -> Result {
        let &NormBackward { x, dy, weight, statistics, dx, d_weight, d_bias } = norm;
        let columns = weight.len();
        let rows = count_rows(x, columns);
        let blocks = partial_rows(rows);
        assert!(dy.len() == x.len() && dx.len() == x.len(), "gradients have the length of what they belong to");
        assert!(d_weight.len() == columns && d_bias.len() == columns, "the gradients of parameters are rows");
        assert_eq!(statistics.len(), 2 * rows, "there are two statistics a row");
        assert_eq!(partials.len(), 2 * blocks * columns, "the scratch memory has two rows a partial sum");
        let inputs = [x, dy, weight, statistics];
        let (x_numbers, dy_numbers) = (floats(x), floats(dy));
        let dx_rows = FloatRows::new(floats_mut(dx, &inputs), ROWS_PER_PARTIAL * columns);
        let partial_numbers = numbers_mut::<f32>(partials, &[x, dy, weight, statistics, dx]);
        let d_weight_numbers = numbers_mut::<f32>(d_weight, &[x, dy, weight, statistics, dx, partials]);
        let d_bias_numbers = numbers_mut::<f32>(d_bias, &[x, dy, weight, statistics, dx, partials, d_weight]);
        let (weight, statistics) = (numbers::<f32>(weight), numbers::<f32>(statistics));
        let (weight_partials, bias_partials) = partial_numbers.split_at_mut(blocks * columns);
        let results = (dx_rows, (Rows::new(weight_partials, columns), Rows::new(bias_partials, columns)));
        let grain = COSTLY / (ROWS_PER_PARTIAL * columns).max(1);
        parallel(blocks, grain, results, |units, (dx, (mut weight_sums, mut bias_sums))| {
            let first = units.start;
            let inputs = [Some(x_numbers), Some(dy_numbers)];
            map_rows(units, &inputs, dx, |block, [x, dy], dx| {
                let (weight_sums, bias_sums) = (weight_sums.row(block), bias_sums.row(block));
                weight_sums.fill(0.0);
                bias_sums.fill(0.0);
                let statistics = &statistics[(first + block) * ROWS_PER_PARTIAL * 2..];
                let rows = x.chunks_exact(columns).zip(dy.chunks_exact(columns)).zip(dx.chunks_exact_mut(columns));
                for (((x, dy), dx), statistics) in rows.zip(statistics.chunks_exact(2)) {
                    let row = NormRow { x, dy, mean: statistics[0], inverse: statistics[1] };
                    row.add_to(weight_sums, bias_sums);
                    row.gradient(weight, dx);
                }
            });
        });
        d_weight_numbers.copy_from_slice(&add_partials(weight_partials, columns));
        d_bias_numbers.copy_from_slice(&add_partials(bias_partials, columns));
        Ok(())
    }

    fn argmax_rows(&self, x: RawSlice<'_>, columns: RawSlice<'_>) -> Result {
        let rows = columns.len();
        // With a row count as its argument, `count_rows` returns the number of columns.
        let width = count_rows(x, rows);
        let from = floats(x);
        let results = Rows::new(numbers_mut::<u32>(columns, &[x]), 1);
        parallel_rows(rows, width, COSTLY, results, |units, results| {
            let mut reader = Reader::new(from);
            for (row, result) in units.zip(results.numbers) {
                let x = reader.read(row * width..(row + 1) * width);
                let largest = max(x, |x| x);
                let nan = x.iter().position(|x| x.is_nan());
                let position = nan.or_else(|| x.iter().position(|&x| x == largest));
                *result = position.expect("a row without NaN has its largest number") as u32;
            }
        });
        Ok(())
    }
}

/// A row of a layer norm's backward pass: the input, the result's gradient, and the statistics.
struct NormRow<'a> {
    x: &'a [f32],
    dy: &'a [f32],
    mean: f32,
    inverse: f32,
}

impl NormRow<'_> {
    /// Adds this row's part to the gradients of weight and bias.
    fn add_to(&self, d_weight: &mut [f32], d_bias: &mut [f32]) {
        let rows = self.x.iter().zip(self.dy).zip(d_weight.iter_mut().zip(d_bias));
        for ((x, dy), (d_weight, d_bias)) in rows {
            *d_weight += dy * ((x - self.mean) * self.inverse);
            *d_bias += dy;
        }
    }

    /// Writes the gradient of the row's input to `dx`.
    fn gradient(&self, weight: &[f32], dx: &mut [f32]) {
        let Self { x, dy, mean, inverse } = *self;
        for ((dx, dy), weight) in dx.iter_mut().zip(dy).zip(weight) {
            *dx = dy * weight;
        }
        let scale = 1.0 / x.len() as f32;
        let average = sum(dx, |dx| dx) * scale;
        let projection = sum_pairs(dx, x, |dx, x| dx * ((x - mean) * inverse)) * scale;
        for (dx, x) in dx.iter_mut().zip(x) {
            *dx = inverse * (*dx - average - (x - mean) * inverse * projection);
        }
    }
}
