//! Conversion of rows of numbers to 8 bits and back.

use super::HostBackend;
use super::slices::{count_rows, floats, floats_mut, numbers, numbers_mut};
use super::tasks::{FloatRows, Reader, Rows, SIMPLE, map_rows, parallel_rows};
use super::vector::max;
use crate::backend::{QuantizationKernels, RawSlice, Result};

/// The largest 8-bit code of a signed number.
pub(super) const MAX_SIGNED: f32 = 127.0;

impl QuantizationKernels for HostBackend {
    fn quantize_rows(&self, x: RawSlice<'_>, codes: RawSlice<'_>, scales: RawSlice<'_>) -> Result {
        let columns = count_columns(x, codes, scales);
        let from = floats(x);
        let results = (
            Rows::new(numbers_mut::<i8>(codes, &[x, scales]), columns),
            Rows::new(numbers_mut::<f32>(scales, &[x]), 1),
        );
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
        Ok(())
    }

    fn dequantize_rows(&self, codes: RawSlice<'_>, scales: RawSlice<'_>, y: RawSlice<'_>) -> Result {
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
        Ok(())
    }
}

/// Rounds a number from -127 to 127 to a signed 8-bit code.
#[inline(always)]
pub(super) fn signed_code(x: f32) -> i8 {
    // A conversion to an integer truncates, and limits the number to the integer's range.
    (x + if x < 0.0 { -0.5 } else { 0.5 }) as i8
}

/// Returns the number of elements in a row, after asserting the lengths of the tensors.
fn count_columns(x: RawSlice<'_>, codes: RawSlice<'_>, scales: RawSlice<'_>) -> usize {
    assert_eq!(codes.len(), x.len(), "there is one code a number");
    count_rows(x, scales.len())
}
