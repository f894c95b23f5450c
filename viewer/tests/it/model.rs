//! The user's actions on a model.

use vramscope_draw::{Bitmap, Color, Theme, Typesetter};
use vramscope_trace::{DeviceId, DeviceState, IncidentKind};
use vramscope_viewer::link::Link;
use vramscope_viewer::model::{Model, Origin, PeakKind};
use vramscope_viewer::playback::{SPEEDS, Speed};
use vramscope_viewer::timeline::{self, Cursor, TimelineScene};

use crate::testing::samples::{Sample, bytes, open_sample, states};

fn allocated(model: &Model) -> u64 {
    model.device_state().counters().allocated
}

#[test]
fn file_opens_at_its_peak() {
    let model = open_sample(Sample::Training);
    let most = states(Sample::Training)
        .into_iter()
        .map(|state| state.device(DeviceId(0)).map_or(0, |device| device.counters().allocated));
    assert_eq!(Some(allocated(&model)), most.max());
    assert_eq!(model.state().event(), model.peak_event(PeakKind::Allocated));
    assert_eq!(model.source(), "drawn.vram");
}

#[test]
fn every_move_shows_the_state_at_its_event() {
    let mut model = open_sample(Sample::Training);
    let states = states(Sample::Training);
    let end = model.recording().end_event();
    let check = |model: &Model, event: u64| {
        assert_eq!(model.state().event(), event);
        assert_eq!(model.state().devices().collect::<Vec<_>>(), states[event as usize].devices().collect::<Vec<_>>());
    };
    model.seek(50).expect("a loaded moment");
    check(&model, 50);
    model.step(1).expect("a loaded moment");
    check(&model, 51);
    model.step(-100).expect("a loaded moment");
    check(&model, 0);
    model.step(i64::MAX).expect("a loaded moment");
    check(&model, end);
    model.seek(u64::MAX).expect("a loaded moment");
    check(&model, end);
    model.go_to_edge(false).expect("a loaded moment");
    check(&model, 0);
    model.seek_time(states[70].time_ns()).expect("a loaded moment");
    check(&model, 70);
    model.go_to_peak(PeakKind::Reserved).expect("a loaded moment");
    check(&model, end);
}

#[test]
fn playback_stops_at_the_end_and_restarts_from_the_start() {
    let mut model = open_sample(Sample::Training);
    model.seek(0).expect("a loaded moment");
    model.playback.set_speed(SPEEDS.iter().position(|speed| *speed == Speed::Time(1.0)).expect("a speed"));
    model.play_or_pause(0.0).expect("a readable recording");
    let mut clock_ms = 0.0;
    let mut before = 0;
    while model.tick(clock_ms).expect("a readable recording") {
        assert!(model.state().event() >= before, "playback never goes back");
        before = model.state().event();
        clock_ms += 0.5;
        assert!(clock_ms < 1000.0, "playback ends");
    }
    assert_eq!(model.state().event(), model.recording().end_event());
    model.play_or_pause(clock_ms).expect("a readable recording");
    assert_eq!(model.state().event(), 0);
    assert!(model.playback.is_playing());
}

#[test]
fn playback_of_the_whole_recording_takes_25_seconds() {
    let mut model = open_sample(Sample::Training);
    model.seek(0).expect("a loaded moment");
    model.play_or_pause(0.0).expect("a readable recording");
    let end = model.recording().end_event();
    let (mut clock_ms, mut longest_step, mut before) = (0.0, 0, 0);
    while model.tick(clock_ms).expect("a readable recording") {
        let event = model.state().event();
        longest_step = longest_step.max(event - before);
        (before, clock_ms) = (event, clock_ms + 16.0);
    }
    assert!((24_900.0..25_100.0).contains(&clock_ms), "{clock_ms} ms");
    assert_eq!((model.state().event(), longest_step), (end, 1), "no time passes without events");
}

#[test]
fn live_recording_is_followed_until_the_user_seeks() {
    let bytes = bytes(Sample::Training);
    let mut model = Model::default();
    model.reset("live", Origin::Live);
    // The cut is in the middle of a chunk: any split of the bytes is valid.
    let (first, rest) = bytes.split_at(bytes.len() / 2);
    model.push(first).expect("a valid recording");
    model.push(rest).expect("a valid recording");
    assert_eq!(model.state().event(), model.recording().end_event());
    model.seek(10).expect("a loaded moment");
    assert!(!model.is_following());
    model.push(&[]).expect("no bytes are valid");
    assert_eq!(model.state().event(), 10);
    model.follow().expect("a loaded moment");
    assert!(model.is_following());
    assert_eq!(model.state().event(), model.recording().end_event());
    model.disconnect();
    assert_eq!((model.origin(), model.is_following()), (Origin::Disconnected, false));
}

#[test]
fn link_restores_the_view() {
    let mut model = open_sample(Sample::Training);
    model.seek(123).expect("a loaded moment");
    model.zoom(0.25, model.time_ns());
    let address = model.device_state().blocks().next().map(|block| block.address);
    model.select(address);
    let link = Link::parse(&model.link().fragment());
    let mut other = open_sample(Sample::Training);
    other.go_to_link(&link).expect("a loaded moment");
    assert_eq!(other.state().event(), 123);
    assert_eq!(other.range(), model.range());
    assert_eq!(other.selection(), address);
}

#[test]
fn next_neighbor_visits_every_block_and_free_range() {
    let mut model = open_sample(Sample::Training);
    let mut walked = Vec::new();
    loop {
        let before = model.selection();
        model.select_neighbor(true, false);
        if model.selection() == before {
            break;
        }
        walked.extend(model.selection());
    }
    let device = model.device_state();
    let all: Vec<u64> =
        device.segments().flat_map(|segment| device.extents(segment)).map(|extent| extent.address).collect();
    assert_eq!(walked, all);
    model.select_neighbor(false, true);
    assert!(model.selected().is_some_and(|hit| hit.address == hit.segment.address));
}

#[test]
fn selection_keeps_its_address_over_time() {
    let mut model = open_sample(Sample::Trouble);
    model.seek(0).expect("a loaded moment");
    let address = 0x7f00_0000_0000;
    model.select(Some(address));
    assert_eq!(model.selected(), None, "the block is not allocated yet");
    model.go_to_edge(true).expect("a loaded moment");
    assert!(model.selected().is_some_and(|hit| hit.block.is_some_and(|block| block.address == address)));
}

#[test]
fn spans_and_incidents_are_found() {
    let model = open_sample(Sample::Training);
    let names: Vec<&str> =
        model.marks().spans().iter().map(|span| model.recording().definitions().string(span.name)).collect();
    assert_eq!(names[..4], ["step 0", "backward", "step 1", "backward"]);
    assert!(model.marks().spans().iter().all(|span| span.to_ns.is_some_and(|end| end > span.from_ns)));
    assert_eq!(model.marks().depth(), 2);

    let trouble = open_sample(Sample::Trouble);
    let kinds: Vec<IncidentKind> = trouble.marks().incidents().iter().map(|incident| incident.kind).collect();
    let oom = IncidentKind::OutOfMemory { requested: 48 << 20 };
    assert_eq!(kinds, [oom, IncidentKind::Gap { lost: 1234 }, oom]);
}

#[test]
fn gpu_is_empty_before_its_first_event() {
    let mut model = open_sample(Sample::TwoGpus);
    model.set_device(DeviceId(1)).expect("a readable recording");
    model.go_to_edge(true).expect("a loaded moment");
    assert_eq!(allocated(&model), 3 << 20);
    for event in [0, 1, model.recording().end_event() - 2] {
        model.seek(event).expect("a loaded moment");
        assert_eq!(model.device_state(), &DeviceState::default(), "at event {event}");
        assert_eq!(model.selected(), None);
    }
}

#[test]
fn link_into_a_live_recording_waits_for_its_moment() {
    let bytes = bytes(Sample::Training);
    let end = open_sample(Sample::Training).recording().end_event();
    let mut model = Model::default();
    model.reset("live", Origin::Live);
    let link = Link::parse("#event=100&color=category");
    model.go_to_link(&link).expect("nothing is loaded yet");
    assert!(model.is_following());
    assert_eq!(model.link(), link, "the page keeps its address until then");
    let (first, rest) = bytes.split_at(bytes.len() / 2);
    model.push(first).expect("a valid recording");
    model.push(rest).expect("a valid recording");
    assert_eq!((model.state().event(), model.is_following()), (100, false));
    model.go_to_link(&Link { event: Some(end + 1), ..Link::default() }).expect("the moment is pending");
    model.step(-1).expect("a loaded moment");
    assert_eq!(model.link().event, Some(99), "seeking cancels the pending link");
    model.go_to_link(&link).expect("a loaded moment");
    model.reset("other.vram", Origin::File);
    model.push(&bytes).expect("a valid recording");
    assert_eq!(model.state().event(), 0, "the link belonged to the other recording");
}

#[test]
fn link_without_a_parameter_leaves_it_unchanged() {
    let mut model = open_sample(Sample::Training);
    model.seek(50).expect("a loaded moment");
    model.select(Some(0x7f00_0000_0000));
    model.zoom(0.5, model.time_ns());
    let before = model.link();
    model.go_to_link(&Link::default()).expect("a loaded moment");
    assert_eq!(model.link(), before);
}

#[test]
fn resuming_at_the_end_goes_to_the_new_end() {
    let mut model = open_sample(Sample::Training);
    model.go_to_edge(true).expect("a loaded moment");
    assert_eq!(model.link_to_resume().event, None);
    model.step(-1).expect("a loaded moment");
    assert_eq!(model.link_to_resume(), model.link());
}

#[test]
fn times_near_the_maximum_can_be_drawn_and_played() {
    let mut model = open_sample(Sample::EndOfTime);
    assert_eq!(model.recording().end_ns(), u64::MAX);
    let (mut frame, mut typesetter) = (Bitmap::new(640, 200, Color::default()), Typesetter::new());
    let theme = Theme::new(true);
    let mut draw = |model: &Model| {
        let content = timeline::TimelineContent {
            recording: model.recording(),
            device: model.device(),
            marks: model.marks(),
            peaks: model.peaks(),
            bands: model.bands(),
            range: model.range(),
        };
        let scene = TimelineScene::new(&content, (640, 200), 1.0, &typesetter);
        timeline::draw(&scene, &theme, &mut frame, &mut typesetter);
        let cursor = Cursor::new(&scene, model.recording(), model.timed_moment(), &typesetter);
        timeline::draw_cursor(&cursor, &theme, &mut frame, &mut typesetter);
        let range = scene.axis.time_range();
        assert!((range.start..=range.end).contains(&scene.axis.moment_at(1e9).time_ns));
    };
    for event in [0, 1, 100, u64::MAX] {
        model.seek(event).expect("a loaded moment");
        for factor in [0.75, 1e-9, 1.5, 1e12] {
            model.zoom(factor, model.time_ns());
            model.pan(0.5);
            draw(&model);
        }
        model.fit();
        draw(&model);
        model.play_or_pause(0.0).expect("a readable recording");
        model.tick(100.0).expect("a readable recording");
        model.tick(400.0).expect("a readable recording");
        draw(&model);
        model.playback.pause();
    }
    model.seek_time(u64::MAX).expect("a loaded moment");
    assert_eq!(model.state().event(), model.recording().end_event());
}
