//! Recordings made up for tests, and the repository's snapshots.

use std::borrow::Cow;
use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::Value;
use vramscope_formats::{Limits, ignore_progress, import, unpack};
use vramscope_trace::{
    Annotation, AnnotationStage, Block, DeviceId, Encoder, Event, EventKind, Interner, MemoryState, PoolKey, Recording,
    RecordingInfo, Relabel, Segment, Sink, Site, SiteId, StackId, StreamId,
};

/// Addresses and sizes of blocks and segments are multiples of this.
pub(crate) const UNIT: u64 = 512;

/// Returns the recording that an encoder wrote.
pub(crate) fn recording_of(mut encoder: Encoder) -> Recording {
    encoder.flush();
    let mut recording = Recording::new();
    for chunk in encoder.take_output() {
        recording.push(&chunk.bytes).expect("what was encoded can be decoded");
    }
    recording
}

/// Builds a recording of device 0.
pub(crate) struct RecordingBuilder {
    pub(crate) encoder: Encoder,
    interner: Interner,
}

impl RecordingBuilder {
    pub(crate) fn new() -> Self {
        Self { encoder: Encoder::new(&RecordingInfo::default()), interner: Interner::default() }
    }

    pub(crate) fn event(&mut self, time_ns: u64, kind: EventKind) {
        self.encoder.event(&Event { device: DeviceId(0), time_ns, kind });
    }

    /// Defines a site that only has a scope.
    pub(crate) fn site(&mut self, scope: &str) -> SiteId {
        let scope = self.interner.string(scope);
        let site = self.interner.site(Site { stack: StackId(0), scope, ..Site::default() });
        self.define();
        site
    }

    pub(crate) fn alloc(&mut self, time_ns: u64, address: u64, size: u64, site: SiteId) {
        let (stream, pool) = (StreamId(0), PoolKey::default());
        self.event(time_ns, EventKind::BlockAllocated { address, size, requested: size - 1, stream, pool, site });
    }

    pub(crate) fn free(&mut self, time_ns: u64, address: u64) {
        self.event(time_ns, EventKind::FreeRequested { address, site: SiteId(0) });
        self.event(time_ns, EventKind::FreeCompleted { address, site: SiteId(0) });
    }

    pub(crate) fn mark(&mut self, time_ns: u64, stage: AnnotationStage, name: &str) {
        let name = self.interner.string(name);
        self.define();
        self.event(time_ns, EventKind::Mark { stage, name, address: 0, site: SiteId(0) });
    }

    /// Adds an annotation, which is beside the events, at the current moment.
    pub(crate) fn annotation(&mut self, time_ns: u64, name: &str) {
        let name = self.interner.string(name);
        self.define();
        let at_event = self.encoder.state().event();
        let (device, stage) = (DeviceId(0), AnnotationStage::Instant);
        self.encoder.annotation(&Annotation { device, time_ns, at_event, stage, name });
    }

    /// Gives a block another site.
    pub(crate) fn relabel(&mut self, time_ns: u64, address: u64, site: SiteId) {
        self.encoder.relabel(&Relabel { device: DeviceId(0), time_ns, address, site });
    }

    fn define(&mut self) {
        for definition in self.interner.take_new() {
            self.encoder.define(&definition);
        }
    }

    pub(crate) fn finish(self) -> Recording {
        recording_of(self.encoder)
    }
}

/// An event, or a gap followed by a full state; 0 lost events make the state a correction.
#[derive(Clone, Debug)]
pub(crate) enum RandomStep {
    Event(Event),
    Lost { events: u64, blocks: Vec<(u64, u64)> },
}

/// Generates unrelated events on little memory, which contradict each other in many ways.
pub(crate) fn random_steps() -> impl Strategy<Value = Vec<RandomStep>> {
    let event = (0..2u16, 0..1000u64, 0..9u8, 0..16u64, 1..6u64).prop_map(|(device, time_ns, kind, slot, units)| {
        let (address, size) = (UNIT * (slot + 1), UNIT * units);
        let (stream, pool, site) = (StreamId(slot % 2), PoolKey::default(), SiteId(0));
        let kind = match kind {
            0 => EventKind::SegmentAllocated { address, size, stream, pool, site },
            1 => EventKind::SegmentFreed { address, size, site },
            2 => EventKind::SegmentMapped { address, size, stream, pool, site },
            3 => EventKind::SegmentUnmapped { address, size, site },
            4 | 5 => EventKind::BlockAllocated { address, size, requested: size, stream, pool, site },
            6 => EventKind::FreeRequested { address, site },
            7 => EventKind::FreeCompleted { address, site },
            _ => EventKind::OutOfMemory { requested: size, device_free: 0, stream, site },
        };
        RandomStep::Event(Event { device: DeviceId(device), time_ns, kind })
    });
    let blocks = prop::collection::vec((1..16u64, 1..4u64), 0..4);
    let lost = (0..20u64, blocks).prop_map(|(events, blocks)| RandomStep::Lost { events, blocks });
    prop::collection::vec(prop_oneof![30 => event, 1 => lost], 0..200)
}

/// Returns the recording of these steps.
pub(crate) fn recorded(random_steps: &[RandomStep]) -> Recording {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    for step in random_steps {
        match step {
            RandomStep::Event(event) => encoder.event(event),
            RandomStep::Lost { events, blocks } => skip_events(&mut encoder, *events, blocks),
        }
    }
    recording_of(encoder)
}

/// Skips events and adds a full state that contains only these blocks.
fn skip_events(encoder: &mut Encoder, events: u64, blocks: &[(u64, u64)]) {
    let since_event = encoder.state().event();
    let since_ns = encoder.state().time_ns();
    encoder.skip_to(since_event + events);
    let mut state = MemoryState::default();
    let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
    let device = state.device_mut(DeviceId(0));
    let size = UNIT * 32;
    device.insert_segment(Segment { address: UNIT, size, stream, pool, expandable: false, site, since_event });
    for &(slot, units) in blocks {
        let (address, size) = (slot * UNIT, units * UNIT);
        let pending_free = slot % 3 == 0;
        let requested = size;
        device.insert_block(Block {
            address,
            size,
            requested,
            stream,
            pool,
            site,
            pending_free,
            since_event,
            since_ns,
        });
    }
    state.set_time_ns(since_ns);
    encoder.replace_state(&state);
}

/// Returns one of the repository's snapshots, and PyTorch's counters at its end.
pub(crate) fn snapshot(name: &str) -> (Recording, Value) {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    let packed = std::fs::read(data.join(format!("{name}.pickle.zst"))).expect("the recording can be read");
    let bytes = unpack(&packed, &Limits::default()).map(Cow::into_owned).expect("the recording unpacks");
    let truth = std::fs::read(data.join(format!("{name}.json"))).expect("the counters can be read");
    let (encoder, _) = import(&bytes, name, &Limits::default(), &mut ignore_progress, Encoder::new)
        .expect("the recording can be imported");
    (recording_of(encoder), serde_json::from_slice(&truth).expect("the counters are JSON"))
}
