use vramscope_trace::{ChunkKind, Recording, StringId, digest};

use super::testing::Source;
use super::*;

fn all(viewer: &mut Viewer, recording: &mut Recording) -> usize {
    let mut taken = 0;
    loop {
        let chunks = viewer.take(10_000).chunks;
        if chunks.is_empty() {
            return taken;
        }
        for chunk in &chunks {
            recording.push(&chunk.bytes).expect("what a viewer is sent is a recording");
            taken += chunk.bytes.len();
        }
    }
}

#[track_caller]
fn check_same(recording: &Recording, source: &Source) {
    assert_eq!(recording.end_event(), source.encoder.state().event());
    assert_eq!(digest(recording.end_state()), digest(source.encoder.state()));
    recording.finish().expect("whole chunks");
    let names = (1..).take_while(|&id| !recording.definitions().string(StringId(id)).is_empty());
    assert_eq!(names.count(), source.names, "definitions are never left out");
}

#[test]
fn everyone_sees_the_same_whenever_they_come() {
    let mut source = Source::new(HubLimits::default());
    let mut early = (source.hub.viewer(Begin::Oldest), Recording::new());
    source.run(30_000);
    all(&mut early.0, &mut early.1);
    let mut late = (source.hub.viewer(Begin::Oldest), Recording::new());
    source.run(30_000);
    for (viewer, recording) in [&mut early, &mut late] {
        all(viewer, recording);
        check_same(recording, &source);
        assert_eq!((recording.first_event(), recording.lost_events()), (0, 0));
    }
}

#[test]
fn a_slow_viewer_goes_on_from_the_newest_state_and_knows_what_it_missed() {
    let mut source = Source::new(HubLimits { history_bytes: u64::MAX, lag_bytes: 100_000 });
    let mut viewer = source.hub.viewer(Begin::Oldest);
    let mut recording = Recording::new();
    source.run(1000);
    all(&mut viewer, &mut recording);
    source.run(200_000);
    let sent = all(&mut viewer, &mut recording);
    check_same(&recording, &source);
    assert!(recording.lost_events() > 100_000, "{} lost", recording.lost_events());
    let total: usize = source.hub.everything().iter().map(|chunk| chunk.bytes.len()).sum();
    assert!(sent < total / 2, "{sent} of {total} bytes");
    // From here on it keeps up again.
    let lost = recording.lost_events();
    source.run(1000);
    all(&mut viewer, &mut recording);
    check_same(&recording, &source);
    assert_eq!(recording.lost_events(), lost);
}

#[test]
fn a_newcomer_may_take_its_time_over_the_history() {
    let mut source = Source::new(HubLimits { history_bytes: u64::MAX, lag_bytes: 100_000 });
    source.run(200_000);
    let mut viewer = source.hub.viewer(Begin::Oldest);
    let mut recording = Recording::new();
    for _ in 0..10 {
        source.run(1000);
        for chunk in viewer.take(10_000).chunks {
            recording.push(&chunk.bytes).expect("a recording");
        }
    }
    all(&mut viewer, &mut recording);
    check_same(&recording, &source);
    assert_eq!((recording.first_event(), recording.lost_events()), (0, 0));
}

#[test]
fn the_history_is_bounded_and_what_is_left_is_a_recording() {
    let limits = HubLimits { history_bytes: 300_000, lag_bytes: u64::MAX };
    let mut source = Source::new(limits);
    let mut sleeper = (source.hub.viewer(Begin::Oldest), Recording::new());
    source.run(1000);
    all(&mut sleeper.0, &mut sleeper.1);
    for _ in 0..50 {
        source.run(10_000);
    }
    let held = source.hub.everything();
    let definitions: usize =
        held.iter().filter(|chunk| chunk.kind == ChunkKind::Definitions).map(|chunk| chunk.bytes.len()).sum();
    let bytes: usize = held.iter().map(|chunk| chunk.bytes.len()).sum();
    // The chunks since the newest state but one may come on top.
    assert!(bytes - definitions < 2 * 300_000, "{bytes} bytes are held");

    let mut file = Recording::new();
    for chunk in &held {
        file.push(&chunk.bytes).expect("a recording");
    }
    check_same(&file, &source);
    assert!(file.first_event() > 0);
    let mut newcomer = (source.hub.viewer(Begin::Oldest), Recording::new());
    all(&mut newcomer.0, &mut newcomer.1);
    check_same(&newcomer.1, &source);
    assert_eq!(newcomer.1.first_event(), file.first_event());
    // What it slept through is no longer held.
    all(&mut sleeper.0, &mut sleeper.1);
    check_same(&sleeper.1, &source);
    assert!(sleeper.1.lost_events() > 0);
}
