//! What is under the pointer: at random points of every picture, the page names what `trace` says
//! lies there.
//!
//! The positions follow from what the documentation says of the pictures; these tests compute them
//! on their own.

use fastrand::Rng;
use vramscope_insight::placement::recorded_settings;
use vramscope_insight::pools::device_usage;
use vramscope_tests::fixtures::Fixture;
use vramscope_tests::{Browser, Page, Program, Window};
use vramscope_trace::{Counters, DeviceState};

use super::open_recording::{OpenRecording, exact, hexadecimal};
use super::pointer::{Gesture, Shown, choose, is_share, is_size, picture_size, point, show, show_idle_time, whole};
use super::rows::{count_of, is_full, show_device};
use super::subject::Subject;
use super::{bands, flame};

/// Units left of, right of, above and below the rows of the device map.
const MAP_MARGINS: [i32; 4] = [62, 9, 37, 2];
/// Height of a row of the device map with the gap below it, in units.
const ROW: i32 = 15;
/// Events up to which the timeline's values are exact; with more in view, they are those of
/// slightly longer parts.
const MAX_EXACT_EVENTS: u64 = 16_384;

/// Parses the first and the last event number of a tooltip's title: `TIME · events 3 to 9`.
fn events_of(title: &str) -> (u64, u64) {
    let (_, events) = title.split_once(" · ").unwrap_or_else(|| panic!("{title:?} names no events"));
    match events.split_once(" to ") {
        Some((first, last)) => (whole(first), whole(last)),
        None => (whole(events), whole(events)),
    }
}

/// Checks the tooltip of the timeline, and where a click on it goes.
fn check_timeline(open: &OpenRecording<'_>, axis: &str, random: &mut Rng) {
    choose(open.page, "timeline", "axis", axis);
    let edges = open.timeline_edges(axis);
    let (size, end) = (picture_size(open.page, "timeline"), open.counters.len() as u64 - 1);
    // Below marks and flags, above the times and the overview.
    let points = size.plot_points(random, size.height / 2..size.height - size.px(45), open.points);
    let hovered = point(open.page, "timeline", Gesture::Hover, &points);
    for (&at, shown) in points.iter().zip(&hovered) {
        let context = format!("{}, by {axis}: {shown:?}", open.context("timeline", at));
        let (from, to) = (edges[size.column(at.0)], edges[size.column(at.0) + 1]);
        let events = if to > from + 1 { (from + 1, to) } else { (to, to) };
        assert_eq!(events_of(&shown.tooltip), events, "{context}");
        if end > MAX_EXACT_EVENTS {
            continue;
        }
        let all = &open.counters[from as usize..=to as usize];
        for (name, value) in [
            ("allocated", (|one| one.allocated) as fn(&Counters) -> u64),
            ("active", |one| one.active),
            ("reserved", |one| one.reserved),
        ] {
            let text = shown.tooltip_rows.iter().find(|row| row.0 == name).map_or("", |row| &row.1);
            let (low, high) = text.split_once(" to ").unwrap_or((text, text));
            let least = all.iter().map(value).min().unwrap_or(0);
            let most = all.iter().map(value).max().unwrap_or(0);
            assert!(is_size(low, least) && is_size(high, most), "{context}: {name} from {least} to {most}");
        }
    }
    let clicked = point(open.page, "timeline", Gesture::Click, &points[..points.len() / 2]);
    check_clicks(open, "timeline", &edges, &points, &clicked);
}

/// Checks that clicks on a picture over time went to a moment of the pixel columns.
fn check_clicks(open: &OpenRecording<'_>, picture: &str, edges: &[u64], points: &[(i32, i32)], clicked: &[Shown]) {
    let size = picture_size(open.page, picture);
    for (&at, shown) in points.iter().zip(clicked) {
        let column = size.column(at.0);
        let is_inside = (edges[column]..=edges[column + 1]).contains(&shown.event);
        assert!(is_inside, "{}: event {}", open.context(picture, at), shown.event);
    }
}

/// Checks where a click on the fragmentation chart goes.
fn check_fragmentation(open: &OpenRecording<'_>, random: &mut Rng) {
    show(open.page, "fragmentation");
    let size = picture_size(open.page, "fragmentation");
    let points = size.plot_points(random, size.px(22)..size.height - size.px(20), open.points);
    let clicked = point(open.page, "fragmentation", Gesture::Click, &points);
    let edges = open.chart_edges("fragmentation");
    check_clicks(open, "fragmentation", &edges, &points, &clicked);
    for (&at, shown) in points.iter().zip(&clicked) {
        let context = format!("{}: {shown:?}", open.context("fragmentation", at));
        // Between and beside the two charts, nothing is under the pointer.
        let Some(time) = shown.lines.first() else { continue };
        let (moment, column) = (whole(time), size.column(at.0));
        assert!((edges[column]..=edges[column + 1]).contains(&moment), "{context}");
        let state = open.subject.state(open.device, moment);
        let free = state.free_space();
        let value = |start| shown.line(start).unwrap_or_else(|| panic!("{context} has no {start:?}"));
        let share = value("fragmentation ").split(' ').next().unwrap_or_default();
        assert!(is_share(share, free.fragmentation()), "{context}: {}", free.fragmentation());
        let (bytes, blocks) = value("free ").split_once(" in ").unwrap_or_default();
        assert!(is_size(bytes, free.total), "{context}: {free:?}");
        assert_eq!(whole(blocks.split(' ').next().unwrap_or_default()), free.blocks, "{context}");
        assert!(is_size(value("largest free block "), free.largest), "{context}: {free:?}");
        let waste = state.counters().rounding_waste_bytes();
        assert!(is_size(value("rounding waste "), waste), "{context}: {waste}");
        let (releasable, stuck) = value("releasable ").split_once(", stuck ").unwrap_or_default();
        let usage = device_usage(&state, &recorded_settings(open.subject.recording.info()));
        assert!(is_size(releasable, usage.releasable_bytes), "{context}: {usage:?}");
        assert!(is_size(stuck, usage.stuck_bytes), "{context}: {usage:?}");
    }
    let described = clicked.iter().filter(|shown| !shown.lines.is_empty()).count();
    assert!(described > open.points / 2, "{}: {described} points have a text", open.subject.name);
}

/// Checks the details of what is under the pointer on the device map.
fn check_map(open: &OpenRecording<'_>, random: &mut Rng) {
    show(open.page, "device");
    let size = picture_size(open.page, "device");
    let [left, right, above, below] = MAP_MARGINS.map(|units| size.px(units));
    let (width, mut found) = (size.width - left - right, 0);
    let moments = open.counters.len() as u64;
    for _ in 0..4 {
        let moment = random.u64(moments / 8..moments);
        open.page.seek(moment);
        let state = open.subject.state(open.device, moment);
        let points =
            (0..open.points.div_ceil(4)).map(|_| (left + random.i32(0..width), random.i32(above..size.height - below)));
        let mut points: Vec<(i32, i32)> = points.collect();
        // Rows continue each other like lines of text.
        points.sort_by_key(|point| ((point.1 - above) / size.px(ROW), point.0));
        let hovered = point(open.page, "device", Gesture::Hover, &points);
        let (mut before, mut free_points, mut all_points) = (0, 0, 0);
        for (&at, shown) in points.iter().zip(&hovered) {
            let context = format!("{}, moment {moment}: {shown:?}", open.context("device", at));
            if shown.heading == "Device" {
                continue;
            }
            let [address, segment] = [0, 1].map(|section| hexadecimal(shown.value(section, "address")));
            check_block(&state, shown, address, segment, &context);
            assert!(segment >= before, "{context}: rows are in the order of addresses");
            before = segment;
            all_points += 1;
            free_points += usize::from(shown.heading.starts_with("Free "));
        }
        found += all_points;
        // Every byte has the same area: a share of the points is that share of the bytes.
        if all_points >= 30 {
            let reserved = state.counters().reserved as f64;
            let (drawn, free) = (free_points as f64 / all_points as f64, state.free_space().total as f64 / reserved);
            let deviation = (free * (1.0 - free) / all_points as f64).sqrt();
            let context = format!("{}, moment {moment}", open.subject.name);
            assert!(
                (drawn - free).abs() < 5.0 * deviation + 0.06,
                "{context}: {drawn} of the points, {free} of the bytes"
            );
        }
    }
    assert!(found > open.points / 4, "{}: {found} of {} points show memory", open.subject.name, open.points);
}

/// Checks the details of a block or free range at an address of a segment.
fn check_block(state: &DeviceState, shown: &Shown, address: u64, segment: u64, context: &str) {
    let of = state.segments().find(|one| one.address == segment);
    let of = of.unwrap_or_else(|| panic!("{context}: no segment"));
    let extent = state.extents(of).find(|extent| extent.address == address);
    let extent = extent.unwrap_or_else(|| panic!("{context}: neither block nor free range"));
    assert!(shown.value(0, "size").ends_with(&exact(extent.size)), "{context}: {} bytes", extent.size);
    assert!(shown.value(1, "size").ends_with(&exact(of.size)), "{context}: segment of {} bytes", of.size);
    let blocks: Vec<u64> =
        state.extents(of).filter(|extent| extent.block.is_some()).map(|extent| extent.size).collect();
    let free: Vec<u64> = state.extents(of).filter(|extent| extent.block.is_none()).map(|extent| extent.size).collect();
    assert_eq!(whole(shown.value(1, "blocks")), blocks.len() as u64, "{context}");
    let used = shown.value(1, "used").split(" · ").next().unwrap_or_default();
    assert!(is_size(used, blocks.iter().sum()), "{context}");
    let (total, largest) = shown.value(1, "free").split_once(", largest ").expect("two sizes");
    let most = free.iter().copied().max().unwrap_or(0);
    assert!(is_size(total, free.iter().sum()) && is_size(largest, most), "{context}");
    match extent.block {
        None if extent.size == of.size => assert_eq!(shown.heading, "Free segment", "{context}"),
        None => assert_eq!(shown.heading, "Free space", "{context}"),
        Some(block) => {
            let heading = if block.pending_free { "Block pending free" } else { "Allocated block" };
            assert_eq!(shown.heading, heading, "{context}");
            assert!(shown.value(0, "requested").ends_with(&exact(block.requested)), "{context}");
            assert_eq!(whole(shown.value(0, "stream")), block.stream.0, "{context}");
            match shown.value(0, "allocated by") {
                "not recorded" => assert_eq!(block.since_event, 0, "{context}"),
                event => assert_eq!(whole(event), block.since_event + 1, "{context}"),
            }
        }
    }
}

/// Checks random points of every picture of a recording.
fn check_pictures(page: Page<'_>, fixture: &Fixture, points: usize, seed: u64) {
    let subject = Subject::new(fixture);
    page.open_file(&fixture.file_name(), &fixture.bytes());
    let device = subject.devices()[0];
    show_device(page, device);
    let (counters, times_ns) = subject.all_moments(device);
    let open = OpenRecording { page, subject: &subject, device, counters, times_ns, points };
    let mut random = Rng::with_seed(seed);
    show(page, "device");
    show_idle_time(page);
    check_timeline(&open, "time", &mut random);
    check_timeline(&open, "events", &mut random);
    check_map(&open, &mut random);
    check_fragmentation(&open, &mut random);
    bands::check_stacked(&open, &mut random);
    bands::check_by_address(&open, &mut random);
    flame::check(&open, &mut random);
    choose(page, "timeline", "axis", "time");
    eprintln!("{}: {points} points of each picture name what lies there", subject.name);
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn points_of_every_picture_name_what_lies_there() {
    let view = Program::start(["view".as_ref(), Fixture::small("tiny_inference").path.as_os_str()]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, view.url());
    let points = count_of(100, 1_000);
    for (seed, name) in (0..).zip(["mlp_train", "streams"]) {
        check_pictures(page, &Fixture::small(name), points, seed);
    }
    if is_full() {
        for (seed, name) in (10..).zip(["gpt_varlen", "resnet50_train", "frag_a_gc"]) {
            let Some(fixture) = Fixture::large(name) else { return };
            check_pictures(page, &fixture, points, seed);
        }
    }
}
