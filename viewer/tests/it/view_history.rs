//! Undoing changes of the view, going back to earlier views, and what links restore.

use vramscope_insight::group::GroupBy;
use vramscope_viewer::app::{PageFacts, Session, SessionReport};
use vramscope_viewer::link::Link;
use vramscope_viewer::model::Origin;
use vramscope_viewer::protocol::{Action, FrameRequest, PageUpdate, Pointer, PointerKind, Screen, Surface};
use vramscope_viewer::views::ViewId;

use crate::testing::samples::{Sample, bytes};
use crate::testing::{command, load};

/// Returns a screen with pictures of a common size.
fn screen() -> Screen {
    Screen { sizes: [(900, 300), (600, 400), (600, 400)], scale: 1.0, is_dark: false }
}

/// A session with the page's clock.
struct Page {
    session: Session,
    clock_ms: f64,
}

impl Page {
    fn open(sample: Sample) -> Self {
        let mut session = Session::default();
        let file = load("drawn.vram", &bytes(sample));
        session.model.show("drawn.vram", file).expect("a readable recording");
        while session.work(1 << 20).expect("a readable recording") {}
        let mut page = Self { session, clock_ms: 0.0 };
        page.act(Vec::new());
        page
    }

    /// Draws a frame 16 ms after the last one.
    fn act(&mut self, actions: Vec<Action>) -> PageUpdate {
        self.clock_ms += 16.0;
        let request = FrameRequest { clock_ms: self.clock_ms, screen: Some(screen()), actions };
        let mut report = SessionReport::default();
        let frame = self.session.frame(&request, &PageFacts::default(), &mut report);
        assert_eq!(report.messages, [""; 0]);
        frame
    }

    /// Runs a command after a pause; returns the fragment and the number of entries.
    fn run(&mut self, command: &str) -> (String, u64) {
        self.clock_ms += 5000.0;
        let frame = self.act(vec![crate::testing::command(command)]);
        (frame.link, frame.entry)
    }

    fn pointer(&mut self, surface: Surface, kind: PointerKind, (x, y): (f64, f64)) -> PageUpdate {
        let pointer = Pointer { surface, kind, x, y, shift: false, ctrl: false, alt: false, is_touch: false };
        self.act(vec![Action::Pointer(pointer)])
    }
}

/// Commands that each change the view.
const CHANGES: [&str; 26] = [
    "seek 40",
    "step 3",
    "first",
    "last",
    "peak",
    "mark -1",
    "zoom-in",
    "zoom-in",
    "pan-left",
    "range 20 60",
    "fit",
    "select 1",
    "select-segment 1",
    "color site",
    "sort device size",
    "filter device 3MiB",
    "view sites",
    "by sites stream",
    "mode sites peak",
    "view list",
    "filter list >1KiB, x;y",
    "sort list bytes",
    "axis events",
    "stack category",
    "swap",
    "split",
];

#[test]
fn every_change_is_undone_and_redone() {
    let mut page = Page::open(Sample::Training);
    let mut links = vec![page.session.link()];
    for command in CHANGES {
        page.run(command);
        let link = page.session.link();
        if links.last() == Some(&link) {
            continue;
        }
        links.push(link);
    }
    assert!(links.len() > CHANGES.len() - 2, "{} of {} commands changed the view", links.len() - 1, CHANGES.len());
    let end = links.len() - 1;
    for index in (0..end).rev() {
        page.run("undo");
        assert_eq!(page.session.link(), links[index], "undo to {index}");
    }
    for link in &links[1..] {
        page.run("redo");
        assert_eq!(&page.session.link(), link);
    }
}

#[test]
fn links_restore_every_view() {
    let mut page = Page::open(Sample::Training);
    let mut fresh = Page::open(Sample::Training);
    for command in CHANGES {
        let (fragment, _) = page.run(command);
        assert!(fragment.len() < 300, "{fragment}");
        let link = Link::parse(&format!("#{fragment}"));
        assert_eq!(link, page.session.link(), "{fragment}");
        fresh.session.go_back_to(&link).expect("a loaded moment");
        fresh.act(Vec::new());
        fresh.act(Vec::new());
        assert_eq!(fresh.session.link(), link, "after {command}");
    }
    page.run("view sites");
    let mut other = Page::open(Sample::Training);
    let link = Link::parse("panes=heatmap,sites;by:stream&color=age");
    other.session.go_to_link(&link).expect("a loaded moment");
    let frame = other.act(Vec::new());
    assert!(frame.link.contains("panes=device,sites;by:stream") && frame.link.contains("color=age"), "{}", frame.link);
}

#[test]
fn opening_selecting_and_seeking_make_history_entries() {
    let mut page = Page::open(Sample::Training);
    let mut before = 0;
    let mut check = |command: &str, is_entry: bool| {
        let (fragment, entry) = page.run(command);
        assert_eq!(entry - before, u64::from(is_entry), "{command}: {fragment}");
        before = entry;
    };
    for (command, is_entry) in [
        ("seek 40", true),
        ("step 1", false),
        ("zoom-in", false),
        ("pan-right", false),
        ("select 1", true),
        ("range 10 30", true),
        ("view events", true),
        ("view events", false),
        ("undo", false),
        ("redo", false),
        ("by sites module", false),
        ("last", true),
        ("copy-table list", false),
    ] {
        check(command, is_entry);
    }
}

#[test]
fn dragging_and_the_wheel_are_one_change_each() {
    let mut page = Page::open(Sample::Training);
    let before = page.session.link();
    // A range is selected on the chart.
    page.pointer(Surface::Timeline, PointerKind::Down, (300.0, 150.0));
    for x in 301..400 {
        page.pointer(Surface::Timeline, PointerKind::Move, (x.into(), 150.0));
    }
    let frame = page.pointer(Surface::Timeline, PointerKind::Up, (400.0, 150.0));
    let selected = page.session.link();
    assert!(selected.selected.is_some());
    assert_eq!(frame.entry, 1, "a selected range is an entry");
    for _ in 0..10 {
        page.pointer(Surface::Timeline, PointerKind::Wheel(0.0, -100.0), (350.0, 150.0));
    }
    let zoomed = page.pointer(Surface::Timeline, PointerKind::Leave, (0.0, 0.0));
    assert_eq!(zoomed.entry, 1, "zooming is none");
    assert_ne!(page.session.link(), selected);
    page.run("undo");
    assert_eq!(page.session.link(), selected);
    page.run("undo");
    assert_eq!(page.session.link(), before);
}

#[test]
fn playback_is_one_change() {
    let mut page = Page::open(Sample::Training);
    page.run("seek 10");
    let before = page.session.link();
    page.run("play");
    for _ in 0..20 {
        page.act(Vec::new());
    }
    if page.session.model.playback.is_playing() {
        page.run("play");
    }
    assert_ne!(page.session.link(), before);
    page.run("undo");
    assert_eq!(page.session.link(), before);
    assert!(!page.session.model.playback.is_playing());
}

#[test]
fn following_a_live_recording_makes_no_changes() {
    let bytes = bytes(Sample::Training);
    let mut page = Page { session: Session::default(), clock_ms: 0.0 };
    page.session.model.reset("live", Origin::Live);
    page.act(Vec::new());
    for part in bytes.chunks(512) {
        page.session.model.receive(part).expect("a valid recording");
        page.act(Vec::new());
    }
    let mut report = SessionReport::default();
    let undo = command("undo");
    page.session.act(std::slice::from_ref(&undo), 0.0, &mut report);
    assert_eq!(report.messages, ["there is no change of the view to undo"]);
    page.run("seek 20");
    assert!(!page.session.model.is_following());
    page.run("undo");
    assert!(page.session.model.is_following(), "the view before followed the newest event");
}

#[test]
fn another_recording_has_its_own_changes() {
    let mut page = Page::open(Sample::Training);
    page.run("seek 20");
    let other = load("other.vram", &bytes(Sample::TwoGpus));
    page.session.model.show("other.vram", other).expect("a readable recording");
    page.act(Vec::new());
    let mut report = SessionReport::default();
    page.session.act(&[command("undo")], 0.0, &mut report);
    assert_eq!(report.messages, ["there is no change of the view to undo"]);
}

#[test]
fn going_back_to_a_view_can_be_undone() {
    let mut page = Page::open(Sample::Training);
    page.run("split");
    page.run("by sites stream");
    page.run("select 1");
    let shown = page.session.link();
    let back = Link { event: Some(12), ..Link::default() };
    page.session.go_back_to(&back).expect("a loaded moment");
    let frame = page.act(Vec::new());
    assert_eq!(page.session.link(), back, "what the link omits has its default");
    assert_eq!(frame.entry, 3, "the browser has moved already");
    page.run("undo");
    assert_eq!(page.session.link(), shown);
    let pane = shown.panes.iter().find(|pane| pane.view == ViewId::first()[1].name()).expect("the view is shown");
    assert_eq!(pane.by, Some(GroupBy::Stream));
}
