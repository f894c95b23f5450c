//! Conversion of rows of numbers to 8 bits and back.

use super::slices::{floats, floats_mut, numbers, numbers_mut};
use super::tasks::{FloatRows, Reader, Rows, SIMPLE, map_rows, parallel_rows};
use super::vector::max;
use crate::backend::RawSlice;

/// The largest code of a signed number.
pub(super) const MAX_SIGNED: f32 = 127.0;

pub(super) fn quantize_rows(x: RawSlice<'_>, codes: RawSlice<'_>, scales: RawSlice<'_>) {
    let columns = count_columns(x, codes, scales);
    let from = floats(x);
    let results =
        (Rows::new(numbers_mut::<i8>(codes, &[x, scales]), columns), Rows::new(numbers_mut::<f32>(scales, &[x]), 1));
    parallel_rows(scales.len(), columns, SIMPLE, results, |units, (mut codes, scales)| {
        let (mut reader, first) = (Reader::new(from), units.start);
        for (row, scale) in units.zip(scales.numbers) {
            let x = reader.read(row * columns..(row + 1) * columns);
            let largest = max(x, f32::abs);
            *scale = if largest > 0.0 { largest / MAX_SIGNED } else { 1.0 };
            for (code, x) in codes.row(row - first).iter_mut().zip(x) {
                *code = signed_code(x / *scale);
            }
        }
    });
}

pub(super) fn dequantize_rows(codes: RawSlice<'_>, scales: RawSlice<'_>, y: RawSlice<'_>) {
    let columns = count_columns(y, codes, scales);
    let result = FloatRows::new(floats_mut(y, &[codes, scales]), columns);
    let (codes, scales) = (numbers::<i8>(codes), numbers::<f32>(scales));
    parallel_rows(scales.len(), columns, SIMPLE, result, |units, result| {
        let first = units.start;
        map_rows(units, &[], result, |row, [], y| {
            let (scale, start) = (scales[first + row], (first + row) * columns);
            for (y, code) in y.iter_mut().zip(&codes[start..start + columns]) {
                *y = f32::from(*code) * scale;
            }
        });
    });
}

/// Rounds a number from -127 to 127 to a code.
#[inline(always)]
pub(super) fn signed_code(x: f32) -> i8 {
    // A conversion to an integer truncates, and limits the number to the integer's range.
    (x + if x < 0.0 { -0.5 } else { 0.5 }) as i8
}

fn count_columns(x: RawSlice<'_>, codes: RawSlice<'_>, scales: RawSlice<'_>) -> usize {
    let columns = x.len().checked_div(scales.len()).unwrap_or(0);
    assert_eq!(columns * scales.len(), x.len(), "there is one scale a row");
    assert_eq!(codes.len(), x.len(), "there is one code a number");
    columns
}
