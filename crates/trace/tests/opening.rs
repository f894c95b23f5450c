//! Recordings of programs like real ones, opened by their index and read where a moment is looked at.

#[allow(dead_code, reason = "each file of tests uses a part")]
mod common;
#[path = "common/program.rs"]
mod program;

use std::sync::Arc;

use common::Random;
use program::{Shape, program};
use proptest::prelude::*;
use vramscope_trace::{
    Annotation, DeviceId, DeviceInfo, Encoder, Event, EventKind, IncidentKind, Info, Interner, MemoryState, Opening,
    Recording, Replay, Sink, Site, Stage, StringId,
};

/// A recording of `events`, with some definitions and annotations on the way, in chunks of at most `flush_every` events.
fn encode(events: &[Event], flush_every: usize) -> Vec<u8> {
    let mut encoder = Encoder::new(&Info { source: "a program".to_owned(), ..Info::default() });
    let mut interner = Interner::default();
    for (number, event) in events.iter().enumerate() {
        if number % 5000 == 0 {
            let scope = interner.string(&format!("step {number}"));
            interner.site(Site { scope, ..Site::default() });
            interner.take_fresh().iter().for_each(|definition| encoder.define(definition));
            let (time_ns, at_event, name) = (event.time_ns, number as u64, StringId(1));
            encoder.annotation(&Annotation { device: event.device, time_ns, at_event, stage: Stage::Instant, name });
        }
        encoder.event(event);
        if number % flush_every == flush_every - 1 {
            encoder.flush();
        }
    }
    encoder.flush();
    encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
}

fn taken_in(bytes: &[u8]) -> Recording {
    let mut recording = Recording::new();
    recording.push(bytes).unwrap();
    recording.finish().unwrap();
    recording
}

fn with_index(bytes: &[u8]) -> Vec<u8> {
    let mut passed = Recording::passing_by(None);
    bytes.chunks(1000).for_each(|piece| passed.push(piece).unwrap());
    let index = passed.index().into_iter().flat_map(|chunk| chunk.bytes);
    bytes.iter().copied().chain(index).collect()
}

fn by_index(bytes: &[u8]) -> Option<Recording> {
    let mut opening = Opening::new(bytes.len() as u64);
    let mut wishes = 0;
    while let Some(range) = opening.wants() {
        opening.supply(range.start, &bytes[range.start as usize..range.end as usize]);
        wishes += 1;
        assert!(wishes < 1000, "it never has enough");
    }
    opening.finish()
}

fn states_at(events: &[Event], moments: &[u64]) -> Vec<MemoryState> {
    let mut sorted = moments.to_vec();
    sorted.sort_unstable();
    let mut state = MemoryState::default();
    let mut found = std::collections::HashMap::new();
    for moment in sorted {
        while state.event() < moment {
            state.apply(&events[state.event() as usize]);
        }
        found.insert(moment, state.clone());
    }
    moments.iter().map(|moment| found[moment].clone()).collect()
}

fn shape() -> impl Strategy<Value = Shape> {
    (1..4u16, 0..3u8, any::<bool>(), 1..400usize).prop_map(|(devices, errors, expandable, live)| Shape {
        devices,
        // None, one in a thousand, one in thirty.
        misfits_in_1000: [0, 1, 30][usize::from(errors)],
        expandable,
        live,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever way a recording was opened, it is the same at every moment as applying its events.
    #[test]
    fn every_way_in_shows_the_same(
        shape in shape(), count in 1..50_000usize, seed: u64, flush_every in prop_oneof![Just(usize::MAX), 1..3000usize],
    ) {
        let events = program(count, seed, &shape);
        let bytes = encode(&events, flush_every);
        let indexed = with_index(&bytes);
        let whole = taken_in(&indexed);
        let (read, damage) = Recording::open(Arc::new(indexed.clone()), indexed.len() as u64, |_, _| {}).unwrap();
        prop_assert_eq!(damage, None);
        let mut asked = by_index(&indexed).expect("it has an index");
        prop_assert_eq!(asked.missing(0).is_empty(), whole.end_event() == 0);

        let mut random = Random(seed | 1);
        let mut moments: Vec<u64> = (0..25).map(|_| random.below(events.len() as u64 + 1)).collect();
        moments.extend(moments.clone().into_iter().flat_map(|n| [n, n.saturating_sub(1), (n + 1).min(events.len() as u64)]));
        let states = states_at(&events, &moments);
        let (mut replay, mut replay_read, mut replay_asked) = (Replay::new(), Replay::new(), Replay::new());
        for (&moment, state) in moments.iter().zip(&states) {
            prop_assert_eq!(replay.seek(&whole, moment).unwrap(), state);
            prop_assert_eq!(replay_read.seek(&read, moment).unwrap(), state);
            for range in asked.missing(moment) {
                asked.supply(range.start, &indexed[range.start as usize..range.end as usize]).unwrap();
            }
            prop_assert_eq!(asked.missing(moment), vec![]);
            prop_assert_eq!(replay_asked.seek(&asked, moment).unwrap(), state);
        }
        let end = events.len() as u64;
        let mut played = Replay::new();
        prop_assert_eq!(played.play(&whole, 0, end).unwrap(), whole.end_state());
        for other in [&read, &asked] {
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

    /// Exact columns need the chunks in view, and are then what they would be had everything been read.
    #[test]
    fn a_timeline_is_exact_once_its_chunks_are_there(seed: u64, width in 1..300usize) {
        let events = program(40_000, seed, &Shape { devices: 1, misfits_in_1000: 0, expandable: false, live: 100 });
        let indexed = with_index(&encode(&events, usize::MAX));
        let whole = taken_in(&indexed);
        let mut asked = by_index(&indexed).unwrap();
        let mut random = Random(seed | 1);
        let from = random.below(whole.end_ns());
        let to = (from + 1 + random.below(whole.end_ns() / 20)).min(whole.end_ns());
        let (first, last) = (whole.event_at_time(from), whole.event_at_time(to));
        for range in asked.missing_between(first, last) {
            asked.supply(range.start, &indexed[range.start as usize..range.end as usize]).unwrap();
        }
        prop_assert_eq!(asked.event_at_time(from), first);
        if last - first <= 32 * width as u64 {
            let device = DeviceId(0);
            prop_assert_eq!(asked.columns(device, from, to, width), whole.columns(device, from, to, width));
        }
    }

    /// An index that was damaged anywhere is not believed, or is harmless.
    #[test]
    fn a_damaged_index_is_not_believed(seed: u64, at in any::<prop::sample::Index>(), value: u8) {
        let events = program(20_000, seed, &Shape { devices: 2, misfits_in_1000: 0, expandable: true, live: 50 });
        let bytes = encode(&events, usize::MAX);
        let mut indexed = with_index(&bytes);
        let place = bytes.len() + at.index(indexed.len() - bytes.len());
        indexed[place] = value;
        if let Some(recording) = by_index(&indexed) {
            prop_assert_eq!(recording.events(), 20_000);
        }
    }
}

/// What stands behind an index, or before it, makes it that of another recording.
#[test]
fn an_index_of_something_else_is_not_believed() {
    let shape = Shape { devices: 1, misfits_in_1000: 0, expandable: false, live: 10 };
    let events = program(1000, 7, &shape);
    let indexed = with_index(&encode(&events, 100));
    assert!(by_index(&indexed).is_some());
    let twice = [indexed.clone(), indexed.clone()].concat();
    assert!(by_index(&twice).is_none());
    let cut = &indexed[..indexed.len() - 1];
    assert!(by_index(cut).is_none());
    let (recording, damage) = Recording::open(Arc::new(cut.to_vec()), cut.len() as u64, |_, _| {}).unwrap();
    assert_eq!(recording.events(), 1000);
    assert!(damage.expect("it is cut").to_string().contains("ends inside a chunk"));
    let mut changed = indexed.clone();
    // A byte of the first chunk of events: the index is believed, and the chunk is not.
    let events_at = by_index(&indexed).unwrap().missing(500)[0].start as usize;
    changed[events_at + 40] ^= 1;
    let recording = by_index(&changed).expect("its index is whole");
    let mut recording = recording;
    let error = recording.supply(events_at as u64, &changed[events_at..events_at + 60]).unwrap_err();
    assert_eq!(error.offset, events_at as u64);
}

#[test]
fn what_went_wrong_is_in_the_index() {
    let mut encoder = Encoder::new(&Info::default());
    let event = |time_ns, kind| Event { device: DeviceId(0), time_ns, kind };
    let oom =
        EventKind::OutOfMemory { requested: 77, device_free: 5, stream: Default::default(), site: Default::default() };
    encoder.event(&event(5, oom));
    encoder.event(&event(9, EventKind::Gap { lost: 12 }));
    let state = encoder.state().clone();
    encoder.full_state(&state);
    encoder.flush();
    let bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    let recording = by_index(&with_index(&bytes)).unwrap();
    let kinds: Vec<_> = recording.incidents().iter().map(|incident| (incident.time_ns, incident.kind)).collect();
    assert_eq!(kinds, [(5, IncidentKind::OutOfMemory { requested: 77 }), (9, IncidentKind::Gap { lost: 12 })]);
    assert_eq!(recording.lost_events(), 12);
}

#[test]
fn a_head_that_comes_later_holds_for_all_of_the_recording() {
    let info = |count: u16| Info {
        devices: (0..count).map(|device| DeviceInfo { device, ..DeviceInfo::default() }).collect(),
        ..Info::default()
    };
    let mut encoder = Encoder::new(&info(1));
    let event = |device, time_ns| Event { device: DeviceId(device), time_ns, kind: EventKind::Gap { lost: 0 } };
    encoder.event(&event(0, 1));
    encoder.head(&info(2));
    encoder.event(&event(1, 2));
    encoder.head(&info(3));
    encoder.flush();
    let bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    for recording in [taken_in(&bytes), by_index(&with_index(&bytes)).unwrap()] {
        assert_eq!((recording.info(), recording.end_event()), (&info(3), 2));
    }
}
