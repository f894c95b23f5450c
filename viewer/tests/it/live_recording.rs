//! Live recordings in the model: growing, discarding, disconnecting and resuming.

use vramscope_trace::{
    AnnotationStage, Chunk, ChunkKind, DeviceId, DeviceInfo, Encoder, Event, EventKind, Recording, RecordingInfo, Sink,
    SiteId, StringId, digest,
};
use vramscope_viewer::details;
use vramscope_viewer::link::Link;
use vramscope_viewer::model::{Model, Origin, PeakKind};
use vramscope_viewer::page_texts::{LiveStatus, PageTexts};
use vramscope_viewer::timeline;

use crate::testing::chunks;

fn live() -> Model {
    let mut model = Model::default();
    model.reset("live", Origin::Live);
    model
}

fn check_like(model: &mut Model, chunks: &[Chunk]) {
    let mut whole = Recording::new();
    chunks.iter().for_each(|chunk| whole.push(&chunk.bytes).expect("a valid recording"));
    assert_eq!(model.recording().end_event(), whole.end_event());
    let first = model.recording().first_event();
    let mut replay = vramscope_trace::Replay::new();
    for event in (first..=whole.end_event()).step_by(997) {
        model.seek(event).expect("a loaded moment");
        assert_eq!(model.state().event(), event);
        assert_eq!(
            digest(model.state()),
            digest(replay.seek(&whole, event).expect("a loaded moment")),
            "at event {event}"
        );
    }
}

#[test]
fn live_recording_discards_its_oldest_part() {
    let chunks = chunks(400_000);
    let limit = 60_000;
    let mut model = live();
    model.set_memory_limit(limit);
    let mut most = 0;
    for chunk in &chunks {
        model.push(&chunk.bytes).expect("a valid recording");
        model.continue_discarding(4000);
        model.apply_received().expect("a loaded moment");
        most = most.max(model.recording().memory_bytes());
        assert!(model.is_following() && model.state().event() == model.recording().end_event());
    }
    assert!(model.recording().first_event() > 100_000, "{} is the first", model.recording().first_event());
    assert!(most < 2 * limit, "{most} bytes were held");
    assert_eq!((model.lost_events(), model.missed_events()), (0, 0));
    // Times do not depend on the discarded part, and the details say what is left.
    let last_ns = model.recording().end_ns();
    assert_eq!(timeline::moment_text(model.recording(), last_ns), "399.999 ms");
    let about = details::of_device(DeviceId(0), model.recording(), model.device_state(), model.free_memory());
    let length = about.sections.iter().flat_map(|section| &section.rows).find(|(name, _)| *name == "length");
    let (_, length) = length.expect("the details say which part is left");
    assert!(length.contains(", from event ") && length.ends_with(" on"), "{length}");
    let first_ns = model.recording().start_ns();
    assert!(model.marks().spans().iter().all(|span| span.from_ns >= first_ns), "earlier spans are discarded");
    assert!(!model.marks().spans().is_empty());
    assert!(
        model.peak_event(PeakKind::Allocated) >= model.recording().first_event(),
        "the peak is in the part that is left"
    );
    check_like(&mut model, &chunks);
}

#[test]
fn exceeding_the_memory_limit_is_reported() {
    let mut model = live();
    model.set_memory_limit(30_000);
    let mut chunks = chunks(200_000).into_iter();
    let overfull = chunks.position(|chunk| {
        model.push(&chunk.bytes).expect("a valid recording");
        model.exceeds_memory_limit()
    });
    assert!(overfull.is_some() && model.is_discarding(), "discarding has begun and not continued");
    assert!(model.recording().memory_bytes() < 60_000);
}

#[test]
fn discarded_moment_is_replaced_by_the_oldest() {
    let chunks = chunks(200_000);
    let mut model = live();
    let (begin, rest) = chunks.split_at(chunks.len() / 4);
    begin.iter().for_each(|chunk| model.push(&chunk.bytes).expect("a valid recording"));
    model.seek(5).expect("a loaded moment");
    model.set_memory_limit(30_000);
    for chunk in rest {
        model.push(&chunk.bytes).expect("a valid recording");
        while model.is_discarding() {
            model.continue_discarding(1000);
        }
    }
    model.apply_received().expect("a loaded moment");
    assert!(model.recording().first_event() > 5);
    assert_eq!(model.state().event(), model.recording().first_event());
    assert!(model.take_notice().is_some_and(|notice| notice.contains("oldest")));
    assert_eq!(model.take_notice(), None, "a notice is shown once");
}

/// Returns what the server sends a new viewer after `chunks`: all definitions, and everything from
/// the newest full state.
fn newest(chunks: &[Chunk]) -> Vec<Chunk> {
    let state =
        chunks.iter().rposition(|chunk| chunk.kind == ChunkKind::State).expect("the chunks contain a full state");
    let lasting =
        chunks[..state].iter().filter(|chunk| matches!(chunk.kind, ChunkKind::Header | ChunkKind::Definitions));
    lasting.chain(&chunks[state..]).cloned().collect()
}

#[test]
fn missed_events_are_counted_apart_from_lost_events() {
    let chunks = chunks(100_000);
    let (begin, rest) = chunks.split_at(30);
    let mut model = live();
    begin.iter().for_each(|chunk| model.push(&chunk.bytes).expect("a valid recording"));
    let end = model.recording().end_event();
    // A slow page skips to a later full state.
    let state = rest.iter().rposition(|chunk| chunk.kind == ChunkKind::State).expect("the chunks contain a full state");
    rest[state..].iter().for_each(|chunk| model.push(&chunk.bytes).expect("a valid recording"));
    let missed = rest[state].first_event - end;
    assert!(missed > 1000);
    assert_eq!((model.lost_events(), model.missed_events()), (missed, missed));
    // A connection that cannot resume: the page restarts the stream and counts what it missed.
    let (begin, _) = chunks.split_at(30);
    let mut model = live();
    begin.iter().for_each(|chunk| model.push(&chunk.bytes).expect("a valid recording"));
    model.disconnect();
    model.restart_live();
    assert_eq!(model.missed_events(), 0, "the new stream has not started");
    newest(&chunks).iter().for_each(|chunk| model.push(&chunk.bytes).expect("a valid recording"));
    let missed = model.recording().first_event() - end;
    assert_eq!((model.lost_events(), model.missed_events()), (missed, missed));
    assert_eq!(model.source(), "grown");
}

#[test]
fn link_before_the_held_part_is_kept_for_loading_all() {
    let chunks = chunks(100_000);
    let link = Link { event: Some(70), ..Link::default() };
    let mut model = live();
    model.go_to_link(&link).expect("a loaded moment");
    newest(&chunks).iter().for_each(|chunk| model.push(&chunk.bytes).expect("a valid recording"));
    assert!(model.state().event() == model.recording().first_event() && model.state().event() > 70);
    assert!(model.take_notice().is_some_and(|notice| notice.contains("link")));
    let again = model.link_to_resume();
    assert_eq!(again.event, Some(70));
    let mut whole = live();
    whole.go_to_link(&again).expect("a loaded moment");
    chunks.iter().for_each(|chunk| whole.push(&chunk.bytes).expect("a valid recording"));
    assert_eq!((whole.state().event(), whole.take_notice()), (70, None));
    // Seeking cancels the link.
    model.go_to_edge(true).expect("a loaded moment");
    assert_eq!(model.link_to_resume().event, None);
}

#[test]
fn resumed_connection_keeps_all_events() {
    let chunks = chunks(60_000);
    let (begin, rest) = chunks.split_at(chunks.len() / 2);
    for follows in [true, false] {
        let mut model = live();
        begin.iter().for_each(|chunk| model.receive(&chunk.bytes).expect("a valid recording"));
        if !follows {
            model.seek(100).expect("a loaded moment");
        }
        model.disconnect();
        assert_eq!(model.origin(), Origin::Disconnected);
        assert_eq!(model.state().event(), if follows { model.recording().end_event() } else { 100 });
        model.reconnect(follows);
        rest.iter().for_each(|chunk| model.push(&chunk.bytes).expect("a valid recording"));
        assert_eq!((model.origin(), model.is_following()), (Origin::Live, follows));
        assert_eq!(model.state().event(), if follows { 60_000 } else { 100 });
        check_like(&mut model, &chunks);
    }
}

#[test]
fn free_bytes_of_the_last_step_are_shown_while_the_newest_event_is_followed() {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    let kind = EventKind::MemorySample { used_by_context: 0, used_by_others: 0, free: 1 };
    (1..=2).for_each(|time_ns| encoder.event(&Event { device: DeviceId(0), time_ns, kind }));
    encoder.flush();
    let mut model = live();
    encoder.take_output().iter().for_each(|chunk| model.push(&chunk.bytes).expect("a valid recording"));
    let shown = |model: &mut Model| {
        let mut texts = PageTexts::default();
        texts.update(model, None, LiveStatus::default(), Some([400 << 20, 40 << 20, 100 << 20]));
        [texts.counters.stuck, texts.counters.releasable]
    };
    assert!(model.is_following());
    assert_eq!(shown(&mut model), ["40 MiB (10.0%)", "100 MiB (25.0%)"]);
    model.seek(1).expect("the moment is known");
    assert_eq!(shown(&mut model), ["0 B (0.0%)", "0 B (0.0%)"]);
}

#[test]
fn pinned_host_memory_is_named_as_such() {
    let host = DeviceInfo { device: DeviceId::HOST.0, name: "host (pinned)".to_owned(), ..DeviceInfo::default() };
    let mut encoder = Encoder::new(&RecordingInfo { devices: vec![host], ..RecordingInfo::default() });
    let kind = EventKind::MemorySample { used_by_context: 0, used_by_others: 0, free: 1 };
    for device in [DeviceId(0), DeviceId::HOST] {
        encoder.event(&Event { device, time_ns: 1, kind });
    }
    encoder.flush();
    let mut model = live();
    encoder.take_output().iter().for_each(|chunk| model.push(&chunk.bytes).expect("a valid recording"));
    let mut texts = PageTexts::default();
    texts.update(&mut model, None, LiveStatus::default(), None);
    let names: Vec<&str> = texts.devices.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names, ["device 0", "pinned host memory"]);
    assert!(texts.moment_event.starts_with("pinned host memory: memory sample"), "{}", texts.moment_event);
}

#[test]
fn joining_device_adds_its_name() {
    let device = |device, name: &str, rank| DeviceInfo { device, name: name.to_owned(), rank, ..DeviceInfo::default() };
    let check = |devices: Vec<DeviceInfo>, expected: [&str; 2]| {
        let mut model = live();
        let mut encoder = Encoder::new(&RecordingInfo::default());
        let kind = EventKind::MemorySample { used_by_context: 0, used_by_others: 0, free: 1 };
        encoder.event(&Event { device: DeviceId(0), time_ns: 1, kind });
        encoder.flush();
        encoder.update_info(&RecordingInfo { devices, ..RecordingInfo::default() });
        encoder.event(&Event { device: DeviceId(1), time_ns: 2, kind });
        encoder.flush();
        encoder.take_output().iter().for_each(|chunk| model.push(&chunk.bytes).expect("a valid recording"));
        let recording = model.recording();
        let names: Vec<_> = recording.devices().map(|id| recording.info().device_label(id)).collect();
        assert_eq!(names, expected);
        assert_eq!(recording.end_event(), 2);
    };
    check(vec![], ["device 0", "device 1"]);
    check(vec![device(1, "NVIDIA H200", None)], ["device 0", "device 1: NVIDIA H200"]);
    let ranks = [device(0, "rank 0 · NVIDIA H200", Some(0)), device(1, "rank 1 · NVIDIA H200", Some(1))];
    check(ranks.to_vec(), ["rank 0 · NVIDIA H200", "rank 1 · NVIDIA H200"]);
}

#[test]
fn spans_belong_to_their_process() {
    let about =
        |device: u16, process: &str| DeviceInfo { device, process: process.to_owned(), ..DeviceInfo::default() };
    let devices =
        vec![about(0, "train.py, process 7"), about(1, "train.py, process 7"), about(2, "train.py, process 8")];
    let mut encoder = Encoder::new(&RecordingInfo { devices, ..RecordingInfo::default() });
    encoder.define(&vramscope_trace::Definition::String("step".to_owned()));
    for (number, (device, stage)) in
        [(0, AnnotationStage::Begin), (2, AnnotationStage::Begin), (0, AnnotationStage::End), (2, AnnotationStage::End)]
            .into_iter()
            .enumerate()
    {
        let kind = EventKind::Mark { stage, name: StringId(1), address: 0, site: SiteId(0) };
        encoder.event(&Event { device: DeviceId(device), time_ns: number as u64 * 1000, kind });
    }
    encoder.flush();
    let mut model = live();
    encoder.take_output().iter().for_each(|chunk| model.push(&chunk.bytes).expect("a valid recording"));
    let check = |device: u16, times: &[u64]| {
        let spans = model.marks().spans_on(model.recording().info(), DeviceId(device));
        assert_eq!(spans.map(|span| span.from_ns).collect::<Vec<_>>(), times, "on device {device}");
    };
    check(0, &[0]);
    check(1, &[0]);
    check(2, &[1000]);
}
