//! Launches the kernels of `kernels/images.cu`.

use super::kernels::{Kernel, Variant};
use super::launch::{Argument, FLAT_THREADS, Floats, Launcher, dimension, f32s, flat_blocks, launch, u32s};
use crate::backend::{BatchNormKernels, ChannelNorm, ImageKernels, Norm, NormBackward, RawSlice, Result, Window};

/// The kernels' parameter type for a window: `Window` in `images.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct KernelWindow([u32; 9]);

// SAFETY: Nine `u32`, as the fields of the C++ type.
unsafe impl Argument for KernelWindow {}

impl KernelWindow {
    fn new(window: &Window) -> Result<Self> {
        let &Window { images, channels, input, output, kernel, stride, padding } = window;
        assert!(kernel > 0 && stride > 0, "windows have a size and a distance");
        dimension(input[0] + padding + kernel)?;
        dimension(input[1] + padding + kernel)?;
        let sizes = [images, channels, input[0], input[1], output[0], output[1], kernel, stride, padding];
        let mut fields = [0; 9];
        for (field, size) in fields.iter_mut().zip(sizes) {
            *field = dimension(size)?;
        }
        Ok(Self(fields))
    }
}

/// Returns the element counts of the input images, of the output images, and of the matrix of
/// columns.
fn lengths(window: &Window) -> [usize; 3] {
    let &Window { images, channels, input, output, kernel, .. } = window;
    let planes = images * channels;
    let output = planes * output[0] * output[1];
    [planes * input[0] * input[1], output, output * kernel * kernel]
}

impl ImageKernels for Launcher {
    fn image_to_columns(&self, x: RawSlice<'_>, columns: RawSlice<'_>, window: &Window) -> Result {
        let [input, _, length] = lengths(window);
        assert_eq!((x.len(), columns.len()), (input, length), "the tensors have another shape");
        launch!(
            self, Kernel::ImageToColumns, Variant::Any, flat_blocks(length, 1), FLAT_THREADS;
            Floats::of(x), Floats::of(columns), length as u64, KernelWindow::new(window)?
        )
    }

    fn columns_to_image(&self, columns: RawSlice<'_>, x: RawSlice<'_>, window: &Window) -> Result {
        let [input, _, length] = lengths(window);
        assert_eq!((x.len(), columns.len()), (input, length), "the tensors have another shape");
        launch!(
            self, Kernel::ColumnsToImage, Variant::Any, flat_blocks(input, 1), FLAT_THREADS;
            Floats::of(columns), Floats::of(x), input as u64, KernelWindow::new(window)?
        )
    }

    fn max_pool(&self, x: RawSlice<'_>, y: RawSlice<'_>, indices: RawSlice<'_>, window: &Window) -> Result {
        let [input, output, _] = lengths(window);
        assert_eq!((x.len(), y.len(), indices.len()), (input, output, output), "the tensors have another shape");
        launch!(
            self, Kernel::MaxPool, Variant::Any, flat_blocks(output, 1), FLAT_THREADS;
            Floats::of(x), Floats::of(y), u32s(indices), output as u64, KernelWindow::new(window)?
        )
    }

    fn max_pool_backward(&self, dy: RawSlice<'_>, indices: RawSlice<'_>, dx: RawSlice<'_>, window: &Window) -> Result {
        let [input, output, _] = lengths(window);
        assert_eq!((dx.len(), dy.len(), indices.len()), (input, output, output), "the tensors have another shape");
        launch!(
            self, Kernel::MaxPoolBackward, Variant::Any, flat_blocks(input, 1), FLAT_THREADS;
            Floats::of(dy), u32s(indices), Floats::of(dx), input as u64, KernelWindow::new(window)?
        )
    }
}

/// The kernels' parameter type for a batch norm: `ChannelNorm` in `images.cu`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct KernelNorm {
    images: u32,
    channels: u32,
    pixels: u32,
    epsilon: f32,
}

// SAFETY: `repr(C)`, with the fields of the C++ type.
unsafe impl Argument for KernelNorm {}

impl KernelNorm {
    fn new(shape: &ChannelNorm) -> Result<Self> {
        Ok(Self {
            images: dimension(shape.images)?,
            channels: dimension(shape.channels)?,
            pixels: dimension(shape.pixels)?,
            epsilon: shape.epsilon,
        })
    }
}

/// Number of threads in the block that computes one channel.
const CHANNEL_THREADS: u32 = 512;

impl BatchNormKernels for Launcher {
    fn batch_norm(&self, norm: &Norm<'_>, shape: &ChannelNorm) -> Result {
        let &Norm { x, weight, bias, y, statistics } = norm;
        let (count, channels) = (shape.images * shape.channels * shape.pixels, shape.channels);
        assert_eq!((x.len(), y.len()), (count, count), "the tensors have another shape");
        assert_eq!(
            (weight.len(), bias.len(), statistics.len()),
            (channels, channels, 2 * channels),
            "one of each channel"
        );
        let kernel_norm = KernelNorm::new(shape)?;
        launch!(
            self, Kernel::BatchNormStatistics, Variant::Any, [channels, 1], CHANNEL_THREADS;
            Floats::of(x), f32s(statistics), kernel_norm
        )?;
        launch!(
            self, Kernel::BatchNorm, Variant::Any, flat_blocks(count, 1), FLAT_THREADS;
            Floats::of(x), f32s(weight), f32s(bias), Floats::of(y), f32s(statistics), count as u64, kernel_norm
        )
    }

    fn batch_norm_backward(&self, norm: &NormBackward<'_>, shape: &ChannelNorm) -> Result {
        let &NormBackward { x, dy, weight, statistics, dx, d_weight, d_bias } = norm;
        let (count, channels) = (shape.images * shape.channels * shape.pixels, shape.channels);
        assert!([x, dy, dx].iter().all(|slice| slice.len() == count), "the tensors have another shape");
        assert!([weight, d_weight, d_bias].iter().all(|slice| slice.len() == channels), "there is one of each channel");
        assert_eq!(statistics.len(), 2 * channels, "there are two statistics a channel");
        let kernel_norm = KernelNorm::new(shape)?;
        launch!(
            self, Kernel::BatchNormGradients, Variant::Any, [channels, 1], CHANNEL_THREADS;
            Floats::of(x), Floats::of(dy), f32s(statistics), f32s(d_weight), f32s(d_bias), kernel_norm
        )?;
        launch!(
            self, Kernel::BatchNormBackward, Variant::Any, flat_blocks(count, 1), FLAT_THREADS;
            Floats::of(x), Floats::of(dy), f32s(weight), f32s(statistics), f32s(d_weight), f32s(d_bias), Floats::of(dx),
            count as u64, kernel_norm
        )
    }
}
