//! Backends: the kernels, streams and copies of a device, which work on tensors' memory.
//!
//! A [`Backend`] reads and writes memory that its callers allocated; it allocates nothing from the
//! pool. A method that needs scratch memory gets it as an argument, so that every backend needs
//! equal bytes. [`HostBackend`](host::HostBackend) computes on the CPU, and `CudaBackend` on a GPU;
//! both give equal results up to rounding.
//!
//! All tensors are contiguous, in row-major order. Floating-point results are computed in `f32` and
//! rounded when they are stored. Results do not depend on timing: sums are always added in one
//! order.

use vramscope_collector::StreamId;

use crate::dtype::DType;

#[cfg(test)]
pub(crate) mod checks;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod host;
mod kernels;

pub(crate) use kernels::{
    BatchNormKernels, ElementwiseKernels, ImageKernels, Kernels, LayoutKernels, OptimizerKernels, QuantizationKernels,
    RowKernels, SumKernels, TableKernels,
};

/// Number of rows that one partial sum of a column covers, in sums over the rows of a matrix.
/// Determines the size of scratch memory: see [`partial_rows`].
pub(crate) const ROWS_PER_PARTIAL: usize = 32;

/// Number of elements that one partial sum covers, in a sum over all elements of a tensor.
pub(crate) const NUMBERS_PER_PARTIAL: usize = 4096;

/// Returns the number of rows of partial sums that a sum over `rows` rows needs as scratch memory.
pub(crate) fn partial_rows(rows: usize) -> usize {
    rows.div_ceil(ROWS_PER_PARTIAL)
}

/// Number of elements in one block of 8-bit optimizer state. A block has one scale.
pub(crate) const QUANTIZED_BLOCK: usize = 256;

/// An error of a backend: the call that failed, and why.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{call}: {reason}")]
pub struct BackendError {
    /// The failed call, such as `cublasGemmStridedBatchedEx`.
    pub call: String,
    /// The driver's or library's message.
    pub reason: String,
}

/// The result of a backend's call.
pub(crate) type Result<T = (), E = BackendError> = std::result::Result<T, E>;

/// The memory of a tensor, as kernels see it: an address and `len` elements of one data type.
///
/// Only [`new`](Self::new) creates a slice, and its caller guarantees that the memory is live.
/// Backends read and write the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawSlice<'a> {
    address: u64,
    len: usize,
    dtype: DType,
    storage: std::marker::PhantomData<&'a ()>,
}

impl RawSlice<'_> {
    /// Creates a slice of the `len` elements at `address`.
    ///
    /// # Safety
    /// The caller guarantees that the memory at `address` belongs to the device of the backend that
    /// the slice is given to, is aligned for `dtype`, stays allocated as long as the result is in
    /// use, and is accessed by this thread only, or by work in the order of the device's streams.
    pub(crate) unsafe fn new(address: u64, len: usize, dtype: DType) -> Self {
        Self { address, len, dtype, storage: std::marker::PhantomData }
    }

    /// Returns the address of the first element.
    pub(crate) fn address(self) -> u64 {
        self.address
    }

    /// Returns the number of elements.
    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// Returns the data type of the elements.
    pub(crate) fn dtype(self) -> DType {
        self.dtype
    }

    /// Returns the size in bytes.
    pub(crate) fn bytes(self) -> usize {
        self.len * self.dtype.bytes()
    }
}

/// The shape of a matrix product, or of a batch of products: `c = op(a) op(b)`.
///
/// `op` transposes its matrix if `transpose_a` or `transpose_b` is set. `op(a)` is `rows` x
/// `inner`, `op(b)` is `inner` x `columns`, and `c` is `rows` x `columns`. In a batch, matrix `n`
/// begins `n * stride` elements after the first matrix. All three have one data type, `f32`, `f16`
/// or `bf16`, and products are summed in `f32`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gemm {
    pub(crate) rows: usize,
    pub(crate) inner: usize,
    pub(crate) columns: usize,
    pub(crate) transpose_a: bool,
    pub(crate) transpose_b: bool,
    pub(crate) batch: usize,
    /// Distances between the starts of a batch's matrices in `a`, `b` and `c`, in elements.
    pub(crate) strides: [usize; 3],
}

/// An elementwise function of one argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    /// x, converted to the data type of the result.
    Copy,
    /// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): GELU, as PyTorch's `approximate="tanh"`.
    Gelu,
    /// max(x, 0).
    Relu,
}

/// An elementwise function of two arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    /// a b.
    Multiply,
    /// b times the derivative of GELU at a.
    GeluBackward,
    /// b where a > 0, else 0. `a` may be the argument or the result of ReLU's forward pass.
    ReluBackward,
}

/// A softmax over each row of a `rows` x `columns` matrix of causal attention scores.
///
/// Row `r` is the query at position `first + r % queries`. Columns beyond the query's position are
/// masked: their scores are not read, and their result is 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Softmax {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Factor by which the scores are multiplied before the softmax.
    pub(crate) scale: f32,
    /// Number of queries of a sequence; not 0.
    pub(crate) queries: usize,
    /// Position of the first query in its sequence: the number of keys in the cache before it.
    pub(crate) first: usize,
}

/// A copy of a four-dimensional block of elements between tensors of different strides.
///
/// The element at index (i, j, k, l) is at `offset + i s0 + j s1 + k s2 + l s3` in each tensor,
/// with the offset and strides `s` of that tensor, in elements. Such copies split, merge and
/// transpose attention heads, take slices, concatenate tensors, and permute images.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StridedCopy {
    pub(crate) dims: [usize; 4],
    pub(crate) from_offset: usize,
    pub(crate) from_strides: [usize; 4],
    pub(crate) to_offset: usize,
    pub(crate) to_strides: [usize; 4],
}

/// The dimensions of a two-dimensional convolution or pooling. Images are in the order `[image,
/// channel, row, column]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) images: usize,
    pub(crate) channels: usize,
    /// Height and width of an input image.
    pub(crate) input: [usize; 2],
    /// Height and width of an output image.
    pub(crate) output: [usize; 2],
    /// Height and width of the kernel (square).
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) padding: usize,
}

/// The tensors of a layer norm or a batch norm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm<'a> {
    pub(crate) x: RawSlice<'a>,
    /// The weight. Weight, bias and statistics are `f32`.
    pub(crate) weight: RawSlice<'a>,
    pub(crate) bias: RawSlice<'a>,
    /// The result.
    pub(crate) y: RawSlice<'a>,
    /// Receives two consecutive values for each row or channel: mean, and `1 / sqrt(variance +
    /// epsilon)`. The variance is the population variance (divided by n, not n - 1).
    pub(crate) statistics: RawSlice<'a>,
}

/// The tensors of the backward pass of a [`Norm`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormBackward<'a> {
    pub(crate) x: RawSlice<'a>,
    pub(crate) dy: RawSlice<'a>,
    /// The weight. Weight and statistics are `f32`.
    pub(crate) weight: RawSlice<'a>,
    /// The statistics that the forward pass computed.
    pub(crate) statistics: RawSlice<'a>,
    /// Receives the gradient of x. `d_weight` and `d_bias` receive their gradients in `f32`.
    pub(crate) dx: RawSlice<'a>,
    pub(crate) d_weight: RawSlice<'a>,
    pub(crate) d_bias: RawSlice<'a>,
}

/// The shape of a batch norm: images in the order `[image, channel, pixel]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChannelNorm {
    pub(crate) images: usize,
    pub(crate) channels: usize,
    pub(crate) pixels: usize,
    pub(crate) epsilon: f32,
}

/// The constants of one step of Adam or AdamW. Bias corrections are included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdamStep {
    /// Learning rate divided by `1 - beta1^t`.
    pub(crate) rate: f32,
    /// The learning rate times the decoupled weight decay of AdamW: 0 for Adam.
    pub(crate) decay: f32,
    pub(crate) beta1: f32,
    pub(crate) beta2: f32,
    pub(crate) epsilon: f32,
    /// `1 / sqrt(1 - beta2^t)`: the factor of the square root of the second moment.
    pub(crate) root_scale: f32,
}

/// The constants of one step of SGD with momentum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SgdStep {
    pub(crate) rate: f32,
    pub(crate) momentum: f32,
}

/// The two 8-bit moments of Adam for one parameter: codes, and one scale (`f32`) for each block of
/// [`QUANTIZED_BLOCK`] elements.
///
/// The mean is `scale * code / 127` with codes from -127 to 127 (`i8`); the second moment is
/// `(code / 255)^2 * scale` with codes from 0 to 255 (`u8`), so that small values keep precision. A
/// code is rounded to the nearest; the second moment's is rounded up, so that a small one does not
/// become 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuantizedMoments<'a> {
    pub(crate) mean: RawSlice<'a>,
    pub(crate) mean_scales: RawSlice<'a>,
    pub(crate) variance: RawSlice<'a>,
    pub(crate) variance_scales: RawSlice<'a>,
}

/// Host memory from which a GPU copies asynchronously (pinned memory); ordinary memory in the host
/// backend. A backend casts the trait object to its own buffer type by [`Any`](std::any::Any).
pub(crate) trait StagingBuffer: std::any::Any {
    /// Returns the bytes. On a GPU, waits for the last copy from this buffer first.
    fn bytes_mut(&mut self) -> Result<&mut [u8]>;
}

/// A sequence of recorded kernels that can be run again (a CUDA graph).
pub(crate) trait Graph {
    /// Runs the kernels again, on the current stream.
    fn replay(&self) -> Result;
}

/// A device that computes: its streams, copies, matrix products and [`Kernels`].
///
/// Work runs in order on the current stream of the backend; the host runs it synchronously. The
/// methods assert the lengths of their arguments.
pub(crate) trait Backend {
    /// Returns the kernels, which run on the current stream.
    fn kernels(&self) -> &dyn Kernels;

    /// Waits until all queued work is done.
    fn synchronize(&self) -> Result;

    /// Returns the identifier by which the pool knows stream `index`; index 0 is the default
    /// stream. Creates the stream at its first use.
    fn stream_id(&self, index: usize) -> Result<StreamId>;

    /// Makes stream `index` the current stream, on which later work runs.
    fn set_stream(&self, index: usize) -> Result;

    /// Makes later work on stream `waiting` wait for the work queued so far on stream `done`.
    fn wait_stream(&self, waiting: usize, done: usize) -> Result;

    /// Allows (true) or forbids TF32 in matrix products of `f32`, which is faster and has 10 bits
    /// of fraction. Forbidden at first, as in PyTorch. Has no effect on the host.
    fn allow_tf32(&self, allow: bool) -> Result;

    /// Copies `from` from the host to a tensor. The caller may change `from` after the call.
    fn upload(&self, from: &[u8], to: RawSlice<'_>) -> Result;

    /// Copies a tensor to the host memory `to`, after the work queued on the current stream, and
    /// waits for the copy.
    fn download(&self, from: RawSlice<'_>, to: &mut [u8]) -> Result;

    /// Allocates host memory of `bytes` bytes for [`upload_staged`](Self::upload_staged).
    fn staging_buffer(&self, bytes: usize) -> Result<Box<dyn StagingBuffer>>;

    /// Queues a copy of the first bytes of a staging buffer to a tensor, on the current stream,
    /// without waiting for it.
    fn upload_staged(&self, from: &dyn StagingBuffer, to: RawSlice<'_>) -> Result;

    /// Runs `work` and records its kernels instead of running them. On the host, which cannot
    /// record, `work` runs and is kept to run again.
    fn capture(&self, work: Box<dyn Fn() -> Result>) -> Result<Box<dyn Graph>>;

    /// Sets all elements of a float tensor to `value`.
    fn fill(&self, to: RawSlice<'_>, value: f32) -> Result;

    /// Copies bytes between two tensors of equal data type and length.
    fn copy(&self, from: RawSlice<'_>, to: RawSlice<'_>) -> Result;

    /// Multiplies the matrices `a` and `b`, or batches of them, into `c`.
    fn gemm(&self, a: RawSlice<'_>, b: RawSlice<'_>, c: RawSlice<'_>, gemm: &Gemm) -> Result;
}
