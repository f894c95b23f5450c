use std::ops::Range;
use std::sync::Arc;

use vramscope_trace::{ChunkKind, Recording, StringId, digest};

use super::testing::TestProgram;
use super::*;

/// Takes all available chunks of a viewer into `recording`, and returns their number of bytes.
fn take_all(viewer: &mut Viewer, recording: &mut Recording) -> usize {
    let mut taken = 0;
    loop {
        let chunks = viewer.take(10_000).chunks;
        if chunks.is_empty() {
            return taken;
        }
        for chunk in &chunks {
            recording.push(&chunk.bytes).expect("a viewer receives a valid recording");
            taken += chunk.bytes.len();
        }
    }
}

#[track_caller]
fn check_same(recording: &Recording, source: &TestProgram) {
    assert_eq!(recording.end_event(), source.encoder.state().event());
    assert_eq!(digest(recording.end_state()), digest(source.encoder.state()));
    recording.finish().expect("the recording has whole chunks");
    let names = (1..).take_while(|&id| !recording.definitions().string(StringId(id)).is_empty());
    assert_eq!(names.count(), source.names, "definitions are never skipped");
}

#[test]
fn all_viewers_reach_the_same_state_whenever_they_begin() {
    let mut source = TestProgram::new(HubLimits::default());
    let mut early = (source.hub.viewer(ViewFrom::Oldest), Recording::new());
    source.run(30_000);
    take_all(&mut early.0, &mut early.1);
    let mut late = (source.hub.viewer(ViewFrom::Oldest), Recording::new());
    source.run(30_000);
    for (viewer, recording) in [&mut early, &mut late] {
        take_all(viewer, recording);
        check_same(recording, &source);
        assert_eq!((recording.first_event(), recording.lost_events()), (0, 0));
    }
}

#[test]
fn slow_viewer_continues_at_the_newest_state_and_counts_missed_events() {
    let mut source = TestProgram::new(HubLimits { history_bytes: u64::MAX, lag_bytes: 100_000 });
    let mut viewer = source.hub.viewer(ViewFrom::Oldest);
    let mut recording = Recording::new();
    source.run(1000);
    take_all(&mut viewer, &mut recording);
    source.run(200_000);
    let sent = take_all(&mut viewer, &mut recording);
    check_same(&recording, &source);
    assert!(recording.lost_events() > 100_000, "{} lost", recording.lost_events());
    let total: usize = source.hub.everything().iter().map(|chunk| chunk.bytes.len()).sum();
    assert!(sent < total / 2, "{sent} of {total} bytes");
    // From here on the viewer keeps up.
    let lost = recording.lost_events();
    source.run(1000);
    take_all(&mut viewer, &mut recording);
    check_same(&recording, &source);
    assert_eq!(recording.lost_events(), lost);
}

#[test]
fn restarted_viewer_repeats_header_definitions_and_state() {
    let mut source = TestProgram::new(HubLimits::default());
    let mut viewer = source.hub.viewer(ViewFrom::Oldest);
    let mut first = Recording::new();
    source.run(1000);
    source.replace_state();
    source.run(1000);
    take_all(&mut viewer, &mut first);
    // Published before the restart, but taken only after it.
    source.run(1000);
    source.replace_state();
    source.run(1000);
    viewer.restart();
    let mut second = Recording::new();
    take_all(&mut viewer, &mut second);
    check_same(&second, &source);
    assert!(second.first_event() < first.end_event(), "it begins with a state that was taken before");
    assert_eq!(second.lost_events(), 0);
}

#[test]
fn viewer_restarted_before_its_first_chunk_begins_as_a_new_one() {
    let mut source = TestProgram::new(HubLimits::default());
    let mut viewer = source.hub.viewer(ViewFrom::Oldest);
    viewer.restart();
    source.run(1000);
    source.replace_state();
    source.run(1000);
    viewer.restart();
    let mut recording = Recording::new();
    take_all(&mut viewer, &mut recording);
    check_same(&recording, &source);
    assert_eq!((recording.first_event(), recording.lost_events()), (0, 0));
}

#[test]
fn viewer_restarted_before_the_first_state_repeats_everything() {
    let mut source = TestProgram::new(HubLimits::default());
    let mut viewer = source.hub.viewer(ViewFrom::Oldest);
    source.run(1000);
    take_all(&mut viewer, &mut Recording::new());
    // Published while the viewer takes nothing.
    for _ in 0..3 {
        source.run(1000);
        source.replace_state();
    }
    viewer.restart();
    let mut recording = Recording::new();
    take_all(&mut viewer, &mut recording);
    check_same(&recording, &source);
    assert_eq!((recording.first_event(), recording.lost_events()), (0, 0));
    assert_eq!(source.hub.missed_events(), 0);
}

#[test]
fn viewer_restarted_after_its_state_was_dropped_counts_the_skipped_events() {
    let mut source = TestProgram::new(HubLimits { history_bytes: 20_000, lag_bytes: u64::MAX });
    let mut viewer = source.hub.viewer(ViewFrom::Oldest);
    let mut recording = Recording::new();
    source.run(1000);
    take_all(&mut viewer, &mut recording);
    for _ in 0..20 {
        source.run(1000);
        source.replace_state();
    }
    viewer.restart();
    take_all(&mut viewer, &mut recording);
    check_same(&recording, &source);
    assert!(recording.lost_events() > 0);
    assert_eq!(source.hub.missed_events(), recording.lost_events());
}

#[test]
fn new_viewer_may_read_the_history_slowly() {
    let mut source = TestProgram::new(HubLimits { history_bytes: u64::MAX, lag_bytes: 100_000 });
    source.run(200_000);
    let mut viewer = source.hub.viewer(ViewFrom::Oldest);
    let mut recording = Recording::new();
    for _ in 0..10 {
        source.run(1000);
        for chunk in viewer.take(10_000).chunks {
            recording.push(&chunk.bytes).expect("a valid recording");
        }
    }
    take_all(&mut viewer, &mut recording);
    check_same(&recording, &source);
    assert_eq!((recording.first_event(), recording.lost_events()), (0, 0));
}

#[test]
fn history_is_bounded_and_remains_a_recording() {
    let limits = HubLimits { history_bytes: 300_000, lag_bytes: u64::MAX };
    let mut source = TestProgram::new(limits);
    let mut idle = (source.hub.viewer(ViewFrom::Oldest), Recording::new());
    source.run(1000);
    take_all(&mut idle.0, &mut idle.1);
    for _ in 0..50 {
        source.run(10_000);
    }
    let kept = source.hub.everything();
    let definitions: usize =
        kept.iter().filter(|chunk| chunk.kind == ChunkKind::Definitions).map(|chunk| chunk.bytes.len()).sum();
    let bytes: usize = kept.iter().map(|chunk| chunk.bytes.len()).sum();
    // The history may exceed the limit by the chunks between the last two full states.
    assert!(bytes - definitions < 2 * 300_000, "{bytes} bytes are kept");

    let mut file = Recording::new();
    for chunk in &kept {
        file.push(&chunk.bytes).expect("a valid recording");
    }
    check_same(&file, &source);
    assert!(file.first_event() > 0);
    let mut late = (source.hub.viewer(ViewFrom::Oldest), Recording::new());
    take_all(&mut late.0, &mut late.1);
    check_same(&late.1, &source);
    assert_eq!(late.1.first_event(), file.first_event());
    // The chunks that the idle viewer missed have been dropped.
    take_all(&mut idle.0, &mut idle.1);
    check_same(&idle.1, &source);
    assert!(idle.1.lost_events() > 0);
}

/// Returns everything a new viewer receives.
fn new_recording(hub: &Hub, begin: ViewFrom) -> Recording {
    let mut recording = Recording::new();
    take_all(&mut hub.viewer(begin), &mut recording);
    recording
}

#[test]
fn new_viewers_begin_where_requested() {
    let mut source = TestProgram::new(HubLimits::default());
    // A viewer created before the first chunk begins with that chunk, whatever it requested.
    let mut early = (source.hub.viewer(ViewFrom::Newest), Recording::new());
    assert!(early.0.take(1000).chunks.is_empty());
    for _ in 0..10 {
        source.run(10_000);
        source.replace_state();
    }
    source.run(100);
    let end = source.encoder.state().event();
    let check = |begin: ViewFrom, first_event: Range<u64>| {
        let recording = new_recording(&source.hub, begin);
        check_same(&recording, &source);
        assert!(first_event.contains(&recording.first_event()), "{begin:?} at {}", recording.first_event());
        assert_eq!((recording.lost_events(), recording.end_event()), (0, end));
    };
    check(ViewFrom::Newest, end - 300..end);
    check(ViewFrom::Oldest, 0..1);
    check(ViewFrom::Recent(u64::MAX), 0..1);
    check(ViewFrom::Recent(0), end - 300..end);
    check(ViewFrom::Recent(source.hub.held_bytes() / 2), end / 2 - 30_000..end / 2 + 30_000);
    take_all(&mut early.0, &mut early.1);
    check_same(&early.1, &source);
}

#[test]
fn resumed_viewer_continues_and_counts_missed_events() {
    let limits = HubLimits { history_bytes: 300_000, lag_bytes: 100_000 };
    let mut source = TestProgram::new(limits);
    source.run(1000);
    let mut recording = Recording::new();
    let mut viewer = source.hub.viewer(ViewFrom::Oldest);
    assert_eq!((viewer.next(), viewer.is_resumed()), (0, false));
    take_all(&mut viewer, &mut recording);
    let mut next = viewer.next();
    drop(viewer);
    let at = |next: u64| StreamPosition { recording: source.hub.identity(), next };
    for next in [0, next + 1, u64::MAX] {
        assert!(!source.hub.resume(at(next), ViewFrom::Newest).is_resumed(), "{next} is not a valid position");
    }
    let other_recording = StreamPosition { recording: RecordingIdentity::random(), next };
    assert!(!source.hub.resume(other_recording, ViewFrom::Newest).is_resumed(), "another recording");
    for (events, is_lost) in [(0, false), (100, false), (200_000, true), (100, false)] {
        let (lost, end_event) = (recording.lost_events(), recording.end_event());
        source.run(events);
        let position = StreamPosition { recording: source.hub.identity(), next };
        let mut viewer = source.hub.resume(position, ViewFrom::Newest);
        assert!(viewer.is_resumed());
        let mut missed = 0;
        loop {
            let taken = viewer.take(10_000);
            if taken.chunks.is_empty() {
                break;
            }
            missed += taken.missed_events;
            taken.chunks.iter().for_each(|chunk| recording.push(&chunk.bytes).expect("a valid recording"));
        }
        check_same(&recording, &source);
        assert_eq!((missed > 0, missed), (is_lost, recording.lost_events() - lost), "{events} after {end_event}");
        next = viewer.next();
    }
    assert_eq!(source.hub.missed_events(), recording.lost_events());
}

#[test]
fn a_hundred_idle_viewers_keep_no_chunks_alive() {
    let limits = HubLimits { history_bytes: 300_000, lag_bytes: 1 << 20 };
    let mut source = TestProgram::new(limits);
    source.run(1000);
    let mut viewers: Vec<_> = (0..100).map(|_| source.hub.viewer(ViewFrom::Oldest)).collect();
    viewers.iter_mut().for_each(|viewer| drop(viewer.take(1000)));
    let early: Vec<_> = source.hub.everything().iter().map(Arc::downgrade).collect();
    let definitions = source.hub.everything().iter().filter(|chunk| chunk.kind == ChunkKind::Definitions).count();
    for _ in 0..20 {
        source.run(10_000);
    }
    assert!(source.hub.held_bytes() < 3 * 300_000, "{} bytes are kept", source.hub.held_bytes());
    let kept = early.iter().filter(|chunk| chunk.upgrade().is_some()).count();
    assert_eq!(kept, 1 + definitions, "only header and definitions of the first chunks are kept");
    assert_eq!(source.hub.viewers(), 100);
}

#[test]
fn whole_history_is_read_from_the_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.vram");
    let mut source = TestProgram::with_file(HubLimits { history_bytes: 100_000, lag_bytes: 100_000 }, &path);
    for _ in 0..20 {
        source.run(10_000);
        source.cut(true);
    }
    let mut early = (source.hub.viewer(ViewFrom::Oldest), Recording::new());
    assert!(early.0.reads_file());
    for n in 0..20 {
        for chunk in early.0.take(10_000).chunks {
            early.1.push(&chunk.bytes).expect("a valid recording");
        }
        source.run(2000);
        source.cut(n % 3 == 0);
    }
    take_all(&mut early.0, &mut early.1);
    assert!(!early.0.reads_file());
    let late = new_recording(&source.hub, ViewFrom::Oldest);
    for recording in [&early.1, &late] {
        check_same(recording, &source);
        assert_eq!((recording.first_event(), recording.lost_events()), (0, 0));
    }
    assert!(
        new_recording(&source.hub, ViewFrom::Recent(u64::MAX)).first_event() > 0,
        "the history in memory is only a part"
    );
    // When the file is overwritten, viewers that read it stop, and new viewers get the history in
    // memory.
    let mut reading = source.hub.viewer(ViewFrom::Oldest);
    assert_eq!(reading.take(1).chunks.len(), 1);
    std::fs::write(&path, b"something else").expect("the file can be written");
    let check_history = |viewer: &mut Viewer| {
        let mut recording = Recording::new();
        take_all(viewer, &mut recording);
        check_same(&recording, &source);
        assert!(viewer.failure().is_none() && recording.first_event() > 0);
    };
    check_history(&mut source.hub.viewer(ViewFrom::Oldest));
    assert!(reading.take(10_000).chunks.is_empty() && reading.failure().is_some());
    let at = StreamPosition { recording: source.hub.identity(), next: reading.next() };
    let mut again = source.hub.resume(at, ViewFrom::Oldest);
    assert!(!again.is_resumed());
    #[cfg(feature = "server")]
    assert!(source.hub.file().is_none());
    check_history(&mut again);
}

#[cfg(feature = "server")]
#[test]
fn history_is_read_as_bytes_until_it_is_dropped() {
    let mut source = TestProgram::new(HubLimits { history_bytes: 100_000, lag_bytes: 100_000 });
    let mut check = |events: u64| {
        source.run(events);
        let bytes: Vec<u8> = source.hub.everything().iter().flat_map(|chunk| chunk.bytes.clone()).collect();
        let kept = source.hub.history_view(None).expect("the hub holds it");
        assert_eq!(kept.len(), bytes.len() as u64);
        for at in (0..kept.len()).step_by(977) {
            let (chunk, from) = kept.chunk_at(at).expect("the hub holds it");
            assert!(bytes[at as usize..].starts_with(&chunk.bytes[from..]), "at {at}");
        }
        source.run(10);
        let again = source.hub.history_view(Some(kept.version())).expect("the hub still holds it");
        assert_eq!(again.len(), kept.len());
        let (first, end) = kept.version();
        assert!(source.hub.history_view(Some((first, end + 1000))).is_none());
        assert!(source.hub.history_view(Some((first + 1, end))).is_none());
        source.run(200_000);
        assert!(source.hub.history_view(Some(kept.version())).is_none());
        assert!(kept.chunk_at(kept.len() - 1).is_none());
    };
    check(100);
    check(10_000);
}
