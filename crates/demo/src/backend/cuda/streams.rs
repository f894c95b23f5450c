//! The CUDA streams of a backend, and recording work on them.

use std::cell::{Cell, RefCell};
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;

use cudarc::driver::{CudaContext, result, sys};
use vramscope_collector::StreamId;

use super::error::{Context, refused};
use crate::backend::Result;

/// Size of the cuBLAS workspace of each stream with matrix products, in bytes.
///
/// The workspace is allocated by the driver, outside the pool. NVIDIA recommends 32 MiB for Hopper;
/// PyTorch uses this size there, from its pool.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;

/// A CUDA stream.
///
/// Streams are never destroyed: when the backend is dropped, the pool may still hold memory freed
/// on a stream, and it refers to the stream by its handle. A process has only a few streams.
struct Stream {
    handle: sys::CUstream,
    /// The CUDA event that another stream waits for. Null before the first wait.
    event: sys::CUevent,
    /// Address of the cuBLAS workspace. 0 before the first matrix product.
    workspace: u64,
}

/// The streams of a backend by index; 0 is the default stream.
pub(super) struct Streams {
    context: Arc<CudaContext>,
    streams: RefCell<Vec<Option<Stream>>>,
    current_index: Cell<usize>,
    /// The handle of the current stream, for launches.
    current: Rc<Cell<sys::CUstream>>,
    /// The stream that records in place of the default stream, which CUDA cannot record. Null
    /// before the first recording.
    recording_stream: Cell<sys::CUstream>,
    is_recording: Cell<bool>,
}

impl Streams {
    pub(super) fn new(context: &Arc<CudaContext>) -> Self {
        let default = Stream { handle: ptr::null_mut(), event: ptr::null_mut(), workspace: 0 };
        Self {
            context: Arc::clone(context),
            streams: RefCell::new(vec![Some(default)]),
            current_index: Cell::new(0),
            current: Rc::new(Cell::new(ptr::null_mut())),
            recording_stream: Cell::new(ptr::null_mut()),
            is_recording: Cell::new(false),
        }
    }

    /// Makes the context current on this thread.
    pub(super) fn bind(&self) -> Result {
        // SAFETY: `self` keeps the context alive.
        unsafe { result::ctx::set_current(self.context.cu_ctx()) }.during("cuCtxSetCurrent")
    }

    /// Returns the cell with the current stream's handle.
    pub(super) fn current_cell(&self) -> &Rc<Cell<sys::CUstream>> {
        &self.current
    }

    /// Returns the current stream's handle.
    pub(super) fn current(&self) -> sys::CUstream {
        self.current.get()
    }

    /// Calls `f` with stream `index`, which is created if it does not exist.
    fn with<R>(&self, index: usize, f: impl FnOnce(&mut Stream) -> Result<R>) -> Result<R> {
        let mut streams = self.streams.borrow_mut();
        if streams.len() <= index {
            streams.resize_with(index + 1, || None);
        }
        let slot = &mut streams[index];
        let stream = match slot {
            Some(stream) => stream,
            None => {
                let handle = result::stream::create(result::stream::StreamKind::NonBlocking);
                let handle = handle.during("cuStreamCreate")?;
                slot.insert(Stream { handle, event: ptr::null_mut(), workspace: 0 })
            }
        };
        f(stream)
    }

    /// Returns the handle of the CUDA stream that work on stream `index` is queued on: during a
    /// recording of the default stream, the recording stream.
    fn handle(&self, index: usize) -> Result<sys::CUstream> {
        if index == 0 && self.is_recording.get() {
            return Ok(self.recording_stream.get());
        }
        self.with(index, |stream| Ok(stream.handle))
    }

    /// Returns the identifier by which the pool knows stream `index`: the CUDA handle.
    pub(super) fn id(&self, index: usize) -> Result<StreamId> {
        self.with(index, |stream| Ok(StreamId(stream.handle as u64)))
    }

    /// Makes stream `index` the current one.
    pub(super) fn set(&self, index: usize) -> Result {
        self.current.set(self.handle(index)?);
        self.current_index.set(index);
        Ok(())
    }

    /// Makes later work on stream `waiting` wait for the work queued so far on stream `done`.
    pub(super) fn wait(&self, waiting: usize, done: usize) -> Result {
        let (from, to) = (self.handle(done)?, self.handle(waiting)?);
        if from == to {
            return Ok(());
        }
        let event = self.with(done, |stream| {
            if stream.event.is_null() {
                stream.event = create_event()?;
            }
            Ok(stream.event)
        })?;
        // SAFETY: Event and streams exist, and are destroyed with the process at the earliest.
        unsafe { result::event::record(event, from) }.during("cuEventRecord")?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: As above. A later record of the event does not change what this waits for.
        unsafe { result::stream::wait_event(to, event, flags) }.during("cuStreamWaitEvent")
    }

    /// Returns the address of the current stream's cuBLAS workspace, which is allocated if needed.
    pub(super) fn workspace(&self) -> Result<u64> {
        self.with(self.current_index.get(), |stream| {
            if stream.workspace == 0 {
                // SAFETY: The size is not 0.
                let address = unsafe { result::malloc_sync(WORKSPACE_BYTES) };
                stream.workspace = address.during("cuMemAlloc")?;
            }
            Ok(stream.workspace)
        })
    }

    /// Returns an error that names `call` if work is being recorded.
    pub(super) fn refuse_recording(&self, call: &str) -> Result {
        if self.is_recording.get() {
            return Err(refused(call, "it cannot be recorded in a CUDA graph: call it outside of `capture`"));
        }
        Ok(())
    }

    /// Begins to record on the current stream. [`Recording::end`] ends the recording.
    pub(super) fn record(&self) -> Result<Recording<'_>> {
        self.refuse_recording("cuStreamBeginCapture")?;
        if self.recording_stream.get().is_null() {
            let handle = result::stream::create(result::stream::StreamKind::NonBlocking);
            self.recording_stream.set(handle.during("cuStreamCreate")?);
        }
        let index = self.current_index.get();
        self.is_recording.set(true);
        let mut recording = Recording { streams: self, index, handle: ptr::null_mut() };
        self.set(index)?;
        // The pool may allocate memory from the driver while the work is recorded.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: The stream exists and is not the default stream.
        unsafe { result::stream::begin_capture(self.current(), mode) }.during("cuStreamBeginCapture")?;
        recording.handle = self.current();
        Ok(recording)
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        if self.bind().is_err() {
            return;
        }
        for stream in self.streams.get_mut().drain(..).flatten() {
            // SAFETY: The address is that of an allocation by `workspace`, which this frees once.
            // `cuMemFree` waits for the work that uses it. If a call fails, the driver has shut
            // down.
            let _ = (stream.workspace != 0).then(|| unsafe { result::free_sync(stream.workspace) });
            // SAFETY: The event was created by `wait`; the driver keeps it until it passes.
            let _ = (!stream.event.is_null()).then(|| unsafe { result::event::destroy(stream.event) });
        }
        if !self.recording_stream.get().is_null() {
            // SAFETY: The pool does not know this stream, and nothing records on it any more.
            let _ = unsafe { result::stream::destroy(self.recording_stream.get()) };
        }
    }
}

/// A recording of a stream's work into a CUDA graph. Dropping it discards the recording.
pub(super) struct Recording<'a> {
    streams: &'a Streams,
    /// Index of the stream that was current when the recording began.
    index: usize,
    /// The CUDA stream that records; null after the recording has ended.
    handle: sys::CUstream,
}

impl Recording<'_> {
    /// Ends the recording and returns its graph, which the caller destroys.
    pub(super) fn end(mut self) -> Result<sys::CUgraph> {
        let handle = std::mem::replace(&mut self.handle, ptr::null_mut());
        // SAFETY: The stream exists and records.
        let graph = unsafe { result::stream::end_capture(handle) }.during("cuStreamEndCapture")?;
        if graph.is_null() {
            return Err(refused("cuStreamEndCapture", "the recording was invalidated"));
        }
        Ok(graph)
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: The stream exists and records. An error means that there is no recording.
            if let Ok(graph) = unsafe { result::stream::end_capture(self.handle) }
                && !graph.is_null()
            {
                // SAFETY: The graph is this function's own.
                let _ = unsafe { result::graph::destroy(graph) };
            }
        }
        self.streams.is_recording.set(false);
        // The stream exists already, so that this cannot fail.
        let _ = self.streams.set(self.index);
    }
}

/// Creates a CUDA event that does not record times.
pub(super) fn create_event() -> Result<sys::CUevent> {
    result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).during("cuEventCreate")
}
