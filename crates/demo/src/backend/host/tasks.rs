//! Division of work into tasks for several threads, and access to rows of elements as `f32`.
//!
//! A task computes whole units, such as rows, and the computation of a unit does not depend on the
//! division. Therefore results do not depend on the number of threads.

use std::ops::Range;

use half::bf16;
use half::slice::HalfFloatSliceExt;

use super::slices::{Floats, FloatsMut, floats_mut};
use crate::backend::RawSlice;

/// Number of elements that are converted and computed at once. They fit into the L1 cache.
pub(super) const BLOCK: usize = 1024;

/// Number of elements that one task processes in functions limited by memory bandwidth.
pub(super) const SIMPLE: usize = 1 << 16;

/// Number of elements that one task processes in functions with exponentials or roots.
pub(super) const COSTLY: usize = 1 << 14;

/// Memory for results that can be divided between tasks.
pub(super) trait Split: Sized + Send {
    /// Divides the results into the first `units` units and the others.
    fn split(self, units: usize) -> (Self, Self);
}

/// Rows of elements that a task writes.
pub(super) struct Rows<'a, T> {
    pub(super) numbers: &'a mut [T],
    /// Elements of a row. The last row may be shorter.
    pub(super) width: usize,
}

impl<'a, T> Rows<'a, T> {
    pub(super) fn new(numbers: &'a mut [T], width: usize) -> Self {
        Self { numbers, width }
    }

    /// Returns row `row` of the task.
    pub(super) fn row(&mut self, row: usize) -> &mut [T] {
        let range = row_range(row, self.width, self.numbers.len());
        &mut self.numbers[range]
    }
}

/// Rows of floating-point numbers of any type that a task writes.
pub(super) struct FloatRows<'a> {
    numbers: FloatsMut<'a>,
    width: usize,
}

impl<'a> FloatRows<'a> {
    pub(super) fn new(numbers: FloatsMut<'a>, width: usize) -> Self {
        Self { numbers, width }
    }
}

impl<T: Send> Split for Rows<'_, T> {
    fn split(self, units: usize) -> (Self, Self) {
        let middle = (units * self.width).min(self.numbers.len());
        let (first, second) = self.numbers.split_at_mut(middle);
        (Self::new(first, self.width), Self::new(second, self.width))
    }
}

impl Split for FloatRows<'_> {
    fn split(self, units: usize) -> (Self, Self) {
        let width = self.width;
        let (first, second) = match self.numbers {
            FloatsMut::F32(numbers) => {
                let (first, second) = Rows::new(numbers, width).split(units);
                (FloatsMut::F32(first.numbers), FloatsMut::F32(second.numbers))
            }
            FloatsMut::F16(numbers) => {
                let (first, second) = Rows::new(numbers, width).split(units);
                (FloatsMut::F16(first.numbers), FloatsMut::F16(second.numbers))
            }
            FloatsMut::Bf16(numbers) => {
                let (first, second) = Rows::new(numbers, width).split(units);
                (FloatsMut::Bf16(first.numbers), FloatsMut::Bf16(second.numbers))
            }
        };
        (Self::new(first, width), Self::new(second, width))
    }
}

impl<S: Split> Split for Option<S> {
    fn split(self, units: usize) -> (Self, Self) {
        self.map_or((None, None), |results| {
            let (first, second) = results.split(units);
            (Some(first), Some(second))
        })
    }
}

impl<A: Split, B: Split> Split for (A, B) {
    fn split(self, units: usize) -> (Self, Self) {
        let (a, b) = (self.0.split(units), self.1.split(units));
        ((a.0, b.0), (a.1, b.1))
    }
}

impl<A: Split, B: Split, C: Split> Split for (A, B, C) {
    fn split(self, units: usize) -> (Self, Self) {
        let (a, b, c) = (self.0.split(units), self.1.split(units), self.2.split(units));
        ((a.0, b.0, c.0), (a.1, b.1, c.1))
    }
}

/// Runs `work` for the units in `0..units`, divided into parallel tasks of at most `grain` units.
/// `work` gets the range of a task's units, and the task's part of `results`.
pub(super) fn parallel<S: Split>(units: usize, grain: usize, results: S, work: impl Fn(Range<usize>, S) + Sync) {
    divide(0..units, grain.max(1), results, &work);
}

/// Runs `work` for `rows` rows of `width` elements, divided into parallel tasks of about `numbers`
/// elements.
pub(super) fn parallel_rows<S: Split>(
    rows: usize,
    width: usize,
    numbers: usize,
    results: S,
    work: impl Fn(Range<usize>, S) + Sync,
) {
    parallel(rows, numbers / width.max(1), results, work);
}

/// Halves the units until a task has at most `grain` units, and runs `work` for each task.
fn divide<S: Split>(units: Range<usize>, grain: usize, results: S, work: &(impl Fn(Range<usize>, S) + Sync)) {
    if units.len() <= grain {
        return work(units, results);
    }
    let half = (units.len().div_ceil(grain) / 2) * grain;
    let (first, second) = results.split(half);
    let middle = units.start + half;
    rayon::join(|| divide(units.start..middle, grain, first, work), || divide(middle..units.end, grain, second, work));
}

/// Reads parts of a float tensor as `f32`.
pub(super) struct Reader<'a> {
    numbers: Floats<'a>,
    converted: Vec<f32>,
    /// The indices of the elements in `converted`.
    range: Range<usize>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(numbers: Floats<'a>) -> Self {
        Self { numbers, converted: Vec::new(), range: 0..0 }
    }

    /// Returns the elements at indices `range`. The slice is valid until the next call.
    pub(super) fn read(&mut self, range: Range<usize>) -> &[f32] {
        if let Floats::F32(numbers) = self.numbers {
            return &numbers[range];
        }
        if self.range != range {
            self.converted.resize(range.len(), 0.0);
            load(self.numbers, range.clone(), &mut self.converted);
            self.range = range;
        }
        &self.converted
    }
}

/// Computes rows of a result from rows of inputs. `units` are the rows of the task, and `result`
/// has only these rows. `compute` gets a row's index in the task, the inputs' rows, and the
/// result's row, whose content is undefined before.
///
/// An input that is `None` is the result itself, in place.
pub(super) fn map_rows<const INPUTS: usize>(
    units: Range<usize>,
    inputs: &[Option<Floats<'_>>; INPUTS],
    result: FloatRows<'_>,
    mut compute: impl FnMut(usize, [&[f32]; INPUTS], &mut [f32]),
) {
    let FloatRows { mut numbers, width } = result;
    let len = numbers.len();
    let mut converted: [Vec<f32>; INPUTS] = std::array::from_fn(|_| Vec::new());
    let mut computed = Vec::new();
    for row in 0..units.len() {
        let range = row_range(row, width, len);
        let start = units.start * width + range.start;
        let input_range = start..start + range.len();
        for (input, converted) in inputs.iter().zip(&mut converted) {
            match input {
                Some(Floats::F32(_)) => {}
                Some(input) => {
                    converted.resize(range.len(), 0.0);
                    load(*input, input_range.clone(), converted);
                }
                None => {
                    converted.resize(range.len(), 0.0);
                    load(numbers.as_floats(), range.clone(), converted);
                }
            }
        }
        let rows: [&[f32]; INPUTS] = std::array::from_fn(|input| match inputs[input] {
            Some(Floats::F32(numbers)) => &numbers[input_range.clone()],
            _ => converted[input].as_slice(),
        });
        if let FloatsMut::F32(numbers) = &mut numbers {
            compute(row, rows, &mut numbers[range]);
        } else {
            computed.resize(range.len(), 0.0);
            compute(row, rows, &mut computed);
            store(&computed, &mut numbers, range);
        }
    }
}

/// Returns the range of row `row` in `len` elements; the last row may be shorter than `width`.
fn row_range(row: usize, width: usize, len: usize) -> Range<usize> {
    let start = (row * width).min(len);
    start..(start + width).min(len)
}

impl Floats<'_> {
    pub(super) fn len(self) -> usize {
        match self {
            Self::F32(numbers) => numbers.len(),
            Self::F16(numbers) => numbers.len(),
            Self::Bf16(numbers) => numbers.len(),
        }
    }
}

impl FloatsMut<'_> {
    pub(super) fn len(&self) -> usize {
        self.as_floats().len()
    }

    /// Returns the elements, to read.
    pub(super) fn as_floats(&self) -> Floats<'_> {
        match self {
            Self::F32(numbers) => Floats::F32(numbers),
            Self::F16(numbers) => Floats::F16(numbers),
            Self::Bf16(numbers) => Floats::Bf16(numbers),
        }
    }
}

/// Converts the elements at indices `range` to `f32` and stores them in `to`.
pub(super) fn load(numbers: Floats<'_>, range: Range<usize>, to: &mut [f32]) {
    match numbers {
        Floats::F32(numbers) => to.copy_from_slice(&numbers[range]),
        Floats::F16(numbers) => numbers[range].convert_to_f32_slice(to),
        Floats::Bf16(numbers) => {
            for (to, number) in to.iter_mut().zip(&numbers[range]) {
                *to = f32::from_bits(u32::from(number.to_bits()) << 16);
            }
        }
    }
}

/// Rounds `from` to the data type of `numbers` and stores it at indices `range`.
pub(super) fn store(from: &[f32], numbers: &mut FloatsMut<'_>, range: Range<usize>) {
    match numbers {
        FloatsMut::F32(numbers) => numbers[range].copy_from_slice(from),
        FloatsMut::F16(numbers) => numbers[range].convert_from_f32_slice(from),
        FloatsMut::Bf16(numbers) => {
            for (number, from) in numbers[range].iter_mut().zip(from) {
                *number = round_to_bf16(*from);
            }
        }
    }
}

/// Rounds to the nearest `bf16`, ties to even, without a branch.
#[inline(always)]
fn round_to_bf16(x: f32) -> bf16 {
    const QUIET_NAN: u32 = 0x7fc0;
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let rounded = if x.is_nan() { QUIET_NAN } else { rounded };
    bf16::from_bits(rounded as u16)
}

/// Fills a tensor with a value.
pub(super) fn fill(to: RawSlice<'_>, value: f32) {
    let result = FloatRows::new(floats_mut(to, &[]), BLOCK);
    map_rows(0..to.len().div_ceil(BLOCK), &[], result, |_, [], y| y.fill(value));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_is_rounded_as_by_its_crate() {
        for bits in (0..=u32::MAX).step_by(4099) {
            let x = f32::from_bits(bits);
            let (ours, theirs) = (round_to_bf16(x), bf16::from_f32(x));
            assert!(ours.to_bits() == theirs.to_bits() || x.is_nan() && ours.is_nan(), "{x}");
        }
    }

    #[test]
    fn every_unit_belongs_to_one_task() {
        for (units, grain) in [(0, 4), (1, 4), (4, 4), (5, 4), (103, 7)] {
            let mut counts = vec![0; units * 3];
            parallel(units, grain, Rows::new(&mut counts, 3), |range, rows| {
                assert!(range.len() <= grain && rows.numbers.len() == range.len() * 3);
                for (index, count) in rows.numbers.iter_mut().enumerate() {
                    *count += range.start * 3 + index + 1;
                }
            });
            assert!(counts.iter().enumerate().all(|(index, count)| *count == index + 1), "{units} units");
        }
    }
}
