//! Recordings of realistic programs, opened by their index and read on demand.

use std::sync::Arc;

use proptest::prelude::*;
use vramscope_trace::{
    Annotation, AnnotationStage, DeviceId, DeviceInfo, Encoder, Event, EventKind, FORMAT_VERSION, IncidentKind,
    Interner, MAGIC, MemoryState, PoolKey, Recording, RecordingInfo, RecordingOpener, Replay, Sink, Site, SiteId,
    StreamId, StringId,
};

use crate::common::Random;
use crate::program::{ProgramShape, program};

/// Encodes `events` with some definitions and annotations, in chunks of at most `flush_every`
/// events.
fn encode(events: &[Event], flush_every: usize) -> Vec<u8> {
    let mut encoder = Encoder::new(&RecordingInfo { source: "a program".to_owned(), ..RecordingInfo::default() });
    let mut interner = Interner::default();
    for (number, event) in events.iter().enumerate() {
        if number % 5000 == 0 {
            let scope = interner.string(&format!("step {number}"));
            interner.site(Site { scope, ..Site::default() });
            interner.take_new().iter().for_each(|definition| encoder.define(definition));
            let (time_ns, at_event, name) = (event.time_ns, number as u64, StringId(1));
            encoder.annotation(&Annotation {
                device: event.device,
                time_ns,
                at_event,
                stage: AnnotationStage::Instant,
                name,
            });
        }
        encoder.event(event);
        if number % flush_every == flush_every - 1 {
            encoder.flush();
        }
    }
    encoder.flush();
    encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
}

fn pushed(bytes: &[u8]) -> Recording {
    let mut recording = Recording::new();
    recording.push(bytes).unwrap();
    recording.finish().unwrap();
    recording
}

fn with_index(bytes: &[u8]) -> Vec<u8> {
    let mut overview = Recording::overview_only(None);
    bytes.chunks(1000).for_each(|piece| overview.push(piece).unwrap());
    let index = overview.index().into_iter().flat_map(|chunk| chunk.bytes);
    bytes.iter().copied().chain(index).collect()
}

fn by_index(bytes: &[u8]) -> Option<Recording> {
    let mut opener = RecordingOpener::new(bytes.len() as u64);
    let mut requests = 0;
    while let Some(range) = opener.wanted_range() {
        opener.supply(range.start, &bytes[range.start as usize..range.end as usize]);
        requests += 1;
        assert!(requests < 1000, "the opener never finishes");
    }
    opener.finish()
}

fn states_at(events: &[Event], moments: &[u64]) -> Vec<MemoryState> {
    let mut sorted = moments.to_vec();
    sorted.sort_unstable();
    let mut state = MemoryState::default();
    let mut states = std::collections::HashMap::new();
    for moment in sorted {
        while state.event() < moment {
            state.apply(&events[state.event() as usize]);
        }
        states.insert(moment, state.clone());
    }
    moments.iter().map(|moment| states[moment].clone()).collect()
}

fn shape() -> impl Strategy<Value = ProgramShape> {
    (1..4u16, 0..3u8, any::<bool>(), 1..400usize).prop_map(|(devices, errors, expandable, live)| ProgramShape {
        devices,
        // Inconsistent steps: none, 1 in 1,000, 30 in 1,000.
        inconsistent_per_1000: [0, 1, 30][usize::from(errors)],
        expandable,
        live,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// However a recording is opened, the state at every moment equals the result of applying its
    /// events.
    #[test]
    fn every_way_to_open_leads_to_the_same_states(
        shape in shape(), count in 1..50_000usize, seed: u64,
        flush_every in prop_oneof![Just(usize::MAX), 1..3000usize],
    ) {
        let events = program(count, seed, &shape);
        let bytes = encode(&events, flush_every);
        let indexed = with_index(&bytes);
        let whole = pushed(&indexed);
        let (read, damage) = Recording::open(Arc::new(indexed.clone()), indexed.len() as u64, |_, _| {}).unwrap();
        prop_assert_eq!(damage, None);
        let mut on_demand = by_index(&indexed).expect("the recording has an index");
        prop_assert_eq!(on_demand.missing(0).is_empty(), whole.end_event() == 0);

        let mut random = Random(seed | 1);
        let mut moments: Vec<u64> = (0..25).map(|_| random.below(events.len() as u64 + 1)).collect();
        let neighbours = |n: u64| [n, n.saturating_sub(1), (n + 1).min(events.len() as u64)];
        moments.extend(moments.clone().into_iter().flat_map(neighbours));
        let states = states_at(&events, &moments);
        let (mut replay, mut replay_read, mut replay_on_demand) = (Replay::new(), Replay::new(), Replay::new());
        let of_device = |device| (Replay::of_device(device), Replay::of_device(device).with_checkpoints());
        let mut replays_of_devices: Vec<_> = (0..4).map(|device| of_device(DeviceId(device))).collect();
        for (&moment, state) in moments.iter().zip(&states) {
            for (device, (plain, with_checkpoints)) in (0..).zip(&mut replays_of_devices) {
                for found in [plain.seek(&whole, moment).unwrap(), with_checkpoints.seek(&whole, moment).unwrap()] {
                    prop_assert_eq!((found.event(), found.time_ns()), (state.event(), state.time_ns()));
                    let only = state.device(DeviceId(device)).map(|memory| (DeviceId(device), memory));
                    prop_assert!(found.devices().eq(only));
                }
            }
            prop_assert_eq!(replay.seek(&whole, moment).unwrap(), state);
            prop_assert_eq!(replay_read.seek(&read, moment).unwrap(), state);
            for range in on_demand.missing(moment) {
                on_demand.supply(range.start, &indexed[range.start as usize..range.end as usize]).unwrap();
            }
            prop_assert_eq!(on_demand.missing(moment), vec![]);
            prop_assert_eq!(replay_on_demand.seek(&on_demand, moment).unwrap(), state);
        }
        for (device, _) in whole.end_state().devices() {
            let mut replay = Replay::of_device(device);
            let at_end = replay.seek(&on_demand, whole.end_event()).unwrap();
            prop_assert_eq!(at_end.device(device), whole.end_state().device(device));
            prop_assert_eq!(at_end.devices().count(), 1);
        }
        let end = events.len() as u64;
        let mut played = Replay::new();
        prop_assert_eq!(played.play(&whole, 0, end).unwrap(), whole.end_state());
        for other in [&read, &on_demand] {
            prop_assert_eq!(other.events(), whole.events());
            prop_assert_eq!(other.info(), whole.info());
            prop_assert_eq!(other.definitions(), whole.definitions());
            prop_assert_eq!(other.annotations(), whole.annotations());
            prop_assert_eq!(other.incidents(), whole.incidents());
            prop_assert_eq!(other.end_state(), whole.end_state());
            prop_assert_eq!((other.start_ns(), other.end_ns()), (whole.start_ns(), whole.end_ns()));
            for device in whole.devices() {
                let (series, expected) = (other.series(device).unwrap(), whole.series(device).unwrap());
                prop_assert_eq!(series.peak_allocated(), expected.peak_allocated());
                prop_assert_eq!(series.peak_reserved(), expected.peak_reserved());
            }
        }
    }

    /// With the chunks in view loaded, columns equal the columns of a recording that was read as a
    /// whole.
    #[test]
    fn timeline_is_exact_once_its_chunks_are_loaded(seed: u64, width in 1..300usize) {
        let shape = ProgramShape { devices: 1, inconsistent_per_1000: 0, expandable: false, live: 100 };
        let events = program(40_000, seed, &shape);
        let indexed = with_index(&encode(&events, usize::MAX));
        let whole = pushed(&indexed);
        let mut on_demand = by_index(&indexed).unwrap();
        let mut random = Random(seed | 1);
        let from = random.below(whole.end_ns());
        let to = (from + 1 + random.below(whole.end_ns() / 20)).min(whole.end_ns());
        let (first, last) = (whole.event_at_time(from), whole.event_at_time(to));
        for range in on_demand.missing_between(first, last) {
            on_demand.supply(range.start, &indexed[range.start as usize..range.end as usize]).unwrap();
        }
        prop_assert_eq!(on_demand.event_at_time(from), first);
        if last - first <= 32 * width as u64 {
            let device = DeviceId(0);
            prop_assert_eq!(on_demand.columns(device, from, to, width), whole.columns(device, from, to, width));
        }
    }

    /// An index that is damaged anywhere is rejected, or the damage has no effect.
    #[test]
    fn damaged_index_is_rejected(seed: u64, at in any::<prop::sample::Index>(), value: u8) {
        let shape = ProgramShape { devices: 2, inconsistent_per_1000: 0, expandable: true, live: 50 };
        let events = program(20_000, seed, &shape);
        let bytes = encode(&events, usize::MAX);
        let mut indexed = with_index(&bytes);
        let position = bytes.len() + at.index(indexed.len() - bytes.len());
        indexed[position] = value;
        if let Some(recording) = by_index(&indexed) {
            prop_assert_eq!(recording.events(), 20_000);
        }
    }
}

/// The chunks that are loaded ahead are the chunks that a pass over all events would need.
#[test]
fn chunks_ahead_of_a_pass_are_found() {
    let shape = ProgramShape { devices: 1, inconsistent_per_1000: 0, expandable: false, live: 100 };
    let indexed = with_index(&encode(&program(100_000, 5, &shape), usize::MAX));
    let mut on_demand = by_index(&indexed).expect("the file has an index");
    let near = on_demand.missing_ahead(0, 100_000);
    assert!(!near.is_empty() && near.iter().map(|chunk| chunk.end - chunk.start).sum::<u64>() <= 100_000);
    let half = on_demand.missing_ahead(50_000, u64::MAX);
    let all = on_demand.missing_ahead(0, u64::MAX);
    assert!(all.starts_with(&near) && all.ends_with(&half) && all.len() > half.len());
    for range in all {
        on_demand.supply(range.start, &indexed[range.start as usize..range.end as usize]).expect("a chunk");
    }
    assert_eq!(on_demand.missing_ahead(0, u64::MAX), vec![]);
    assert_eq!(on_demand.missing_events(0, u64::MAX), vec![]);
    let states: Vec<u64> = [0, 40_000, 99_999].map(|from| on_demand.replayed_events(from, 100_000)).into();
    assert!(states.is_sorted_by(|a, b| a >= b) && states[0] == 100_000, "{states:?}");
}

/// An index with more bytes before or after the recording belongs to another file.
#[test]
fn index_of_another_recording_is_rejected() {
    let shape = ProgramShape { devices: 1, inconsistent_per_1000: 0, expandable: false, live: 10 };
    let events = program(1000, 7, &shape);
    let indexed = with_index(&encode(&events, 100));
    assert!(by_index(&indexed).is_some());
    let twice = [indexed.clone(), indexed.clone()].concat();
    assert!(by_index(&twice).is_none());
    let cut = &indexed[..indexed.len() - 1];
    assert!(by_index(cut).is_none());
    let (recording, damage) = Recording::open(Arc::new(cut.to_vec()), cut.len() as u64, |_, _| {}).unwrap();
    assert_eq!(recording.events(), 1000);
    assert!(damage.expect("the recording is cut off").to_string().contains("ends inside a chunk"));
    let mut changed = indexed.clone();
    // A change in a chunk of events leaves the index valid; only the chunk is rejected.
    let events_at = by_index(&indexed).unwrap().missing(500)[0].start as usize;
    changed[events_at + 40] ^= 1;
    let recording = by_index(&changed).expect("the index is intact");
    let mut recording = recording;
    let error = recording.supply(events_at as u64, &changed[events_at..events_at + 60]).unwrap_err();
    assert_eq!(error.offset, events_at as u64);
}

/// The index does not hide that another version of the format wrote the recording.
#[test]
fn other_format_version_is_rejected_despite_an_index() {
    let shape = ProgramShape { devices: 1, inconsistent_per_1000: 0, expandable: false, live: 10 };
    let mut indexed = with_index(&encode(&program(1000, 7, &shape), 100));
    assert!(by_index(&indexed).is_some());
    let newer = FORMAT_VERSION + 1;
    indexed[MAGIC.len()..MAGIC.len() + 2].copy_from_slice(&newer.to_le_bytes());
    assert!(by_index(&indexed).is_none());
    let sequential = Recording::new().push(&indexed).unwrap_err();
    let opened = Recording::open(Arc::new(indexed.clone()), indexed.len() as u64, |_, _| {}).unwrap_err();
    assert_eq!(opened, sequential);
    let message = format!("recording format version {newer}, but this vramscope reads version {FORMAT_VERSION}");
    assert!(opened.to_string().starts_with(&format!("at byte 8: {message}")), "{opened}");
}

#[test]
fn index_contains_the_incidents() {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    let event = |time_ns, kind| Event { device: DeviceId(0), time_ns, kind };
    let oom =
        EventKind::OutOfMemory { requested: 77, device_free: 5, stream: Default::default(), site: Default::default() };
    encoder.event(&event(5, oom));
    encoder.event(&event(9, EventKind::Gap { lost: 12 }));
    let state = encoder.state().clone();
    encoder.replace_state(&state);
    encoder.flush();
    let bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    let recording = by_index(&with_index(&bytes)).unwrap();
    let kinds: Vec<_> = recording.incidents().iter().map(|incident| (incident.time_ns, incident.kind)).collect();
    assert_eq!(kinds, [(5, IncidentKind::OutOfMemory { requested: 77 }), (9, IncidentKind::Gap { lost: 12 })]);
    assert_eq!(recording.lost_events(), 12);
}

#[test]
fn later_header_chunk_replaces_the_first() {
    let info = |count: u16| RecordingInfo {
        devices: (0..count).map(|device| DeviceInfo { device, ..DeviceInfo::default() }).collect(),
        ..RecordingInfo::default()
    };
    let mut encoder = Encoder::new(&info(1));
    let event = |device, time_ns| Event { device: DeviceId(device), time_ns, kind: EventKind::Gap { lost: 0 } };
    encoder.event(&event(0, 1));
    encoder.update_info(&info(2));
    encoder.event(&event(1, 2));
    encoder.update_info(&info(3));
    encoder.flush();
    let bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    for recording in [pushed(&bytes), by_index(&with_index(&bytes)).unwrap()] {
        assert_eq!((recording.info(), recording.end_event()), (&info(3), 2));
    }
}

/// Returns a recording of two devices whose blocks are never freed: the writer puts no full states
/// between its events.
fn growing(blocks: u64) -> Vec<u8> {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    let (stream, site, pool) = (StreamId(0), SiteId(0), PoolKey::default());
    let mut write = |device: u16, time_ns, kind| encoder.event(&Event { device: DeviceId(device), time_ns, kind });
    let base = 1 << 40;
    for device in 0..2 {
        let kind = EventKind::SegmentAllocated { address: base, size: blocks * 4096, stream, pool, site };
        write(device, 0, kind);
    }
    for block in 0..blocks {
        for device in 0..2 {
            let (address, size) = (base + block * 4096, 512 * (1 + block % 8));
            let kind = EventKind::BlockAllocated { address, size, requested: size, stream, pool, site };
            write(device, 1 + block, kind);
        }
    }
    encoder.flush();
    encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
}

#[test]
fn replay_starts_from_checkpoints_when_it_moves_back() {
    let recording = pushed(&growing(300_000));
    let end = recording.end_event();
    assert!(recording.replayed_events(end - 1, end - 1) > 500_000, "no full states");
    let (mut random, device) = (Random(7), DeviceId(1));
    let mut replay = Replay::of_device(device).with_checkpoints();
    replay.seek(&recording, end - 1).unwrap();
    for _ in 0..12 {
        let moment = random.below(end);
        let found = replay.seek(&recording, moment).unwrap();
        let expected = Replay::of_device(device).seek(&recording, moment).unwrap().clone();
        assert_eq!(*found, expected, "at moment {moment}");
    }
}
