//! A live recording in the model: it grows, forgets, breaks and goes on.
#![cfg(not(target_arch = "wasm32"))]

use vramscope_trace::{
    Chunk, ChunkKind, DeviceId, DeviceInfo, Encoder, Event, EventKind, Info, Pool, PoolKind, Recording, Sink, SiteId,
    Stage, StreamId, StringId, digest,
};
use vramscope_viewer::details;
use vramscope_viewer::link::Link;
use vramscope_viewer::model::{Model, Origin, PeakOf};
use vramscope_viewer::timeline;

/// The chunks of a program that allocates ever more and frees it again, over and over, flushed every thousand events.
fn chunks(events: u64) -> Vec<Chunk> {
    let epoch_unix_ns = 1_700_000_000_000_000_000;
    let mut encoder = Encoder::new(&Info { source: "grown".to_owned(), epoch_unix_ns, ..Info::default() });
    encoder.define(&vramscope_trace::Definition::String("step".to_owned()));
    let (stream, pool, site) = (StreamId(0), Pool::default_of(PoolKind::Large), SiteId(0));
    for number in 0..events {
        let (round, at) = (number / 64, number % 64);
        let address = 0x7000_0000_0000 + (at.min(63 - at)) * (1 << 20);
        let size = (1 << 20) - (round * 512) % (1 << 19);
        let kind = match number {
            0 => EventKind::SegmentAllocated { address, size: 64 << 20, stream, pool, site },
            _ if number % 1000 == 0 => EventKind::Mark { stage: Stage::Instant, name: StringId(1), address: 0, site },
            _ if at < 32 => EventKind::BlockAllocated { address, size, requested: size, stream, pool, site },
            _ => EventKind::FreeCompleted { address, site },
        };
        encoder.event(&Event { device: DeviceId(0), time_ns: number * 1000, kind });
        if number % 1000 == 999 {
            encoder.flush();
        }
    }
    encoder.flush();
    encoder.take_output()
}

fn live() -> Model {
    let mut model = Model::default();
    model.begin("live", Origin::Live);
    model
}

fn check_like(model: &mut Model, chunks: &[Chunk]) {
    let mut whole = Recording::new();
    chunks.iter().for_each(|chunk| whole.push(&chunk.bytes).expect("a recording"));
    assert_eq!(model.recording().end_event(), whole.end_event());
    let first = model.recording().first_event();
    let mut replay = vramscope_trace::Replay::new();
    for event in (first..=whole.end_event()).step_by(997) {
        model.seek(event).expect("a moment");
        assert_eq!(model.state().event(), event);
        assert_eq!(digest(model.state()), digest(replay.seek(&whole, event).expect("a moment")), "at event {event}");
    }
}

#[test]
fn a_live_recording_forgets_and_goes_on() {
    let chunks = chunks(400_000);
    let limit = 60_000;
    let mut model = live();
    model.hold_at_most(limit);
    let mut most = 0;
    for chunk in &chunks {
        model.push(&chunk.bytes).expect("a recording");
        model.forget_on(4000);
        model.settle().expect("a moment");
        most = most.max(model.recording().held_bytes());
        assert!(model.is_following() && model.state().event() == model.recording().end_event());
    }
    assert!(model.recording().first_event() > 100_000, "{} is the first", model.recording().first_event());
    assert!(most < 2 * limit, "{most} bytes were held");
    assert_eq!((model.lost_events(), model.missed_events()), (0, 0));
    // A moment keeps its time whatever is forgotten before it, and the page says what it holds.
    let last_ns = model.recording().end_ns();
    assert_eq!(timeline::moment(model.recording(), last_ns), "399.999 ms");
    let about = details::of_device(DeviceId(0), model.recording(), model.device_state(), &[]);
    let held = about.sections.iter().flat_map(|section| &section.rows).find(|(name, _)| *name == "held");
    let (_, held) = held.expect("it is said that the beginning is not held");
    assert!(held.starts_with("the last ") && held.contains("since event "), "{held}");
    let first_ns = model.recording().start_ns();
    assert!(model.marks().spans().iter().all(|span| span.from_ns >= first_ns), "what was marked before is gone");
    assert!(!model.marks().spans().is_empty());
    assert!(
        model.peak_event(PeakOf::Allocated) >= model.recording().first_event(),
        "the peak is one that can be gone to"
    );
    check_like(&mut model, &chunks);
}

#[test]
fn what_cannot_be_forgotten_in_time_is_noticed() {
    let mut model = live();
    model.hold_at_most(30_000);
    let mut chunks = chunks(200_000).into_iter();
    let overfull = chunks.position(|chunk| {
        model.push(&chunk.bytes).expect("a recording");
        model.is_overfull()
    });
    assert!(overfull.is_some() && model.is_forgetting(), "nobody has let it forget");
    assert!(model.recording().held_bytes() < 60_000);
}

#[test]
fn a_moment_that_is_forgotten_is_left_for_the_oldest() {
    let chunks = chunks(200_000);
    let mut model = live();
    let (begin, rest) = chunks.split_at(chunks.len() / 4);
    begin.iter().for_each(|chunk| model.push(&chunk.bytes).expect("a recording"));
    model.seek(5).expect("a moment");
    model.hold_at_most(30_000);
    for chunk in rest {
        model.push(&chunk.bytes).expect("a recording");
        while model.is_forgetting() {
            model.forget_on(1000);
        }
    }
    model.settle().expect("a moment");
    assert!(model.recording().first_event() > 5);
    assert_eq!(model.state().event(), model.recording().first_event());
    assert!(model.take_notice().is_some_and(|notice| notice.contains("oldest")));
    assert_eq!(model.take_notice(), None, "it is said once");
}

/// What somebody gets who comes, or comes back, when `chunks` have been made: everything defined, and the newest full state.
fn newest(chunks: &[Chunk]) -> Vec<Chunk> {
    let state = chunks.iter().rposition(|chunk| chunk.kind == ChunkKind::State).expect("a full state");
    let lasting = chunks[..state].iter().filter(|chunk| matches!(chunk.kind, ChunkKind::Head | ChunkKind::Definitions));
    lasting.chain(&chunks[state..]).cloned().collect()
}

#[test]
fn what_was_missed_is_told_from_what_was_lost() {
    let chunks = chunks(100_000);
    let (begin, rest) = chunks.split_at(30);
    let mut model = live();
    begin.iter().for_each(|chunk| model.push(&chunk.bytes).expect("a recording"));
    let end = model.recording().end_event();
    // Too slow, and so moved on to a later state.
    let state = rest.iter().rposition(|chunk| chunk.kind == ChunkKind::State).expect("a full state");
    rest[state..].iter().for_each(|chunk| model.push(&chunk.bytes).expect("a recording"));
    let missed = rest[state].first_event - end;
    assert!(missed > 1000);
    assert_eq!((model.lost_events(), model.missed_events()), (missed, missed));
    // A connection that could not go on: the page begins again, and knows what it did not see.
    let (begin, _) = chunks.split_at(30);
    let mut model = live();
    begin.iter().for_each(|chunk| model.push(&chunk.bytes).expect("a recording"));
    model.disconnect();
    model.begin_again();
    assert_eq!(model.missed_events(), 0, "nobody knows yet");
    newest(&chunks).iter().for_each(|chunk| model.push(&chunk.bytes).expect("a recording"));
    let missed = model.recording().first_event() - end;
    assert_eq!((model.lost_events(), model.missed_events()), (missed, missed));
    assert_eq!(model.source(), "grown");
}

#[test]
fn a_link_to_what_is_not_held_is_kept_until_it_is() {
    let chunks = chunks(100_000);
    let link = Link { event: Some(70), ..Link::default() };
    let mut model = live();
    model.go_to_link(&link).expect("a moment");
    newest(&chunks).iter().for_each(|chunk| model.push(&chunk.bytes).expect("a recording"));
    assert!(model.state().event() == model.recording().first_event() && model.state().event() > 70);
    assert!(model.take_notice().is_some_and(|notice| notice.contains("link")));
    let again = model.link_to_resume();
    assert_eq!(again.event, Some(70));
    let mut whole = live();
    whole.go_to_link(&again).expect("a moment");
    chunks.iter().for_each(|chunk| whole.push(&chunk.bytes).expect("a recording"));
    assert_eq!((whole.state().event(), whole.take_notice()), (70, None));
    // Whoever has looked elsewhere does not want to go there any more.
    model.go_to_edge(true).expect("a moment");
    assert_eq!(model.link_to_resume().event, None);
}

#[test]
fn a_resumed_connection_keeps_everything() {
    let chunks = chunks(60_000);
    let (begin, rest) = chunks.split_at(chunks.len() / 2);
    for follows in [true, false] {
        let mut model = live();
        begin.iter().for_each(|chunk| model.take(&chunk.bytes).expect("a recording"));
        if !follows {
            model.seek(100).expect("a moment");
        }
        model.disconnect();
        assert_eq!(model.origin(), Origin::Disconnected);
        assert_eq!(model.state().event(), if follows { model.recording().end_event() } else { 100 });
        model.reconnect(follows);
        rest.iter().for_each(|chunk| model.push(&chunk.bytes).expect("a recording"));
        assert_eq!((model.origin(), model.is_following()), (Origin::Live, follows));
        assert_eq!(model.state().event(), if follows { 60_000 } else { 100 });
        check_like(&mut model, &chunks);
    }
}

#[test]
fn a_device_that_joins_brings_its_name() {
    let device = |device, name: &str, rank| DeviceInfo { device, name: name.to_owned(), rank, ..DeviceInfo::default() };
    let check = |devices: Vec<DeviceInfo>, expected: [&str; 2]| {
        let mut model = live();
        let mut encoder = Encoder::new(&Info::default());
        let kind = EventKind::MemorySample { used_by_context: 0, used_by_others: 0, free: 1 };
        encoder.event(&Event { device: DeviceId(0), time_ns: 1, kind });
        encoder.flush();
        encoder.head(&Info { devices, ..Info::default() });
        encoder.event(&Event { device: DeviceId(1), time_ns: 2, kind });
        encoder.flush();
        encoder.take_output().iter().for_each(|chunk| model.push(&chunk.bytes).expect("a recording"));
        let recording = model.recording();
        let names: Vec<_> = recording.devices().map(|id| details::name_of_device(recording, id)).collect();
        assert_eq!(names, expected);
        assert_eq!(recording.end_event(), 2);
    };
    check(vec![], ["GPU 0", "GPU 1"]);
    check(vec![device(1, "NVIDIA H200", None)], ["GPU 0", "GPU 1 · NVIDIA H200"]);
    let ranks = [device(0, "rank 0 · NVIDIA H200", Some(0)), device(1, "rank 1 · NVIDIA H200", Some(1))];
    check(ranks.to_vec(), ["rank 0 · NVIDIA H200", "rank 1 · NVIDIA H200"]);
}

#[test]
fn each_program_has_its_own_marks() {
    let about =
        |device: u16, process: &str| DeviceInfo { device, process: process.to_owned(), ..DeviceInfo::default() };
    let devices =
        vec![about(0, "train.py, process 7"), about(1, "train.py, process 7"), about(2, "train.py, process 8")];
    let mut encoder = Encoder::new(&Info { devices, ..Info::default() });
    encoder.define(&vramscope_trace::Definition::String("step".to_owned()));
    for (number, (device, stage)) in
        [(0, Stage::Begin), (2, Stage::Begin), (0, Stage::End), (2, Stage::End)].into_iter().enumerate()
    {
        let kind = EventKind::Mark { stage, name: StringId(1), address: 0, site: SiteId(0) };
        encoder.event(&Event { device: DeviceId(device), time_ns: number as u64 * 1000, kind });
    }
    encoder.flush();
    let mut model = live();
    encoder.take_output().iter().for_each(|chunk| model.push(&chunk.bytes).expect("a recording"));
    let check = |device: u16, times: &[u64]| {
        let spans = model.marks().spans_on(model.recording().info(), DeviceId(device));
        assert_eq!(spans.map(|span| span.from_ns).collect::<Vec<_>>(), times, "on device {device}");
    };
    check(0, &[0]);
    check(1, &[0]);
    check(2, &[1000]);
}
