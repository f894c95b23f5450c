//! A recording that forgets its oldest part is the one that somebody has who came later.

#[allow(dead_code, reason = "each file of tests uses a part")]
mod common;

use common::{Random, program};
use proptest::prelude::*;
use vramscope_trace::{
    Definition, DeviceId, Encoder, Event, EventKind, Info, Recording, Replay, Sink, SiteId, Stage, StringId, digest,
};

/// A recording of `count` events with steps marked, as it is sent: flushed every `every` events.
fn told(count: usize, every: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut encoder = Encoder::new(&Info { source: "test".into(), ..Info::default() });
    encoder.define(&Definition::String("step".into()));
    let mut pieces = Vec::new();
    for (index, event) in program(count, seed).into_iter().enumerate() {
        encoder.event(&event);
        if index % 1000 == 0 {
            let kind = EventKind::Mark { stage: Stage::Instant, name: StringId(1), address: 0, site: SiteId(0) };
            encoder.event(&Event { kind, ..event });
        }
        if index % 7000 == 0 {
            encoder.event(&Event { kind: EventKind::Gap { lost: 3 }, ..event });
            let state = encoder.state().clone();
            encoder.full_state(&state);
        }
        if index % every == 0 {
            encoder.flush();
        }
        pieces.extend(encoder.take_output().into_iter().map(|chunk| chunk.bytes));
    }
    encoder.flush();
    pieces.extend(encoder.take_output().into_iter().map(|chunk| chunk.bytes));
    pieces
}

fn opened(bytes: &[u8]) -> Recording {
    let mut recording = Recording::new();
    recording.push(bytes).expect("a good recording");
    recording.finish().expect("a complete recording");
    recording
}

/// Asserts that all that can be asked of two recordings is the same.
fn check_same(recording: &Recording, expected: &Recording, seed: u64) {
    assert_eq!(recording.info(), expected.info());
    assert_eq!(recording.first_event(), expected.first_event());
    assert_eq!(recording.end_event(), expected.end_event());
    assert_eq!((recording.events(), recording.lost_events()), (expected.events(), expected.lost_events()));
    assert_eq!((recording.start_ns(), recording.end_ns()), (expected.start_ns(), expected.end_ns()));
    assert_eq!(recording.annotations(), expected.annotations());
    assert_eq!(recording.incidents(), expected.incidents());
    assert_eq!(recording.held_bytes(), expected.held_bytes());
    assert_eq!(digest(recording.end_state()), digest(expected.end_state()));
    let devices: Vec<DeviceId> = recording.devices().collect();
    assert_eq!(devices, expected.devices().collect::<Vec<_>>());
    for device in devices {
        assert_eq!(recording.series(device), expected.series(device));
        let all = |recording: &Recording| -> Vec<_> {
            recording
                .metrics(device)
                .into_iter()
                .flat_map(|metrics| metrics.between(0, u64::MAX, |_, _| true))
                .collect()
        };
        assert_eq!(all(recording), all(expected));
        let (from_ns, to_ns) = (recording.start_ns(), recording.end_ns());
        assert_eq!(recording.columns(device, from_ns, to_ns, 300), expected.columns(device, from_ns, to_ns, 300));
    }
    let (mut random, mut replays) = (Random(seed | 1), [Replay::new(), Replay::new()]);
    for _ in 0..20 {
        let event = random.below(recording.end_event() + 1);
        let [of_one, of_other] = &mut replays;
        let found = digest(of_one.seek(recording, event).expect("a moment"));
        assert_eq!(found, digest(of_other.seek(expected, event).expect("a moment")), "at event {event}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn what_stays_is_what_a_newcomer_has(
        count in 1..60_000usize,
        every in 200..20_000usize,
        limit in 20_000..120_000usize,
        slice in 100..40_000u64,
        seed: u64,
    ) {
        let mut recording = Recording::new();
        let mut first = 0;
        for piece in told(count, every, seed) {
            recording.push(&piece).expect("a good recording");
            if !recording.is_forgetting() && recording.held_bytes() > limit {
                recording.forget(limit / 2);
            }
            let before = recording.first_event();
            if recording.forget_on(slice) {
                prop_assert!(recording.first_event() > before, "something was forgotten");
                first = recording.first_event();
            }
            prop_assert_eq!(recording.first_event(), first);
        }
        while recording.is_forgetting() && !recording.forget_on(slice) {}
        let held: Vec<u8> = recording.held().flatten().collect();
        check_same(&recording, &opened(&held), seed);
    }
}

#[test]
fn memory_stays_within_its_limit() {
    const LIMIT: usize = 100_000;
    let mut recording = Recording::new();
    let (mut most, mut times) = (0, 0);
    for piece in told(300_000, 500, 7) {
        recording.push(&piece).expect("a good recording");
        if !recording.is_forgetting() && recording.held_bytes() > LIMIT {
            recording.forget(LIMIT / 2);
        }
        most = most.max(recording.held_bytes());
        times += usize::from(recording.forget_on(20_000));
    }
    assert!(most < LIMIT + LIMIT / 2, "{most} bytes are held");
    assert!((5..100).contains(&times), "{times} times something was forgotten");
    assert!(recording.held_bytes() > LIMIT / 4, "not all of it is");
}

#[test]
fn where_nothing_can_go_nothing_goes() {
    let mut recording = Recording::new();
    assert!(!recording.forget(0), "nothing has come");
    let pieces = told(100, 1000, 1);
    pieces.iter().for_each(|piece| recording.push(piece).expect("a good recording"));
    assert!(!recording.forget_on(1000), "nobody asked for it");
    let mut passing = Recording::passing_by(None);
    pieces.iter().for_each(|piece| passing.push(piece).expect("a good recording"));
    assert!(!passing.forget(0), "it holds nothing");
}

#[test]
fn damage_while_something_is_forgotten_changes_nothing() {
    let pieces = told(60_000, 1000, 3);
    let (last, before) = pieces.split_last().expect("pieces");
    let mut recording = Recording::new();
    before.iter().for_each(|piece| recording.push(piece).expect("a good recording"));
    assert!(recording.forget(recording.held_bytes() / 2));
    assert!(!recording.forget_on(10));
    let mut damaged = last.clone();
    *damaged.last_mut().expect("bytes") ^= 1;
    recording.push(&damaged).expect_err("the checksum does not match");
    while recording.is_forgetting() && !recording.forget_on(10_000) {}
    check_same(&recording, &opened(&recording.held().flatten().collect::<Vec<u8>>()), 5);
}
