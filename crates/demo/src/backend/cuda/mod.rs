//! The backend for NVIDIA GPUs.
//!
//! Kernels are CUDA C++ in `kernels/*.cu`. NVRTC compiles them when the backend is created, for the
//! device's own architecture, so that no compiler and no CUDA headers need to be installed, only
//! the driver and the libraries NVRTC and cuBLAS. All libraries are loaded at run time.
//!
//! Outside the pool, the backend uses [`WORKSPACE_BYTES`](streams::WORKSPACE_BYTES) for each stream
//! with matrix products, allocated by `cuMemAlloc`, and the memory that the driver, cuBLAS and the
//! kernels' code need.
//!
//! # Tests
//!
//! `cargo test -p vramscope-demo --lib backend::cuda -- --nocapture` runs all tests. Those that
//! need a GPU or NVRTC print SKIPPED where there is none. For another machine, `cargo test
//! --release -p vramscope-demo --lib --no-run --message-format=json` names the test binary, as
//! `executable` of the artifact; it needs no other file. `cuda_backend` checks all results against
//! a reference; `kernel_speeds` prints the rates of the kernels.

mod blas;
mod compiler;
mod elementwise;
mod error;
mod graph;
mod images;
mod kernels;
mod launch;
mod optimizers;
mod quantization;
mod rows;
mod streams;
mod sums;
mod tables;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::test_context;
mod transfer;

use std::rc::Rc;
use std::sync::Arc;

use cudarc::driver::{CudaContext, sys};
use vramscope_collector::StreamId;

use self::blas::Blas;
use self::compiler::Target;
use self::error::{Context, refused};
use self::graph::CudaGraph;
use self::kernels::Loaded;
use self::launch::{Functions, Launcher};
use self::streams::Streams;
use self::transfer::PinnedBuffer;
use super::{Backend, Gemm, Graph, Kernels, RawSlice, Result, StagingBuffer};

/// A [`Backend`] that computes on an NVIDIA GPU.
///
/// It makes the device's context current on the thread that creates it, and is used on that thread
/// only. A program that makes another context current on the thread restores it before it uses the
/// backend again.
pub(crate) struct CudaBackend {
    launcher: Launcher,
    blas: Blas,
    // Dropped last: `launcher` and `blas` use its context and memory.
    streams: Rc<Streams>,
}

impl CudaBackend {
    /// Returns an error if the libraries that [`new`](Self::new) needs are missing, or if NVRTC
    /// does not support the context's device.
    pub(crate) fn check(context: &Arc<CudaContext>) -> Result {
        target(context).map(|_| ())
    }

    /// Compiles and loads the kernels for the context's device, and opens cuBLAS.
    ///
    /// # Errors
    /// If NVRTC or cuBLAS is not installed, or fails. (Without a driver, there is no context.)
    pub(crate) fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let target = target(context)?;
        let streams = Rc::new(Streams::new(context));
        streams.bind()?;
        let compiled = kernels::compiled(target)?;
        let launcher = Launcher {
            functions: Functions::Loaded(Loaded::new(&compiled)?),
            stream: Rc::clone(streams.current_cell()),
        };
        Ok(Self { launcher, blas: Blas::new()?, streams })
    }
}

/// Returns the target of kernels for the context's device.
///
/// # Errors
/// If NVRTC or cuBLAS is not installed, or NVRTC does not support the device.
fn target(context: &Arc<CudaContext>) -> Result<Target> {
    require("NVRTC", "libnvrtc.so", compiler::is_installed())?;
    require("cuBLAS", "libcublas.so", blas::is_installed())?;
    Target::of_device(context.compute_capability().during("cuDeviceGetAttribute")?)
}

/// Returns an error that names `library` and its `file` unless it is installed.
fn require(library: &str, file: &str, is_installed: bool) -> Result {
    if is_installed {
        return Ok(());
    }
    Err(refused(library, format!("{file} cannot be loaded: install the CUDA toolkit")))
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        // Modules must not be unloaded, nor cuBLAS closed, while kernels run. If a call fails, the
        // driver has shut down.
        let _ = self.streams.bind();
        let _ = self.synchronize();
    }
}

impl Backend for CudaBackend {
    fn kernels(&self) -> &dyn Kernels {
        &self.launcher
    }

    fn synchronize(&self) -> Result {
        // SAFETY: The backend's context is current on this thread.
        unsafe { sys::cuCtxSynchronize() }.result().during("cuCtxSynchronize")
    }

    fn stream_id(&self, index: usize) -> Result<StreamId> {
        self.streams.id(index)
    }

    fn set_stream(&self, index: usize) -> Result {
        self.streams.set(index)
    }

    fn wait_stream(&self, waiting: usize, done: usize) -> Result {
        self.streams.wait(waiting, done)
    }

    fn allow_tf32(&self, allow: bool) -> Result {
        self.blas.allow_tf32(allow);
        Ok(())
    }

    fn upload(&self, from: &[u8], to: RawSlice<'_>) -> Result {
        transfer::upload(&self.streams, from, to)
    }

    fn download(&self, from: RawSlice<'_>, to: &mut [u8]) -> Result {
        transfer::download(&self.streams, from, to)
    }

    fn staging_buffer(&self, bytes: usize) -> Result<Box<dyn StagingBuffer>> {
        Ok(Box::new(PinnedBuffer::new(&self.streams, bytes)?))
    }

    fn upload_staged(&self, from: &dyn StagingBuffer, to: RawSlice<'_>) -> Result {
        transfer::upload_staged(&self.streams, from, to)
    }

    fn capture(&self, work: Box<dyn Fn() -> Result>) -> Result<Box<dyn Graph>> {
        Ok(Box::new(CudaGraph::record(&self.streams, work)?))
    }

    fn fill(&self, to: RawSlice<'_>, value: f32) -> Result {
        transfer::fill(&self.streams, to, value)
    }

    fn copy(&self, from: RawSlice<'_>, to: RawSlice<'_>) -> Result {
        transfer::copy(&self.streams, from, to)
    }

    fn gemm(&self, a: RawSlice<'_>, b: RawSlice<'_>, c: RawSlice<'_>, gemm: &Gemm) -> Result {
        self.blas.gemm(&self.streams, [a, b, c], gemm)
    }
}
