//! A copied part of a recording has the events, states and sites of the original.

use std::sync::Arc;

use vramscope_trace::{
    Annotation, AnnotationStage, Block, Category, Definition, DeviceId, DeviceInfo, DeviceState, Encoder, Event,
    EventKind, Frame, FrameId, IndexedEncoder, MemoryState, RangeCopy, ReadAt, Recording, RecordingInfo, Redactor,
    Replay, Segment, Sink, Site, SiteId, Stack, StackId, StringId,
};

use crate::common::Random;
use crate::program::{ProgramShape, program};

/// Number of definitions of every kind in the test's recordings.
const SITES: u32 = 12;

/// Defines sites 1 to 12, each with its own text, frame and stack.
fn define_sites(encoder: &mut Encoder) {
    for id in 1..=SITES {
        encoder.define(&Definition::String(format!("secret_{id}")));
        encoder.define(&Definition::Frame(Frame { function: StringId(id), file: StringId(1), line: id }));
        encoder.define(&Definition::Stack(Stack { frame: FrameId(id), caller: StackId(id - 1) }));
        let site = Site {
            stack: StackId(id),
            scope: StringId(id),
            category: Category::Gradient,
            compile_context: StringId(0),
        };
        encoder.define(&Definition::Site(site));
    }
}

/// Returns a recording with marks, annotations, gaps, lost events and corrections, and its bytes.
fn recorded(seed: u64) -> (Recording, Vec<u8>) {
    let device =
        |device| DeviceInfo { device, history_complete: true, uncertain_events: 5000, ..DeviceInfo::default() };
    let info = RecordingInfo { source: "secret.py".into(), devices: vec![device(0), device(1)], ..Default::default() };
    let mut encoder = Encoder::new(&info);
    define_sites(&mut encoder);
    let shape = ProgramShape { devices: 2, inconsistent_per_1000: 2, expandable: false, live: 300 };
    for (index, event) in program(60_000, seed, &shape).into_iter().enumerate() {
        encoder.event(&event);
        let at_event = encoder.state().event();
        let name = StringId(1 + (index as u32 / 1000) % SITES);
        if index % 1000 == 500 {
            let stage = AnnotationStage::Instant;
            encoder.event(&Event { kind: EventKind::Mark { stage, name, address: 0, site: SiteId(3) }, ..event });
            let (device, time_ns) = (event.device, event.time_ns);
            encoder.annotation(&Annotation { device, time_ns, at_event, stage, name });
        }
        if index % 17_000 == 16_999 {
            let state = encoder.state().clone();
            encoder.skip_to(at_event + 40);
            encoder.replace_state(&state);
        }
        if index % 23_000 == 22_999 {
            // A full state that the events do not lead to.
            let mut state = encoder.state().clone();
            *state.device_mut(DeviceId(1)) = DeviceState::default();
            encoder.replace_state(&state);
        }
    }
    encoder.flush();
    let bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    (open(&bytes), bytes)
}

fn open(bytes: &[u8]) -> Recording {
    let mut recording = Recording::new();
    recording.push(bytes).expect("the recording is valid");
    recording.finish().expect("the recording is complete");
    recording
}

/// Copies a part of a recording and returns its bytes.
fn copied(recording: &Recording, from: u64, to: u64) -> Vec<u8> {
    let mut copy = RangeCopy::new(recording, from, to);
    let mut encoder = IndexedEncoder::new(&copy.begin(recording).expect("a readable recording"));
    let mut bytes = encoder.take_output();
    while copy.step(recording, &mut encoder).expect("a readable recording") {
        bytes.extend(encoder.take_output());
        let (done, all) = copy.progress();
        assert!(done <= all);
    }
    bytes.extend(encoder.finish());
    bytes.concat()
}

/// Returns the texts of a site: scope and stack.
fn texts(recording: &Recording, id: SiteId) -> Vec<String> {
    let (definitions, site) = (recording.definitions(), recording.definitions().site(id));
    let frames = definitions.stack(site.stack).map(|frame| {
        format!("{} {}:{}", definitions.string(frame.function), definitions.string(frame.file), frame.line)
    });
    std::iter::once(definitions.string(site.scope).to_owned()).chain(frames).collect()
}

/// A device's segments and blocks without the numbers of their sites, which are texts instead.
type Described = (DeviceId, Vec<(Segment, Vec<String>)>, Vec<(Block, Vec<String>)>);

/// Returns a state in which sites are described by their texts.
fn described(recording: &Recording, state: &MemoryState) -> (u64, u64, Vec<Described>) {
    let devices = state.devices().map(|(id, device)| {
        let segments =
            device.segments().map(|&segment| (Segment { site: SiteId(0), ..segment }, texts(recording, segment.site)));
        let blocks = device.blocks().map(|&block| (Block { site: SiteId(0), ..block }, texts(recording, block.site)));
        (id, segments.collect(), blocks.collect())
    });
    (state.event(), state.time_ns(), devices.collect())
}

/// Returns the annotations of a recording between two moments, and the events with their sites,
/// with texts in place of numbers.
fn contents(recording: &Recording, from: u64, to: u64) -> (Vec<String>, Vec<String>) {
    let text = |id: StringId| recording.definitions().string(id).to_owned();
    let annotations = recording.annotations().iter().filter(|annotation| (from..to).contains(&annotation.at_event));
    let annotations =
        annotations.map(|known| format!("{:?}", (Annotation { name: StringId(0), ..*known }, text(known.name))));
    let mut replay = Replay::new();
    let events = (from..to).filter_map(|index| {
        let mut event = replay.event(recording, index).expect("a readable recording")?;
        let site = event.kind.site_mut().map(std::mem::take);
        let name = match &mut event.kind {
            EventKind::Mark { name, .. } => text(std::mem::take(name)),
            _ => String::new(),
        };
        Some(format!("{index} {event:?} {name} {:?}", site.map(|site| texts(recording, site))))
    });
    (annotations.collect(), events.collect())
}

#[test]
fn copies_equal_the_original() {
    let (recording, _) = recorded(3);
    let end = recording.end_event();
    let mut random = Random(77);
    let mut ranges = vec![(0, end), (0, 0), (end, end), (0, 1), (end - 1, end), (16_999, 17_100), (17_050, 17_060)];
    ranges.extend((0..12).map(|_| (random.below(end), random.below(end))).map(|(a, b)| (a.min(b), a.max(b))));
    for (from, to) in ranges {
        let part = open(&copied(&recording, from, to));
        let start = part.first_event();
        assert!(start == from || recording.next_event(start).is_none_or(|next| next > from), "{from}..{to}: {start}");
        assert!(part.end_event() <= to.max(start), "{from}..{to}: {}", part.end_event());
        let (mut original, mut copy) = (Replay::new(), Replay::new());
        for moment in [start, to].into_iter().chain((0..20).map(|_| start + random.below(to.max(start) - start + 1))) {
            let expected = original.seek(&recording, moment).expect("a readable recording");
            let state = copy.seek(&part, moment).expect("a readable copy");
            assert_eq!(described(&part, state), described(&recording, expected), "{from}..{to} at {moment}");
        }
        if to - from < 10_000 || from == 0 {
            assert_eq!(contents(&part, start, to), contents(&recording, start, to), "{from}..{to}");
        }
        let [device, _] = &part.info().devices[..] else { panic!("{:?}", part.info()) };
        assert_eq!(device.history_complete, from == 0, "{from}..{to}");
        assert!(part.definitions().site_count() <= recording.definitions().site_count());
    }
}

#[test]
fn copy_has_an_index_and_only_the_definitions_it_uses() {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    define_sites(&mut encoder);
    for index in 0..50_000 {
        let site = SiteId(1 + index / 10_000);
        let kind = EventKind::FreeRequested { address: 0, site };
        encoder.event(&Event { device: DeviceId(0), time_ns: u64::from(index), kind });
    }
    encoder.flush();
    let recording = open(&encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect::<Vec<u8>>());
    let bytes = copied(&recording, 20_000, 30_000);
    let (len, source): (u64, Arc<dyn ReadAt>) = (bytes.len() as u64, Arc::new(bytes));
    let part = Recording::open_by_index(&source, len).expect("readable").expect("an index");
    assert_eq!((part.first_event(), part.end_event()), (20_000, 30_000));
    assert_eq!(part.definitions().site_count(), 1);
    assert_eq!(texts(&part, SiteId(1)), texts(&recording, SiteId(3)));
}

#[test]
fn redacted_copy_has_no_names() {
    let (recording, _) = recorded(9);
    let mut copy = RangeCopy::new(&recording, 10_000, 30_000);
    let info = copy.begin(&recording).expect("a readable recording");
    let mut redactor = Redactor::new(&info, String::new(), IndexedEncoder::new);
    while copy.step(&recording, &mut redactor).expect("a readable recording") {}
    let bytes = redactor.into_inner().finish().concat();
    let part = open(&bytes);
    let is_secret = |text: &[u8]| text.windows(6).any(|part| part == b"secret");
    assert_eq!(part.info().source, "redacted");
    for id in 1..=SITES {
        assert!(!is_secret(format!("{:?}", texts(&part, SiteId(id))).as_bytes()), "{:?}", texts(&part, SiteId(id)));
    }
    assert_eq!((part.first_event(), part.end_event()), (10_000, 30_000));
    let allocated = |recording: &Recording, moment| {
        let mut replay = Replay::new();
        let state = replay.seek(recording, moment).expect("a readable recording");
        state.devices().map(|(_, device)| device.counters()).collect::<Vec<_>>()
    };
    for moment in [10_000, 12_345, 30_000] {
        assert_eq!(allocated(&part, moment), allocated(&recording, moment));
    }
}

#[test]
fn copy_asks_for_chunks_that_are_not_in_memory() {
    let (whole, bytes) = recorded(5);
    let mut indexed = bytes.clone();
    indexed.extend(whole.index().into_iter().flat_map(|chunk| chunk.bytes));
    let mut opener = vramscope_trace::RecordingOpener::new(indexed.len() as u64);
    while let Some(range) = opener.wanted_range() {
        opener.supply(range.start, &indexed[range.start as usize..range.end as usize]);
    }
    let mut recording = opener.finish().expect("a recording with an index");
    let mut copy = RangeCopy::new(&recording, 15_000, 45_000);
    let supply = |copy: &RangeCopy, recording: &mut Recording| {
        for range in copy.missing(recording) {
            let bytes = &indexed[range.start as usize..range.end as usize];
            recording.supply(range.start, bytes).expect("the chunk that the index lists");
        }
    };
    supply(&copy, &mut recording);
    let mut encoder = IndexedEncoder::new(&copy.begin(&recording).expect("everything is there"));
    loop {
        supply(&copy, &mut recording);
        if !copy.step(&recording, &mut encoder).expect("everything is there") {
            break;
        }
    }
    let (part, expected) = (open(&encoder.finish().concat()), open(&copied(&whole, 15_000, 45_000)));
    assert_eq!(contents(&part, 15_000, 45_000), contents(&expected, 15_000, 45_000));
}

#[test]
fn indexed_recording_lists_marks_once_they_are_read() {
    let (whole, mut bytes) = recorded(7);
    bytes.extend(whole.index().into_iter().flat_map(|chunk| chunk.bytes));
    let (len, source): (u64, Arc<dyn ReadAt>) = (bytes.len() as u64, Arc::new(bytes));
    let mut recording = Recording::open_by_index(&source, len).expect("readable").expect("an index");
    // A mark and an annotation of one moment have no order.
    let listed = |recording: &Recording| {
        let mut all: Vec<String> = recording.annotations().iter().map(|known| format!("{known:?}")).collect();
        all.sort_unstable();
        all
    };
    assert!(listed(&recording).len() < listed(&whole).len(), "the index lists no marks");
    recording.read_marks();
    assert_eq!(listed(&recording), listed(&whole));
    recording.read_marks();
    assert_eq!(listed(&recording), listed(&whole), "they are read once");
    let mut other = Recording::open_by_index(&source, len).expect("readable").expect("an index");
    let mut reader = vramscope_trace::LifetimesReader::new();
    while !reader.is_at_end(&other) {
        reader.step(&other, 10_000, |_, _, _| {}).expect("readable");
    }
    assert!(other.add_marks(reader.lifetimes().marks()));
    assert_eq!(other.annotations(), recording.annotations(), "a pass over the events finds them, too");
    assert!(!other.add_marks(reader.lifetimes().marks()), "they are added once");
    assert_eq!(other.annotations().len(), recording.annotations().len());
    assert!(recording.annotations().is_sorted_by_key(|annotation| annotation.time_ns));
    let (part, expected) = (open(&copied(&recording, 15_000, 45_000)), open(&copied(&whole, 15_000, 45_000)));
    assert_eq!(contents(&part, 15_000, 45_000), contents(&expected, 15_000, 45_000));
}
