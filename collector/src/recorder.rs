//! The recorder: a thread that turns what happened into a recording and hands it to a file and to the [`Hub`].
//!
//! The program that is recorded puts events into a bounded queue through a [`RecorderHandle`], from any thread; their order in the
//! queue is their order in the recording. When the queue is full the program waits: nothing is lost. Everything slow, that is
//! encoding, compression and writing, is done on the recorder's own thread.
//!
//! This is the only place that reads a clock; everything else is told the time.

use std::fmt;
use std::io::{self, Write};
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use vramscope_trace::{Annotation, Definition, Encoder, Event, Info, MemoryState, Sink};

use crate::hub::Hub;

/// How long events may wait before they are sent on. A viewer draws at most every 16 ms and a person sees a delay from about
/// 100 ms on; a shorter wait makes smaller chunks, which compress worse.
const FLUSH_EVERY: Duration = Duration::from_millis(20);
/// How much the queue holds before the program has to wait: 20 ms of three million events a second.
const QUEUE_LEN: usize = 1 << 16;
/// The recorder is woken before its time when the queue holds this much.
const WAKE_LEN: usize = QUEUE_LEN / 4;

enum Message {
    Event(Event),
    Define(Definition),
    Annotation(Annotation),
    FullState(Box<MemoryState>),
}

#[derive(Default)]
struct Queue {
    messages: Vec<Message>,
    /// No more messages are taken.
    closed: bool,
}

struct Shared {
    started: Instant,
    queue: Mutex<Queue>,
    /// Told when the recorder should look at the queue before its time.
    work: Condvar,
    /// Told when the queue has room again.
    room: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No code that can panic runs under the lock, so what it guards is whole even if a thread died.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, message: Message) {
        let mut queue = self.lock();
        while queue.messages.len() >= QUEUE_LEN && !queue.closed {
            queue = self.room.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        if queue.closed {
            return;
        }
        queue.messages.push(message);
        // Waking a thread costs more than everything else here, so it is done once a batch and not once an event.
        if queue.messages.len() == WAKE_LEN {
            self.work.notify_one();
        }
    }

    /// Swaps the queue's messages for the empty `batch` when it is time to; says whether the queue is closed.
    fn take(&self, batch: &mut Vec<Message>) -> bool {
        let queue = self.lock();
        let (mut queue, _) = self
            .work
            .wait_timeout_while(queue, FLUSH_EVERY, |queue| queue.messages.len() < WAKE_LEN && !queue.closed)
            .unwrap_or_else(PoisonError::into_inner);
        mem::swap(&mut queue.messages, batch);
        let closed = queue.closed;
        drop(queue);
        self.room.notify_all();
        closed
    }

    fn close(&self) {
        self.lock().closed = true;
        self.work.notify_all();
        self.room.notify_all();
    }
}

/// Is told why a file could not be written.
pub type FileErrorCallback = Box<dyn FnOnce(&io::Error) + Send>;

/// Where a recording goes.
#[derive(Default)]
pub struct Outputs {
    /// A file, or anything else that takes bytes; each chunk is one write.
    pub file: Option<Box<dyn Write + Send>>,
    /// The viewers.
    pub hub: Option<Hub>,
    /// Called, once, when the file could not be written. The recording goes on for the viewers.
    pub on_file_error: Option<FileErrorCallback>,
}

/// What was recorded.
#[derive(Debug)]
pub struct Summary {
    /// How many events.
    pub events: u64,
    /// Bytes of the recording.
    pub bytes: u64,
    /// Why the file is not whole.
    pub file_error: Option<io::Error>,
}

/// A recording in progress. Dropping it ends the recording.
pub struct Recorder {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Summary>>,
}

impl Recorder {
    /// Begins a recording. Where `info` names no epoch, it is now.
    ///
    /// # Errors
    /// If the operating system gives no thread.
    pub fn start(mut info: Info, outputs: Outputs) -> io::Result<(Self, RecorderHandle)> {
        if info.epoch_unix_ns == 0 {
            let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            info.epoch_unix_ns = u64::try_from(since_1970.as_nanos()).unwrap_or(0);
        }
        let shared = Arc::new(Shared {
            started: Instant::now(),
            queue: Mutex::default(),
            work: Condvar::new(),
            room: Condvar::new(),
        });
        let mut encoder = Encoder::new(&info);
        let mut writer = Writer { outputs, summary: Summary { events: 0, bytes: 0, file_error: None } };
        // The head at once, so that there is a recording for whoever asks from now on.
        writer.write(&mut encoder);
        let theirs = Arc::clone(&shared);
        let hub = writer.outputs.hub.clone();
        let thread = std::thread::Builder::new().name("vramscope-recorder".into()).spawn(move || {
            // However this thread ends, nobody may go on waiting for it.
            let closing = CloseOnDrop { shared: theirs, hub };
            run(&closing.shared, encoder, writer)
        })?;
        let handle = RecorderHandle { shared: Arc::clone(&shared) };
        Ok((Self { shared, thread: Some(thread) }, handle))
    }

    /// Ends the recording: everything put into the queue so far is written. What comes later through a handle is ignored.
    pub fn stop(mut self) -> Summary {
        self.shared.close();
        let thread = self.thread.take().expect("only this and the drop after it take the thread");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(thread) = self.thread.take() {
            // The panic of a broken recorder was printed when it happened; whoever wants to know calls `stop`.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

/// Puts events into a [`Recorder`]'s queue. Clones put into the same queue.
#[derive(Clone)]
pub struct RecorderHandle {
    shared: Arc<Shared>,
}

impl RecorderHandle {
    /// Nanoseconds since the recording began; never goes back.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.shared.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl fmt::Debug for RecorderHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecorderHandle").finish_non_exhaustive()
    }
}

impl Sink for RecorderHandle {
    fn event(&mut self, event: &Event) {
        self.shared.put(Message::Event(*event));
    }
    fn define(&mut self, definition: &Definition) {
        self.shared.put(Message::Define(definition.clone()));
    }
    fn annotation(&mut self, annotation: &Annotation) {
        self.shared.put(Message::Annotation(*annotation));
    }
    fn full_state(&mut self, state: &MemoryState) {
        self.shared.put(Message::FullState(Box::new(state.clone())));
    }
}

struct CloseOnDrop {
    shared: Arc<Shared>,
    hub: Option<Hub>,
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(hub) = &self.hub {
            hub.end();
        }
    }
}

fn run(shared: &Shared, mut encoder: Encoder, mut writer: Writer) -> Summary {
    let mut batch = Vec::new();
    loop {
        let closed = shared.take(&mut batch);
        let idle = batch.is_empty();
        for message in batch.drain(..) {
            match message {
                Message::Event(event) => {
                    encoder.event(&event);
                    writer.summary.events += 1;
                }
                Message::Define(definition) => encoder.define(&definition),
                Message::Annotation(annotation) => encoder.annotation(&annotation),
                Message::FullState(state) => encoder.full_state(&state),
            }
        }
        if !idle {
            encoder.flush();
            writer.write(&mut encoder);
        }
        // Nothing is put into a closed queue, so this batch was the last.
        if closed {
            return writer.summary;
        }
    }
}

struct Writer {
    outputs: Outputs,
    summary: Summary,
}

impl Writer {
    fn write(&mut self, encoder: &mut Encoder) {
        let chunks: Vec<_> = encoder.take_output().into_iter().map(Arc::new).collect();
        // The viewers first: a disk may be slow.
        if let Some(hub) = &self.outputs.hub {
            hub.publish(&chunks);
        }
        for chunk in &chunks {
            self.summary.bytes += chunk.bytes.len() as u64;
            let Some(file) = &mut self.outputs.file else { continue };
            if let Err(error) = file.write_all(&chunk.bytes) {
                self.outputs.file = None;
                if let Some(tell) = self.outputs.on_file_error.take() {
                    tell(&error);
                }
                self.summary.file_error = Some(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use vramscope_trace::{DeviceId, EventKind, Item, Stage, StringId};

    use super::*;

    /// A file in memory, which is full after so many bytes.
    #[derive(Clone)]
    struct Disk {
        bytes: Arc<Mutex<Vec<u8>>>,
        capacity: usize,
    }

    impl Disk {
        fn new(capacity: usize) -> Self {
            Self { bytes: Arc::default(), capacity }
        }
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut file = self.bytes.lock().expect("no panic");
            if file.len() + bytes.len() > self.capacity {
                return Err(io::ErrorKind::StorageFull.into());
            }
            file.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn mark(time_ns: u64, name: u32) -> Event {
        Event { device: DeviceId(0), time_ns, kind: EventKind::Mark { stage: Stage::Instant, name: StringId(name) } }
    }

    fn items(bytes: &[u8]) -> Vec<Item> {
        let mut decoder = vramscope_trace::Decoder::new();
        decoder.push(bytes);
        let items = std::iter::from_fn(|| decoder.next_item().expect("a recording")).collect();
        decoder.finish().expect("whole chunks");
        items
    }

    fn sent(hub: &Hub) -> Vec<u8> {
        hub.everything().iter().flat_map(|chunk| chunk.bytes.clone()).collect()
    }

    #[test]
    fn the_file_and_the_viewers_get_the_same_bytes() {
        let (disk, hub) = (Disk::new(usize::MAX), Hub::default());
        let outputs = Outputs { file: Some(Box::new(disk.clone())), hub: Some(hub.clone()), ..Outputs::default() };
        let (recorder, mut handle) = Recorder::start(Info::default(), outputs).expect("a thread");
        handle.define(&Definition::String("step".into()));
        for n in 0..100_000 {
            handle.event(&mark(n, 1));
        }
        let summary = recorder.stop();
        handle.event(&mark(0, 1));
        let file = disk.bytes.lock().expect("no panic").clone();
        assert!(file == sent(&hub));
        assert_eq!((summary.events, summary.bytes), (100_000, file.len() as u64));
        let items = items(&file);
        let Some(Item::Info(info)) = items.first() else { panic!("no info first") };
        assert!(info.epoch_unix_ns > 0);
        let times =
            items.iter().filter_map(|item| if let Item::Event(event) = item { Some(event.time_ns) } else { None });
        assert!(times.eq(0..100_000));
    }

    #[test]
    fn what_one_thread_puts_keeps_its_order_among_others() {
        let hub = Hub::default();
        let outputs = Outputs { hub: Some(hub.clone()), ..Outputs::default() };
        let (recorder, handle) = Recorder::start(Info::default(), outputs).expect("a thread");
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let mut handle = handle.clone();
                scope.spawn(move || {
                    for n in 0..50_000 {
                        handle.event(&Event { device: DeviceId(thread as u16), ..mark(n, 0) });
                    }
                });
            }
        });
        assert_eq!(recorder.stop().events, 200_000);
        let mut next = [0; 4];
        for item in items(&sent(&hub)) {
            if let Item::Event(event) = item {
                let expected = &mut next[usize::from(event.device.0)];
                assert_eq!(event.time_ns, *expected);
                *expected += 1;
            }
        }
        assert_eq!(next, [50_000; 4]);
    }

    #[test]
    fn a_full_disk_is_told_once_and_the_viewers_go_on() {
        let (disk, hub) = (Disk::new(600), Hub::default());
        let (tell, told) = mpsc::channel();
        let outputs = Outputs {
            file: Some(Box::new(disk.clone())),
            hub: Some(hub.clone()),
            on_file_error: Some(Box::new(move |error| tell.send(error.kind()).expect("the test listens"))),
        };
        let (recorder, mut handle) = Recorder::start(Info::default(), outputs).expect("a thread");
        for n in 0..100_000 {
            handle.event(&mark(n * 7919 % 1_000_003, 0));
        }
        let summary = recorder.stop();
        assert_eq!(told.iter().collect::<Vec<_>>(), [io::ErrorKind::StorageFull]);
        assert_eq!(summary.file_error.map(|error| error.kind()), Some(io::ErrorKind::StorageFull));
        assert_eq!(items(&sent(&hub)).iter().filter(|item| matches!(item, Item::Event(_))).count(), 100_000);
        // What was written ends with a whole chunk.
        items(&disk.bytes.lock().expect("no panic"));
    }
}
