//! Orders a buffer's uses on several streams.

use std::iter::successors;
use std::mem::{ManuallyDrop, forget};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DriverError, SyncOnDrop, result, sys};

use super::device::PER_THREAD_STREAM;
use super::driver::CurrentContext;

/// A buffer's memory as a cudarc slice, whose two events order kernels, and an event for each
/// stream that reads it otherwise.
///
/// cudarc's read event belongs to the last reader only. Readers that report their stream therefore
/// get an event of that stream, and the next writer, and the end of the buffer, wait for all of
/// them.
///
/// Once a context has had several streams, their current number does not matter: work of a dropped
/// stream may still run.
#[derive(Debug)]
pub(super) struct Tracked<T> {
    /// Never dropped: that would free the pool's memory.
    pub(super) slice: ManuallyDrop<CudaSlice<T>>,
    pub(super) order: Order,
}

/// The CUDA events of a buffer's uses, by which later uses on other streams wait for earlier ones.
#[derive(Debug)]
pub(super) struct Order {
    /// The buffer's stream.
    own: Arc<CudaStream>,
    /// The slice's event after the last kernel that reads.
    read: Event,
    /// The slice's event after the last write.
    write: Event,
    reads: OnceLock<Box<Read>>,
    /// Set at the first use while there are several streams.
    multi_stream: OnceLock<()>,
    /// True if there are reads that no writer has waited for.
    has_new_reads: AtomicBool,
}

/// A node of a list: the event that a stream records after its last read of the buffer.
#[derive(Debug)]
struct Read {
    stream: usize,
    event: CudaEvent,
    next: OnceLock<Box<Read>>,
}

/// A CUDA event that another object owns; null if there is none.
#[derive(Clone, Copy, Debug)]
struct Event(sys::CUevent);

// SAFETY: Events may be used on any thread; the driver synchronizes access.
unsafe impl Send for Event {}
// SAFETY: As above.
unsafe impl Sync for Event {}

impl Event {
    /// Returns the event that dropping `use_of` would record at the end of a use, without recording
    /// it.
    fn of(use_of: SyncOnDrop<'_>) -> Self {
        let event = match &use_of {
            SyncOnDrop::Record(Some((event, _))) => event.cu_event(),
            _ => ptr::null_mut(),
        };
        forget(use_of);
        Self(event)
    }
}

impl<T> Tracked<T> {
    /// Tracks `len` numbers at `address`.
    ///
    /// # Safety
    /// The memory is valid for as long as the result, and any bytes in it are valid numbers.
    pub(super) unsafe fn new(own: &Arc<CudaStream>, address: sys::CUdeviceptr, len: usize) -> Self {
        let context = own.context();
        // An error left in the context would make `upgrade_device_ptr` panic; it is restored
        // afterwards.
        let earlier_error = context.check_err();
        // SAFETY: The caller guarantees the memory.
        let mut slice = unsafe { own.upgrade_device_ptr::<T>(address, len) };
        let read = Event::of(slice.device_ptr(own).1);
        let write = Event::of(slice.device_ptr_mut(own).1);
        context.record_err(earlier_error);
        let order = Order {
            own: Arc::clone(own),
            read,
            write,
            reads: OnceLock::new(),
            multi_stream: OnceLock::new(),
            has_new_reads: AtomicBool::new(false),
        };
        Self { slice: ManuallyDrop::new(slice), order }
    }

    /// Ends the buffer: work queued on its stream from now on runs after all uses.
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

impl Order {
    /// Returns true if all uses so far are on one stream, so that nothing needs ordering.
    fn is_of_one_stream(&self) -> bool {
        if !self.is_managed() {
            return self.multi_stream.get().is_none();
        }
        // Work still queued on the buffer's stream counts as a write now, for other streams.
        self.multi_stream.get_or_init(|| self.store_error(self.record(self.write)));
        false
    }

    /// Returns true if cudarc orders work on the context's streams by events: it has had several
    /// streams, and event tracking is on.
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
                    // The event may still belong to work of a dropped stream that had the same
                    // handle; recording it again must not lose that work.
                    self.store_error(self.wait(stream, [Event(event.cu_event())]));
                }
                self.has_new_reads.store(true, Ordering::Release);
                SyncOnDrop::Record(Some((event, stream)))
            }
            Err(_) => SyncOnDrop::sync_stream(stream),
        }
    }

    /// Makes `stream` wait for all uses. The caller has exclusive access.
    pub(super) fn wait_for_uses(&self, stream: &CudaStream) {
        if self.is_of_one_stream() {
            return;
        }
        let first = self.reads.get().filter(|_| self.has_new_reads.swap(false, Ordering::Acquire));
        let reads = successors(first, |read| read.next.get()).map(|read| Event(read.event.cu_event()));
        self.store_error(self.wait(stream, [self.read, self.write].into_iter().chain(reads)));
    }

    /// Prepares a kernel's read on an unknown stream. With several streams, cudarc waits for the
    /// slice's last writer.
    pub(super) fn before_kernel_reads(&self) {
        if !self.is_of_one_stream() && !self.is_managed() {
            self.store_error(self.wait(&self.own, [self.write]));
        }
    }

    /// Prepares a kernel's write on an unknown stream. With several streams, cudarc waits for the
    /// slice's two events; the read event is recorded again after all readers. The caller has
    /// exclusive access.
    pub(super) fn before_kernel_writes(&self) {
        if !self.is_of_one_stream() && (self.has_new_reads.load(Ordering::Acquire) || !self.is_managed()) {
            self.wait_for_uses(&self.own);
            self.store_error(self.record(self.read));
        }
    }

    /// Returns the event that marks the last read on `stream`, creating it at the stream's first
    /// read.
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
                    let read = Box::new(Read { stream: handle, event, next: OnceLock::new() });
                    // If another thread was faster, its event may be for the same stream.
                    spare_event = slot.set(read).err().map(|read| read.event);
                }
            }
        }
    }

    /// Makes `stream` wait for these events, without blocking this thread. Null events are skipped.
    fn wait(&self, stream: &CudaStream, events: impl IntoIterator<Item = Event>) -> Result<(), DriverError> {
        let _current = self.enter()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        for event in events.into_iter().filter(|event| !event.0.is_null()) {
            // SAFETY: The caller keeps the stream, the slice and the list keep the events, and the
            // context is current.
            unsafe { result::stream::wait_event(stream.cu_stream(), event.0, flags) }?;
        }
        Ok(())
    }

    /// Records `event` on the buffer's own stream, unless it is null.
    fn record(&self, event: Event) -> Result<(), DriverError> {
        let _current = self.enter()?;
        // SAFETY: The slice keeps the event, `self` the stream, and the context is current.
        if event.0.is_null() { Ok(()) } else { unsafe { result::event::record(event.0, self.own.cu_stream()) } }
    }

    /// Makes the buffer's context current on this thread until the result is dropped.
    fn enter(&self) -> Result<CurrentContext, DriverError> {
        CurrentContext::new(self.own.context()).map_err(|_| DriverError(sys::CUresult::CUDA_ERROR_INVALID_CONTEXT))
    }

    /// Stores an error in the context, for the next call that can return one, as cudarc does.
    fn store_error(&self, done: Result<(), DriverError>) {
        self.own.context().record_err(done);
    }
}

/// Orders a use on a stream that events cannot order with `own`: a stream of another `CudaContext`
/// object, or the per-thread default stream. Waits for earlier work; the result waits for the use
/// when it is dropped. Returns `None` for streams that events can order.
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
