//! Launches kernels.

use std::cell::Cell;
use std::ffi::c_void;
use std::rc::Rc;

use cudarc::driver::{result, sys};

use super::error::{driver_error, refused};
use super::kernels::{Kernel, Loaded, Variant};
use crate::backend::{Kernels, RawSlice, Result};
use crate::dtype::DType;

/// Threads per block in kernels that run one thread for each element or pack of elements.
pub(super) const FLAT_THREADS: u32 = 256;

/// Elements of a row that a thread keeps in registers: `ROW_NUMBERS` in `prelude.cu`.
pub(super) const ROW_NUMBERS: usize = 16;
/// Maximum number of threads for one row in kernels that keep no elements in registers.
pub(super) const MOST_THREADS: u32 = 1024;

/// A type that has the memory layout of a kernel's parameter in C++.
///
/// # Safety
/// The type has the layout of the kernel's parameter and no bytes of undefined value that a kernel
/// reads.
pub(super) unsafe trait Argument: Copy {}

// SAFETY: C++ has types of these layouts: `u32`, `u64`, `float`.
unsafe impl Argument for u32 {}
// SAFETY: As above.
unsafe impl Argument for u64 {}
// SAFETY: As above.
unsafe impl Argument for f32 {}

/// Address and data type of floats in device memory: `Floats` in `prelude.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Floats {
    pub(super) address: u64,
    pub(super) dtype: u32,
}

// SAFETY: `repr(C)`, with the fields of the C++ type of this name.
unsafe impl Argument for Floats {}

impl Floats {
    /// A null address, for an optional argument that is absent.
    pub(super) const NONE: Self = Self { address: 0, dtype: 0 };

    /// Returns the address and data type of a slice of floats.
    pub(super) fn of(slice: RawSlice<'_>) -> Self {
        let dtype = match slice.dtype() {
            DType::F32 => 0,
            DType::F16 => 1,
            DType::Bf16 => 2,
            other => panic!("kernels of floats cannot read {other}"),
        };
        Self { address: slice.address(), dtype }
    }
}

/// Returns the address of a slice of `f32`.
pub(super) fn f32s(slice: RawSlice<'_>) -> u64 {
    assert_eq!(slice.dtype(), DType::F32, "the kernel reads or writes f32");
    slice.address()
}

/// Returns the address of a slice of `u32`.
pub(super) fn u32s(slice: RawSlice<'_>) -> u64 {
    assert_eq!(slice.dtype(), DType::U32, "the kernel reads or writes u32");
    slice.address()
}

/// Returns 1 if all addresses are multiples of 16, so that a thread can load 16 bytes at once, else
/// 0.
pub(super) fn aligned(slices: &[RawSlice<'_>]) -> u32 {
    u32::from(slices.iter().all(|slice| slice.address().is_multiple_of(16)))
}

/// Returns 1 if rows of `columns` elements can be loaded in packs of 16 bytes, else 0.
pub(super) fn rows_aligned(slices: &[RawSlice<'_>], columns: usize, variant: Variant) -> u32 {
    aligned(slices) & u32::from(columns.is_multiple_of(variant.pack()))
}

/// Converts a dimension to the type that kernels use.
pub(super) fn dimension(n: usize) -> Result<u32> {
    u32::try_from(n).map_err(|_| refused("cuLaunchKernel", format!("a dimension of {n} is too large")))
}

/// Returns the grid (x and y) of blocks of [`FLAT_THREADS`] threads for `count` elements, of which
/// each thread computes `each`.
pub(super) fn flat_blocks(count: usize, each: usize) -> [usize; 2] {
    [count.div_ceil(each * FLAT_THREADS as usize), 1]
}

/// The grid of a kernel that computes rows of a matrix: threads per row, and blocks for all rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowGrid {
    pub(super) blocks: [usize; 2],
    pub(super) block_threads: u32,
    /// Threads for one row: 32 (a warp), or all threads of a block.
    pub(super) row_threads: u32,
}

impl RowGrid {
    /// Returns the grid with one thread for every `numbers` elements of a row, but at most `most`
    /// threads per row.
    pub(super) fn new(rows: usize, columns: usize, numbers: usize, most: u32) -> Self {
        let wanted = columns.div_ceil(numbers).next_power_of_two().clamp(32, most as usize) as u32;
        let block_threads = wanted.max(128);
        // Rows share a block only if each row has 32 threads.
        let row_threads = if wanted == 32 { 32 } else { block_threads };
        let rows_per_block = (block_threads / row_threads) as usize;
        Self { blocks: [rows.div_ceil(rows_per_block), 1], block_threads, row_threads }
    }
}

/// An argument of a launch: its address and size.
pub(super) type Parameter = (*mut c_void, usize);

/// Returns the host address and size of an argument. The driver reads it during the launch.
pub(super) fn parameter<T: Argument>(argument: &T) -> Parameter {
    (std::ptr::from_ref(argument).cast_mut().cast(), size_of::<T>())
}

/// Launches a kernel: `launch!(launcher, kernel, variant, blocks, threads; arguments)`.
macro_rules! launch {
    ($launcher:expr, $kernel:expr, $variant:expr, $blocks:expr, $threads:expr; $($argument:expr),+ $(,)?) => {{
        // SAFETY: The arguments match the kernel's parameters in its file. The creators of the
        // slices guarantee live memory, and the lengths asserted by the method keep accesses within
        // it.
        unsafe {
            $launcher.launch(
                $kernel, $variant, $blocks, $threads,
                &[$($crate::backend::cuda::launch::parameter(&$argument)),+],
            )
        }
    }};
}
pub(super) use launch;

/// Launches kernels on the current stream.
pub(super) struct Launcher {
    pub(super) functions: Functions,
    /// The current stream, shared with `Streams`.
    pub(super) stream: Rc<Cell<sys::CUstream>>,
}

/// The kernels that a launcher launches, or only checks in tests.
pub(super) enum Functions {
    /// Kernels on a device.
    Loaded(Loaded),
    /// In tests without a GPU: the sizes of the kernels' parameters, which launches must match.
    #[cfg(test)]
    Signatures(super::tests::Signatures),
}

impl Functions {
    /// Returns a kernel on the device; null if its file is not compiled for the variant.
    fn get(&self, kernel: Kernel, variant: Variant) -> sys::CUfunction {
        match self {
            Self::Loaded(loaded) => loaded.function(kernel, variant),
            #[cfg(test)]
            Self::Signatures(_) => std::ptr::null_mut(),
        }
    }
}

/// Maximum number of parameters of a kernel.
const MOST_PARAMETERS: usize = 16;

impl Kernels for Launcher {}

impl Launcher {
    /// Launches a kernel with `blocks` blocks of `threads` threads; does nothing if there are no
    /// blocks.
    ///
    /// # Safety
    /// The arguments have the types of the kernel's parameters, and the kernel stays within live
    /// memory with them.
    pub(super) unsafe fn launch(
        &self,
        kernel: Kernel,
        variant: Variant,
        blocks: [usize; 2],
        threads: u32,
        parameters: &[Parameter],
    ) -> Result {
        if blocks[0] == 0 || blocks[1] == 0 {
            return Ok(());
        }
        let (Ok(x), Ok(y)) = (i32::try_from(blocks[0]), u16::try_from(blocks[1])) else {
            return Err(refused("cuLaunchKernel", format!("{kernel:?} needs too many blocks: {blocks:?}")));
        };
        #[cfg(test)]
        if let Functions::Signatures(signatures) = &self.functions {
            signatures.check(kernel, variant, [x as u32, u32::from(y)], threads, parameters);
            return Ok(());
        }
        let function = self.functions.get(kernel, variant);
        debug_assert!(!function.is_null(), "{kernel:?} is not compiled for {variant:?}");
        let mut pointers = [std::ptr::null_mut(); MOST_PARAMETERS];
        for (pointer, &(argument, _)) in pointers.iter_mut().zip(parameters) {
            *pointer = argument;
        }
        let (grid, block) = ((x as u32, u32::from(y), 1), (threads, 1, 1));
        let pointers = &mut pointers[..parameters.len()];
        // SAFETY: The caller guarantees the arguments; the function belongs to a loaded module, and
        // the backend has made the context current on this thread.
        unsafe { result::launch_kernel(function, grid, block, 0, self.stream.get(), pointers) }
            .map_err(|error| driver_error(&format!("cuLaunchKernel({kernel:?})"), error))
    }
}
