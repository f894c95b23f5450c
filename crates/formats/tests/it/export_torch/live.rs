//! Exports of recordings that were not imported from PyTorch: with marks, memory samples, gaps,
//! categories, several devices, and memory in use at the start.

use serde_json::{Value, json};
use vramscope_formats::export;
use vramscope_trace::{
    Annotation, AnnotationStage, Block, Category, Definition, DeviceId, DeviceInfo, Encoder, Event, EventKind,
    FormatError, Frame, Interner, MemoryState, MempoolId, PoolKey, PoolKind, Recording, RecordingInfo, Replay, Segment,
    Sink, Site, SiteId, StackId, StreamId, StringId,
};

use super::common::{WRITERS, exported, imported, recording_of};

const MIB: u64 = 1 << 20;
const BASE: u64 = 0x7f00_0000_0000;
/// 2020-09-13 12:26:40 UTC.
const EPOCH_NS: u64 = 1_600_000_000_000_000_000;

/// Builds a recording with one event a microsecond.
struct RecordingBuilder {
    encoder: Encoder,
    interner: Interner,
    events: u64,
}

impl RecordingBuilder {
    fn new(devices: &[u16]) -> Self {
        let device = |&device: &u16| DeviceInfo { device, history_complete: true, ..DeviceInfo::default() };
        let info = RecordingInfo {
            epoch_unix_ns: EPOCH_NS,
            alloc_conf: "expandable_segments:True,max_split_size_mb:32".to_owned(),
            devices: devices.iter().map(device).collect(),
            ..RecordingInfo::default()
        };
        Self { encoder: Encoder::new(&info), interner: Interner::default(), events: 0 }
    }

    fn define(&mut self) {
        for definition in self.interner.take_new() {
            self.encoder.define(&definition);
        }
    }

    fn name(&mut self, text: &str) -> StringId {
        let id = self.interner.string(text);
        self.define();
        id
    }

    fn site(&mut self, function: &str, scope: &str, category: Category) -> SiteId {
        let frame = Frame { function: self.name(function), file: self.name("train.py"), line: 7 };
        let frame = self.interner.frame(frame);
        let stack = self.interner.stack(frame, StackId(0));
        let scope = self.name(scope);
        let site = self.interner.site(Site { stack, scope, category, ..Site::default() });
        self.define();
        site
    }

    fn event(&mut self, device: u16, kind: EventKind) {
        self.encoder.event(&Event { device: DeviceId(device), time_ns: self.events * 1000 + 400, kind });
        self.events += 1;
    }

    fn finish(self) -> Recording {
        recording_of(self.encoder).0
    }
}

fn pool() -> PoolKey {
    PoolKey { kind: PoolKind::Large, owner: MempoolId(0, 3) }
}

fn segment(address: u64, site: SiteId) -> EventKind {
    EventKind::SegmentAllocated { address, size: 20 * MIB, stream: StreamId(u64::MAX), pool: pool(), site }
}

fn block(address: u64, site: SiteId) -> EventKind {
    let (size, requested, stream) = (2 * MIB, 2 * MIB - 100, StreamId(u64::MAX));
    EventKind::BlockAllocated { address, size, requested, stream, pool: pool(), site }
}

fn json_of(recording: &Recording) -> Value {
    serde_json::from_slice(&exported(recording, WRITERS[1])).expect("the export is JSON")
}

#[test]
fn every_kind_of_event_becomes_an_entry_or_is_left_out() {
    let mut builder = RecordingBuilder::new(&[0, 1, 2]);
    let site = builder.site("forward", "step/\"forward\"", Category::Activation);
    let words = builder.name("epoch 3, \u{1f525} and \"quotes\"");
    let snapshot = builder.name("snapshot");
    builder.event(1, segment(BASE, SiteId(0)));
    builder.event(1, block(BASE, site));
    builder.event(1, EventKind::FreeRequested { address: BASE, site });
    builder.event(1, EventKind::FreeCompleted { address: BASE, site: SiteId(0) });
    builder.event(1, EventKind::OutOfMemory { requested: 9 * MIB, device_free: 5, stream: StreamId(4), site });
    builder.event(1, EventKind::MemorySample { used_by_context: 1, used_by_others: 2, free: 3 });
    builder.event(1, EventKind::Gap { lost: 0 });
    let none = SiteId(0);
    builder.event(1, EventKind::Mark { stage: AnnotationStage::Instant, name: words, address: BASE, site });
    builder.event(1, EventKind::Mark { stage: AnnotationStage::Instant, name: snapshot, address: 0, site: none });
    builder.event(1, EventKind::Mark { stage: AnnotationStage::Begin, name: words, address: 0, site: none });
    let beside = Annotation {
        device: DeviceId(1),
        time_ns: 9000,
        at_event: 10,
        stage: AnnotationStage::Instant,
        name: snapshot,
    };
    builder.encoder.annotation(&beside);
    builder.event(1, EventKind::SegmentFreed { address: BASE, size: 20 * MIB, site: SiteId(0) });
    let snapshot = json_of(&builder.finish());

    let time = |number: u64| EPOCH_NS / 1000 + number;
    let entry = |number, action, address: u64, size| {
        json!({"action": action, "addr": address, "size": size, "stream": -1, "time_us": time(number),
            "compile_context": "N/A", "user_metadata": "", "pool_id": [0, 3], "category": "unknown"})
    };
    let with = |mut entry: Value, fields: Value| {
        for (name, value) in fields.as_object().expect("the value is an object") {
            entry[name] = value.clone();
        }
        entry
    };
    let frames = json!([{"name": "forward", "filename": "train.py", "line": 7}]);
    let origin = json!({"user_metadata": "step/\"forward\"", "frames": frames});
    let requested = 2 * MIB - 100;
    let mark = |number, action, address: u64, words| {
        json!({"action": action, "addr": address, "size": 0, "stream": 0, "time_us": time(number),
            "compile_context": "N/A", "user_metadata": words, "category": "unknown"})
    };
    let expected = json!([
        [],
        [
            entry(0, "segment_alloc", BASE, 20 * MIB),
            with(with(entry(1, "alloc", BASE, requested), origin.clone()), json!({"category": "activation"})),
            with(entry(2, "free_requested", BASE, requested), origin),
            entry(3, "free_completed", BASE, requested),
            {"action": "oom", "device_free": 5, "size": 9 * MIB, "stream": 4, "time_us": time(4), "category": "unknown",
                "compile_context": "N/A", "user_metadata": "step/\"forward\"", "frames": frames},
            with(mark(7, "annotate", BASE, "epoch 3, \u{1f525} and \"quotes\""), json!({"frames": frames})),
            mark(8, "snapshot", 0, ""),
            entry(10, "segment_free", BASE, 20 * MIB),
        ],
        [],
    ]);
    assert_eq!(snapshot["device_traces"], expected);
    let annotations = json!([
        {"stage": "INSTANT", "name": "snapshot", "device": 1, "time_us": time(9)},
        {"stage": "START", "name": "epoch 3, \u{1f525} and \"quotes\"", "device": 1, "time_us": time(9)},
    ]);
    assert_eq!(snapshot["external_annotations"], annotations);
    assert_eq!(snapshot["allocator_settings"]["max_split_size"], 32 * MIB);
    assert_eq!(snapshot["allocator_settings"]["expandable_segments"], true);
}

#[test]
fn blocks_older_than_the_recording_are_exported() {
    let mut builder = RecordingBuilder::new(&[0]);
    let site = builder.site("init", "", Category::Unknown);
    let mut state = MemoryState::default();
    let device = state.device_mut(DeviceId(0));
    let (stream, pool) = (StreamId(0), pool());
    let (size, since_event) = (20 * MIB, 0);
    device.insert_segment(Segment { address: BASE, size, stream, pool, expandable: false, site, since_event });
    let there = Block {
        address: BASE + 2 * MIB,
        size: MIB,
        requested: 1_000_000,
        stream,
        pool,
        site,
        pending_free: false,
        since_event,
        since_ns: 0,
    };
    device.insert_block(there);
    device.insert_block(Block { address: BASE + 5 * MIB, pending_free: true, ..there });
    builder.encoder.replace_state(&state);
    builder.event(0, EventKind::FreeRequested { address: BASE + 2 * MIB, site: SiteId(0) });
    let recording = builder.finish();
    let snapshot = json_of(&recording);

    let entries = snapshot["device_traces"][0].as_array().expect("the value is a list");
    assert_eq!(entries.len(), 1);
    assert_eq!((&entries[0]["size"], &entries[0]["stream"]), (&json!(1_000_000), &json!(0)));
    let segment = &snapshot["segments"][0];
    let sums = ["allocated_size", "active_size", "requested_size", "total_size"].map(|name| segment[name].as_u64());
    assert_eq!(sums, [Some(0), Some(2 * MIB), Some(2_000_000), Some(20 * MIB)]);
    let blocks = segment["blocks"].as_array().expect("the value is a list").iter();
    let blocks: Vec<_> = blocks.map(|block| (block["size"].as_u64(), block["state"].as_str())).collect();
    let expected =
        [(2, "inactive"), (1, "active_pending_free"), (2, "inactive"), (1, "active_pending_free"), (14, "inactive")];
    assert_eq!(blocks, expected.map(|(mib, state)| (Some(mib * MIB), Some(state))));

    for writer in WRITERS {
        let again = imported(&exported(&recording, writer), "again");
        let counters =
            |recording: &Recording| recording.end_state().device(DeviceId(0)).map(|device| device.counters());
        assert_eq!(counters(&again), counters(&recording));
    }
}

#[test]
fn free_blocks_keep_the_last_requested_size() {
    let mut builder = RecordingBuilder::new(&[0]);
    let none = SiteId(0);
    let (stream, pool) = (StreamId(0), pool());
    let take = |address, mib: u64| EventKind::BlockAllocated {
        address,
        size: mib * MIB,
        requested: mib * MIB - 1,
        stream,
        pool,
        site: none,
    };
    let give =
        |address| [EventKind::FreeRequested { address, site: none }, EventKind::FreeCompleted { address, site: none }];
    // |--4--|--4--|-- 12 free, never used --| -> |-- 8 used, then free --|-2-|-- 10 free, last used
    // for 4 - 1 --|
    let segment = EventKind::SegmentAllocated { address: BASE, size: 20 * MIB, stream, pool, site: none };
    let kinds = [segment, take(BASE, 4), take(BASE + 4 * MIB, 4)].into_iter();
    let kinds = kinds.chain(give(BASE)).chain(give(BASE + 4 * MIB)).chain([take(BASE, 8), take(BASE + 8 * MIB, 2)]);
    for kind in kinds.chain(give(BASE)) {
        builder.event(0, kind);
    }
    let snapshot = json_of(&builder.finish());
    let blocks = snapshot["segments"][0]["blocks"].as_array().expect("the value is a list").iter();
    let blocks: Vec<_> = blocks.map(|block| (block["size"].as_u64(), block["requested_size"].as_u64())).collect();
    let expected = [(8 * MIB, 8 * MIB - 1), (2 * MIB, 2 * MIB - 1), (10 * MIB, 4 * MIB - 1)];
    assert_eq!(blocks, expected.map(|(size, requested)| (Some(size), Some(requested))));
}

#[test]
fn pinned_host_memory_has_its_own_lists() {
    let mut builder = RecordingBuilder::new(&[0]);
    builder.event(0, segment(BASE, SiteId(0)));
    builder.event(DeviceId::HOST.0, segment(BASE, SiteId(0)));
    builder.event(DeviceId::HOST.0, block(BASE, SiteId(0)));
    let recording = builder.finish();
    let snapshot = json_of(&recording);
    assert_eq!(snapshot["device_traces"].as_array().map(Vec::len), Some(1));
    assert_eq!(snapshot["segments"].as_array().map(Vec::len), Some(1));
    assert_eq!(snapshot["host_traces"].as_array().map(Vec::len), Some(2));
    assert_eq!(snapshot["host_segments"][0]["allocated_size"], 2 * MIB);
    for writer in WRITERS {
        let again = imported(&exported(&recording, writer), "again");
        let host = again.end_state().device(DeviceId::HOST).expect("the recording has host memory");
        assert_eq!(host.counters().allocated, 2 * MIB);
    }
}

#[test]
fn missing_events_have_no_entries() {
    let mut builder = RecordingBuilder::new(&[0]);
    let (stream, pool, site) = (StreamId(0), pool(), SiteId(0));
    for begin in [7, 1 << 60] {
        let mut state = MemoryState::default();
        let (size, expandable, since_event) = (20 * MIB, false, 0);
        let there = Segment { address: BASE, size, stream, pool, expandable, site, since_event };
        state.device_mut(DeviceId(0)).insert_segment(there);
        builder.encoder.skip_to(begin);
        builder.encoder.replace_state(&state);
        builder.event(0, block(BASE, site));
        builder.event(0, EventKind::FreeRequested { address: BASE, site });
    }
    let snapshot = json_of(&builder.finish());
    let actions = snapshot["device_traces"][0]
        .as_array()
        .expect("the value is a list")
        .iter()
        .map(|entry| entry["action"].as_str());
    let twice = ["alloc", "free_requested", "alloc", "free_requested"];
    assert_eq!(actions.collect::<Vec<_>>(), twice.map(Some));
    assert_eq!(snapshot["allocator_settings"]["trace_alloc_overflowed"], true);
    assert_eq!(snapshot["segments"][0]["blocks"][0]["state"], "active_pending_free");
}

#[test]
fn for_each_event_agrees_with_replay() {
    let mut builder = RecordingBuilder::new(&[0]);
    let site = SiteId(0);
    builder.event(0, segment(BASE, site));
    builder.event(0, block(BASE, site));
    builder.event(0, EventKind::Gap { lost: 3 });
    let mut state = builder.encoder.state().clone();
    state.apply(&Event { device: DeviceId(0), time_ns: 9, kind: block(BASE + 8 * MIB, site) });
    builder.encoder.replace_state(&state);
    builder.event(0, block(BASE + 4 * MIB, site));
    builder.encoder.skip_to(100);
    builder.encoder.replace_state(&state);
    builder.event(0, EventKind::FreeRequested { address: BASE, site });
    let recording = builder.finish();
    let (mut replay, mut numbers) = (Replay::new(), Vec::new());
    let each = |before: &MemoryState, number: u64, event: &Event| {
        assert_eq!(before, replay.seek(&recording, number)?, "before event {number}");
        assert_eq!(replay.event(&recording, number)?.as_ref(), Some(event));
        numbers.push(number);
        Ok::<_, FormatError>(())
    };
    export::for_each_event(&recording, &mut |_, _| {}, each).expect("the recording is valid");
    assert_eq!(numbers, [0, 1, 2, 3, 100]);
}

#[test]
fn device_number_above_pytorchs_limit_is_refused() {
    let mut builder = RecordingBuilder::new(&[]);
    builder.event(120, segment(BASE, SiteId(0)));
    let recording = builder.finish();
    for writer in WRITERS {
        let error =
            writer(&recording, &mut Vec::new(), &mut |_, _| {}).expect_err("PyTorch does not support this device");
        assert!(error.to_string().contains("120"), "{error}");
    }
}

#[test]
fn empty_recording_becomes_an_empty_snapshot() {
    let recording = RecordingBuilder::new(&[]).finish();
    let snapshot = json_of(&recording);
    assert_eq!(snapshot["device_traces"], json!([]));
    assert_eq!(snapshot["segments"], json!([]));
}

#[test]
fn interleaved_marks_are_looked_up_in_event_order() {
    // Looking these up in order of time would unpack a chunk for each: the export would take
    // minutes.
    const MARKS: u64 = 20_000;
    let mut encoder = Encoder::new(&RecordingInfo::default());
    encoder.define(&Definition::String("m".to_owned()));
    for part in 0..2 {
        for number in 0..MARKS {
            let kind = EventKind::Mark {
                stage: AnnotationStage::Instant,
                name: StringId(1),
                address: part,
                site: SiteId::default(),
            };
            encoder.event(&Event { device: DeviceId(0), time_ns: number * 1000, kind });
        }
        encoder.flush();
    }
    let (recording, _) = recording_of(encoder);
    let started = std::time::Instant::now();
    let json: Value = serde_json::from_slice(&exported(&recording, WRITERS[1])).expect("the output is JSON");
    println!("{} marks are exported after {:?}", 2 * MARKS, started.elapsed());
    assert_eq!(json["device_traces"][0].as_array().map(Vec::len), Some(2 * MARKS as usize));
    assert_eq!(json["external_annotations"], json!([]));
}

#[test]
fn deep_stack_is_cut() {
    const DEPTH: u32 = 100_000;
    let mut builder = RecordingBuilder::new(&[0]);
    let function = builder.name("deeper");
    let frame = builder.interner.frame(Frame { function, ..Frame::default() });
    let stack = (0..DEPTH).fold(StackId(0), |caller, _| builder.interner.stack(frame, caller));
    let site = builder.interner.site(Site { stack, ..Site::default() });
    builder.define();
    let kind = EventKind::Mark { stage: AnnotationStage::Instant, name: function, address: 0, site };
    (0..3).for_each(|_| builder.event(0, kind));
    let (recording, _) = recording_of(builder.encoder);
    let json: Value = serde_json::from_slice(&exported(&recording, WRITERS[1])).expect("the output is JSON");
    let frames = json["device_traces"][0][2]["frames"].as_array().expect("the frames are a list");
    assert_eq!((frames.len(), &frames[0]["name"]), (1024, &json!("deeper")));
    assert!(exported(&recording, WRITERS[0]).len() < 100_000, "the pickle, too");
}
