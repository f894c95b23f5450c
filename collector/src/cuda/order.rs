//! Orders a buffer's uses on several streams.

use std::iter::successors;
use std::mem::{ManuallyDrop, forget};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DriverError, SyncOnDrop, result, sys};

use super::device::PER_THREAD_STREAM;
use super::driver::CurrentContext;

/// A buffer's memory as a cudarc slice, whose two events order kernels, and one event for each
/// stream that copies or libraries read the buffer on.
///
/// cudarc's read event belongs to the last reader only. Readers that report their stream therefore
/// get an event of that stream, and the next writer, and the end of the buffer, wait for all of
/// them.
///
/// Once a context has had several streams, their current number does not matter: work of a dropped
/// stream may still run.
#[derive(Debug)]
pub(super) struct TrackedSlice<T> {
    /// Never dropped: that would free the pool's memory.
    pub(super) slice: ManuallyDrop<CudaSlice<T>>,
    pub(super) order: UseOrder,
}

/// The CUDA events of one buffer's reads and writes, by which later uses on other streams wait for
/// earlier ones.
#[derive(Debug)]
pub(super) struct UseOrder {
    /// The buffer's stream.
    own: Arc<CudaStream>,
    /// The slice's event after the last kernel that reads.
    read: BorrowedEvent,
    /// The slice's event after the last write.
    write: BorrowedEvent,
    reads: OnceLock<Box<StreamRead>>,
    /// Set at the first use of the buffer after the context has had several streams.
    multi_stream: OnceLock<()>,
    /// True if there are reads that no writer has waited for.
    has_new_reads: AtomicBool,
}

/// An entry of a linked list: the event that a stream records after its last read of the buffer.
#[derive(Debug)]
struct StreamRead {
    stream: usize,
    event: CudaEvent,
    next: OnceLock<Box<StreamRead>>,
}

/// A reference to a CUDA event that a slice or context owns; a null handle means no event.
#[derive(Clone, Copy, Debug)]
struct BorrowedEvent(sys::CUevent);

// SAFETY: The driver guarantees that CUDA events may be used on any thread.
unsafe impl Send for BorrowedEvent {}
// SAFETY: The driver guarantees that CUDA events may be used on several threads at once.
unsafe impl Sync for BorrowedEvent {}

impl BorrowedEvent {
    /// Returns the event that dropping `use_of` would record at the end of a use. `use_of` is
    /// forgotten, so the event is not recorded.
    fn of(use_of: SyncOnDrop<'_>) -> Self {
        let event = match &use_of {
            SyncOnDrop::Record(Some((event, _))) => event.cu_event(),
            _ => ptr::null_mut(),
        };
        forget(use_of);
        Self(event)
    }
}

impl<T> TrackedSlice<T> {
    /// Creates a tracked slice of `len` elements at device address `address`; `own` is the buffer's
    /// stream.
    ///
    /// # Safety
    /// The caller guarantees that the memory is valid for as long as the result, and that any bytes
    /// in it are valid numbers.
    pub(super) unsafe fn new(own: &Arc<CudaStream>, address: sys::CUdeviceptr, len: usize) -> Self {
        let context = own.context();
        // An error left in the context would make `upgrade_device_ptr` panic; it is restored
        // afterwards.
        let earlier_error = context.check_err();
        // SAFETY: The caller guarantees that the memory is valid for as long as the slice. The
        // slice is never dropped, so it does not free the pool's memory.
        let mut slice = unsafe { own.upgrade_device_ptr::<T>(address, len) };
        let read = BorrowedEvent::of(slice.device_ptr(own).1);
        let write = BorrowedEvent::of(slice.device_ptr_mut(own).1);
        context.record_err(earlier_error);
        let order = UseOrder {
            own: Arc::clone(own),
            read,
            write,
            reads: OnceLock::new(),
            multi_stream: OnceLock::new(),
            has_new_reads: AtomicBool::new(false),
        };
        Self { slice: ManuallyDrop::new(slice), order }
    }

    /// Ends the buffer: work queued on its stream from now on runs after all uses, on any stream.
    pub(super) fn finish(self) {
        let Self { slice, order } = self;
        order.wait_for_uses(&order.own);
        ManuallyDrop::into_inner(slice).leak();
        // Iteratively: a chain of boxes would be dropped recursively.
        let mut next = order.reads.into_inner();
        while let Some(read) = next {
            next = read.next.into_inner();
        }
    }
}

impl UseOrder {
    /// Returns true if all uses so far are on one stream, so that nothing needs ordering. The first
    /// call that returns false also records the write event behind the work queued so far.
    fn is_of_one_stream(&self) -> bool {
        if !self.is_managed() {
            return self.multi_stream.get().is_none();
        }
        // Work still queued on the buffer's stream counts as a write now, for other streams.
        self.multi_stream.get_or_init(|| self.store_error(self.record(self.write)));
        false
    }

    /// Returns true if cudarc itself orders work on the context's streams by events: the context
    /// has had several streams, and event tracking is on.
    fn is_managed(&self) -> bool {
        self.own.context().is_managing_stream_synchronization()
    }

    /// Makes `stream` wait for the last write. The caller drops the result after queuing its read,
    /// which records the end of the read.
    pub(super) fn read_on<'a>(&'a self, stream: &'a CudaStream) -> SyncOnDrop<'a> {
        if self.is_of_one_stream() {
            return SyncOnDrop::Record(None);
        }
        self.store_error(self.wait(stream, [self.write]));
        if !self.is_managed() {
            // There is no other stream, so the next write is on this one.
            return SyncOnDrop::Record(None);
        }
        match self.event_of(stream) {
            Ok(event) => {
                if stream.cu_stream() != self.own.cu_stream() {
                    // The event may still belong to work of a dropped stream whose handle this
                    // stream has got; recording it again must not lose that work.
                    self.store_error(self.wait(stream, [BorrowedEvent(event.cu_event())]));
                }
                self.has_new_reads.store(true, Ordering::Release);
                SyncOnDrop::Record(Some((event, stream)))
            }
            Err(_) => SyncOnDrop::sync_stream(stream),
        }
    }

    /// Makes `stream` wait for all reads and writes so far, without blocking this thread. The
    /// caller has exclusive access, so no use begins meanwhile.
    pub(super) fn wait_for_uses(&self, stream: &CudaStream) {
        if self.is_of_one_stream() {
            return;
        }
        let first = self.reads.get().filter(|_| self.has_new_reads.swap(false, Ordering::Acquire));
        let reads = successors(first, |read| read.next.get()).map(|read| BorrowedEvent(read.event.cu_event()));
        self.store_error(self.wait(stream, [self.read, self.write].into_iter().chain(reads)));
    }

    /// Prepares the buffer as a read-only kernel argument; the kernel's stream is not known here.
    /// If cudarc orders several streams, the launch waits for the last write; otherwise the
    /// buffer's own stream waits for it here.
    pub(super) fn before_kernel_reads(&self) {
        if !self.is_of_one_stream() && !self.is_managed() {
            self.store_error(self.wait(&self.own, [self.write]));
        }
    }

    /// Prepares the buffer as a writable kernel argument; the kernel's stream is not known here.
    /// The read event is recorded again after all reads, because the launch waits only for the
    /// slice's two events. The caller has exclusive access.
    pub(super) fn before_kernel_writes(&self) {
        if !self.is_of_one_stream() && (self.has_new_reads.load(Ordering::Acquire) || !self.is_managed()) {
            self.wait_for_uses(&self.own);
            self.store_error(self.record(self.read));
        }
    }

    /// Returns the event that marks the last read on `stream`, and creates it at the stream's first
    /// read of this buffer.
    fn event_of(&self, stream: &CudaStream) -> Result<&CudaEvent, DriverError> {
        let handle = stream.cu_stream() as usize;
        let (mut slot, mut spare_event) = (&self.reads, None);
        loop {
            match slot.get() {
                Some(read) if read.stream == handle => return Ok(&read.event),
                Some(read) => slot = &read.next,
                None => {
                    let event = match spare_event.take() {
                        Some(event) => event,
                        None => self.own.context().new_event(None)?,
                    };
                    let read = Box::new(StreamRead { stream: handle, event, next: OnceLock::new() });
                    // If another thread was faster, its event may be for this stream.
                    spare_event = slot.set(read).err().map(|read| read.event);
                }
            }
        }
    }

    /// Makes `stream` wait for `events` of the buffer's earlier uses, without blocking this thread.
    /// Null events are skipped.
    fn wait(&self, stream: &CudaStream, events: impl IntoIterator<Item = BorrowedEvent>) -> Result<(), DriverError> {
        let _current = self.enter()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        for event in events.into_iter().filter(|event| !event.0.is_null()) {
            // SAFETY: The caller's reference keeps the stream, the slice and the list `reads` keep
            // the events, and `enter` has made the context current.
            unsafe { result::stream::wait_event(stream.cu_stream(), event.0, flags) }?;
        }
        Ok(())
    }

    /// Records `event` behind the work queued on the buffer's own stream; does nothing if it is
    /// null.
    fn record(&self, event: BorrowedEvent) -> Result<(), DriverError> {
        let _current = self.enter()?;
        // SAFETY: The slice keeps the event, `self` keeps the stream, and `enter` has made the
        // context current.
        if event.0.is_null() { Ok(()) } else { unsafe { result::event::record(event.0, self.own.cu_stream()) } }
    }

    /// Makes the buffer's context current on this thread until the result is dropped.
    fn enter(&self) -> Result<CurrentContext, DriverError> {
        CurrentContext::new(self.own.context()).map_err(|_| DriverError(sys::CUresult::CUDA_ERROR_INVALID_CONTEXT))
    }

    /// Stores an error, if `done` is one, in the context, as cudarc does; the next cudarc call that
    /// can fail returns it.
    fn store_error(&self, done: Result<(), DriverError>) {
        self.own.context().record_err(done);
    }
}

/// Orders a use of a buffer on a stream that events cannot order with `own`, the buffer's stream:
/// one of another `CudaContext` object, or the per-thread default stream. Blocks until all work in
/// the context of `own` has finished; dropping the result blocks until the use has finished.
/// Returns `None`, without waiting, for streams that events can order.
pub(super) fn synchronize_if_unordered<'a>(own: &CudaStream, stream: &'a CudaStream) -> Option<SyncOnDrop<'a>> {
    let context = own.context();
    if Arc::ptr_eq(context, stream.context()) && stream.cu_stream() as u64 != PER_THREAD_STREAM {
        return None;
    }
    if let Ok(_current) = CurrentContext::new(context) {
        context.record_err(result::ctx::synchronize());
    }
    Some(SyncOnDrop::sync_stream(stream))
}
