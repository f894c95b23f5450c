//! Pooling over images.

use super::convolution::{ConvolutionOptions, window};
use super::{arguments, check_floats};
use crate::autograd::{Node, Saved};
use crate::dtype::DType;
use crate::error::Result;
use crate::operation::Operation;
use crate::tensor::Tensor;

impl Tensor {
    /// Returns the largest pixel of each window of `kernel` x `kernel` pixels in images `[images,
    /// channels, height, width]`, like `torch.nn.functional.max_pool2d`. NaN counts as the largest.
    ///
    /// # Errors
    /// If the shape does not fit, the padding is more than half of the kernel, or memory or kernels
    /// fail.
    #[track_caller]
    pub fn max_pool(&self, kernel: usize, options: ConvolutionOptions) -> Result<Self> {
        let _operation = Operation::enter("max_pool");
        check_floats("max_pool", &[self])?;
        if options.padding > kernel / 2 {
            // A window could lie outside of the image.
            let reason = format!("the padding {} is more than half of the kernel's size {kernel}", options.padding);
            return Err(arguments("max_pool", reason));
        }
        let window = <[usize; 4]>::try_from(self.shape()).ok().and_then(|shape| window(shape, kernel, options));
        let Some(window) = window else {
            let reason = format!("{:?} cannot be divided into windows of {kernel} x {kernel} pixels", self.shape());
            return Err(arguments("max_pool", reason));
        };
        let shape = [window.images, window.channels, window.output[0], window.output[1]];
        let y = Self::empty(self.device(), &shape, self.dtype())?;
        let indices = Self::empty(self.device(), &shape, DType::U32)?;
        self.device().kernels().max_pool(self.raw(), y.raw(), indices.raw(), &window)?;
        let node = Node::record("max_pool", &[self], || {
            let (indices, shape) = (Saved::new(&indices), self.shape().to_vec());
            move |dy: Self| {
                let indices = indices.unpack("max_pool")?;
                let dx = Self::empty(dy.device(), &shape, dy.dtype())?;
                dy.device().kernels().max_pool_backward(dy.raw(), indices.raw(), dx.raw(), &window)?;
                Ok(vec![Some(dx)])
            }
        });
        Ok(y.with_history(node))
    }

    /// Averages all pixels of each channel, as global average pooling: images `[images, channels,
    /// height, width]` become `[images, channels]`.
    ///
    /// # Errors
    /// If the shape does not fit, or memory or kernels fail.
    #[track_caller]
    pub fn average_pixels(&self) -> Result<Self> {
        let _operation = Operation::enter("average_pixels");
        check_floats("average_pixels", &[self])?;
        let &[images, channels, height, width] = self.shape() else {
            return Err(arguments("average_pixels", format!("{:?} are not images", self.shape())));
        };
        let pixels = height * width;
        let y = Self::empty(self.device(), &[images, channels], self.dtype())?;
        self.device().kernels().average_groups(self.raw(), y.raw(), pixels)?;
        let node = Node::record("average_pixels", &[self], || {
            let shape = self.shape().to_vec();
            move |dy: Self| {
                let dx = Self::empty(dy.device(), &shape, dy.dtype())?;
                dy.device().kernels().spread_groups(dy.raw(), dx.raw(), pixels, 1.0 / pixels as f32)?;
                Ok(vec![Some(dx)])
            }
        });
        Ok(y.with_history(node))
    }
}
