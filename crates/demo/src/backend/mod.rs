//! The kernels of a device: what computes on tensors' memory.
//!
//! A [`Backend`] reads and writes memory that others allocated; it allocates nothing from the pool.
//! Operations that need scratch memory get it as an argument, so that every backend requests equal
//! bytes. [`HostBackend`](host::HostBackend) computes on the processor, and
//! `CudaBackend` on a GPU; both give equal results up to rounding.
//!
//! All tensors are contiguous, in row-major order. A `rows` x `columns` matrix has `rows * columns`
//! numbers. Floating-point results are computed in `f32` and rounded when they are stored. Results
//! do not depend on timing: sums are always added in one order.

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

/// Rows that one partial sum of a column covers, in sums over the rows of a matrix. Determines the
/// bytes of scratch memory: see [`partial_rows`].
pub(crate) const ROWS_PER_PARTIAL: usize = 32;

/// Numbers that one partial sum covers, in a sum over all numbers of a tensor.
pub(crate) const NUMBERS_PER_PARTIAL: usize = 4096;

/// Returns the number of rows of partial sums that a sum over `rows` rows needs as scratch memory.
pub(crate) fn partial_rows(rows: usize) -> usize {
    rows.div_ceil(ROWS_PER_PARTIAL)
}

/// Numbers in one block of 8-bit optimizer state, which share one scale.
pub(crate) const QUANTIZED_BLOCK: usize = 256;

/// An error of a backend: the call that failed, and why.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{call}: {reason}")]
pub struct BackendError {
    /// The failed call, such as `cublasGemmStridedBatchedEx`.
    pub call: String,
    /// What the driver or library said.
    pub reason: String,
}

/// The result of a backend's call.
pub(crate) type Result<T = (), E = BackendError> = std::result::Result<T, E>;

/// The memory of a tensor, as kernels see it: `len` numbers of one type.
///
/// Only [`new`](Self::new) creates it, and its caller guarantees that the memory is live. Backends
/// read and write it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawSlice<'a> {
    address: u64,
    len: usize,
    dtype: DType,
    storage: std::marker::PhantomData<&'a ()>,
}

impl RawSlice<'_> {
    /// Describes the `len` numbers at `address`.
    ///
    /// # Safety
    /// The caller guarantees that the memory at `address` belongs to the device of the backend that
    /// the slice is given to, is aligned for `dtype`, stays allocated as long as the result is in
    /// use, and is accessed by this thread only, or by work in the order of the device's streams.
    pub(crate) unsafe fn new(address: u64, len: usize, dtype: DType) -> Self {
        Self { address, len, dtype, storage: std::marker::PhantomData }
    }

    /// Returns the address of the first number.
    pub(crate) fn address(self) -> u64 {
        self.address
    }

    /// Returns the number of numbers.
    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// Returns the type of the numbers.
    pub(crate) fn dtype(self) -> DType {
        self.dtype
    }

    /// Returns the size in bytes.
    pub(crate) fn bytes(self) -> usize {
        self.len * self.dtype.bytes()
    }
}

/// A product of matrices, one or a batch: `c = op(a) op(b)`.
///
/// `op` transposes if the flag is set. `op(a)` is `rows` x `inner`, `op(b)` is `inner` x `columns`,
/// and `c` is `rows` x `columns`. In a batch, matrix `n` begins `n * stride` numbers after the
/// first. All three have one type, `f32`, `f16` or `bf16`, and are summed in `f32`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gemm {
    pub(crate) rows: usize,
    pub(crate) inner: usize,
    pub(crate) columns: usize,
    pub(crate) transpose_a: bool,
    pub(crate) transpose_b: bool,
    pub(crate) batch: usize,
    /// Numbers between matrices of the batch in `a`, `b` and `c`.
    pub(crate) strides: [usize; 3],
}

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    /// x, converted to the type of the result.
    Copy,
    /// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): GELU, as PyTorch's `approximate="tanh"`.
    Gelu,
    /// max(x, 0).
    Relu,
}

/// A function of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    /// a b.
    Multiply,
    /// b times the derivative of GELU at a.
    GeluBackward,
    /// b where a > 0, else 0. `a` may be the argument or the result of the forward pass.
    ReluBackward,
}

/// A softmax over each row of a `rows` x `columns` matrix of causal attention scores.
///
/// Row `r` is the query at position `first + r % queries`. Columns beyond its position are masked:
/// their scores are not read, and their result is 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Softmax {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Factor of the scores before the softmax.
    pub(crate) scale: f32,
    /// Queries of a sequence; not 0.
    pub(crate) queries: usize,
    /// Position of the first query: the number of keys in the cache before it.
    pub(crate) first: usize,
}

/// Copies a four-dimensional block of numbers between two layouts.
///
/// The number at index (i, j, k, l) is at `offset + i s0 + j s1 + k s2 + l s3` in each tensor, with
/// the offset and strides `s` of that tensor, in numbers. Splits, merges and transposes attention
/// heads, takes slices, concatenates, and permutes images.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StridedCopy {
    pub(crate) dims: [usize; 4],
    pub(crate) from_offset: usize,
    pub(crate) from_strides: [usize; 4],
    pub(crate) to_offset: usize,
    pub(crate) to_strides: [usize; 4],
}

/// Dimensions of a two-dimensional convolution or pooling over images in the order `[image,
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
    /// `f32`, as the bias and the statistics.
    pub(crate) weight: RawSlice<'a>,
    pub(crate) bias: RawSlice<'a>,
    /// The result.
    pub(crate) y: RawSlice<'a>,
    /// Receives the mean and `1 / sqrt(variance + epsilon)` of each row or channel, alternating.
    /// The variance is that of the numbers, not of a sample.
    pub(crate) statistics: RawSlice<'a>,
}

/// The tensors of the backward pass of a [`Norm`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormBackward<'a> {
    pub(crate) x: RawSlice<'a>,
    pub(crate) dy: RawSlice<'a>,
    /// `f32`, as the statistics.
    pub(crate) weight: RawSlice<'a>,
    /// Those of the forward pass.
    pub(crate) statistics: RawSlice<'a>,
    /// The gradients, which this computes: those of weight and bias are `f32`.
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

/// The two 8-bit states of Adam for one parameter: codes, and one scale (`f32`) for each block of
/// [`QUANTIZED_BLOCK`] numbers.
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

/// Host memory that a GPU can copy from without the processor; ordinary memory on the host. A
/// backend finds its own type of buffer through [`Any`](std::any::Any).
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
/// Work runs in order on the current stream of the backend; the host runs it at once. The methods
/// assert the lengths of their arguments.
pub(crate) trait Backend {
    /// Returns the kernels, which run on the current stream.
    fn kernels(&self) -> &dyn Kernels;

    /// Waits until all queued work is done.
    fn synchronize(&self) -> Result;

    /// Returns the pool's number of stream `index`; 0 is the default stream. Creates the stream at
    /// its first use.
    fn stream_id(&self, index: usize) -> Result<StreamId>;

    /// Runs later work on stream `index`.
    fn set_stream(&self, index: usize) -> Result;

    /// Makes later work on stream `waiting` wait for the work queued so far on stream `done`.
    fn wait_stream(&self, waiting: usize, done: usize) -> Result;

    /// Allows (true) or forbids matrix products of `f32` in TF32: 10 bits of fraction, faster.
    /// Without effect on the host. Off at first, as in PyTorch.
    fn allow_tf32(&self, allow: bool) -> Result;

    /// Copies `from` to a tensor. `from` can be changed after the call.
    fn upload(&self, from: &[u8], to: RawSlice<'_>) -> Result;

    /// Copies a tensor to `to`, after the work queued on the current stream.
    fn download(&self, from: RawSlice<'_>, to: &mut [u8]) -> Result;

    /// Allocates host memory of `bytes` bytes for [`upload_staged`](Self::upload_staged).
    fn staging_buffer(&self, bytes: usize) -> Result<Box<dyn StagingBuffer>>;

    /// Queues a copy of the first bytes of a staging buffer to a tensor, on the current stream,
    /// without waiting for it.
    fn upload_staged(&self, from: &dyn StagingBuffer, to: RawSlice<'_>) -> Result;

    /// Runs `work` and records its kernels instead of running them. On the host, which cannot
    /// record, `work` runs and is kept to run again.
    fn capture(&self, work: Box<dyn Fn() -> Result>) -> Result<Box<dyn Graph>>;

    /// Sets all numbers of a float tensor to `value`.
    fn fill(&self, to: RawSlice<'_>, value: f32) -> Result;

    /// Copies bytes between two tensors of equal type and length.
    fn copy(&self, from: RawSlice<'_>, to: RawSlice<'_>) -> Result;

    /// Multiplies matrices.
    fn gemm(&self, a: RawSlice<'_>, b: RawSlice<'_>, c: RawSlice<'_>, gemm: &Gemm) -> Result;
}
