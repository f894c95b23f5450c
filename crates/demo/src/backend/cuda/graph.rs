//! CUDA graphs of recorded work.

use std::ptr;
use std::rc::Rc;

use cudarc::driver::{result, sys};

use super::error::Context;
use super::streams::Streams;
use crate::backend::{Graph, Result};

/// A CUDA graph of recorded work.
pub(super) struct CudaGraph {
    streams: Rc<Streams>,
    graph: sys::CUgraph,
    executable: sys::CUgraphExec,
    /// The recorded work, which owns the memory that the kernels use.
    _work: Box<dyn Fn() -> Result>,
}

impl CudaGraph {
    /// Runs `work` and records the kernels that it launches instead of running them.
    ///
    /// Work on the default stream is recorded on a stream of the backend's own, because CUDA cannot
    /// record the default stream. The memory of results is requested on the stream that was
    /// current, so the graph must be replayed on that stream, or after it by
    /// [`wait_stream`](crate::backend::Backend::wait_stream).
    pub(super) fn record(streams: &Rc<Streams>, work: Box<dyn Fn() -> Result>) -> Result<Self> {
        let recording = streams.record()?;
        work()?;
        let graph = recording.end()?;
        let mut recorded = Self { streams: Rc::clone(streams), graph, executable: ptr::null_mut(), _work: work };
        // SAFETY: The graph was recorded above.
        let executable = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        recorded.executable = executable.during("cuGraphInstantiate")?;
        Ok(recorded)
    }
}

impl Graph for CudaGraph {
    fn replay(&self) -> Result {
        self.streams.refuse_recording("cuGraphLaunch")?;
        // SAFETY: The graph exists. The recorded work, which is kept, keeps its memory alive.
        unsafe { result::graph::launch(self.executable, self.streams.current()) }.during("cuGraphLaunch")
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if !self.executable.is_null() {
            // SAFETY: The executable is destroyed once; the driver keeps it while it runs.
            let _ = unsafe { result::graph::exec_destroy(self.executable) };
        }
        // SAFETY: The graph is destroyed once, here.
        let _ = unsafe { result::graph::destroy(self.graph) };
    }
}
