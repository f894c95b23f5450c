use std::io::Write;
use std::sync::{Mutex, mpsc};

use vramscope_trace::{
    Annotation, AnnotationStage, DecodedItem, Definition, DeviceId, DeviceState, Event, EventKind, MemorySink,
    MemoryState, Relabel, Sink, SiteId, StringId,
};

use super::handle::MAX_RINGS;
use super::merge::DeviceStateSink;
use super::*;
use crate::file::RecordingFile;
use crate::file::stream_with_queue;
use crate::hub::ViewFrom;
#[cfg(debug_assertions)]
use crate::wait_check::Wait;
use crate::wait_until::{TIMEOUT, wait_until};

/// A file in memory that is full after `capacity` bytes.
#[derive(Clone)]
struct Disk {
    bytes: Arc<Mutex<Vec<u8>>>,
    capacity: usize,
}

impl Disk {
    fn new(capacity: usize) -> Self {
        Self { bytes: Arc::default(), capacity }
    }

    fn file(&self) -> Option<RecordingFile> {
        Some(RecordingFile::stream("disk", self.clone()).expect("the thread starts"))
    }
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut file = self.bytes.lock().expect("no thread panics");
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

pub(super) fn mark(time_ns: u64, name: u32) -> Event {
    Event {
        device: DeviceId(0),
        time_ns,
        kind: EventKind::Mark { stage: AnnotationStage::Instant, name: StringId(name), address: 0, site: SiteId(0) },
    }
}

pub(super) fn items(bytes: &[u8]) -> Vec<DecodedItem> {
    let mut decoder = vramscope_trace::Decoder::new();
    decoder.push(bytes);
    let items = std::iter::from_fn(|| decoder.next_item().expect("a valid recording")).collect();
    decoder.finish().expect("the recording has whole chunks");
    items
}

pub(super) fn sent(hub: &Hub) -> Vec<u8> {
    hub.everything().iter().flat_map(|chunk| chunk.bytes.clone()).collect()
}

#[test]
fn file_and_viewers_get_the_same_bytes() {
    let (disk, hub) = (Disk::new(usize::MAX), Hub::default());
    let outputs = Outputs { file: disk.file(), hub: Some(hub.clone()), ..Outputs::default() };
    let (recorder, mut handle) = Recorder::start(RecordingInfo::default(), outputs).expect("the thread starts");
    handle.define(&Definition::String("step".into()));
    for n in 0..100_000 {
        handle.event(&mark(n, 1));
    }
    let summary = recorder.stop();
    handle.event(&mark(0, 1));
    let file = disk.bytes.lock().expect("no thread panics").clone();
    assert!(file == sent(&hub));
    assert_eq!((summary.events, summary.bytes), (100_000, file.len() as u64));
    let items = items(&file);
    let Some(DecodedItem::Info(info)) = items.first() else { panic!("no info first") };
    assert!(info.epoch_unix_ns > 0);
    let times =
        items.iter().filter_map(|item| if let DecodedItem::Event(event) = item { Some(event.time_ns) } else { None });
    assert!(times.eq(0..100_000));
}

#[test]
fn events_of_one_handle_keep_their_order() {
    let hub = Hub::default();
    let outputs = Outputs { hub: Some(hub.clone()), ..Outputs::default() };
    let (recorder, handle) = Recorder::start(RecordingInfo::default(), outputs).expect("the thread starts");
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
        if let DecodedItem::Event(event) = item {
            let expected = &mut next[usize::from(event.device.0)];
            assert_eq!(event.time_ns, *expected);
            *expected += 1;
        }
    }
    assert_eq!(next, [50_000; 4]);
}

#[test]
fn full_disk_is_reported_once_and_viewers_continue() {
    let (disk, hub) = (Disk::new(600), Hub::default());
    let (error_sender, errors) = mpsc::channel();
    let outputs = Outputs {
        file: disk.file(),
        hub: Some(hub.clone()),
        on_file_error: Some(Box::new(move |error| {
            error_sender.send(error.error.kind()).expect("the test receives errors")
        })),
        ..Outputs::default()
    };
    let (recorder, mut handle) = Recorder::start(RecordingInfo::default(), outputs).expect("the thread starts");
    for n in 0..100_000 {
        handle.event(&mark(n * 7919 % 1_000_003, 0));
    }
    let summary = recorder.stop();
    assert_eq!(errors.iter().collect::<Vec<_>>(), [io::ErrorKind::StorageFull]);
    assert_eq!(summary.file_error.map(|error| error.error.kind()), Some(io::ErrorKind::StorageFull));
    assert_eq!(items(&sent(&hub)).iter().filter(|item| matches!(item, DecodedItem::Event(_))).count(), 100_000);
    // The file ends with a whole chunk.
    items(&disk.bytes.lock().expect("no thread panics"));
}

impl DeviceStateSink for MemorySink {
    fn device_state(&mut self, device: DeviceId, state: &DeviceState) {
        panic!("nothing was dropped, but a state of device {device:?} was recorded: {state:?}");
    }
}

/// Returns the numbers of the marks that viewers received, in order.
fn marks(hub: &Hub) -> Vec<u32> {
    let items = items(&sent(hub)).into_iter();
    let marks = items.filter_map(|item| match item {
        DecodedItem::Event(Event { kind: EventKind::Mark { name, .. }, .. }) => Some(name.0),
        _ => None,
    });
    marks.collect()
}

#[test]
fn events_of_one_thread_keep_their_order_across_handles() {
    let hub = Hub::default();
    let outputs = Outputs { hub: Some(hub.clone()), ..Outputs::default() };
    let (recorder, handle) = Recorder::start(RecordingInfo::default(), outputs).expect("the thread starts");
    let mut handles: Vec<_> = (0..3).map(|_| handle.clone()).collect();
    let mut last_ns = 0;
    for n in 1..=300_000 {
        // The thread uses one handle for a while, then all handles in turn.
        let which = if n % 1000 < 500 { n / 1000 } else { n } as usize % handles.len();
        let later = || Some(handle.now_ns()).filter(|&now_ns| now_ns > last_ns);
        let time_ns = std::iter::repeat_with(later).flatten().next().expect("the clock advances");
        handles[which].event(&mark(time_ns, n));
        last_ns = time_ns;
    }
    assert_eq!(recorder.stop().events, 300_000);
    assert!(marks(&hub).into_iter().eq(1..=300_000));
}

#[test]
fn times_of_another_clock_delay_events_only_briefly() {
    let hub = Hub::default();
    let outputs = Outputs { hub: Some(hub.clone()), ..Outputs::default() };
    let (_recorder, mut handle) = Recorder::start(RecordingInfo::default(), outputs).expect("the thread starts");
    let mut other = handle.clone();
    for n in 0..1000 {
        handle.event(&mark(u64::MAX - 1000 + n, 1));
        other.event(&mark(u64::MAX - 1000 + n, 2));
    }
    wait_until("events from the future are taken", || marks(&hub).len() == 2000);
}

/// A disk that completes a write each time it receives a message.
struct StuckDisk(mpsc::Receiver<()>);

impl Write for StuckDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Returns at once if the sender has been dropped.
        let _ = self.0.recv();
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts a recording to a stuck disk that has taken the header.
fn recorded_to_stuck_disk(
    hub: &Hub,
    queue_bytes: usize,
    patience: Duration,
) -> (mpsc::Sender<()>, Recorder, RecorderHandle) {
    with_stuck_disk(hub, queue_bytes, patience, Overflow::Wait)
}

pub(super) fn with_stuck_disk(
    hub: &Hub,
    queue_bytes: usize,
    patience: Duration,
    overflow: Overflow,
) -> (mpsc::Sender<()>, Recorder, RecorderHandle) {
    let (disk_writes, disk_signal) = mpsc::channel();
    disk_writes.send(()).expect("the disk waits: the header is written at once");
    let file = Some(stream_with_queue(StuckDisk(disk_signal), queue_bytes, patience));
    let outputs = Outputs { file, hub: Some(hub.clone()), overflow, ..Outputs::default() };
    let (recorder, handle) = Recorder::start(RecordingInfo::default(), outputs).expect("the thread starts");
    (disk_writes, recorder, handle)
}

#[test]
fn program_faster_than_the_file_waits_and_loses_nothing() {
    let hub = Hub::default();
    let (disk_writes, recorder, mut handle) = recorded_to_stuck_disk(&hub, 1, TIMEOUT);
    let program = std::thread::spawn(move || {
        for n in 1..=300_000 {
            handle.event(&mark(handle.now_ns(), n));
        }
    });
    wait_until("the program waits", || recorder.shared.waits().0 > 0);
    assert!(!program.is_finished());
    drop(disk_writes);
    program.join().expect("no thread panics");
    let summary = recorder.stop();
    assert!(marks(&hub).into_iter().eq(1..=300_000));
    assert!(summary.file_error.is_none());
    assert!(summary.waits > 0 && summary.waited > Duration::ZERO, "{summary:?}");
}

#[test]
fn temporarily_slow_disk_delays_no_viewer() {
    let hub = Hub::default();
    let (disk_writes, recorder, mut handle) = recorded_to_stuck_disk(&hub, 64 << 20, TIMEOUT);
    for n in 1..=300_000 {
        handle.event(&mark(handle.now_ns(), n));
    }
    wait_until("viewers have all events, though the disk takes none", || marks(&hub).len() == 300_000);
    drop(disk_writes);
    assert!(recorder.stop().file_error.is_none());
}

#[test]
fn disk_that_takes_nothing_ends_the_file() {
    let hub = Hub::default();
    let (disk_writes, recorder, mut handle) = recorded_to_stuck_disk(&hub, 1, Duration::from_millis(100));
    for n in 1..=300_000 {
        handle.event(&mark(handle.now_ns(), n));
    }
    let error = recorder.stop().file_error.expect("the disk took nothing");
    assert_eq!(error.error.kind(), io::ErrorKind::TimedOut);
    assert!(error.to_string().starts_with("a stream: no data could be written"), "{error}");
    assert!(marks(&hub).into_iter().eq(1..=300_000));
    drop(disk_writes);
}

#[test]
fn file_and_viewer_get_the_same_events_in_different_chunks() {
    let (disk, hub) = (Disk::new(usize::MAX), Hub::default());
    let outputs = Outputs { file: disk.file(), hub: Some(hub.clone()), ..Outputs::default() };
    let mut streams = Streams::new(&RecordingInfo::default(), outputs);
    // The file's chunks never end because of their age.
    let since = Instant::now() + TIMEOUT;
    let mut viewer = None;
    for n in 0..60 {
        streams.define(&Definition::String(format!("step {n}")));
        for part in 0..100 {
            streams.event(&mark(n * 1000 + part, n as u32 + 1));
        }
        // A viewer connects and disconnects.
        match n % 20 {
            5 => viewer = Some(hub.viewer(ViewFrom::Newest)),
            15 => viewer = None,
            _ => {}
        }
        streams.finish_pass(Some(since), false);
    }
    drop(viewer);
    streams.finish_pass(None, true);
    streams.finish();
    let file = disk.bytes.lock().expect("no thread panics").clone();
    let without_states = |bytes: &[u8]| {
        let is_no_state = |item: &DecodedItem| !matches!(item, DecodedItem::FullState(_));
        items(bytes).into_iter().filter(is_no_state).collect::<Vec<_>>()
    };
    let events = without_states(&file).into_iter().filter(|item| matches!(item, DecodedItem::Event(_)));
    assert_eq!(events.count(), 6000);
    let split = |bytes: &[u8]| {
        let (events, others): (Vec<_>, Vec<_>) =
            without_states(bytes).into_iter().partition(|item| matches!(item, DecodedItem::Event(_)));
        (events, others)
    };
    assert_eq!(split(&file), split(&sent(&hub)));
    // While there are viewers, each step is a chunk of theirs; the file's chunks are larger.
    assert!(file.len() < sent(&hub).len(), "the file's chunks are larger");
}

#[test]
fn ended_recording_blocks_no_thread() {
    let (recorder, mut handle) =
        Recorder::start(RecordingInfo::default(), Outputs::default()).expect("the thread starts");
    handle.event(&mark(0, 1));
    assert_eq!(recorder.stop().waits, 0);
    let mut late = handle.clone();
    for n in 0..300_000 {
        handle.event(&mark(n, 1));
        late.event(&mark(n, 1));
        late.define(&Definition::String("late".into()));
        late.replace_state(&MemoryState::default());
    }
}

#[test]
#[cfg(debug_assertions)]
fn event_that_finds_room_takes_no_lock() {
    let (recorder, mut handle) =
        Recorder::start(RecordingInfo::default(), Outputs::default()).expect("the thread starts");
    // The first event opens the ring, under the lock of the recorder's state.
    handle.event(&mark(0, 1));
    let forbidden = Wait::Recorder.forbid();
    for n in 1..1000 {
        handle.event(&mark(n, 1));
    }
    drop(forbidden);
    assert_eq!(recorder.stop().events, 1000);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "must not wait for Hub")]
fn call_that_must_not_wait_cannot_lock_the_hub() {
    let _forbidden = Wait::Hub.forbid();
    let _ = Hub::default().held_bytes();
}

#[test]
fn any_number_of_handles_can_be_created_and_dropped() {
    let hub = Hub::default();
    let outputs = Outputs { hub: Some(hub.clone()), ..Outputs::default() };
    let (recorder, handle) = Recorder::start(RecordingInfo::default(), outputs).expect("the thread starts");
    let mut handles: Vec<_> = (0..2 * MAX_RINGS as u64).map(|_| handle.clone()).collect();
    for n in 0..100 {
        for (number, handle) in handles.iter_mut().enumerate() {
            handle.event(&Event { device: DeviceId(number as u16), ..mark(n, 0) });
        }
    }
    assert_eq!(recorder.shared.rings(), MAX_RINGS + 1);
    drop(handles);
    wait_until("rings of dropped handles are removed", || recorder.shared.rings() == 1);
    assert_eq!(recorder.stop().events, 2 * MAX_RINGS as u64 * 100);
    let mut next = [0; 2 * MAX_RINGS];
    for item in items(&sent(&hub)) {
        if let DecodedItem::Event(event) = item {
            let expected = &mut next[usize::from(event.device.0)];
            assert_eq!(event.time_ns, *expected);
            *expected += 1;
        }
    }
    assert_eq!(next, [100; 2 * MAX_RINGS]);
}

#[test]
fn side_records_keep_their_position_among_events() {
    let (shared, mut merge, mut memory) =
        (Arc::new(RecorderState::new(Overflow::Wait)), RingMerger::default(), MemorySink::default());
    let clock = Clock::start();
    let mut handle = RecorderHandle::new(Arc::clone(&shared), clock.clone(), std::thread::current());
    let annotation = |at_event| Annotation {
        device: DeviceId(0),
        time_ns: 0,
        at_event,
        stage: AnnotationStage::Instant,
        name: StringId(1),
    };
    let relabel = Relabel { device: DeviceId(3), time_ns: 1, address: u64::MAX - 1, site: SiteId(u32::MAX) };
    handle.define(&Definition::String("a".into()));
    handle.event(&mark(1, 1));
    handle.relabel(&relabel);
    handle.annotation(&annotation(1));
    handle.replace_state(&MemoryState::default());
    handle.event(&mark(2, 1));
    handle.replace_state(&MemoryState::default());
    let pass = merge.run_pass(&shared, &clock, &mut memory);
    assert_eq!((pass.events, pass.is_idle, pass.is_last), (2, false, false));
    assert_eq!(memory.events, [mark(1, 1), mark(2, 1)]);
    assert_eq!(memory.annotations, [annotation(1)]);
    assert_eq!(memory.relabels, [(1, relabel)]);
    assert_eq!(memory.definitions, [Definition::String("a".into())]);
    assert_eq!(memory.states.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [1, 2]);
    let pass = merge.run_pass(&shared, &clock, &mut memory);
    assert_eq!((pass.events, pass.is_idle, pass.is_last), (0, true, false));
}

#[test]
fn clock_returns_the_time() {
    fn is_shareable<T: Send + Sync + 'static>(_: &T) {}
    let (_recorder, handle) = Recorder::start(RecordingInfo::default(), Outputs::default()).expect("the thread starts");
    is_shareable(&handle);
    // At the start and at the end, the clock is read between two readings of the system's clock, so
    // the check holds even if this thread is suspended between the readings.
    let read = || (Instant::now(), handle.now_ns(), Instant::now());
    let (start_before, start_ns, start_after) = read();
    let mut last_ns = start_ns;
    while start_after.elapsed() < Duration::from_millis(100) {
        let now_ns = handle.now_ns();
        assert!(last_ns <= now_ns);
        last_ns = now_ns;
    }
    let (end_before, end_ns, end_after) = read();
    let least = end_before - start_after;
    let most = end_after - start_before;
    let measured = Duration::from_nanos(end_ns - start_ns);
    // The two clocks may differ by 1%.
    assert!(least.mul_f64(0.99) <= measured && measured <= most.mul_f64(1.01), "{measured:?} in {least:?}..{most:?}");
}

#[test]
fn flush_passes_on_every_event_recorded_before() {
    let hub = Hub::default();
    let outputs = Outputs { hub: Some(hub.clone()), ..Outputs::default() };
    let (recorder, handle) = Recorder::start(RecordingInfo::default(), outputs).expect("the thread starts");
    let mut handles = [handle.clone(), handle.clone(), handle.clone()];
    for n in 1..100 {
        let (index, time_ns) = (n as usize % 3, handle.now_ns());
        // Every fifth event has a time of another clock, which runs ahead.
        handles[index].event(&mark(time_ns + if n % 5 == 0 { 1 << 40 } else { 0 }, n));
        handle.flush();
        assert_eq!(marks(&hub).len(), n as usize);
    }
    recorder.stop();
    // `flush` returns at once after the recording has ended.
    handle.flush();
}
