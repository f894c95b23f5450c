//! Convolutions, computed as matrix products (im2col).

use vramscope_collector::{Category, Scope};

use super::linear::{cast_argument, product};
use super::{arguments, check_floats};
use crate::autograd::{Node, Saved};
use crate::backend::Window;
use crate::error::Result;
use crate::operation::Operation;
use crate::tensor::{Tensor, checked_len};

/// The stride and padding of a convolution or of pooling, equal in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvolutionOptions {
    /// Distance between neighboring windows, in pixels; not 0.
    pub stride: usize,
    /// Width of the border around the image, in pixels: zeros in a convolution, ignored in pooling.
    pub padding: usize,
}

/// Returns the windows of a square kernel over images of the shape `[image, channel, row, column]`;
/// `None` if an image is smaller than the kernel, if the kernel or the stride is 0, or if the
/// windows have too many pixels.
pub(super) fn window(shape: [usize; 4], kernel: usize, options: ConvolutionOptions) -> Option<Window> {
    let ConvolutionOptions { stride, padding } = options;
    let [images, channels, height, width] = shape;
    let size = |input: usize| Some(input.checked_add(padding.checked_mul(2)?)?.checked_sub(kernel)? / stride + 1);
    if kernel == 0 || stride == 0 {
        return None;
    }
    let output = [size(height)?, size(width)?];
    checked_len(&[images, output[0], output[1], channels, kernel, kernel])?;
    Some(Window { images, channels, input: [height, width], output, kernel, stride, padding })
}

/// Copies the window of each output pixel to one row of a matrix in scratch memory (im2col). The
/// matrix is `[image * output row * output column, channel * kernel row * kernel column]`.
fn columns_of(x: &Tensor, window: &Window) -> Result<Tensor> {
    let _category = Scope::of(Category::Temporary);
    let rows = window.images * window.output[0] * window.output[1];
    let row = window.channels * window.kernel * window.kernel;
    let columns = Tensor::empty(x.device(), &[rows, row], x.dtype())?;
    x.device().kernels().image_to_columns(x.raw(), columns.raw(), window)?;
    Ok(columns)
}

impl Tensor {
    /// Convolves images `[images, channels, height, width]` with `weight` `[outputs, channels,
    /// kernel, kernel]`, like `torch.nn.functional.conv2d` without bias. The result is `[images,
    /// outputs, height, width]`. In mixed precision, converts images and weight to its data type
    /// first.
    ///
    /// # Errors
    /// If the shapes do not fit, or memory or kernels fail.
    #[track_caller]
    pub fn convolution(&self, weight: &Self, options: ConvolutionOptions) -> Result<Self> {
        let _operation = Operation::enter("convolution");
        check_floats("convolution", &[self, weight])?;
        let misfit = || arguments("convolution", format!("{:?} does not fit {:?}", self.shape(), weight.shape()));
        let (x, weight) = (cast_argument(self)?, cast_argument(weight)?);
        let (Ok(shape), &[outputs, channels, kernel, kernel_width]) =
            (<[usize; 4]>::try_from(x.shape()), weight.shape())
        else {
            return Err(misfit());
        };
        if channels != shape[1] || kernel != kernel_width || x.dtype() != weight.dtype() {
            return Err(misfit());
        }
        let window = window(shape, kernel, options).ok_or_else(misfit)?;
        let pixels = window.images * window.output[0] * window.output[1];
        let inner = channels * kernel * kernel;
        let [height, width] = window.output;
        let by_pixel = {
            let columns = columns_of(&x, &window)?;
            let _category = Scope::of(Category::Temporary);
            product(
                &columns,
                &weight,
                [pixels, inner, outputs],
                [false, true],
                1,
                &[window.images, height, width, outputs],
            )?
        };
        let y = by_pixel.permuted([0, 3, 1, 2])?;
        drop(by_pixel);
        let node = Node::record("convolution", &[&x, &weight], || {
            let needs_grad = [&x, &weight].map(|argument| argument.requires_grad());
            let (saved_x, saved_weight) = (Saved::new(&x), Saved::new(&weight));
            move |dy: Self| {
                let (x, weight) = (saved_x.unpack("convolution")?, saved_weight.unpack("convolution")?);
                let (by_pixel, columns) = {
                    let _category = Scope::of(Category::Temporary);
                    let by_pixel = dy.permuted([0, 2, 3, 1])?;
                    drop(dy);
                    (by_pixel, needs_grad[1].then(|| columns_of(&x, &window)).transpose()?)
                };
                let d_weight = columns.map(|columns| {
                    product(&by_pixel, &columns, [outputs, pixels, inner], [true, false], 1, weight.shape())
                });
                let d_weight = d_weight.transpose()?;
                if !needs_grad[0] {
                    return Ok(vec![None, d_weight]);
                }
                let d_columns = {
                    let _category = Scope::of(Category::Temporary);
                    product(&by_pixel, &weight, [pixels, outputs, inner], [false, false], 1, &[pixels, inner])?
                };
                drop(by_pixel);
                let dx = x.empty_like()?;
                dx.device().kernels().columns_to_image(d_columns.raw(), dx.raw(), &window)?;
                Ok(vec![Some(dx), d_weight])
            }
        });
        Ok(y.with_history(node))
    }
}
