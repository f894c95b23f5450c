//! A program whose recording the tests watch.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use fastrand::Rng;
use vramscope_trace::{
    Definition, DeviceId, Encoder, Event, EventKind, PoolKey, PoolKind, RecordingInfo, Sink, SiteId, StreamId,
};

use super::*;
use crate::file::{Keep, RecordingFile};

/// Size of every block that a [`TestProgram`] allocates, in bytes.
const BLOCK_BYTES: u64 = 512;

/// A simulated program for tests. It allocates, frees and defines names, and is recorded to a hub
/// and optionally a file.
pub(crate) struct TestProgram {
    pub(crate) encoder: Encoder,
    pub(crate) hub: Hub,
    live: VecDeque<u64>,
    random: Rng,
    count: u64,
    pub(crate) names: usize,
    file: Option<FileRecording>,
    /// Event numbers and sizes of gaps.
    pub(crate) gaps: Vec<(u64, u64)>,
}

/// A [`TestProgram`]'s recording to a file. Its chunks end at other events than the hub's.
struct FileRecording {
    encoder: Encoder,
    file: RecordingFile,
    appended: u64,
}

impl FileRecording {
    /// Appends the chunks that the encoder has completed to the file.
    fn append_chunks(&mut self) {
        for chunk in self.encoder.take_output() {
            self.appended += chunk.bytes.len() as u64;
            self.file.append(Arc::new(chunk));
        }
    }
}

impl TestProgram {
    pub(crate) fn new(limits: HubLimits) -> Self {
        Self {
            encoder: Encoder::new(&RecordingInfo::default()),
            hub: Hub::new(limits),
            live: VecDeque::new(),
            random: Rng::with_seed(1),
            count: 0,
            names: 0,
            file: None,
            gaps: Vec::new(),
        }
    }

    /// Creates a program that is recorded both to a hub and to the file at `path`.
    pub(crate) fn with_file(limits: HubLimits, path: &Path) -> Self {
        let file = RecordingFile::create(path, Keep::default()).expect("the file can be created");
        let source = Self::new(limits);
        source.hub.set_file(file.view().expect("a file that keeps everything can be read"));
        let file = FileRecording { encoder: source.encoder.clone(), file, appended: 0 };
        Self { file: Some(file), ..source }
    }

    /// Iterates over the encoder of the hub's chunks and, if there is a file, that of the file's
    /// chunks.
    fn encoders(&mut self) -> impl Iterator<Item = &mut Encoder> {
        let in_file = self.file.as_mut().map(|file| &mut file.encoder);
        std::iter::once(&mut self.encoder).chain(in_file)
    }

    /// Records an event of this kind in the encoders of the hub's and the file's chunks.
    fn event(&mut self, kind: EventKind) {
        let event = Event { device: DeviceId(0), time_ns: self.count * 1000, kind };
        self.encoders().for_each(|encoder| encoder.event(&event));
        self.count += 1;
    }

    /// Records and publishes a full state, at which viewers can begin.
    pub(crate) fn replace_state(&mut self) {
        let state = self.encoder.state().clone();
        self.encoders().for_each(|encoder| encoder.replace_state(&state));
        self.publish();
    }

    /// Records that this many events were lost, followed by a full state.
    pub(crate) fn gap(&mut self, events: u64) {
        let end = self.encoder.state().event();
        self.gaps.push((end, events));
        self.encoders().for_each(|encoder| encoder.skip_to(end + events));
        self.replace_state();
    }

    /// Ends a chunk for both hub and file, so that viewers can switch from the file to the hub
    /// here. With `is_written`, first waits until the file has been written up to here; otherwise
    /// viewers can switch only once it has.
    pub(crate) fn cut(&mut self, is_written: bool) {
        self.encoders().for_each(Encoder::flush);
        self.publish();
        let Some(file) = &mut self.file else { return };
        if is_written {
            file.file.flush();
        }
        self.hub.sync_file(Some(file.appended));
    }

    /// Ends the file before the recording, as after a write error.
    pub(crate) fn lose_file(&mut self) {
        self.file = None;
        self.hub.file_ended();
    }

    /// Makes this many allocations, frees older ones, and publishes the events. Each allocation has
    /// up to three events, and every thousandth defines a name.
    pub(crate) fn run(&mut self, allocations: u64) {
        for n in 0..allocations {
            if n % 1000 == 0 {
                let name = Definition::String(format!("name {}", self.count));
                self.encoders().for_each(|encoder| encoder.define(&name));
                self.names += 1;
            }
            if self.live.len() > 20
                && let Some(address) = self.live.pop_front()
            {
                self.event(EventKind::FreeRequested { address, site: SiteId(0) });
                self.event(EventKind::FreeCompleted { address, site: SiteId(0) });
            }
            let address = self.random.u64(..1 << 44) * BLOCK_BYTES;
            let pool = PoolKey::default_of(PoolKind::Small);
            let (stream, site) = (StreamId(0), SiteId(0));
            self.event(EventKind::BlockAllocated { address, size: BLOCK_BYTES, requested: 1, stream, pool, site });
            self.live.push_back(address);
        }
        self.publish();
    }

    /// Records and publishes this many events that take at least 24 bytes each after compression.
    #[cfg(feature = "server")]
    pub(crate) fn run_incompressible(&mut self, events: u64) {
        for _ in 0..events {
            let [used_by_context, used_by_others, free] = std::array::from_fn(|_| self.random.u64(..));
            self.event(EventKind::MemorySample { used_by_context, used_by_others, free });
        }
        self.publish();
    }

    /// Publishes all recorded events to the hub, and appends the file's completed chunks to the
    /// file.
    fn publish(&mut self) {
        self.encoder.flush();
        let chunks: Vec<_> = self.encoder.take_output().into_iter().map(Arc::new).collect();
        self.hub.publish(&chunks);
        if let Some(file) = &mut self.file {
            file.append_chunks();
        }
        self.hub.sync_file(None);
    }
}
