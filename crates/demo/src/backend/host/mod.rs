//! The backend that computes on the processor.

use std::any::Any;
use std::cell::RefCell;

use vramscope_collector::StreamId;

use super::{Backend, BackendError, Gemm, Graph, Kernels, RawSlice, Result, StagingBuffer};
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

/// A [`Backend`] that computes on the CPU, synchronously, with all cores.
///
/// Results do not depend on the number of cores. Streams have no effect.
#[derive(Default)]
pub(crate) struct HostBackend {
    /// Buffers for matrices of 16-bit elements, which a product converts to `f32`.
    scratch: RefCell<Scratch>,
}

impl HostBackend {
    /// Creates a backend.
    pub(crate) fn new() -> Self {
        Self::default()
    }
}

/// A staging buffer of ordinary memory: the host backend needs no pinned memory.
struct HostStaging(Vec<u8>);

impl StagingBuffer for HostStaging {
    fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        Ok(&mut self.0)
    }
}

/// A graph of the host backend: replaying it calls the recorded closure again.
struct HostGraph(Box<dyn Fn() -> Result>);

impl Graph for HostGraph {
    fn replay(&self) -> Result {
        (self.0)()
    }
}

impl Kernels for HostBackend {}

impl Backend for HostBackend {
    fn kernels(&self) -> &dyn Kernels {
        self
    }

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
        tasks::fill(to, value);
        Ok(())
    }
}
