//! Helpers for archive tests: a simulated program whose recording is archived, and stores.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::memory::InMemory;
use vramscope_collector::Process;
use vramscope_trace::{
    Chunk, ChunkKind, Definition, DeviceId, Encoder, Event, EventKind, MemoryState, PoolKey, PoolKind, Recording,
    RecordingInfo, Relabel, Sink as _, SiteId, StreamId,
};

use crate::archive::store::ArchiveStore;
use crate::archive::{ArchiveAddress, ArchiveOptions, ArchiveReader, ArchiveWriter};

/// Time 0 of recordings, in nanoseconds since 1970.
pub(crate) const EPOCH_NS: u64 = 1_800_000_000_000_000_000;
/// Events in a chunk of a program.
const CHUNK_EVENTS: u64 = 200;

/// Returns options with small parts, so that short recordings have several.
pub(crate) fn small_parts() -> ArchiveOptions {
    ArchiveOptions { part_bytes: 8 << 10, ..ArchiveOptions::default() }
}

/// Returns the identity of the process with this number.
pub(crate) fn identity(number: u64) -> String {
    format!("{number:032x}")
}

/// A simulated program: allocates and frees blocks on one device, and keeps the chunks of its
/// recording so far.
pub(crate) struct Program {
    encoder: Encoder,
    events: u64,
    random: fastrand::Rng,
    live: Vec<u64>,
    pub(crate) process: Process,
    pub(crate) chunks: Vec<Vec<u8>>,
}

impl Program {
    pub(crate) fn new(rank: u32) -> Self {
        let info = RecordingInfo { source: "train.py".to_owned(), epoch_unix_ns: EPOCH_NS, ..RecordingInfo::default() };
        let process = Process {
            identity: identity(u64::from(rank) + 1),
            rank: Some(rank),
            host: "machine".to_owned(),
            program: "train.py".to_owned(),
            ..Process::default()
        };
        let encoder = Encoder::new(&info);
        let random = fastrand::Rng::with_seed(u64::from(rank));
        Self { encoder, events: 0, random, live: Vec::new(), process, chunks: Vec::new() }
    }

    /// Records events, one a millisecond; returns the range of their chunks.
    pub(crate) fn run(&mut self, events: u64) -> Range<usize> {
        let begin = self.chunks.len();
        let end = self.events + events;
        while self.events < end {
            self.encoder.define(&Definition::String(format!("name {}", self.events)));
            for _ in 0..CHUNK_EVENTS {
                self.record_event();
            }
            self.encoder.flush();
            self.chunks.extend(self.encoder.take_output().into_iter().map(|chunk| chunk.bytes));
        }
        begin..self.chunks.len()
    }

    fn record_event(&mut self) {
        let (stream, pool, site) = (StreamId(0), PoolKey::default_of(PoolKind::Small), SiteId(0));
        let kind = if self.live.len() > 100 || (self.live.len() > 10 && self.random.bool()) {
            let address = self.live.swap_remove(self.random.usize(..self.live.len()));
            EventKind::FreeCompleted { address, site }
        } else {
            let address = 4096 * (1 + self.events);
            self.live.push(address);
            let size = 512 * self.random.u64(1..=8);
            EventKind::BlockAllocated { address, size, requested: size - 1, stream, pool, site }
        };
        if let Some(&address) = self.live.first()
            && self.events.is_multiple_of(50)
        {
            let (device, time_ns, site) = (DeviceId(0), self.events * 1_000_000, SiteId(1));
            self.encoder.relabel(&Relabel { device, time_ns, address, site });
        }
        self.encoder.event(&Event { device: DeviceId(0), time_ns: self.events * 1_000_000, kind });
        self.events += 1;
    }

    /// Returns the chunks in a range as one piece of bytes.
    pub(crate) fn bytes(&self, chunks: Range<usize>) -> Vec<u8> {
        self.chunks[chunks].concat()
    }

    /// Returns the recording's header, and of its first `chunks` chunks those with definitions.
    pub(crate) fn header_and_definitions(&self, chunks: usize) -> Vec<u8> {
        let is_permanent = |bytes: &&Vec<u8>| {
            let chunk = Chunk::read(bytes, 0).expect("it is valid").expect("it is whole");
            matches!(chunk.kind, ChunkKind::Header | ChunkKind::Definitions)
        };
        self.chunks[..chunks].iter().filter(is_permanent).cloned().collect::<Vec<_>>().concat()
    }

    /// Returns the bytes with which a reader can begin now: header, definitions and the current
    /// full state.
    pub(crate) fn start(&self) -> Vec<u8> {
        let mut encoder = self.encoder.clone();
        encoder.replace_state(&self.encoder.state().clone());
        let state = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes);
        self.header_and_definitions(self.chunks.len()).into_iter().chain(state).collect()
    }

    /// Returns the recording so far.
    pub(crate) fn recording(&self) -> Recording {
        let mut recording = Recording::new();
        self.chunks.iter().for_each(|chunk| recording.push(chunk).expect("the recording is valid"));
        recording
    }

    /// Returns the memory state at the end.
    pub(crate) fn end_state(&self) -> MemoryState {
        self.encoder.state().clone()
    }
}

/// Returns a store in memory.
pub(crate) fn memory() -> ArchiveStore {
    ArchiveStore::new(Arc::new(InMemory::new()), "memory".to_owned())
}

/// Returns a store in a folder.
pub(crate) fn folder(path: &Path) -> ArchiveStore {
    let address = ArchiveAddress::parse(&format!("file://{}/run", path.display())).expect("a valid address");
    ArchiveStore::open(&address, true).expect("the folder can be created")
}

/// Runs a test with a store in memory, a store in a folder and, if `VRAMSCOPE_TEST_ARCHIVE` has the
/// address of a prefix in a bucket for tests, a store there.
pub(crate) fn for_each_store(test: impl Fn(ArchiveStore)) {
    test(memory());
    if let Ok(url) = std::env::var("VRAMSCOPE_TEST_ARCHIVE") {
        let address = ArchiveAddress::parse(&format!("{url}/{:016x}", fastrand::u64(..))).expect("a valid address");
        test(ArchiveStore::open(&address, true).expect("the environment has credentials"));
    }
    let folder_path = tempfile::tempdir().expect("a temporary folder");
    test(folder(folder_path.path()));
}

/// Opens the archive of the run `run`.
pub(crate) fn writer(store: &ArchiveStore, options: ArchiveOptions) -> ArchiveWriter {
    ArchiveWriter::with_store(store.clone(), "run", options).expect("the store accepts an archive")
}

/// Opens an archive for reading.
pub(crate) fn reader(store: &ArchiveStore) -> ArchiveReader {
    ArchiveReader::with_store(store.clone()).expect("the archive is valid")
}

/// Runs a future to its end.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(future)
}

/// Maximum time that a test waits for a condition; only a test that hangs reaches it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// Waits until `condition` returns true. After [`TIMEOUT`], panics with the text `what`.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
