//! Launches the kernels of `kernels/optimizers.cu`.

use super::kernels::{Kernel, Variant};
use super::launch::{Argument, FLAT_THREADS, Floats, Launcher, aligned, f32s, flat_blocks, launch, u32s};
use crate::backend::{AdamStep, OptimizerKernels, QUANTIZED_BLOCK, QuantizedMoments, RawSlice, Result, SgdStep};
use crate::dtype::DType;

/// The kernels' parameter type for a step of Adam: `AdamStep` in `optimizers.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct KernelAdam([f32; 6]);

// SAFETY: Six `f32`, as the fields of the C++ type.
unsafe impl Argument for KernelAdam {}

impl KernelAdam {
    fn new(step: &AdamStep) -> Self {
        Self([step.rate, step.decay, step.beta1, step.beta2, step.epsilon, step.root_scale])
    }
}

/// The kernels' parameter type for a step of SGD: `SgdStep` in `optimizers.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct KernelSgd([f32; 2]);

// SAFETY: Two `f32`, as the fields of the C++ type.
unsafe impl Argument for KernelSgd {}

/// Returns the kernel parameter of a slice, which must be `f32`.
fn f32_floats(slice: RawSlice<'_>) -> Floats {
    assert_eq!(slice.dtype(), DType::F32, "the kernel reads and writes f32");
    Floats::of(slice)
}

impl OptimizerKernels for Launcher {
    fn adam(
        &self,
        parameter: RawSlice<'_>,
        gradient: RawSlice<'_>,
        [mean, variance]: [RawSlice<'_>; 2],
        step: &AdamStep,
    ) -> Result {
        let count = parameter.len();
        assert!([gradient, mean, variance].iter().all(|slice| slice.len() == count), "the tensors differ in length");
        launch!(
            self, Kernel::Adam, Variant::Any, flat_blocks(count, Variant::Any.pack()), FLAT_THREADS;
            f32_floats(parameter), Floats::of(gradient), f32_floats(mean), f32_floats(variance), count as u64,
            KernelAdam::new(step), aligned(&[parameter, gradient, mean, variance])
        )
    }

    fn adam_8bit(
        &self,
        parameter: RawSlice<'_>,
        gradient: RawSlice<'_>,
        moments: QuantizedMoments<'_>,
        step: &AdamStep,
    ) -> Result {
        let QuantizedMoments { mean, mean_scales, variance, variance_scales } = moments;
        let count = parameter.len();
        let blocks = count.div_ceil(QUANTIZED_BLOCK);
        assert!([gradient, mean, variance].iter().all(|slice| slice.len() == count), "the tensors differ in length");
        assert_eq!((mean_scales.len(), variance_scales.len()), (blocks, blocks), "there is one scale a block");
        assert_eq!((mean.dtype(), variance.dtype()), (DType::I8, DType::U8), "the codes are i8 and u8");
        // One warp for each block of numbers.
        launch!(
            self, Kernel::Adam8Bit, Variant::Any, [blocks.div_ceil(FLAT_THREADS as usize / 32), 1], FLAT_THREADS;
            f32_floats(parameter), Floats::of(gradient), mean.address(), f32s(mean_scales), variance.address(),
            f32s(variance_scales), count as u64, KernelAdam::new(step), aligned(&[parameter, gradient, mean, variance])
        )
    }

    fn sgd(
        &self,
        parameter: RawSlice<'_>,
        gradient: RawSlice<'_>,
        buffer: Option<RawSlice<'_>>,
        step: &SgdStep,
    ) -> Result {
        let count = parameter.len();
        assert_eq!(gradient.len(), count, "the tensors differ in length");
        assert!(buffer.is_none_or(|buffer| buffer.len() == count), "the buffer has another length");
        // Without a buffer, the gradient's address stands in, because it is checked anyway.
        let vector = aligned(&[parameter, gradient, buffer.unwrap_or(gradient)]);
        launch!(
            self, Kernel::Sgd, Variant::Any, flat_blocks(count, Variant::Any.pack()), FLAT_THREADS;
            Floats::of(parameter), Floats::of(gradient), buffer.map_or(Floats::NONE, Floats::of), count as u64,
            KernelSgd([step.rate, step.momentum]), vector
        )
    }

    fn unscale(&self, gradient: RawSlice<'_>, scale: f32, found_infinite: RawSlice<'_>) -> Result {
        assert_eq!(found_infinite.len(), 1, "the result is one number");
        launch!(
            self, Kernel::Unscale, Variant::Any, flat_blocks(gradient.len(), Variant::Any.pack()), FLAT_THREADS;
            Floats::of(gradient), scale, u32s(found_infinite), gradient.len() as u64, aligned(&[gradient])
        )
    }
}
