//! What a person can do, done to a model.
#![cfg(not(target_arch = "wasm32"))]

mod drawn;

use drawn::{Drawing, bytes, recording, states};
use vramscope_trace::{DeviceId, DeviceState, IncidentKind, Recording, digest};
use vramscope_viewer::frame::{Color, Frame};
use vramscope_viewer::heatmap::{self, ColorBy};
use vramscope_viewer::link::Link;
use vramscope_viewer::model::{Model, Origin, PeakOf};
use vramscope_viewer::open::Opening;
use vramscope_viewer::text::Typesetter;
use vramscope_viewer::theme::Theme;
use vramscope_viewer::timeline::{self, Look};

fn allocated(model: &Model) -> u64 {
    model.device_state().counters().allocated
}

#[test]
fn a_file_opens_at_its_peak() {
    let model = recording(Drawing::Training);
    let most = states(Drawing::Training)
        .into_iter()
        .map(|state| state.device(DeviceId(0)).map_or(0, |device| device.counters().allocated));
    assert_eq!(Some(allocated(&model)), most.max());
    assert_eq!(model.state().event(), model.peak_event(PeakOf::Allocated));
    assert_eq!(model.source(), "drawn.vram");
}

#[test]
fn every_move_shows_the_state_of_its_event() {
    let mut model = recording(Drawing::Training);
    let states = states(Drawing::Training);
    let end = model.recording().end_event();
    let check = |model: &Model, event: u64| {
        assert_eq!(model.state().event(), event);
        assert_eq!(model.state().devices().collect::<Vec<_>>(), states[event as usize].devices().collect::<Vec<_>>());
    };
    model.seek(50).expect("a moment");
    check(&model, 50);
    model.step(1).expect("a moment");
    check(&model, 51);
    model.step(-100).expect("a moment");
    check(&model, 0);
    model.step(i64::MAX).expect("a moment");
    check(&model, end);
    model.seek(u64::MAX).expect("a moment");
    check(&model, end);
    model.go_to_edge(false).expect("a moment");
    check(&model, 0);
    model.seek_time(states[70].time_ns()).expect("a moment");
    check(&model, 70);
    model.go_to_peak(PeakOf::Reserved).expect("a moment");
    check(&model, end);
}

#[test]
fn it_plays_to_the_end_and_from_the_beginning_again() {
    let mut model = recording(Drawing::Training);
    model.seek(0).expect("a moment");
    model.play_or_pause(0.0).expect("it plays");
    let mut clock_ms = 0.0;
    let mut before = 0;
    while model.tick(clock_ms).expect("it plays") {
        assert!(model.state().event() >= before, "it never goes back");
        before = model.state().event();
        clock_ms += 0.5;
        assert!(clock_ms < 1000.0, "it ends");
    }
    assert_eq!(model.state().event(), model.recording().end_event());
    model.play_or_pause(clock_ms).expect("it plays");
    assert_eq!(model.state().event(), 0);
    assert!(model.playback.is_playing());
}

#[test]
fn live_it_follows_until_a_person_looks_elsewhere() {
    let bytes = bytes(Drawing::Training);
    let mut model = Model::default();
    model.begin("live", Origin::Live);
    // The first half may hold no whole chunk of events; what matters is that any cutting is taken.
    let (first, rest) = bytes.split_at(bytes.len() / 2);
    model.push(first).expect("a recording");
    model.push(rest).expect("a recording");
    assert_eq!(model.state().event(), model.recording().end_event());
    model.seek(10).expect("a moment");
    assert!(!model.is_following());
    model.push(&[]).expect("nothing more");
    assert_eq!(model.state().event(), 10);
    model.follow().expect("a moment");
    assert!(model.is_following());
    assert_eq!(model.state().event(), model.recording().end_event());
    model.disconnect();
    assert_eq!((model.origin(), model.is_following()), (Origin::Disconnected, false));
}

#[test]
fn a_link_leads_back() {
    let mut model = recording(Drawing::Training);
    model.seek(123).expect("a moment");
    model.zoom(0.25, model.time_ns());
    model.color_by = ColorBy::Category;
    let address = model.device_state().blocks().next().map(|block| block.address);
    model.select(address);
    let link = Link::parse(&model.link().fragment());
    let mut other = recording(Drawing::Training);
    other.go_to_link(&link).expect("a moment");
    assert_eq!(other.state().event(), 123);
    assert_eq!(other.range(), model.range());
    assert_eq!((other.selection(), other.color_by), (address, ColorBy::Category));
}

#[test]
fn the_selection_walks_over_everything_in_address_order() {
    let mut model = recording(Drawing::Training);
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
fn a_selection_stays_with_its_address() {
    let mut model = recording(Drawing::Trouble);
    model.seek(0).expect("a moment");
    let address = 0x7f00_0000_0000;
    model.select(Some(address));
    assert_eq!(model.selected(), None, "nothing is there yet");
    model.go_to_edge(true).expect("a moment");
    assert!(model.selected().is_some_and(|hit| hit.block.is_some_and(|block| block.address == address)));
}

#[test]
fn marks_are_found() {
    let model = recording(Drawing::Training);
    let names: Vec<&str> =
        model.marks().spans().iter().map(|span| model.recording().definitions().string(span.name)).collect();
    assert_eq!(names[..4], ["step 0", "backward", "step 1", "backward"]);
    assert!(model.marks().spans().iter().all(|span| span.to_ns.is_some_and(|end| end > span.from_ns)));
    assert_eq!(model.marks().depth(), 2);

    let trouble = recording(Drawing::Trouble);
    let kinds: Vec<IncidentKind> = trouble.marks().incidents().iter().map(|incident| incident.kind).collect();
    let oom = IncidentKind::OutOfMemory { requested: 48 << 20 };
    assert_eq!(kinds, [oom, IncidentKind::Gap { lost: 1234 }, oom]);
}

#[test]
fn before_its_first_event_a_gpu_holds_nothing() {
    let mut model = recording(Drawing::TwoGpus);
    model.set_device(DeviceId(1)).expect("a recording that can be read");
    model.go_to_edge(true).expect("a moment");
    assert_eq!(allocated(&model), 3 << 20);
    for event in [0, 1, model.recording().end_event() - 2] {
        model.seek(event).expect("a moment");
        assert_eq!(model.device_state(), &DeviceState::default(), "at event {event}");
        assert_eq!(model.selected(), None);
    }
}

#[test]
fn a_link_to_a_live_page_leads_there_once_there_is_a_there() {
    let bytes = bytes(Drawing::Training);
    let end = recording(Drawing::Training).recording().end_event();
    let mut model = Model::default();
    model.begin("live", Origin::Live);
    let link = Link::parse("#event=100&color=category");
    model.go_to_link(&link).expect("nothing is read yet");
    assert_eq!((model.color_by, model.is_following()), (ColorBy::Category, true));
    assert_eq!(model.link(), link, "the page still has the address that it was opened at");
    let (first, rest) = bytes.split_at(bytes.len() / 2);
    model.push(first).expect("a recording");
    model.push(rest).expect("a recording");
    assert_eq!((model.state().event(), model.is_following()), (100, false));
    model.go_to_link(&Link { event: Some(end + 1), ..Link::default() }).expect("it is waited for");
    model.step(-1).expect("a moment");
    assert_eq!(model.link().event, Some(99), "whoever looks elsewhere waits for it no longer");
    model.go_to_link(&link).expect("a moment");
    model.begin("other.vram", Origin::File);
    model.push(&bytes).expect("a recording");
    assert_eq!(model.state().event(), 0, "the link was to something else");
}

#[test]
fn what_a_link_does_not_say_stays() {
    let mut model = recording(Drawing::Training);
    model.seek(50).expect("a moment");
    model.color_by = ColorBy::Category;
    model.select(Some(0x7f00_0000_0000));
    model.zoom(0.5, model.time_ns());
    let before = model.link();
    model.go_to_link(&Link::default()).expect("a moment");
    assert_eq!(model.link(), before);
    model.go_to_link(&Link::parse("color=state")).expect("a moment");
    assert_eq!(model.link(), Link { color_by: None, ..before });
}

#[test]
fn whoever_was_at_the_end_is_there_again_when_it_goes_on() {
    let mut model = recording(Drawing::Training);
    model.go_to_edge(true).expect("a moment");
    assert_eq!(model.link_to_resume().event, None);
    model.step(-1).expect("a moment");
    assert_eq!(model.link_to_resume(), model.link());
}

#[test]
fn the_end_of_time_is_a_time_like_any_other() {
    let mut model = recording(Drawing::EndOfTime);
    assert_eq!(model.recording().end_ns(), u64::MAX);
    let (mut frame, mut type_) = (Frame::new(640, 200, Color::default()), Typesetter::new());
    let look = Look { theme: &Theme::new(true), scale: 1.0 };
    let mut draw = |model: &Model| {
        let content = timeline::Content {
            recording: model.recording(),
            device: model.device(),
            marks: model.marks(),
            peaks: model.peaks(),
            bands: model.bands(),
            range: model.range(),
        };
        let geometry = timeline::draw(&mut frame, &mut type_, look, &content);
        timeline::draw_cursor(&mut frame, &mut type_, look, &geometry, model.recording(), model.time_ns());
        assert!((geometry.from_ns..=geometry.to_ns).contains(&geometry.time_ns(1e9)));
    };
    for event in [0, 1, 100, u64::MAX] {
        model.seek(event).expect("a moment");
        for factor in [0.75, 1e-9, 1.5, 1e12] {
            model.zoom(factor, model.time_ns());
            model.pan(0.5);
            draw(&model);
        }
        model.fit();
        draw(&model);
        model.play_or_pause(0.0).expect("it plays");
        model.tick(100.0).expect("it plays");
        model.tick(400.0).expect("it plays");
        draw(&model);
        model.playback.pause();
    }
    model.seek_time(u64::MAX).expect("a moment");
    assert_eq!(model.state().event(), model.recording().end_event());
}

/// A zstd frame of one block that is not compressed.
fn packed(bytes: &[u8]) -> Vec<u8> {
    let size = u16::try_from(bytes.len() - 256).expect("a small recording");
    let block = (bytes.len() as u32) << 3 | 1;
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x60];
    frame.extend(size.to_le_bytes());
    frame.extend(&block.to_le_bytes()[..3]);
    frame.extend(bytes);
    frame
}

#[test]
fn what_is_not_a_recording_by_itself_is_saved_as_one() {
    let bytes = bytes(Drawing::Training);
    let mut opening = Opening::new("drawn.vram");
    opening.push(&bytes);
    assert!(opening.finish().expect("a recording").converted.is_empty(), "its own bytes will do");

    let mut opening = Opening::new("drawn.vram.zst");
    opening.push(&packed(&bytes));
    assert_eq!(opening.finish().expect("a recording").converted.concat(), bytes);

    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/tiny_inference.pickle.zst");
    let mut opening = Opening::new("tiny_inference.pickle.zst");
    opening.push(&std::fs::read(path).expect("a snapshot"));
    let opened = opening.finish().expect("a snapshot");
    let mut again = Recording::new();
    again.push(&opened.converted.concat()).expect("a recording");
    again.finish().expect("all of it");
    assert_eq!(again.end_event(), opened.recording.end_event());
    assert_eq!(digest(again.end_state()), digest(opened.recording.end_state()));
}

#[test]
fn the_legend_names_the_categories_that_there_are() {
    let names = |drawing| {
        let model = recording(drawing);
        let categories = heatmap::categories(model.recording().definitions());
        categories.into_iter().map(|category| category.name()).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(names(Drawing::Training), "unknown, parameter, gradient, optimizer state, activation");
    assert_eq!(names(Drawing::Crowd), "unknown");
}
