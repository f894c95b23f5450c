//! The order of a buffer's uses on several streams.

use std::iter::successors;
use std::mem::{ManuallyDrop, forget};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DriverError, SyncOnDrop, result, sys};

use super::device::PER_THREAD_STREAM;
use super::driver::Entered;

/// A buffer's memory as cudarc's own, whose two events are what kernels are kept in order by, and beside them an event for each stream
/// that reads it otherwise.
///
/// cudarc's event of reads is the last reader's alone. So whoever reads and tells its stream gets an event of that stream instead, and
/// whoever writes next, and the end of the buffer, wait for all of them.
///
/// Once there were several streams, that is done without asking whether there are at the moment: work of one that is gone may not be
/// done.
#[derive(Debug)]
pub(super) struct Tracked<T> {
    /// Never dropped: it would free what is the pool's.
    pub(super) slice: ManuallyDrop<CudaSlice<T>>,
    pub(super) order: Order,
}

/// The events of a buffer's uses.
#[derive(Debug)]
pub(super) struct Order {
    /// The stream that the buffer is of.
    own: Arc<CudaStream>,
    /// Of the slice: after the last kernel that reads.
    read: Event,
    /// Of the slice: after the last that writes.
    write: Event,
    reads: OnceLock<Box<Read>>,
    /// Set at the first use while there were several streams.
    among_streams: OnceLock<()>,
    /// Whether there are reads that no writer has waited for.
    has_new_reads: AtomicBool,
}

/// The event of one stream, after its last read.
#[derive(Debug)]
struct Read {
    stream: usize,
    event: CudaEvent,
    next: OnceLock<Box<Read>>,
}

/// An event that somebody else owns; null for none.
#[derive(Clone, Copy, Debug)]
struct Event(sys::CUevent);

// SAFETY: An event may be used on every thread; the driver locks what it needs.
unsafe impl Send for Event {}
// SAFETY: As above.
unsafe impl Sync for Event {}

impl Event {
    /// The event that is recorded at the end of a use, which is not recorded now.
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
    /// What tracks `len` numbers at `address`.
    ///
    /// # Safety
    /// There is memory for them, of which any bytes are values, for as long as what is returned.
    pub(super) unsafe fn new(own: &Arc<CudaStream>, address: sys::CUdeviceptr, len: usize) -> Self {
        let context = own.context();
        // An error that another call left in the context would be a panic in `upgrade_device_ptr`; it is put back.
        let left_behind = context.check_err();
        // SAFETY: The caller guarantees the memory.
        let mut slice = unsafe { own.upgrade_device_ptr::<T>(address, len) };
        let read = Event::of(slice.device_ptr(own).1);
        let write = Event::of(slice.device_ptr_mut(own).1);
        context.record_err(left_behind);
        let order = Order {
            own: Arc::clone(own),
            read,
            write,
            reads: OnceLock::new(),
            among_streams: OnceLock::new(),
            has_new_reads: AtomicBool::new(false),
        };
        Self { slice: ManuallyDrop::new(slice), order }
    }

    /// The end of the uses: what comes on the buffer's stream from now on comes after all of them.
    pub(super) fn finish(self) {
        let Self { slice, order } = self;
        order.settle_on(&order.own);
        ManuallyDrop::into_inner(slice).leak();
        // One after the other: a chain of boxes would be dropped as deep as it is long.
        let mut next = order.reads.into_inner();
        while let Some(read) = next {
            next = read.next.into_inner();
        }
    }
}

impl Order {
    /// Whether all uses are on one stream, asked for a use that follows.
    fn is_of_one_stream(&self) -> bool {
        if !self.is_managed() {
            return self.among_streams.get().is_none();
        }
        // What is still queued on its stream, of this buffer or of one before, counts to other streams as written just now.
        self.among_streams.get_or_init(|| self.note(self.record(self.write)));
        false
    }

    /// Whether cudarc keeps the context's streams in order with each other.
    fn is_managed(&self) -> bool {
        self.own.context().is_managing_stream_synchronization()
    }

    /// Has `stream` wait for whoever wrote, and says how its read ends.
    pub(super) fn read_on<'a>(&'a self, stream: &'a CudaStream) -> SyncOnDrop<'a> {
        if self.is_of_one_stream() {
            return SyncOnDrop::Record(None);
        }
        self.note(self.wait(stream, [self.write]));
        if !self.is_managed() {
            // There is no stream but this one, and whoever writes next does so on it.
            return SyncOnDrop::Record(None);
        }
        match self.event_of(stream) {
            Ok(event) => {
                if stream.cu_stream() != self.own.cu_stream() {
                    // The event may be that of another stream, which is gone and had the same handle: it is not to be lost.
                    self.note(self.wait(stream, [Event(event.cu_event())]));
                }
                self.has_new_reads.store(true, Ordering::Release);
                SyncOnDrop::Record(Some((event, stream)))
            }
            Err(_) => SyncOnDrop::sync_stream(stream),
        }
    }

    /// Has `stream` wait for everybody who used the memory. Nobody else uses it meanwhile.
    pub(super) fn settle_on(&self, stream: &CudaStream) {
        if self.is_of_one_stream() {
            return;
        }
        let first = self.reads.get().filter(|_| self.has_new_reads.swap(false, Ordering::Acquire));
        let reads = successors(first, |read| read.next.get()).map(|read| Event(read.event.cu_event()));
        self.note(self.wait(stream, [self.read, self.write].into_iter().chain(reads)));
    }

    /// Before a kernel reads on a stream that is not known here. Where there are several, cudarc has it wait for the slice's last writer.
    pub(super) fn before_kernel_reads(&self) {
        if !self.is_of_one_stream() && !self.is_managed() {
            self.note(self.wait(&self.own, [self.write]));
        }
    }

    /// Before a kernel writes on a stream that is not known here. Where there are several, cudarc has it wait for the slice's two events,
    /// of which one is made to stand for all who read. Nobody else uses the memory meanwhile.
    pub(super) fn before_kernel_writes(&self) {
        if !self.is_of_one_stream() && (self.has_new_reads.load(Ordering::Acquire) || !self.is_managed()) {
            self.settle_on(&self.own);
            self.note(self.record(self.read));
        }
    }

    /// The event for `stream`, which is made where there is none.
    fn event_of(&self, stream: &CudaStream) -> Result<&CudaEvent, DriverError> {
        let handle = stream.cu_stream() as usize;
        let (mut place, mut made) = (&self.reads, None);
        loop {
            match place.get() {
                Some(read) if read.stream == handle => return Ok(&read.event),
                Some(read) => place = &read.next,
                None => {
                    let event = match made.take() {
                        Some(event) => event,
                        None => self.own.context().new_event(None)?,
                    };
                    let read = Box::new(Read { stream: handle, event, next: OnceLock::new() });
                    // Where another thread was faster, its stream may be the same.
                    made = place.set(read).err().map(|read| read.event);
                }
            }
        }
    }

    fn wait(&self, stream: &CudaStream, events: impl IntoIterator<Item = Event>) -> Result<(), DriverError> {
        let _entered = self.enter()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        for event in events.into_iter().filter(|event| !event.0.is_null()) {
            // SAFETY: Whoever lends the stream keeps it, the slice and the list keep the events, and the context is current.
            unsafe { result::stream::wait_event(stream.cu_stream(), event.0, flags) }?;
        }
        Ok(())
    }

    fn record(&self, event: Event) -> Result<(), DriverError> {
        let _entered = self.enter()?;
        // SAFETY: The slice keeps the event, this the stream, and the context is current.
        if event.0.is_null() { Ok(()) } else { unsafe { result::event::record(event.0, self.own.cu_stream()) } }
    }

    fn enter(&self) -> Result<Entered, DriverError> {
        Entered::new(self.own.context()).map_err(|_| DriverError(sys::CUresult::CUDA_ERROR_INVALID_CONTEXT))
    }

    /// Keeps an error for the next call that can return one, as cudarc does.
    fn note(&self, done: Result<(), DriverError>) {
        self.own.context().record_err(done);
    }
}

/// Whether events cannot keep `stream` in order with `own`, since it is of another `CudaContext`, which knows nothing of ours, or another
/// one on each thread. Then it is the program that waits: here for what was queued before, and for the use as the end of it says.
pub(super) fn waits_for<'a>(own: &CudaStream, stream: &'a CudaStream) -> Option<SyncOnDrop<'a>> {
    let context = own.context();
    if Arc::ptr_eq(context, stream.context()) && stream.cu_stream() as u64 != PER_THREAD_STREAM {
        return None;
    }
    if let Ok(_entered) = Entered::new(context) {
        context.record_err(result::ctx::synchronize());
    }
    Some(SyncOnDrop::sync_stream(stream))
}
