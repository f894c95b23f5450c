//! The traits of a device's kernels, one for each kind of computation.
//!
//! Each trait is implemented in one module of each backend.

use super::{
    AdamStep, Binary, ChannelNorm, Norm, NormBackward, QuantizedMoments, RawSlice, Result, SgdStep, Softmax,
    StridedCopy, Unary, Window,
};

/// All kernels of a device.
///
/// Kernels run in order on the current stream of the backend; the host runs them synchronously.
/// Where a method says "in place allowed", the result may use the memory of an argument; otherwise
/// results and arguments do not overlap. Each float argument may be `f32`, `f16` or `bf16` unless
/// stated. The methods assert the lengths of their arguments.
pub(crate) trait Kernels:
    ElementwiseKernels
    + LayoutKernels
    + SumKernels
    + RowKernels
    + TableKernels
    + ImageKernels
    + BatchNormKernels
    + OptimizerKernels
    + QuantizationKernels
{
}

/// Kernels that compute each element of a tensor independently, or groups of elements.
pub(crate) trait ElementwiseKernels {
    /// Computes a function of each element; in place allowed.
    fn unary(&self, function: Unary, x: RawSlice<'_>, y: RawSlice<'_>) -> Result;

    /// Computes a function of each pair of elements; `out` may be `a` or `b`.
    fn binary(&self, function: Binary, a: RawSlice<'_>, b: RawSlice<'_>, out: RawSlice<'_>) -> Result;

    /// Computes `alpha * a + beta * b`; `out` may be `a` or `b`. Without `b`, computes `alpha * a`.
    fn combine(&self, alpha: f32, a: RawSlice<'_>, b: Option<(f32, RawSlice<'_>)>, out: RawSlice<'_>) -> Result;

    /// Adds `bias`, which has the length of a row, to every row of `x`; in place allowed.
    fn add_bias(&self, x: RawSlice<'_>, bias: RawSlice<'_>, y: RawSlice<'_>) -> Result;

    /// Averages groups of `group` consecutive elements: `x` has `group` times as many elements as
    /// `y`. If a channel has `group` pixels, this is global average pooling.
    fn average_groups(&self, x: RawSlice<'_>, y: RawSlice<'_>, group: usize) -> Result;

    /// Writes each element of `y`, times `scale`, to all elements of its group in `x`. With `scale`
    /// 1 / `group`, this is the gradient of [`average_groups`](Self::average_groups).
    fn spread_groups(&self, y: RawSlice<'_>, x: RawSlice<'_>, group: usize, scale: f32) -> Result;
}

/// Kernels that copy between tensors of different strides.
pub(crate) trait LayoutKernels {
    /// Copies a block of elements as `copy` describes. The data types have equal sizes.
    fn copy_strided(&self, from: RawSlice<'_>, to: RawSlice<'_>, copy: &StridedCopy) -> Result;
}

/// Kernels that sum columns, or all elements of a tensor.
pub(crate) trait SumKernels {
    /// Sums each column of a matrix with as many columns as `sums` has elements. `partials` is
    /// `f32` scratch memory of [`partial_rows`]`(rows)` rows.
    fn column_sums(&self, x: RawSlice<'_>, partials: RawSlice<'_>, sums: RawSlice<'_>) -> Result;

    /// Sums all elements of `x` and multiplies the sum by `scale`. `sum` has one element.
    /// `partials` is `f32` scratch memory of one element for each [`NUMBERS_PER_PARTIAL`] elements
    /// of `x`.
    fn sum(&self, x: RawSlice<'_>, partials: RawSlice<'_>, sum: RawSlice<'_>, scale: f32) -> Result;
}

/// Kernels that compute each row of a matrix independently.
pub(crate) trait RowKernels {
    /// Computes a softmax over each row of `x`; in place allowed.
    fn softmax(&self, x: RawSlice<'_>, y: RawSlice<'_>, shape: &Softmax) -> Result;

    /// Computes the gradient of [`softmax`](Self::softmax)'s argument: `scale * y * (dy - sum(y
    /// dy))` in each row. `dx` may be `dy`.
    fn softmax_backward(&self, y: RawSlice<'_>, dy: RawSlice<'_>, dx: RawSlice<'_>, shape: &Softmax) -> Result;

    /// Normalizes each row of `x` to mean 0 and variance 1, then multiplies it by the weight and
    /// adds the bias. Weight and bias have the length of a row.
    fn layer_norm(&self, norm: &Norm<'_>, epsilon: f32) -> Result;

    /// Computes the gradients of [`layer_norm`](Self::layer_norm). `partials` is `f32` scratch
    /// memory of 2 x [`partial_rows`]`(rows)` rows.
    fn layer_norm_backward(&self, norm: &NormBackward<'_>, partials: RawSlice<'_>) -> Result;

    /// Writes the column (`u32`) of the largest element of each row; of equal elements, the first
    /// one. NaN counts as the largest.
    fn argmax_rows(&self, x: RawSlice<'_>, columns: RawSlice<'_>) -> Result;
}

/// Kernels that access rows of a table by index, and the cross entropy.
pub(crate) trait TableKernels {
    /// Copies row `indices[n]` (`u32`) of `table` to row `n` of `rows`, converting the data type.
    ///
    /// # Errors
    /// On the host, if an index is beyond the table. A GPU copies zeros for it.
    fn gather_rows(&self, table: RawSlice<'_>, indices: RawSlice<'_>, rows: RawSlice<'_>) -> Result;

    /// Sets row `i` of `table` to the sum of the rows `n` of `rows` for which `indices[n]` is `i`,
    /// added in order of `n`. Rows without an index become 0.
    fn scatter_add_rows(&self, rows: RawSlice<'_>, indices: RawSlice<'_>, table: RawSlice<'_>) -> Result;

    /// Computes for each row of `logits` the logarithm of the sum of exponentials (`log_sums`,
    /// `f32`), and the loss `log_sum - logits[target]` (`losses`, `f32`). `targets` has one `u32`
    /// for each row.
    fn cross_entropy(
        &self,
        logits: RawSlice<'_>,
        targets: RawSlice<'_>,
        log_sums: RawSlice<'_>,
        losses: RawSlice<'_>,
    ) -> Result;

    /// Computes the gradient of the mean loss with respect to the logits: `scale * d_loss *
    /// (exp(logits - log_sum) - [target])`. `d_loss` is one `f32`; `d_logits` may be `logits`.
    fn cross_entropy_backward(
        &self,
        logits_targets_log_sums: [RawSlice<'_>; 3],
        d_loss: RawSlice<'_>,
        scale: f32,
        d_logits: RawSlice<'_>,
    ) -> Result;
}

/// Kernels of images: copies of windows for convolutions (im2col), and max pooling.
pub(crate) trait ImageKernels {
    /// Copies the window of each output pixel to one row of `columns` (im2col). The rows are in the
    /// order `[image, output row, output column]`, the elements of a row in the order `[channel,
    /// kernel row, kernel column]`. Pixels outside of the image are 0.
    fn image_to_columns(&self, x: RawSlice<'_>, columns: RawSlice<'_>, window: &Window) -> Result;

    /// Sums the rows of [`image_to_columns`](Self::image_to_columns) back into images.
    fn columns_to_image(&self, columns: RawSlice<'_>, x: RawSlice<'_>, window: &Window) -> Result;

    /// Writes the largest pixel of each window to `y`, and this pixel's index in its channel of the
    /// image (row x width + column) to `indices` (`u32`). Of equal pixels, the first counts; NaN
    /// counts as the largest. Every window must contain a pixel of the image.
    fn max_pool(&self, x: RawSlice<'_>, y: RawSlice<'_>, indices: RawSlice<'_>, window: &Window) -> Result;

    /// Adds each pixel of `dy` to the pixel of `dx` at its index, as [`max_pool`](Self::max_pool)
    /// wrote it to `indices`. All other pixels become 0.
    fn max_pool_backward(&self, dy: RawSlice<'_>, indices: RawSlice<'_>, dx: RawSlice<'_>, window: &Window) -> Result;
}

/// Kernels of batch norm.
pub(crate) trait BatchNormKernels {
    /// Normalizes each channel over all images and pixels to mean 0 and variance 1, then multiplies
    /// it by the weight and adds the bias. Weight and bias have one element for each channel.
    fn batch_norm(&self, norm: &Norm<'_>, shape: &ChannelNorm) -> Result;

    /// Computes the gradients of [`batch_norm`](Self::batch_norm).
    fn batch_norm_backward(&self, norm: &NormBackward<'_>, shape: &ChannelNorm) -> Result;
}

/// Kernels of optimizers, and the unscaling of gradients.
pub(crate) trait OptimizerKernels {
    /// Applies one step of Adam or AdamW to a parameter and its two moments (`f32`). `gradient` may
    /// be of any float type. In order: parameter *= 1 - decay; mean and variance are updated;
    /// parameter -= rate * mean / (sqrt(variance) * root_scale + epsilon).
    fn adam(
        &self,
        parameter: RawSlice<'_>,
        gradient: RawSlice<'_>,
        mean_and_variance: [RawSlice<'_>; 2],
        step: &AdamStep,
    ) -> Result;

    /// Applies one step of Adam or AdamW like [`adam`](Self::adam), with 8-bit moments.
    fn adam_8bit(
        &self,
        parameter: RawSlice<'_>,
        gradient: RawSlice<'_>,
        moments: QuantizedMoments<'_>,
        step: &AdamStep,
    ) -> Result;

    /// Applies one step of SGD: buffer = momentum * buffer + gradient; parameter -= rate * buffer.
    /// Without a buffer, parameter -= rate * gradient.
    fn sgd(
        &self,
        parameter: RawSlice<'_>,
        gradient: RawSlice<'_>,
        buffer: Option<RawSlice<'_>>,
        step: &SgdStep,
    ) -> Result;

    /// Multiplies a gradient by `scale` in place. Sets `found_infinite` (one `u32`) to 1 if an
    /// element is infinite or NaN; otherwise leaves `found_infinite` unchanged.
    fn unscale(&self, gradient: RawSlice<'_>, scale: f32, found_infinite: RawSlice<'_>) -> Result;
}

/// Kernels that convert rows of floats to 8-bit integers and back.
pub(crate) trait QuantizationKernels {
    /// Quantizes each row to `i8`: `codes = round(x / scale)`. `scales` has one `f32` for each row:
    /// `scale = max(|x|) / 127`, or 1 for a row of zeros.
    fn quantize_rows(&self, x: RawSlice<'_>, codes: RawSlice<'_>, scales: RawSlice<'_>) -> Result;

    /// Converts rows of `i8` codes back: `y = codes * scale`.
    fn dequantize_rows(&self, codes: RawSlice<'_>, scales: RawSlice<'_>, y: RawSlice<'_>) -> Result;
}
