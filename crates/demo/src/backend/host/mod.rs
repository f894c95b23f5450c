//! The backend that computes on the processor.

use std::any::Any;
use std::cell::RefCell;

use vramscope_collector::StreamId;

use super::{
    AdamStep, Backend, BackendError, Binary, ChannelNorm, Gemm, Graph, Norm, NormBackward, QuantizedMoments, RawSlice,
    Result, SgdStep, Softmax, StagingBuffer, StridedCopy, Unary, Window,
};
use matrix::Scratch;

mod batch_norm;
mod elementwise;
mod images;
mod layout;
mod matrix;
mod optimizers;
mod quantization;
mod rows;
mod slices;
mod sums;
mod tables;
mod tasks;
mod vector;

/// A [`Backend`] that computes on the processor, at once, with all its cores.
///
/// Results do not depend on the number of cores. Streams are numbers without effect.
#[derive(Default)]
pub(crate) struct HostBackend {
    /// Matrices of 16-bit numbers, converted for a product.
    scratch: RefCell<Scratch>,
}

impl HostBackend {
    /// Creates a backend.
    pub(crate) fn new() -> Self {
        Self::default()
    }
}

/// Ordinary memory, for copies that need no special memory on the host.
struct HostStaging(Vec<u8>);

impl StagingBuffer for HostStaging {
    fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        Ok(&mut self.0)
    }
}

/// Work that runs again when it is replayed.
struct HostGraph(Box<dyn Fn() -> Result>);

impl Graph for HostGraph {
    fn replay(&self) -> Result {
        (self.0)()
    }
}

impl Backend for HostBackend {
    fn synchronize(&self) -> Result {
        Ok(())
    }

    fn stream_id(&self, index: usize) -> Result<StreamId> {
        Ok(StreamId(index as u64))
    }

    fn set_stream(&self, _index: usize) -> Result {
        Ok(())
    }

    fn wait_stream(&self, _waiting: usize, _done: usize) -> Result {
        Ok(())
    }

    fn allow_tf32(&self, _allow: bool) -> Result {
        Ok(())
    }

    fn upload(&self, from: &[u8], to: RawSlice<'_>) -> Result {
        slices::bytes_mut(to, &[]).copy_from_slice(from);
        Ok(())
    }

    fn download(&self, from: RawSlice<'_>, to: &mut [u8]) -> Result {
        to.copy_from_slice(slices::bytes(from));
        Ok(())
    }

    fn staging_buffer(&self, bytes: usize) -> Result<Box<dyn StagingBuffer>> {
        Ok(Box::new(HostStaging(vec![0; bytes])))
    }

    fn upload_staged(&self, from: &dyn StagingBuffer, to: RawSlice<'_>) -> Result {
        let Some(HostStaging(from)) = (from as &dyn Any).downcast_ref() else {
            let reason = "the staging buffer belongs to another backend".to_owned();
            return Err(BackendError { call: "upload_staged".to_owned(), reason });
        };
        self.upload(&from[..to.bytes()], to)
    }

    fn capture(&self, work: Box<dyn Fn() -> Result>) -> Result<Box<dyn Graph>> {
        work()?;
        Ok(Box::new(HostGraph(work)))
    }

    fn copy(&self, from: RawSlice<'_>, to: RawSlice<'_>) -> Result {
        assert!(from.dtype() == to.dtype(), "the tensors have one type");
        slices::bytes_mut(to, &[from]).copy_from_slice(slices::bytes(from));
        Ok(())
    }

    fn gemm(&self, a: RawSlice<'_>, b: RawSlice<'_>, c: RawSlice<'_>, gemm: &Gemm) -> Result {
        matrix::multiply(a, b, c, gemm, &mut self.scratch.borrow_mut());
        Ok(())
    }

    fn fill(&self, to: RawSlice<'_>, value: f32) -> Result {
        elementwise::fill(to, value);
        Ok(())
    }

    fn copy_strided(&self, from: RawSlice<'_>, to: RawSlice<'_>, copy: &StridedCopy) -> Result {
        layout::copy_strided(from, to, copy);
        Ok(())
    }

    fn unary(&self, function: Unary, x: RawSlice<'_>, y: RawSlice<'_>) -> Result {
        elementwise::unary(function, x, y);
        Ok(())
    }

    fn binary(&self, function: Binary, a: RawSlice<'_>, b: RawSlice<'_>, out: RawSlice<'_>) -> Result {
        elementwise::binary(function, a, b, out);
        Ok(())
    }

    fn combine(&self, alpha: f32, a: RawSlice<'_>, b: Option<(f32, RawSlice<'_>)>, out: RawSlice<'_>) -> Result {
        elementwise::combine(alpha, a, b, out);
        Ok(())
    }

    fn add_bias(&self, x: RawSlice<'_>, bias: RawSlice<'_>, y: RawSlice<'_>) -> Result {
        elementwise::add_bias(x, bias, y);
        Ok(())
    }

    fn column_sums(&self, x: RawSlice<'_>, partials: RawSlice<'_>, sums: RawSlice<'_>) -> Result {
        sums::column_sums(x, partials, sums);
        Ok(())
    }

    fn sum(&self, x: RawSlice<'_>, partials: RawSlice<'_>, sum: RawSlice<'_>, scale: f32) -> Result {
        sums::sum(x, partials, sum, scale);
        Ok(())
    }

    fn softmax(&self, x: RawSlice<'_>, y: RawSlice<'_>, shape: &Softmax) -> Result {
        rows::softmax(x, y, shape);
        Ok(())
    }

    fn softmax_backward(&self, y: RawSlice<'_>, dy: RawSlice<'_>, dx: RawSlice<'_>, shape: &Softmax) -> Result {
        rows::softmax_backward(y, dy, dx, shape);
        Ok(())
    }

    fn gather_rows(&self, table: RawSlice<'_>, indices: RawSlice<'_>, rows: RawSlice<'_>) -> Result {
        tables::gather_rows(table, indices, rows)
    }

    fn scatter_add_rows(&self, rows: RawSlice<'_>, indices: RawSlice<'_>, table: RawSlice<'_>) -> Result {
        tables::scatter_add_rows(rows, indices, table)
    }

    fn cross_entropy(
        &self,
        logits: RawSlice<'_>,
        targets: RawSlice<'_>,
        log_sums: RawSlice<'_>,
        losses: RawSlice<'_>,
    ) -> Result {
        tables::cross_entropy(logits, targets, log_sums, losses)
    }

    fn argmax_rows(&self, x: RawSlice<'_>, columns: RawSlice<'_>) -> Result {
        rows::argmax_rows(x, columns);
        Ok(())
    }

    fn image_to_columns(&self, x: RawSlice<'_>, columns: RawSlice<'_>, window: &Window) -> Result {
        images::image_to_columns(x, columns, window);
        Ok(())
    }

    fn columns_to_image(&self, columns: RawSlice<'_>, x: RawSlice<'_>, window: &Window) -> Result {
        images::columns_to_image(columns, x, window);
        Ok(())
    }

    fn max_pool(&self, x: RawSlice<'_>, y: RawSlice<'_>, indices: RawSlice<'_>, window: &Window) -> Result {
        images::max_pool(x, y, indices, window);
        Ok(())
    }

    fn max_pool_backward(&self, dy: RawSlice<'_>, indices: RawSlice<'_>, dx: RawSlice<'_>, window: &Window) -> Result {
        images::max_pool_backward(dy, indices, dx, window);
        Ok(())
    }

    fn average_groups(&self, x: RawSlice<'_>, y: RawSlice<'_>, group: usize) -> Result {
        elementwise::average_groups(x, y, group);
        Ok(())
    }

    fn spread_groups(&self, y: RawSlice<'_>, x: RawSlice<'_>, group: usize, scale: f32) -> Result {
        elementwise::spread_groups(y, x, group, scale);
        Ok(())
    }

    fn adam_8bit(
        &self,
        parameter: RawSlice<'_>,
        gradient: RawSlice<'_>,
        moments: QuantizedMoments<'_>,
        step: &AdamStep,
    ) -> Result {
        optimizers::adam_8bit(parameter, gradient, moments, step);
        Ok(())
    }

    fn sgd(
        &self,
        parameter: RawSlice<'_>,
        gradient: RawSlice<'_>,
        buffer: Option<RawSlice<'_>>,
        step: &SgdStep,
    ) -> Result {
        optimizers::sgd(parameter, gradient, buffer, step);
        Ok(())
    }

    fn unscale(&self, gradient: RawSlice<'_>, scale: f32, found_infinite: RawSlice<'_>) -> Result {
        optimizers::unscale(gradient, scale, found_infinite);
        Ok(())
    }

    fn quantize_rows(&self, x: RawSlice<'_>, codes: RawSlice<'_>, scales: RawSlice<'_>) -> Result {
        quantization::quantize_rows(x, codes, scales);
        Ok(())
    }

    fn dequantize_rows(&self, codes: RawSlice<'_>, scales: RawSlice<'_>, y: RawSlice<'_>) -> Result {
        quantization::dequantize_rows(codes, scales, y);
        Ok(())
    }

    fn layer_norm(&self, norm: &Norm<'_>, epsilon: f32) -> Result {
        rows::layer_norm(norm, epsilon);
        Ok(())
    }

    fn layer_norm_backward(&self, norm: &NormBackward<'_>, partials: RawSlice<'_>) -> Result {
        rows::layer_norm_backward(norm, partials);
        Ok(())
    }

    fn cross_entropy_backward(
        &self,
        logits_targets_log_sums: [RawSlice<'_>; 3],
        d_loss: RawSlice<'_>,
        scale: f32,
        d_logits: RawSlice<'_>,
    ) -> Result {
        tables::cross_entropy_backward(logits_targets_log_sums, d_loss, scale, d_logits)
    }

    fn batch_norm(&self, norm: &Norm<'_>, shape: &ChannelNorm) -> Result {
        batch_norm::batch_norm(norm, shape);
        Ok(())
    }

    fn batch_norm_backward(&self, norm: &NormBackward<'_>, shape: &ChannelNorm) -> Result {
        batch_norm::batch_norm_backward(norm, shape);
        Ok(())
    }

    fn adam(
        &self,
        parameter: RawSlice<'_>,
        gradient: RawSlice<'_>,
        mean_and_variance: [RawSlice<'_>; 2],
        step: &AdamStep,
    ) -> Result {
        optimizers::adam(parameter, gradient, mean_and_variance, step);
        Ok(())
    }
}
