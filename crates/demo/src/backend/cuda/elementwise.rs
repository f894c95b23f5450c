//! Launches the kernels of `kernels/elementwise.cu`, and the copies between layouts.

use super::error::refused;
use super::kernels::{Kernel, Variant};
use super::launch::{Argument, FLAT_THREADS, Floats, Launcher, aligned, dimension, flat_blocks, launch};
use crate::backend::{Binary, ElementwiseKernels, LayoutKernels, RawSlice, Result, StridedCopy, Unary};

impl ElementwiseKernels for Launcher {
    fn unary(&self, function: Unary, x: RawSlice<'_>, y: RawSlice<'_>) -> Result {
        assert_eq!(x.len(), y.len(), "the tensors differ in length");
        let variant = Variant::of(&[x, y]);
        let function: u32 = match function {
            Unary::Copy => 0,
            Unary::Gelu => 1,
            Unary::Relu => 2,
        };
        launch!(
            self, Kernel::Unary, variant, flat_blocks(x.len(), variant.pack()), FLAT_THREADS;
            function, Floats::of(x), Floats::of(y), x.len() as u64, aligned(&[x, y])
        )
    }

    fn binary(&self, function: Binary, a: RawSlice<'_>, b: RawSlice<'_>, out: RawSlice<'_>) -> Result {
        assert_eq!((a.len(), b.len()), (out.len(), out.len()), "the tensors differ in length");
        let variant = Variant::of(&[a, b, out]);
        let function: u32 = match function {
            Binary::Multiply => 0,
            Binary::GeluBackward => 1,
            Binary::ReluBackward => 2,
        };
        launch!(
            self, Kernel::Binary, variant, flat_blocks(out.len(), variant.pack()), FLAT_THREADS;
            function, Floats::of(a), Floats::of(b), Floats::of(out), out.len() as u64, aligned(&[a, b, out])
        )
    }

    fn combine(&self, alpha: f32, a: RawSlice<'_>, b: Option<(f32, RawSlice<'_>)>, out: RawSlice<'_>) -> Result {
        assert_eq!(a.len(), out.len(), "the tensors differ in length");
        let Some((beta, b)) = b else {
            let variant = Variant::of(&[a, out]);
            return launch!(
                self, Kernel::Scale, variant, flat_blocks(out.len(), variant.pack()), FLAT_THREADS;
                alpha, Floats::of(a), Floats::of(out), out.len() as u64, aligned(&[a, out])
            );
        };
        assert_eq!(b.len(), out.len(), "the tensors differ in length");
        let variant = Variant::of(&[a, b, out]);
        launch!(
            self, Kernel::Combine, variant, flat_blocks(out.len(), variant.pack()), FLAT_THREADS;
            alpha, Floats::of(a), beta, Floats::of(b), Floats::of(out), out.len() as u64, aligned(&[a, b, out])
        )
    }

    fn add_bias(&self, x: RawSlice<'_>, bias: RawSlice<'_>, y: RawSlice<'_>) -> Result {
        assert_eq!(x.len(), y.len(), "the tensors differ in length");
        if x.len() == 0 {
            return Ok(());
        }
        assert!(x.len().is_multiple_of(bias.len()), "the bias is not one row");
        let variant = Variant::of(&[x, bias, y]);
        launch!(
            self, Kernel::AddBias, variant, flat_blocks(x.len(), variant.pack()), FLAT_THREADS;
            Floats::of(x), Floats::of(bias), Floats::of(y), x.len() as u64, dimension(bias.len())?,
            aligned(&[x, bias, y])
        )
    }

    fn average_groups(&self, x: RawSlice<'_>, y: RawSlice<'_>, group: usize) -> Result {
        assert_eq!(x.len(), y.len() * group, "the groups have another length");
        launch!(
            self, Kernel::AverageGroups, Variant::Any, [y.len().div_ceil(4), 1], 128;
            Floats::of(x), Floats::of(y), y.len() as u64, dimension(group)?
        )
    }

    fn spread_groups(&self, y: RawSlice<'_>, x: RawSlice<'_>, group: usize, scale: f32) -> Result {
        assert_eq!(x.len(), y.len() * group, "the groups have another length");
        launch!(
            self, Kernel::SpreadGroups, Variant::Any, flat_blocks(x.len(), 1), FLAT_THREADS;
            Floats::of(y), Floats::of(x), x.len() as u64, dimension(group)?, scale
        )
    }
}

/// Dimensions of a copy, and strides of source and destination: `Layouts` in `layout.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Layouts {
    from: [u64; 4],
    to: [u64; 4],
    dims: [u32; 4],
}

// SAFETY: `repr(C)`, with the fields of the C++ type of this name.
unsafe impl Argument for Layouts {}

/// A dimension of a copy: its length, and its strides in source and destination, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    dim: usize,
    from: usize,
    to: usize,
}

/// Returns the dimensions of a copy, from the longest stride to the shortest. Merges those that are
/// contiguous in both tensors.
fn axes(copy: &StridedCopy) -> Vec<Axis> {
    let all = copy.dims.iter().zip(copy.from_strides).zip(copy.to_strides);
    let mut axes: Vec<Axis> =
        all.map(|((&dim, from), to)| Axis { dim, from, to }).filter(|axis| axis.dim != 1).collect();
    // Threads with consecutive indices then write to consecutive addresses.
    axes.sort_by_key(|axis| std::cmp::Reverse((axis.to, axis.from)));
    let mut merged: Vec<Axis> = Vec::with_capacity(4);
    for axis in axes {
        match merged.last_mut() {
            Some(outer) if outer.from == axis.dim * axis.from && outer.to == axis.dim * axis.to => {
                *outer = Axis { dim: outer.dim * axis.dim, ..axis };
            }
            _ => merged.push(axis),
        }
    }
    merged
}

/// Returns true if the copy can move units of `numbers` consecutive elements, each at an address
/// that is a multiple of `bytes`. `offsets` and `addresses` are those of source and destination.
fn is_in_units(axes: &[Axis], offsets: [usize; 2], addresses: [u64; 2], numbers: usize, bytes: u64) -> bool {
    let Some((last, others)) = axes.split_last() else { return numbers == 1 };
    let is_multiple = |n: usize| n.is_multiple_of(numbers);
    numbers == 1
        || last.from == 1
            && last.to == 1
            && is_multiple(last.dim)
            && others.iter().all(|axis| is_multiple(axis.from) && is_multiple(axis.to))
            && offsets.into_iter().all(is_multiple)
            && addresses.iter().all(|address| address.is_multiple_of(bytes))
}

/// Returns the layouts measured in units of `numbers` elements, and how many units the copy has.
fn layouts(axes: &[Axis], numbers: usize) -> Result<(Layouts, usize)> {
    let mut layouts = Layouts { from: [0; 4], to: [0; 4], dims: [1; 4] };
    let first = 4 - axes.len();
    for (n, axis) in axes.iter().enumerate() {
        let is_last = n + 1 == axes.len();
        let divided = |stride: usize| if is_last && numbers > 1 { 1 } else { (stride / numbers) as u64 };
        layouts.from[first + n] = divided(axis.from);
        layouts.to[first + n] = divided(axis.to);
        layouts.dims[first + n] = dimension(if is_last { axis.dim / numbers } else { axis.dim })?;
    }
    let count = axes.iter().map(|axis| axis.dim).product::<usize>() / numbers;
    Ok((layouts, count))
}

impl LayoutKernels for Launcher {
    fn copy_strided(&self, from: RawSlice<'_>, to: RawSlice<'_>, copy: &StridedCopy) -> Result {
        if copy.dims.contains(&0) {
            return Ok(());
        }
        let end = |offset: usize, strides: [usize; 4]| {
            1 + offset + copy.dims.iter().zip(strides).map(|(dim, stride)| (dim - 1) * stride).sum::<usize>()
        };
        assert!(end(copy.from_offset, copy.from_strides) <= from.len(), "the block is not within the source");
        assert!(end(copy.to_offset, copy.to_strides) <= to.len(), "the block is not within the destination");
        let bytes = from.dtype().bytes();
        assert_eq!(bytes, to.dtype().bytes(), "the types differ in size");
        let axes = axes(copy);
        let (offsets, addresses) = ([copy.from_offset, copy.to_offset], [from.address(), to.address()]);
        let fits = |numbers: usize| is_in_units(&axes, offsets, addresses, numbers, (numbers * bytes) as u64);
        let first_from = from.address() + (copy.from_offset * bytes) as u64;
        let first_to = to.address() + (copy.to_offset * bytes) as u64;
        let units = [
            (16, Kernel::CopyStrided16),
            (8, Kernel::CopyStrided8),
            (4, Kernel::CopyStrided4),
            (2, Kernel::CopyStrided2),
            (1, Kernel::CopyStrided1),
        ];
        let unit = units.into_iter().find(|&(unit, _)| unit >= bytes && fits(unit / bytes));
        let Some((unit, kernel)) = unit else {
            return Err(refused("cuLaunchKernel", "an address is not a multiple of the size of its numbers"));
        };
        let (layouts, count) = layouts(&axes, unit / bytes)?;
        launch!(
            self, kernel, Variant::Any, flat_blocks(count, 1), FLAT_THREADS;
            first_from, first_to, count as u64, layouts
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_axes_are_merged() {
        // [2, 8 heads, 16 positions, 4] from [2, 16, 8, 4].
        let copy = StridedCopy {
            dims: [2, 8, 16, 4],
            from_offset: 0,
            from_strides: [512, 4, 32, 1],
            to_offset: 0,
            to_strides: [512, 64, 4, 1],
        };
        let split = axes(&copy);
        assert_eq!(split.len(), 4);
        assert!(is_in_units(&split, [0, 0], [0, 16], 4, 16));
        assert!(!is_in_units(&split, [0, 2], [0, 16], 4, 16) && !is_in_units(&split, [0, 0], [0, 8], 4, 16));
        assert!(!is_in_units(&split, [0, 0], [0, 0], 8, 16));
        let (layouts, count) = layouts(&split, 4).unwrap();
        assert_eq!(count, 256);
        let expected = Layouts { from: [128, 1, 8, 1], to: [128, 16, 1, 1], dims: [2, 8, 16, 1] };
        assert_eq!(layouts, expected);

        // Rows of a contiguous tensor.
        let copy = StridedCopy { from_strides: [512, 64, 4, 1], ..copy };
        assert_eq!(axes(&copy), [Axis { dim: 1024, from: 1, to: 1 }]);
        let copy = StridedCopy { dims: [1; 4], ..copy };
        assert_eq!(axes(&copy), []);
    }
}
