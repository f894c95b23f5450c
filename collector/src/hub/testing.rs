//! A program whose recording the tests watch.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use vramscope_trace::{
    Definition, DeviceId, Encoder, Event, EventKind, PoolKey, PoolKind, RecordingInfo, Sink, SiteId, StreamId,
};

use super::*;
use crate::file::{Keep, RecordingFile};

/// Size of every block in bytes.
const BLOCK: u64 = 512;

/// Returns a pseudorandom number for a seed.
fn random(seed: u64) -> u64 {
    let mixed = (seed ^ seed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// A program that allocates, frees, and defines names.
pub(crate) struct Source {
    pub(crate) encoder: Encoder,
    pub(crate) hub: Hub,
    live: VecDeque<u64>,
    count: u64,
    pub(crate) names: usize,
    file: Option<FileRecording>,
    /// Event numbers and sizes of gaps.
    pub(crate) gaps: Vec<(u64, u64)>,
}

/// The program's recording in a file, cut into other chunks than the hub's.
struct FileRecording {
    encoder: Encoder,
    file: RecordingFile,
    appended: u64,
}

impl FileRecording {
    /// Appends the complete chunks to the file.
    fn pass_on(&mut self) {
        for chunk in self.encoder.take_output() {
            self.appended += chunk.bytes.len() as u64;
            self.file.append(Arc::new(chunk));
        }
    }
}

impl Source {
    pub(crate) fn new(limits: HubLimits) -> Self {
        Self {
            encoder: Encoder::new(&RecordingInfo::default()),
            hub: Hub::new(limits),
            live: VecDeque::new(),
            count: 0,
            names: 0,
            file: None,
            gaps: Vec::new(),
        }
    }

    /// Creates a program that is also recorded to a file.
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

    /// Records an event of this kind in the hub and the file.
    fn event(&mut self, kind: EventKind) {
        let event = Event { device: DeviceId(0), time_ns: self.count * 1000, kind };
        self.encoders().for_each(|encoder| encoder.event(&event));
        self.count += 1;
    }

    /// Records the full state, at which viewers can begin.
    pub(crate) fn full_state(&mut self) {
        let state = self.encoder.state().clone();
        self.encoders().for_each(|encoder| encoder.full_state(&state));
        self.publish();
    }

    /// Records a gap of this many lost events.
    pub(crate) fn gap(&mut self, events: u64) {
        let end = self.encoder.state().event();
        self.gaps.push((end, events));
        self.encoders().for_each(|encoder| encoder.skip_to(end + events));
        self.full_state();
    }

    /// Ends a chunk in the file, too, so that file and hub have a common position; `is_written`
    /// waits until it is written.
    pub(crate) fn cut(&mut self, is_written: bool) {
        self.encoders().for_each(Encoder::flush);
        self.publish();
        let Some(file) = &mut self.file else { return };
        if is_written {
            file.file.flush();
        }
        self.hub.sync_file(Some(file.appended));
    }

    /// Ends the file before the recording.
    pub(crate) fn lose_file(&mut self) {
        self.file = None;
        self.hub.file_ended();
    }

    /// Records this many events and publishes them.
    pub(crate) fn run(&mut self, events: u64) {
        for n in 0..events {
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
            let address = (random(self.count) >> 20) * BLOCK;
            let pool = PoolKey::default_of(PoolKind::Small);
            let (stream, site) = (StreamId(0), SiteId(0));
            self.event(EventKind::BlockAllocated { address, size: BLOCK, requested: 1, stream, pool, site });
            self.live.push_back(address);
        }
        self.publish();
    }

    /// Records events of at least 24 bytes each after compression.
    pub(crate) fn run_incompressible(&mut self, events: u64) {
        for n in 0..events {
            let [used_by_context, used_by_others, free] = [1, 2, 3].map(|part| random(self.count * 3 + part + n));
            self.event(EventKind::MemorySample { used_by_context, used_by_others, free });
        }
        self.publish();
    }

    /// Publishes the complete chunks to the hub and writes them to the file.
    fn publish(&mut self) {
        self.encoder.flush();
        let chunks: Vec<_> = self.encoder.take_output().into_iter().map(Arc::new).collect();
        self.hub.publish(&chunks);
        if let Some(file) = &mut self.file {
            file.pass_on();
        }
        self.hub.sync_file(None);
    }
}
