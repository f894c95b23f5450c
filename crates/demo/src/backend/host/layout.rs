//! Copies between tensors of different strides on the host.

use super::HostBackend;
use super::slices::{Number, numbers, numbers_mut};
use super::tasks::{Rows, SIMPLE, parallel_rows};
use crate::backend::{LayoutKernels, RawSlice, Result, StridedCopy};

impl LayoutKernels for HostBackend {
    fn copy_strided(&self, from: RawSlice<'_>, to: RawSlice<'_>, copy: &StridedCopy) -> Result {
        assert_eq!(from.dtype().bytes(), to.dtype().bytes(), "the numbers have one size");
        if copy.dims.contains(&0) {
            return Ok(());
        }
        match to.dtype().bytes() {
            1 => copy_numbers::<u8>(from, to, copy),
            2 => copy_numbers::<u16>(from, to, copy),
            _ => copy_numbers::<u32>(from, to, copy),
        }
        Ok(())
    }
}

/// A dimension of a copy: its length, and the strides of source and destination, in elements.
#[derive(Clone, Copy)]
struct Dimension {
    len: usize,
    from_stride: usize,
    to_stride: usize,
}

/// Copies elements that have the size of `T`.
fn copy_numbers<T: Number>(from: RawSlice<'_>, to: RawSlice<'_>, copy: &StridedCopy) {
    let source = &numbers::<T>(from)[copy.from_offset..];
    let destination = &mut numbers_mut::<T>(to, &[from])[copy.to_offset..];
    let [outer, inner @ ..] = ordered(copy);
    let span = 1 + inner.iter().map(|dim| (dim.len - 1) * dim.to_stride).sum::<usize>();
    let total = (outer.len - 1) * outer.to_stride + span;
    let destination = &mut destination[..total];
    if outer.to_stride < span {
        // The destination's parts overlap, so they cannot be divided: a single task copies them.
        for index in 0..outer.len {
            let (from, to) = (&source[index * outer.from_stride..], &mut destination[index * outer.to_stride..]);
            copy_block(from, to, inner);
        }
        return;
    }
    let numbers = inner.iter().map(|dim| dim.len).product();
    let results = Rows::new(destination, outer.to_stride);
    parallel_rows(outer.len, numbers, SIMPLE, results, |units, mut results| {
        for (row, index) in units.enumerate() {
            copy_block(&source[index * outer.from_stride..], results.row(row), inner);
        }
    });
}

/// Returns the dimensions ordered by the destination's strides, the largest first. Dimensions that
/// are contiguous in both tensors are joined, except the first, which is divided between tasks.
/// Dimensions of length 1 behind the first one fill up the four.
fn ordered(copy: &StridedCopy) -> [Dimension; 4] {
    /// A dimension that has no effect.
    const NONE: Dimension = Dimension { len: 1, from_stride: 0, to_stride: 0 };
    let mut dims: Vec<Dimension> = (0..4)
        .map(|dim| Dimension {
            len: copy.dims[dim],
            from_stride: copy.from_strides[dim],
            to_stride: copy.to_strides[dim],
        })
        .filter(|dim| dim.len > 1)
        .collect();
    dims.sort_by_key(|dim| std::cmp::Reverse(dim.to_stride));
    let mut index = 1;
    while index < dims.len() {
        let (outer, inner) = (dims[index - 1], dims[index]);
        let is_contiguous =
            outer.to_stride == inner.len * inner.to_stride && outer.from_stride == inner.len * inner.from_stride;
        if is_contiguous && index > 1 {
            dims[index - 1] = Dimension { len: outer.len * inner.len, ..inner };
            dims.remove(index);
        } else {
            index += 1;
        }
    }
    let outer = if dims.len() > 1 { dims.remove(0) } else { NONE };
    let mut ordered = [outer, NONE, NONE, NONE];
    let first = 4 - dims.len();
    ordered[first..].copy_from_slice(&dims);
    ordered
}

/// Copies a block of three dimensions; `k` is the innermost one.
fn copy_block<T: Number>(from: &[T], to: &mut [T], [i, j, k]: [Dimension; 3]) {
    for i_index in 0..i.len {
        for j_index in 0..j.len {
            let from = &from[i_index * i.from_stride + j_index * j.from_stride..];
            let to = &mut to[i_index * i.to_stride + j_index * j.to_stride..];
            if k.from_stride == 1 && k.to_stride == 1 {
                to[..k.len].copy_from_slice(&from[..k.len]);
            } else {
                for index in 0..k.len {
                    to[index * k.to_stride] = from[index * k.from_stride];
                }
            }
        }
    }
}
