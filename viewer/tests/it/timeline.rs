//! The timeline as a session shows it: axes, stacked areas, the selected range, and pointers.

use vramscope_draw::{Bitmap, Color, Theme};
use vramscope_trace::{
    AnnotationStage, Definition, DeviceId, Encoder, Event, EventKind, Recording, RecordingInfo, Replay, Sink, SiteId,
    StringId,
};
use vramscope_viewer::app::{PageFacts, Session, SessionReport};
use vramscope_viewer::link::Link;
use vramscope_viewer::model::Origin;
use vramscope_viewer::protocol::{Action, FrameRequest, Pointer, PointerKind, Screen, Surface};
use vramscope_viewer::timeline::{AxisKind, Scale, TimedMoment};
use vramscope_viewer::ui::Node;
use vramscope_viewer::view::Topic;
use vramscope_viewer::views::ViewId;

use crate::testing::golden_file::check;
use crate::testing::samples::{Sample, bytes};
use crate::testing::{command, open, open_bytes, view_pictures};

/// Size of the timeline's picture.
pub(crate) const SIZE: (u32, u32) = (900, 220);

/// A session with its page: the texts that the page has.
pub(crate) struct Page {
    pub(crate) session: Session,
    pub(crate) screen: Screen,
    pub(crate) tooltip: String,
    pub(crate) bar: String,
}

impl Page {
    pub(crate) fn new(session: Session, is_dark: bool) -> Self {
        let screen = Screen { sizes: [SIZE, (300, 200), (0, 0)], scale: 1.0, is_dark };
        let mut page = Self { session, screen, tooltip: String::new(), bar: String::new() };
        page.act(&[]);
        page
    }

    /// Applies actions and draws frames until nothing changes.
    pub(crate) fn act(&mut self, actions: &[Action]) {
        let screen = Some(self.screen.clone());
        let mut request = FrameRequest { screen, actions: actions.to_vec(), ..FrameRequest::default() };
        for _ in 0..1000 {
            let mut report = SessionReport::default();
            let frame = self.session.frame(&request, &PageFacts::default(), &mut report);
            assert_eq!(report.messages, Vec::<String>::new());
            if let Some(tooltip) = frame.tooltip {
                self.tooltip = text(&tooltip.content);
            }
            if let Some(bar) = frame.timeline_bar {
                self.bar = text(&bar);
            }
            request = FrameRequest::default();
            let works = self.session.work(100_000).expect("a readable recording");
            if !works && !self.session.model.has_changed() {
                return;
            }
        }
        panic!("the page changes all the time");
    }

    pub(crate) fn run(&mut self, command: &str) {
        self.act(&[crate::testing::command(command)]);
    }

    pub(crate) fn pointer(&mut self, kind: PointerKind, x: f64, y: f64) {
        self.act(&[pointer(kind, x, y)]);
    }

    /// Presses at one pixel, moves to another, and releases.
    fn drag(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.pointer(PointerKind::Down, from.0, from.1);
        self.pointer(PointerKind::Move, f64::midpoint(from.0, to.0), to.1);
        self.pointer(PointerKind::Move, to.0, to.1);
        self.pointer(PointerKind::Up, to.0, to.1);
        self.pointer(PointerKind::Leave, to.0, to.1);
    }

    pub(crate) fn picture(&self) -> Bitmap {
        let mut frame = Bitmap::new(SIZE.0, SIZE.1, Color::default());
        let bytes = self.session.pixels(Surface::Timeline);
        frame.for_each_row(frame.bounds(), |y, pixels| {
            let start = y as usize * SIZE.0 as usize * 4;
            for (pixel, bytes) in pixels.iter_mut().zip(bytes[start..].chunks_exact(4)) {
                pixel.copy_from_slice(bytes);
            }
        });
        frame
    }

    pub(crate) fn event(&self) -> u64 {
        self.session.model.state().event()
    }
}

pub(crate) fn pointer(kind: PointerKind, x: f64, y: f64) -> Action {
    let surface = Surface::Timeline;
    Action::Pointer(Pointer { surface, kind, x, y, shift: false, ctrl: false, alt: false, is_touch: false })
}

/// Returns the text of nodes.
fn text(nodes: &[Node]) -> String {
    let texts = nodes.iter().map(|node| match node {
        Node::Text(text) => text.clone(),
        Node::Element(element) => element.text_content(),
    });
    texts.collect::<Vec<_>>().join(" | ").replace('\u{a0}', " ")
}

/// Returns the allocated, active and reserved bytes after every event.
fn counters(recording: &Recording, device: DeviceId) -> Vec<[u64; 3]> {
    let mut replay = Replay::new();
    let mut at = |event| {
        let counters = replay.seek(recording, event).expect("a loaded moment").device(device).map(|one| one.counters());
        counters.map_or([0; 3], |one| [one.allocated, one.active, one.reserved])
    };
    (recording.first_event()..=recording.end_event()).map(&mut at).collect()
}

#[test]
fn columns_of_every_axis_are_exact() {
    for (name, axes) in [("drawn.vram", [AxisKind::Time, AxisKind::Events, AxisKind::Steps])] {
        let mut page = Page::new(open_bytes(name, &bytes(Sample::Training)), true);
        let all = counters(page.session.model.recording(), DeviceId(0));
        for axis in axes {
            page.run(&format!("axis {}", axis.name()));
            assert_eq!(page.session.model.scale().kind(), axis);
            for command in ["fit-all", "zoom-in", "zoom-in", "pan-left"] {
                page.run(command);
                let timeline = page.session.timeline().expect("a timeline");
                let edges = timeline.edges();
                assert_eq!(edges.len(), timeline.columns().len() + 1);
                for (pair, column) in edges.windows(2).zip(timeline.columns()) {
                    let shown = &all[pair[0] as usize..=pair[1] as usize];
                    let most = |index: usize| shown.iter().map(|one| one[index]).max().unwrap_or(0);
                    let found = [column.max.allocated, column.max.active, column.max.reserved];
                    assert_eq!(found, [most(0), most(1), most(2)], "{axis:?} {command} {pair:?}");
                }
            }
        }
    }
}

#[test]
fn edges_follow_the_axis() {
    let mut page = Page::new(open("mlp_train.pickle.zst"), true);
    let (first, end) = (page.session.model.recording().first_event(), page.session.model.recording().end_event());
    for axis in ["events", "time", "steps"] {
        page.run(&format!("axis {axis}"));
        let timeline = page.session.timeline().expect("a timeline");
        let edges = timeline.edges();
        assert!(edges.is_sorted() && timeline.axis.times().is_sorted());
        assert_eq!((edges.first(), edges.last()), (Some(&first), Some(&end)), "on an axis of {axis}");
        // A moment is in the column whose edges enclose it.
        for event in (first..=end).step_by(97) {
            let time_ns = page.session.model.recording().start_ns();
            let at = TimedMoment { event, time_ns };
            let Some(x) = timeline.axis.column(at).filter(|_| *timeline.axis.scale() != Scale::Time) else { continue };
            let column = timeline.axis.column_at(f64::from(x));
            assert!((edges[column]..=edges[column + 1]).contains(&event), "event {event} at column {column}");
        }
    }
}

#[test]
fn zoomed_part_stays_when_the_axis_changes() {
    let mut page = Page::new(open("mlp_train.pickle.zst"), true);
    page.run("seek 600");
    for _ in 0..4 {
        page.run("zoom-in");
    }
    let ends = |page: &Page| {
        let edges = page.session.timeline().expect("a timeline").edges().to_vec();
        (edges[0], edges[edges.len() - 1])
    };
    let before = ends(&page);
    page.run("axis events");
    let (from, to) = ends(&page);
    assert!(from.abs_diff(before.0) <= 1 && to.abs_diff(before.1) <= 1, "{before:?} became {from} to {to}");
    // A link restores axis and part.
    let link = Link::parse(&page.session.link().fragment());
    let mut other = Page::new(open("mlp_train.pickle.zst"), true);
    other.session.model.go_to_link(&link).expect("a loaded moment");
    other.act(&[]);
    assert_eq!(other.session.model.scale(), &Scale::Events);
    assert_eq!(ends(&other), (from, to));
    assert_eq!(other.session.link(), link);
}

#[test]
fn dragging_selects_a_range_and_a_click_goes_to_a_moment() {
    let mut page = Page::new(open_bytes("drawn.vram", &bytes(Sample::Training)), true);
    page.run("axis events");
    let before = page.event();
    page.drag((200.0, 120.0), (500.0, 130.0));
    let timeline = page.session.timeline().expect("a timeline");
    let (from, to) = (timeline.axis.moment_at(200.0).event, timeline.axis.moment_at(500.0).event);
    assert_eq!(page.session.model.selected_range(), Some((from, to)));
    assert_eq!(page.event(), before, "selecting does not move");
    let all = counters(page.session.model.recording(), DeviceId(0));
    let (start, end) = (all[from as usize][0], all[to as usize][0]);
    let (sign, difference) = if end >= start { ("+", end - start) } else { ("−", start - end) };
    let expected = format!("{} events · allocated {sign}{}", to - from, vramscope_trace::ByteSize(difference));
    assert!(page.bar.contains(&expected), "{:?} has no {expected:?}", page.bar);
    // A click beside the cursor.
    page.pointer(PointerKind::Down, 300.0, 120.0);
    page.pointer(PointerKind::Up, 301.0, 120.0);
    assert_eq!(page.event(), page.session.timeline().expect("a timeline").axis.moment_at(301.0).event);
    assert_eq!(page.session.model.selected_range(), Some((from, to)));
    page.run("fit");
    let shown = page.session.model.shown_positions();
    assert_eq!((shown.start, shown.end), (from, to));
    page.run("fit");
    assert!(!page.session.model.is_zoomed());
    page.run("deselect");
    assert_eq!(page.session.model.selected_range(), None);
    assert!(!page.bar.contains("selected"), "{}", page.bar);
    // Keys: the range begins and ends at the moment.
    for (event, command) in [(100, "range-start"), (180, "range-end")] {
        page.run(&format!("seek {event}"));
        page.run(command);
    }
    assert_eq!(page.session.model.selected_range(), Some((100, 180)));
    assert_eq!(Link::parse(&page.session.link().fragment()).selected, Some((100, 180)));
}

#[test]
fn axis_and_cursor_scrub_and_shift_pans() {
    let mut page = Page::new(open_bytes("drawn.vram", &bytes(Sample::Training)), true);
    let below = 212.0;
    page.drag((200.0, below), (450.0, below));
    let at = page.event();
    let time_ns = page.session.timeline().expect("a timeline").axis.moment_at(450.0).time_ns;
    assert_eq!(at, page.session.model.recording().event_at_time(time_ns));
    assert_eq!(page.session.model.selected_range(), None);
    // The cursor's line is a handle.
    page.drag((450.0, 120.0), (600.0, 120.0));
    assert!(page.event() > at);
    page.run("zoom-in");
    let shown = page.session.model.shown_positions();
    let shifted = |kind, x| match pointer(kind, x, 120.0) {
        Action::Pointer(pointer) => Action::Pointer(Pointer { shift: true, ..pointer }),
        command => command,
    };
    page.act(&[shifted(PointerKind::Down, 300.0), shifted(PointerKind::Move, 200.0), shifted(PointerKind::Up, 200.0)]);
    assert!(page.session.model.shown_positions().start > shown.start);
    // A press beside the window of the overview moves it there.
    page.pointer(PointerKind::Down, 70.0, below);
    page.pointer(PointerKind::Up, 70.0, below);
    assert_eq!(page.session.model.shown_positions().start, page.session.model.whole_positions().start);
}

#[test]
fn arrow_leads_back_to_the_moment() {
    let mut page = Page::new(open_bytes("drawn.vram", &bytes(Sample::Training)), true);
    page.run("stack counters");
    page.run("last");
    for _ in 0..5 {
        page.run("zoom-in");
    }
    page.run("fit-all");
    for _ in 0..6 {
        page.run("zoom-in");
    }
    for _ in 0..30 {
        page.run("pan-left");
    }
    let position = page.session.model.timed_moment().time_ns;
    assert!(!page.session.model.shown_positions().contains(&position));
    check("training_timeline_arrow", &page.picture());
    let plot = page.session.timeline().expect("a timeline").geometry.plot;
    page.pointer(PointerKind::Down, f64::from(plot.x1 - 20), f64::from(plot.y1 - 10));
    let shown = page.session.model.shown_positions();
    assert!((shown.start..=shown.end).contains(&position));
}

#[test]
fn tooltip_names_values_spans_and_groups() {
    let mut page = Page::new(open_bytes("drawn.vram", &bytes(Sample::Training)), true);
    page.run("axis events");
    let all = counters(page.session.model.recording(), DeviceId(0));
    let check_values = |page: &Page, x: f64| {
        let timeline = page.session.timeline().expect("a timeline");
        let column = timeline.axis.column_at(x);
        let (from, to) = (timeline.edges()[column], timeline.edges()[column + 1]);
        for (index, name) in ["allocated", "active", "reserved"].into_iter().enumerate() {
            let values = all[from as usize..=to as usize].iter().map(|one| one[index]);
            let most = vramscope_trace::ByteSize(values.max().unwrap_or(0));
            assert!(page.tooltip.contains(&format!("{most}")), "{:?} has no {name} {most}", page.tooltip);
        }
    };
    for x in [200.0, 350.0, 500.0] {
        page.pointer(PointerKind::Move, x, 150.0);
        check_values(&page, x);
        let time_ns = page.session.timeline().expect("a timeline").axis.moment_at(x).time_ns;
        let recording = page.session.model.recording();
        for name in page.session.model.marks().names_at(recording, DeviceId(0), time_ns) {
            assert!(page.tooltip.contains(name), "{:?} has no {name}", page.tooltip);
        }
    }
    page.run("stack category");
    page.pointer(PointerKind::Move, 501.0, 150.0);
    check_values(&page, 501.0);
    assert!(page.tooltip.contains("parameter") && page.bar.contains("activation"), "{} {}", page.tooltip, page.bar);
    page.pointer(PointerKind::Leave, 501.0, 150.0);
    assert_eq!(page.tooltip, "");
}

#[test]
fn stacked_groups_add_up_to_the_active_bytes() {
    for name in ["mlp_train.pickle.zst", "streams.pickle.gz"] {
        let mut page = Page::new(open(name), true);
        let device = page.session.model.device();
        let all = counters(page.session.model.recording(), device);
        let first = page.session.model.recording().first_event();
        for axis in ["time", "events"] {
            page.run(&format!("axis {axis}"));
            for by in ["category", "site", "module", "stream", "pool", "size"] {
                page.run(&format!("stack {by}"));
                let timeline = page.session.timeline().expect("a timeline");
                let stack = timeline.stack.as_ref().expect("the areas are known");
                for (index, pair) in timeline.edges().windows(2).enumerate() {
                    let shown = &all[(pair[0] - first) as usize..=(pair[1] - first) as usize];
                    let most = shown.iter().map(|one| one[1]).max().unwrap_or(0);
                    let sum: u64 = stack.groups_in(index).iter().map(|(_, bytes)| bytes).sum();
                    assert_eq!(sum, most, "{name} by {by} in column {index}");
                }
            }
        }
    }
}

#[test]
fn flags_close_together_are_merged() {
    let mut page = Page::new(open_bytes("drawn.vram", &bytes(Sample::Trouble)), true);
    let incidents = page.session.model.marks().incidents().to_vec();
    assert_eq!(incidents.len(), 3);
    let flagged = |page: &Page| {
        let timeline = page.session.timeline().expect("a timeline");
        let row = timeline.geometry.incident_row;
        let y = i32::midpoint(row.y0, row.y1);
        let mut found = Vec::new();
        for x in 0..SIZE.0 as i32 {
            for incident in timeline.incidents_at(x, y) {
                if !found.contains(incident) {
                    found.push(*incident);
                }
            }
        }
        found
    };
    for width in [900, 300, 160, 110] {
        page.screen.sizes[0].0 = width;
        page.act(&[]);
        assert_eq!(flagged(&page), incidents, "{width} pixels wide");
    }
}

#[test]
fn marks_and_failures_are_visited_in_order() {
    let mut page = Page::new(open_bytes("drawn.vram", &bytes(Sample::Training)), true);
    page.run("first");
    let marks: Vec<u64> = page.session.model.marks().spans().iter().map(|span| span.from_event).collect();
    for &event in &marks {
        page.run("mark 1");
        assert_eq!(page.event(), event);
    }
    for &event in marks.iter().rev().skip(1) {
        page.run("mark -1");
        assert_eq!(page.event(), event);
    }
    let mut page = Page::new(open_bytes("drawn.vram", &bytes(Sample::Trouble)), true);
    page.run("first");
    for _ in 0..2 {
        let before = page.event();
        page.run("failure 1");
        assert!(page.event() > before);
        let (_, event) = page.session.model.last_event().expect("a loaded event");
        assert!(matches!(event.kind, vramscope_trace::EventKind::OutOfMemory { .. }), "{event:?}");
    }
    let shown = page.session.panes.views();
    assert!(shown.contains(&Some(ViewId::about(Topic::Failures))), "the error is explained: {shown:?}");
}

/// Returns the chunks of a recording with a memory sample, then `count` short spans.
fn spans(count: u64) -> Vec<Vec<u8>> {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    encoder.define(&Definition::String("step".to_owned()));
    let mut chunks = Vec::new();
    let sample = EventKind::MemorySample { used_by_context: 0, used_by_others: 0, free: 1 };
    encoder.event(&Event { device: DeviceId(0), time_ns: 1, kind: sample });
    encoder.flush();
    chunks.extend(encoder.take_output().into_iter().map(|chunk| chunk.bytes));
    for number in 0..count {
        for (stage, time_ns) in
            [(AnnotationStage::Begin, 1000 * number + 10), (AnnotationStage::End, 1000 * number + 500)]
        {
            let kind = EventKind::Mark { stage, name: StringId(1), address: 0, site: SiteId(0) };
            encoder.event(&Event { device: DeviceId(0), time_ns, kind });
        }
    }
    encoder.flush();
    chunks.extend(encoder.take_output().into_iter().map(|chunk| chunk.bytes));
    chunks
}

#[test]
fn many_short_spans_are_drawn_as_one_box() {
    let mut page = Page::new(open_bytes("spans.vram", &spans(20_000).concat()), true);
    let rows = page.session.timeline().expect("a timeline").geometry.span_rows;
    let (picture, theme) = (page.picture(), Theme::new(true));
    let y = rows.y0 + 5;
    let solid = (rows.x0..rows.x1).filter(|&x| picture.pixel(x, y) == Some(theme.dim)).count();
    assert!(solid < 20, "{solid} columns look like the begin of a span");
    let drawn = (rows.x0..rows.x1).filter(|&x| picture.pixel(x, y) != Some(theme.background)).count();
    assert!(drawn > 700, "{drawn} columns are drawn");
    page.pointer(PointerKind::Move, f64::from(rows.x0 + 300), f64::from(y));
    assert!(page.tooltip.contains("20,000 spans close together | step: 20,000"), "{}", page.tooltip);
}

#[test]
fn first_mark_of_a_live_recording_does_not_move_the_chart() {
    let chunks = spans(3);
    let mut session = Session::default();
    session.model.reset("live", Origin::Live);
    session.model.push(&chunks[..chunks.len() - 1].concat()).expect("a valid recording");
    let mut page = Page::new(session, true);
    let plot = |page: &Page| page.session.timeline().expect("a timeline").geometry.plot;
    let before = plot(&page);
    page.session.model.push(&chunks[chunks.len() - 1]).expect("a valid recording");
    page.act(&[]);
    assert!(!page.session.model.marks().spans().is_empty());
    assert_eq!(plot(&page), before);
}

#[test]
fn timeline_matches_golden_pictures() {
    for (name, is_dark) in [("dark", true), ("light", false)] {
        let mut page = Page::new(open("mlp_train.pickle.zst"), is_dark);
        page.run("cut-idle");
        page.run("stack category");
        check(&format!("stacked_timeline_{name}"), &page.picture());
        page.run("stack site");
        page.run("axis events");
        for _ in 0..4 {
            page.run("zoom-in");
        }
        page.drag((300.0, 100.0), (520.0, 100.0));
        check(&format!("events_timeline_{name}"), &page.picture());
        page.run("stack counters");
        page.run("axis steps");
        page.run("fit-all");
        check(&format!("steps_timeline_{name}"), &page.picture());
    }
}

#[test]
fn idle_time_is_cut() {
    // Most of this recording is idle time.
    let mut page = Page::new(open("mlp_train.pickle.zst"), false);
    assert!(page.bar.contains("idle time hidden: "), "{}", page.bar);
    assert_eq!(page.session.link().cuts_idle, None);
    let timeline = page.session.timeline().expect("a timeline");
    let edges = timeline.edges();
    assert!(edges.is_sorted() && timeline.axis.times().is_sorted());
    assert_eq!(edges.last(), Some(&page.session.model.recording().end_event()));
    // The overview leaves the idle time out as well: a press on it moves the window there.
    let (whole, x) = (page.session.model.shown_positions(), 400.0);
    let position = page.session.timeline().expect("a timeline").axis.position_at(x);
    page.session.model.zoom(0.01, whole.start);
    page.act(&[]);
    let overview = page.session.timeline().expect("a timeline").geometry.overview;
    page.drag((x, f64::from(overview.y0 + 5)), (x, f64::from(overview.y0 + 5)));
    let shown = page.session.model.shown_positions();
    assert!(shown.contains(&position), "{position} is not in {shown:?}");
    page.session.model.fit();
    page.run("stack counters");
    check("idle_timeline_light", &page.picture());
    page.run("cut-idle");
    assert!(page.bar.contains("hide idle time") && page.session.timeline().expect("a timeline").axis.idle_ns() == 0);
    let link = page.session.link();
    assert_eq!(link.cuts_idle, Some(false));
    let mut other = Page::new(open("mlp_train.pickle.zst"), false);
    other.session.go_to_link(&Link::parse(&link.fragment())).expect("a readable recording");
    other.act(&[]);
    assert!(!other.session.model.cuts_idle(), "a link restores the choice");
    let busy = Page::new(open_bytes("drawn.vram", &bytes(Sample::Training)), false);
    assert!(!busy.session.model.cuts_idle() && busy.bar.contains("hide idle time"));
}

#[test]
fn timeline_looks_as_before() {
    let mut session = open("tour/resnet50_train.vram");
    session.model.select_range(Some((300, 500)));
    view_pictures::check(&mut session, &[command("seek 420")], Surface::Timeline, "timeline", "timeline");
}
