//! Measures the cost of recordings of 4,000,000 and of 40,000,000 events: `cargo bench -p
//! vramscope-formats --bench scale`.
//!
//! The events are those of `big` in `../shared/snapshots` beside the checkout, or of a smaller
//! snapshot repeated. The longer recording repeats the shorter one ten times; between repetitions
//! all live blocks are freed and the initial state is restored. The tests run 40,000 events
//! with two repetitions.

use std::fs::File;
use std::hint::black_box;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vramscope_formats::{Limits, ignore_progress, import, unpack};
use vramscope_trace::{
    DecodedItem, Decoder, DeviceId, Encoder, Event, EventKind, LifetimesBuilder, MemorySink, MemoryState, ReadAt,
    Recording, RecordingInfo, Replay, Sink, SiteId,
};

/// Repetitions of the longer recording.
const TIMES: u64 = 10;
const SEEKS: usize = 10_000;
/// Events of the shorter recording when the tests run this.
const TEST_EVENTS: usize = 40_000;

/// The events of a snapshot.
struct History {
    name: String,
    events: Vec<Event>,
    /// The state before the first event.
    start: MemoryState,
    /// The state after the last event.
    end: MemoryState,
}

fn history(is_whole: bool) -> History {
    let shared = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/snapshots/big.pickle.zst");
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/streams.pickle.gz");
    let path = if is_whole && shared.exists() { shared } else { own };
    let wanted = if is_whole { 4_000_000 } else { TEST_EVENTS };
    let packed = std::fs::read(&path).expect("the snapshot can be read");
    let bytes = unpack(&packed, &Limits::default()).expect("it unpacks");
    let (mut memory, _) =
        import(&bytes, "it", &Limits::default(), &mut ignore_progress, |_| MemorySink::default()).expect("it imports");
    let start = memory.states.drain(..).next().map(|(_, state)| state).unwrap_or_default();
    let end = after(&start, &memory.events);
    let mut history = History { name: String::new(), events: memory.events, start, end };
    let once = history.events.len();
    while history.events.len() < wanted {
        let mut more = MemorySink::default();
        history.repeat(&mut more, history.events.len() / once, once);
        history.events.append(&mut more.events);
    }
    history.end = after(&history.start, &history.events);
    history.name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    history
}

/// Returns the state after events.
fn after(start: &MemoryState, events: &[Event]) -> MemoryState {
    let mut state = start.clone();
    events.iter().for_each(|event| state.apply(event));
    state
}

impl History {
    /// Passes repetition `time` of the first `once` events to a sink.
    fn repeat(&self, sink: &mut impl Sink, time: usize, once: usize) {
        let events = &self.events[..once];
        let last_ns = events.last().map_or(0, |event| event.time_ns) + 1000;
        let at = last_ns * time as u64;
        if time == 0 {
            sink.replace_state(&self.start);
        } else {
            self.restore_initial_state(sink, at);
        }
        for event in events {
            sink.event(&Event { time_ns: event.time_ns + at, ..*event });
        }
    }

    /// Frees all live blocks and segments, and restores the initial state.
    fn restore_initial_state(&self, sink: &mut impl Sink, time_ns: u64) {
        let mut send = |device: DeviceId, kind: EventKind| sink.event(&Event { device, time_ns, kind });
        let site = SiteId(0);
        for (id, device) in self.end.devices() {
            for block in device.blocks() {
                if !block.pending_free {
                    send(id, EventKind::FreeRequested { address: block.address, site });
                }
                send(id, EventKind::FreeCompleted { address: block.address, site });
            }
            for segment in device.segments() {
                let (address, size) = (segment.address, segment.size);
                send(
                    id,
                    match segment.expandable {
                        true => EventKind::SegmentUnmapped { address, size, site },
                        false => EventKind::SegmentFreed { address, size, site },
                    },
                );
            }
        }
        for (id, device) in self.start.devices() {
            for segment in device.segments() {
                let (address, size, stream, pool) = (segment.address, segment.size, segment.stream, segment.pool);
                send(
                    id,
                    match segment.expandable {
                        true => EventKind::SegmentMapped { address, size, stream, pool, site },
                        false => EventKind::SegmentAllocated { address, size, stream, pool, site },
                    },
                );
            }
            for block in device.blocks() {
                let (address, size, requested) = (block.address, block.size, block.requested);
                let (stream, pool) = (block.stream, block.pool);
                send(id, EventKind::BlockAllocated { address, size, requested, stream, pool, site });
            }
        }
    }
}

/// A file that is read on demand.
struct OnDisk(File);

impl ReadAt for OnDisk {
    fn read_at(&self, range: Range<u64>) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        std::os::unix::fs::FileExt::read_exact_at(&self.0, &mut bytes, range.start)?;
        Ok(bytes)
    }
}

/// Peak memory of an operation, in addition to the memory in use before.
struct Footprint {
    before_kib: u64,
}

/// Returns a value of `/proc/self/status` in KiB, or 0 if it is missing.
fn kib(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(what));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

impl Footprint {
    fn begin() -> Self {
        // Resets the peak.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        Self { before_kib: kib("VmRSS:") }
    }

    fn most_mib(&self) -> u64 {
        kib("VmHWM:").saturating_sub(self.before_kib) / 1024
    }
}

/// The measurements of one recording.
struct Measured {
    events: u64,
    encode: Duration,
    open: Duration,
    replay: Duration,
    lifetimes: Duration,
    by_index: Duration,
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let result = work();
    (result, began.elapsed())
}

/// Returns the shortest of several runs.
fn shortest(times: u32, mut work: impl FnMut()) -> Duration {
    (0..times).map(|_| timed(&mut work).1).min().unwrap_or_default()
}

fn per_second(events: u64, took: Duration) -> String {
    format!("{:7.1} million events/s, {:8.1} ms", events as f64 / took.as_secs_f64() / 1e6, took.as_secs_f64() * 1e3)
}

fn write(history: &History, times: u64, path: &Path) -> (u64, Duration) {
    let began = Instant::now();
    let mut file = BufWriter::new(File::create(path).expect("the temporary folder can be written"));
    let mut encoder = Encoder::new(&RecordingInfo::default());
    let mut passed = Recording::overview_only(None);
    let mut pass_by = Duration::ZERO;
    for time in 0..times {
        history.repeat(&mut encoder, time as usize, history.events.len());
        encoder.flush();
        for chunk in encoder.take_output() {
            file.write_all(&chunk.bytes).expect("the recording can be written");
            pass_by += timed(|| passed.push(&chunk.bytes).expect("the encoder writes valid chunks")).1;
        }
    }
    let encode = began.elapsed().saturating_sub(pass_by);
    for chunk in passed.index() {
        file.write_all(&chunk.bytes).expect("the recording can be written");
    }
    file.flush().expect("the recording can be written");
    (passed.events(), encode)
}

fn measure(history: &History, times: u64, path: &Path) -> Measured {
    let (events, encode) = write(history, times, path);
    let len = std::fs::metadata(path).expect("the recording exists").len();
    println!("\n{events} events: {len} bytes, {:.3} bytes an event", len as f64 / events as f64);
    println!("  encode                     {}", per_second(events, encode));
    let repeats = if times == 1 { 5 } else { 2 };
    let source = || Arc::new(OnDisk(File::open(path).expect("the recording exists")));
    let decode = shortest(repeats, || {
        let bytes = std::fs::read(path).expect("the recording exists");
        let mut decoder = Decoder::new();
        for piece in bytes.chunks(1 << 16) {
            decoder.push(piece);
            while let Some(item) = decoder.next_item().expect("the recording is valid") {
                black_box(matches!(item, DecodedItem::Event(_)));
            }
        }
    });
    println!("  decode, event by event     {}", per_second(events, decode));
    let footprint = Footprint::begin();
    let open = shortest(repeats, || {
        let mut recording = Recording::overview_only(Some(source()));
        let source = source();
        let mut at = 0;
        while at < len {
            let end = len.min(at + (1 << 20));
            recording
                .push(&source.read_at(at..end).expect("the recording can be read"))
                .expect("the recording is valid");
            at = end;
        }
        black_box(recording.end_event());
    });
    println!("  open without the index     {}, {} MiB at most", per_second(events, open), footprint.most_mib());
    let mut opened = None;
    let by_index = shortest(repeats, || opened = Recording::open(source(), len, |_, _| {}).ok());
    let (recording, _) = opened.expect("it opens");
    println!("  open by the index          {:8.2} ms", by_index.as_secs_f64() * 1e3);
    let end = recording.end_event();
    let replay = shortest(repeats, || {
        Replay::new().play(&recording, 0, end).expect("the recording can be read");
    });
    println!("  replay                     {}", per_second(events, replay));
    let footprint = Footprint::begin();
    let mut bytes = 0;
    let lifetimes = shortest(repeats, || bytes = lifetimes_of(path));
    println!(
        "  index of lifetimes         {}, {} MiB of index, {} MiB at most",
        per_second(events, lifetimes),
        bytes >> 20,
        footprint.most_mib()
    );
    seek(&recording);
    let (lines, columns) = timed(|| recording.columns(DeviceId(0), 0, recording.end_ns(), 1600).len());
    println!("  timeline of {lines} columns   {:8.3} ms", columns.as_secs_f64() * 1e3);
    Measured { events, encode, open, replay, lifetimes, by_index }
}

/// Decodes a recording and builds its lifetime index; returns the size of the index in bytes.
fn lifetimes_of(path: &Path) -> usize {
    let bytes = std::fs::read(path).expect("the recording exists");
    let mut builder = LifetimesBuilder::new();
    let (mut decoder, mut number) = (Decoder::new(), 0);
    for piece in bytes.chunks(1 << 16) {
        decoder.push(piece);
        while let Some(item) = decoder.next_item().expect("the recording is valid") {
            match item {
                DecodedItem::FullState(state) => {
                    number = state.event();
                    builder.replace_state(&state);
                }
                DecodedItem::Event(event) => {
                    builder.event(number, &event);
                    number += 1;
                }
                _ => {}
            }
        }
    }
    builder.finish().memory_bytes()
}

fn seek(recording: &Recording) {
    let mut random = fastrand::Rng::with_seed(1);
    let mut replay = Replay::new();
    // Fewer seeks for the short recordings of a test.
    let seeks = SEEKS.min(recording.end_event() as usize / 400);
    let mut took: Vec<f64> = (0..seeks)
        .map(|_| {
            let event = random.u64(..=recording.end_event());
            timed(|| black_box(replay.seek(recording, event).expect("the recording can be read").event()))
                .1
                .as_secs_f64()
                * 1e3
        })
        .collect();
    took.sort_by(f64::total_cmp);
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    println!("  {seeks} seeks                p50 {:.3} ms, p99 {:.3} ms, max {:.3} ms", at(0.5), at(0.99), at(1.0));
}

fn main() {
    let is_whole = std::env::args().any(|argument| argument == "--bench");
    let folder = std::env::temp_dir().join(format!("vramscope-scale-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the temporary folder can be written");
    let history = history(is_whole);
    println!("{}: {} events", history.name, history.events.len());
    let path = folder.join("scale.vram");
    let one = measure(&history, 1, &path);
    let ten = measure(&history, if is_whole { TIMES } else { 2 }, &path);
    println!("\n{} times the events cost", ten.events as f64 / one.events as f64);
    let ratio = |what: &str, of: fn(&Measured) -> Duration| {
        println!("  {what:<26} {:6.2} times the time", of(&ten).as_secs_f64() / of(&one).as_secs_f64());
    };
    ratio("encode", |measured| measured.encode);
    ratio("open without the index", |measured| measured.open);
    ratio("open by the index", |measured| measured.by_index);
    ratio("replay", |measured| measured.replay);
    ratio("index of lifetimes", |measured| measured.lifetimes);
    std::fs::remove_dir_all(&folder).expect("the temporary folder can be removed");
}
