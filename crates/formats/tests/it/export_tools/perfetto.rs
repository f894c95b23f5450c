//! Slices, lanes and counters of a Perfetto trace, read by the rules of Perfetto.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use prost::Message;
use vramscope_formats::export;
use vramscope_trace::{AnnotationStage, EventKind, Recording, SiteId, StreamId};

use super::common::{RecordingBuilder, UNIT, random_steps, recorded};

#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<Packet>,
}

#[derive(Clone, PartialEq, Message)]
struct Packet {
    #[prost(uint64, tag = "8")]
    timestamp: u64,
    #[prost(message, optional, tag = "11")]
    event: Option<TrackEvent>,
    #[prost(message, optional, tag = "60")]
    track: Option<Track>,
}

#[derive(Clone, PartialEq, Message)]
struct Track {
    #[prost(uint64, tag = "1")]
    uuid: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(uint64, tag = "5")]
    parent: u64,
    #[prost(uint64, optional, tag = "17")]
    merge_key: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    arguments: Vec<Argument>,
    #[prost(int32, tag = "9")]
    kind: i32,
    #[prost(uint64, tag = "11")]
    track: u64,
    #[prost(int64, tag = "30")]
    value: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Argument {
    #[prost(uint64, optional, tag = "3")]
    number: Option<u64>,
}

const BEGIN: i32 = 1;
const END: i32 = 2;
const INSTANT: i32 = 3;
const COUNTER: i32 = 4;

/// A trace after reading.
#[derive(Debug, Default)]
struct ParsedTrace {
    tracks: BTreeMap<u64, Track>,
    counters: HashMap<u64, i64>,
    open: HashMap<u64, usize>,
    deepest: HashMap<u64, usize>,
    slices: usize,
    /// Track and arguments of each slice.
    begins: Vec<(u64, Vec<Argument>)>,
    instants: Vec<(u64, Vec<Argument>)>,
}

impl ParsedTrace {
    fn named(&self, name: &str) -> Vec<u64> {
        self.tracks.values().filter(|track| track.name == name).map(|track| track.uuid).collect()
    }

    fn lanes(&self) -> Vec<u64> {
        let parents = self.named("allocations by site");
        self.tracks.values().filter(|track| parents.contains(&track.parent)).map(|track| track.uuid).collect()
    }
}

fn read(recording: &Recording) -> ParsedTrace {
    let mut bytes = Vec::new();
    export::perfetto(recording, &mut bytes, &mut |_, _| {}).expect("memory can be written");
    let trace = Trace::decode(bytes.as_slice()).expect("the export is a trace");
    let mut read = ParsedTrace::default();
    let mut events: Vec<(u64, TrackEvent)> = Vec::new();
    for packet in trace.packet {
        events.extend(packet.event.map(|event| (packet.timestamp, event)));
        read.tracks.extend(packet.track.map(|track| (track.uuid, track)));
    }
    events.sort_by_key(|(time_ns, _)| *time_ns);
    for (_, TrackEvent { arguments, kind, track, value }) in events {
        assert!(read.tracks.contains_key(&track));
        let open = read.open.entry(track).or_default();
        match kind {
            BEGIN => {
                *open += 1;
                read.slices += 1;
                read.begins.push((track, arguments));
                let deepest = read.deepest.entry(track).or_default();
                *deepest = (*open).max(*deepest);
            }
            END => *open = open.checked_sub(1).expect("an end belongs to an open slice"),
            INSTANT => read.instants.push((track, arguments)),
            COUNTER => drop(read.counters.insert(track, value)),
            other => panic!("an event of kind {other}"),
        }
    }
    read
}

proptest! {
    #[test]
    fn concurrent_allocations_never_share_a_lane(steps in random_steps()) {
        let recording = recorded(&steps);
        let read = read(&recording);
        for lane in read.lanes() {
            prop_assert!(read.deepest.get(&lane).is_none_or(|&deepest| deepest == 1));
        }
        let open: usize = read.lanes().iter().filter_map(|lane| read.open.get(lane)).sum();
        prop_assert_eq!(open, recording.end_state().devices().map(|(_, device)| device.blocks().len()).sum::<usize>());
    }
}

#[test]
fn allocations_over_the_lane_limit_are_counted() {
    let mut builder = RecordingBuilder::new();
    for number in 0..600 {
        builder.alloc(number, (number + 1) * UNIT, UNIT, SiteId(0));
    }
    builder.free(600, 600 * UNIT);
    let read = read(&builder.finish());
    assert_eq!(read.lanes().len(), 512);
    assert_eq!(read.slices, 512);
    let [omitted] = read.named("left out")[..] else { panic!("the trace reports omitted allocations") };
    let reports: Vec<_> = read.instants.iter().filter(|(track, _)| *track == omitted).collect();
    let numbers: Vec<_> = reports[0].1.iter().filter_map(|argument| argument.number).collect();
    assert_eq!(numbers, [88, 88 * UNIT]);
    let [bytes] = read.named("active bytes without a slice")[..] else { panic!("the trace counts omitted bytes") };
    assert_eq!(read.counters[&bytes], 87 * UNIT as i64);
}

#[test]
fn sites_with_the_most_bytes_have_their_own_group() {
    let mut builder = RecordingBuilder::new();
    for number in 0..1500 {
        let site = builder.site(&format!("scope {number}"));
        builder.alloc(number, UNIT, UNIT * (1 + number), site);
        builder.free(number, UNIT);
    }
    let read = read(&builder.finish());
    assert_eq!(read.slices, 1500);
    assert_eq!(read.lanes().len(), 1001);
    assert_eq!(read.named("other sites").len(), 1);
    assert_eq!(read.named("scope 499").len(), 0);
    assert_eq!(read.named("scope 500").len(), 1);
}

#[test]
fn overlapping_spans_use_separate_lanes_and_nested_spans_share_one() {
    let check = |stages: &[(u64, AnnotationStage, &str)], lanes: &[usize], moments: usize| {
        let mut builder = RecordingBuilder::new();
        for &(time_ns, stage, name) in stages {
            builder.mark(time_ns, stage, name);
        }
        builder.event(100, EventKind::Gap { lost: 0 });
        let read = read(&builder.finish());
        let depths: Vec<_> = read.named("spans").iter().map(|track| read.deepest[track]).collect();
        assert_eq!(depths, lanes, "{stages:?}");
        let marks = read.named("marks");
        assert_eq!(read.instants.iter().filter(|(track, _)| marks.contains(track)).count(), moments, "{stages:?}");
    };
    use AnnotationStage::{Begin, End, Instant};
    check(&[(0, Begin, "a"), (1, Begin, "b"), (2, End, "b"), (3, End, "a")], &[2], 0);
    check(&[(0, Begin, "a"), (1, Begin, "b"), (2, End, "a"), (3, End, "b")], &[1, 1], 0);
    check(&[(0, Begin, "a"), (1, Begin, "a"), (2, End, "a"), (3, End, "a")], &[2], 0);
    check(&[(0, Begin, "a"), (2, End, "a"), (2, Begin, "b"), (3, End, "b")], &[1], 0);
    check(&[(0, Begin, "a"), (1, Begin, "never ended"), (2, End, "a")], &[1, 1], 0);
    check(&[(0, End, "never begun"), (1, Instant, "a")], &[], 2);
}

#[test]
fn lanes_of_a_group_share_a_merge_key() {
    let mut builder = RecordingBuilder::new();
    let (one, other) = (builder.site("one"), builder.site("other"));
    for (number, site) in (0..).zip([one, one, other]) {
        builder.alloc(number, (number + 1) * UNIT, UNIT, site);
    }
    let read = read(&builder.finish());
    let keys = |name| read.named(name).iter().map(|track| read.tracks[track].merge_key).collect::<Vec<_>>();
    assert_eq!(keys("one").len(), 2);
    assert_eq!(keys("one")[0], keys("one")[1]);
    assert_ne!(keys("one")[0], keys("other")[0]);
}

#[test]
fn arguments_have_event_numbers_from_1() {
    let mut builder = RecordingBuilder::new();
    builder.alloc(1, UNIT, UNIT, SiteId(0));
    builder.mark(2, AnnotationStage::Begin, "span");
    builder.mark(3, AnnotationStage::Instant, "mark");
    builder.mark(4, AnnotationStage::End, "span");
    builder.event(5, EventKind::OutOfMemory { requested: 7, device_free: 8, stream: StreamId(0), site: SiteId(0) });
    builder.annotation(5, "annotation after 5 events");
    builder.event(6, EventKind::Gap { lost: 9 });
    let read = read(&builder.finish());
    let number = |(_, arguments): &(u64, Vec<Argument>), at: usize| arguments[at].number;
    // Arguments of an allocation begin with bytes, requested, address and stream.
    let slices = |tracks: &[u64], at| {
        let begins = read.begins.iter().filter(|(track, _)| tracks.contains(track));
        begins.map(|begin| number(begin, at)).collect::<Vec<_>>()
    };
    assert_eq!(slices(&read.lanes(), 4), [Some(1)]);
    assert_eq!(slices(&read.named("spans"), 0), [Some(2)]);
    let instants = |name| {
        let tracks = read.named(name);
        let instants = read.instants.iter().filter(|(track, _)| tracks.contains(track));
        instants.map(|instant| number(instant, 0)).collect::<Vec<_>>()
    };
    assert_eq!(instants("marks"), [Some(3), Some(5)]);
    assert_eq!(instants("out of memory"), [Some(5)]);
    assert_eq!(instants("missing events"), [Some(6)]);
}

#[test]
fn relabel_begins_a_slice_of_the_new_site() {
    let mut builder = RecordingBuilder::new();
    let [loss, weights] = ["loss", "weights"].map(|scope| builder.site(scope));
    builder.alloc(0, 512, 512, loss);
    builder.relabel(5, 512, weights);
    builder.alloc(10, 1024, 512, loss);
    builder.free(20, 512);
    let trace = read(&builder.finish());
    let slices_of = |name: &str| {
        let [track] = trace.named(name)[..] else { panic!("one lane of {name}") };
        (trace.begins.iter().filter(|(of, _)| *of == track).count(), trace.open[&track])
    };
    assert_eq!((slices_of("loss"), slices_of("weights")), ((2, 1), (1, 0)));
}
