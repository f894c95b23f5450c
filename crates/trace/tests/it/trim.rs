//! A trimmed recording equals the recording of a viewer that joined at its first full state.

use proptest::prelude::*;
use vramscope_trace::{
    AnnotationStage, Definition, DeviceId, Encoder, Event, EventKind, Recording, RecordingInfo, Replay, Sink, SiteId,
    StringId, digest,
};

use crate::common::{Random, program};

/// Returns the chunks of a recording of `count` events with marks and gaps, flushed every `every`
/// events.
fn recorded_pieces(count: usize, every: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut encoder = Encoder::new(&RecordingInfo { source: "test".into(), ..RecordingInfo::default() });
    encoder.define(&Definition::String("step".into()));
    let mut pieces = Vec::new();
    for (index, event) in program(count, seed).into_iter().enumerate() {
        encoder.event(&event);
        if index % 1000 == 0 {
            let kind =
                EventKind::Mark { stage: AnnotationStage::Instant, name: StringId(1), address: 0, site: SiteId(0) };
            encoder.event(&Event { kind, ..event });
        }
        if index % 7000 == 0 {
            encoder.event(&Event { kind: EventKind::Gap { lost: 3 }, ..event });
            let state = encoder.state().clone();
            encoder.replace_state(&state);
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

fn open(bytes: &[u8]) -> Recording {
    let mut recording = Recording::new();
    recording.push(bytes).expect("the recording is valid");
    recording.finish().expect("the recording is complete");
    recording
}

/// Asserts that every query returns equal results for two recordings.
fn check_same(recording: &Recording, expected: &Recording, seed: u64) {
    assert_eq!(recording.info(), expected.info());
    assert_eq!(recording.first_event(), expected.first_event());
    assert_eq!(recording.end_event(), expected.end_event());
    assert_eq!((recording.events(), recording.lost_events()), (expected.events(), expected.lost_events()));
    assert_eq!((recording.start_ns(), recording.end_ns()), (expected.start_ns(), expected.end_ns()));
    assert_eq!(recording.annotations(), expected.annotations());
    assert_eq!(recording.incidents(), expected.incidents());
    assert_eq!(recording.memory_bytes(), expected.memory_bytes());
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
        let digest_of_one = digest(of_one.seek(recording, event).expect("all chunks are in memory"));
        assert_eq!(
            digest_of_one,
            digest(of_other.seek(expected, event).expect("all chunks are in memory")),
            "at event {event}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn trimmed_recording_equals_a_late_viewers_recording(
        count in 1..60_000usize,
        every in 200..20_000usize,
        limit in 20_000..120_000usize,
        slice in 100..40_000u64,
        seed: u64,
    ) {
        let mut recording = Recording::new();
        let mut first = 0;
        for piece in recorded_pieces(count, every, seed) {
            recording.push(&piece).expect("the recording is valid");
            if !recording.is_trimming() && recording.memory_bytes() > limit {
                recording.start_trim(limit / 2);
            }
            let before = recording.first_event();
            if recording.continue_trim(slice) {
                prop_assert!(recording.first_event() > before, "a finished trim drops events");
                first = recording.first_event();
            }
            prop_assert_eq!(recording.first_event(), first);
        }
        while recording.is_trimming() && !recording.continue_trim(slice) {}
        let remaining: Vec<u8> = recording.bytes_in_memory().flatten().collect();
        check_same(&recording, &open(&remaining), seed);
    }
}

#[test]
fn memory_stays_within_its_limit() {
    const LIMIT: usize = 100_000;
    let mut recording = Recording::new();
    let (mut largest, mut trims) = (0, 0);
    for piece in recorded_pieces(300_000, 500, 7) {
        recording.push(&piece).expect("the recording is valid");
        if !recording.is_trimming() && recording.memory_bytes() > LIMIT {
            recording.start_trim(LIMIT / 2);
        }
        largest = largest.max(recording.memory_bytes());
        trims += usize::from(recording.continue_trim(20_000));
    }
    assert!(largest < LIMIT + LIMIT / 2, "the recording takes {largest} bytes");
    assert!((5..100).contains(&trims), "{trims} trims");
    assert!(recording.memory_bytes() > LIMIT / 4, "a trim keeps about half");
}

#[test]
fn trim_without_anything_to_drop_changes_nothing() {
    let mut recording = Recording::new();
    assert!(!recording.start_trim(0), "an empty recording has nothing to drop");
    let pieces = recorded_pieces(100, 1000, 1);
    pieces.iter().for_each(|piece| recording.push(piece).expect("the recording is valid"));
    assert!(!recording.continue_trim(1000), "no trim was started");
    let mut overview = Recording::overview_only(None);
    pieces.iter().for_each(|piece| overview.push(piece).expect("the recording is valid"));
    assert!(!overview.start_trim(0), "its chunks are not in memory");
}

#[test]
fn damage_during_a_trim_changes_nothing() {
    let pieces = recorded_pieces(60_000, 1000, 3);
    let (last, before) = pieces.split_last().expect("pieces");
    let mut recording = Recording::new();
    before.iter().for_each(|piece| recording.push(piece).expect("the recording is valid"));
    assert!(recording.start_trim(recording.memory_bytes() / 2));
    assert!(!recording.continue_trim(10));
    let mut damaged = last.clone();
    *damaged.last_mut().expect("bytes") ^= 1;
    recording.push(&damaged).expect_err("the checksum does not match");
    while recording.is_trimming() && !recording.continue_trim(10_000) {}
    check_same(&recording, &open(&recording.bytes_in_memory().flatten().collect::<Vec<u8>>()), 5);
}
