//! Allocations over time, as the page draws them.

use std::collections::HashSet;

use crate::testing::{self, command, load_fixture, view_pictures};
use vramscope_draw::{Bitmap, Color, Theme};
use vramscope_trace::{ByteSize, Counters, Replay};
use vramscope_viewer::app::{PageFacts, Session, SessionReport};
use vramscope_viewer::model::Origin;
use vramscope_viewer::protocol::{Action, FrameRequest, PaneContent, Pointer, PointerKind, Screen, Surface};
use vramscope_viewer::ui::Node;
use vramscope_viewer::views::allocations::{Allocations, AllocationsLayout, AllocationsScene, Target};

use crate::testing::chunks;
use crate::testing::golden_file::check;

/// Small recordings: with streams, with expandable segments, of a training run, and with a dropped
/// part.
const NAMES: [&str; 4] =
    ["streams.pickle.gz", "frag_a_expandable.pickle.zst", "mlp_train.pickle.zst", "ring.pickle.zst"];
/// Size of the left pane's picture.
const SIZE: (u32, u32) = (700, 320);

/// Opens a file of `tests/data` and shows its allocations in the left pane.
fn open(name: &str, is_dark: bool, commands: &[&str]) -> Session {
    let mut session = Session::default();
    session.model.show(name, load_fixture(name)).expect("a readable recording");
    let screen = Screen { sizes: [(900, 160), SIZE, (0, 0)], scale: 1.0, is_dark };
    let request = FrameRequest { screen: Some(screen), ..FrameRequest::default() };
    let _ = session.frame(&request, &PageFacts::default(), &mut SessionReport::default());
    let commands = [&["pane 0 allocations"][..], commands].concat();
    run(&mut session, commands.iter().copied().map(command).collect());
    session
}

/// Runs actions, and draws frames until nothing changes. Returns the left pane's last content.
fn run(session: &mut Session, mut actions: Vec<Action>) -> PaneContent {
    session.resend();
    let mut content = None;
    for _ in 0..1_000 {
        let mut report = SessionReport::default();
        let request = FrameRequest { actions: std::mem::take(&mut actions), ..FrameRequest::default() };
        let frame = session.frame(&request, &PageFacts::default(), &mut report);
        assert_eq!(report, SessionReport::default());
        let [left, _] = frame.panes;
        content = left.or(content);
        let has_more = session.work(10_000).expect("a readable recording");
        if !has_more && !session.model.has_changed() {
            break;
        }
    }
    content.expect("the pane's content was sent")
}

/// Returns the picture of all allocations, if it has been computed.
fn allocations(session: &Session) -> Option<&AllocationsScene> {
    session.views.of_type::<Allocations>().and_then(Allocations::scene)
}

/// Returns the actions of a click with the mouse on a pixel of the left picture.
fn click(x: i32, y: i32) -> Vec<Action> {
    [PointerKind::Down, PointerKind::Up].map(|kind| pointer(kind, x, y, false)).to_vec()
}

/// Returns a pointer event on the left picture.
fn pointer(kind: PointerKind, x: i32, y: i32, ctrl: bool) -> Action {
    let (x, y) = (f64::from(x), f64::from(y));
    Action::Pointer(Pointer { surface: Surface::Left, kind, x, y, shift: false, ctrl, alt: false, is_touch: false })
}

/// Returns the left picture.
fn picture(session: &Session) -> Bitmap {
    let mut frame = Bitmap::new(SIZE.0, SIZE.1, Color::default());
    let bytes = session.pixels(Surface::Left);
    frame.for_each_row(frame.bounds(), |y, pixels| {
        let start = y as usize * SIZE.0 as usize * 4;
        for (pixel, bytes) in pixels.iter_mut().zip(bytes[start..].chunks_exact(4)) {
            pixel.copy_from_slice(bytes);
        }
    });
    frame
}

/// Returns the counters of the session's device at a moment.
fn counters(session: &Session, event: u64) -> Counters {
    let mut replay = Replay::new();
    let state = replay.seek(session.model.recording(), event).expect("a readable recording");
    state.device(session.model.device()).map(|device| device.counters()).unwrap_or_default()
}

/// Returns the text of nodes, with plain spaces.
fn text(nodes: &[Node]) -> String {
    let texts = nodes.iter().map(|node| match node {
        Node::Element(element) => element.text_content(),
        Node::Text(text) => text.clone(),
    });
    texts.collect::<Vec<_>>().join("\n").replace('\u{a0}', " ")
}

#[test]
fn columns_add_up_to_the_counters() {
    for name in NAMES {
        for zoom in [&[][..], &["zoom-in"; 6][..]] {
            let session = open(name, true, zoom);
            let scene = allocations(&session).expect("the picture is computed");
            let AllocationsLayout::Stacked(layout) = scene.layout() else { panic!("stacked is the default") };
            assert_eq!(layout.column_count(), scene.geometry.width() as usize);
            for index in (0..layout.column_count()).step_by(7) {
                let (moment, total) = layout.column(index).expect("the column exists");
                let sum: u64 = layout.cells(index).map(|cell| cell.top - cell.bottom).sum();
                assert_eq!((sum, total), (total, counters(&session, moment).active), "{name}, event {moment}");
            }
        }
    }
}

#[test]
fn hits_match_the_painted_allocations() {
    for name in NAMES {
        for layout in ["stacked", "address"] {
            let mut session = open(name, true, &[&format!("mode allocations {layout}"), "first"]);
            let _ = run(&mut session, Vec::new());
            let frame = picture(&session);
            let scene = allocations(&session).expect("the picture is computed");
            let plot = scene.geometry.plot;
            let theme = Theme::new(true);
            let mut random = fastrand::Rng::with_seed(3);
            let (mut empty, mut full) = (HashSet::new(), 0);
            for _ in 0..1_000 {
                // The moment is drawn on the first columns.
                let point = (random.i32(plot.x0 + 4..plot.x1), random.i32(plot.y0..plot.y1));
                let color = frame.pixel(point.0, point.1).expect("inside");
                match scene.hit(point) {
                    Some(Target::Allocation { .. } | Target::Small { .. }) => {
                        full += 1;
                        assert_ne!(color, theme.well, "{name}, {layout} at {point:?}");
                    }
                    _ => {
                        empty.insert((color.r, color.g, color.b));
                    }
                }
            }
            assert!(full > 20, "{full} points of {name} show allocations");
            // The well and a line of the grid; or gaps, free and not reserved memory.
            assert!(empty.len() <= 4, "{name}, {layout}: {empty:?}");
        }
    }
}

#[test]
fn a_click_selects_the_allocation() {
    for layout in ["stacked", "address"] {
        let mut session = open("mlp_train.pickle.zst", false, &[&format!("mode allocations {layout}")]);
        let moment = session.model.state().event();
        let scene = allocations(&session).expect("the picture is computed");
        let plot = scene.geometry.plot;
        let points = (plot.x0..plot.x1).step_by(5).flat_map(|x| (plot.y0..plot.y1).step_by(5).map(move |y| (x, y)));
        let is_allocation = |point: &(i32, i32)| matches!(scene.hit(*point), Some(Target::Allocation { .. }));
        let point = points.filter(is_allocation).nth(40).expect("allocations are shown");
        let column = scene.moment(point.0).expect("a column");
        let before = picture(&session);
        let _ = run(&mut session, click(point.0, point.1));
        let (address, since) = (session.model.selection(), session.model.selected_since());
        let (address, since) = (address.expect("an address is selected"), since.expect("an allocation is selected"));
        assert_eq!(session.model.state().event(), moment, "the moment stays");
        let mut replay = Replay::new();
        let state = replay.seek(session.model.recording(), column).expect("a readable recording");
        let device = state.device(session.model.device()).expect("the device has memory");
        let block = device.blocks().find(|block| block.address == address).expect("it is live in the column");
        assert_eq!(block.since_event + 1, since);
        assert!(picture(&session) != before, "it is outlined");
        let _ = run(&mut session, click(point.0, point.1));
        assert_eq!(session.model.selection(), None, "a second click deselects it");
    }
}

#[test]
fn the_wheel_zooms_vertically_with_ctrl() {
    let mut session = open("mlp_train.pickle.zst", false, &[]);
    let shown = |session: &Session| match allocations(session).expect("the picture is computed").layout() {
        AllocationsLayout::Stacked(layout) => layout.scale().range(),
        AllocationsLayout::ByAddress(map) => map.scale().range(),
    };
    for layout in ["stacked", "address"] {
        let _ = run(&mut session, vec![command(format!("mode allocations {layout}"))]);
        let (all, range) = (shown(&session), session.model.range());
        let _ = run(&mut session, vec![pointer(PointerKind::Wheel(0.0, -400.0), 300, 160, true)]);
        let part = shown(&session);
        assert!(part.end - part.start < (all.end - all.start) * 3 / 5 && part.start > all.start && part.end < all.end);
        assert_eq!(session.model.range(), range, "the time stays");
        let _ = run(&mut session, vec![pointer(PointerKind::Wheel(0.0, 900.0), 300, 160, true)]);
        assert_eq!(shown(&session), all);
        let _ = run(&mut session, vec![pointer(PointerKind::Wheel(0.0, -400.0), 300, 160, false)]);
        assert_ne!(session.model.range(), range, "without Ctrl, the time is zoomed");
        let _ = run(&mut session, vec![pointer(PointerKind::DoubleClick, 300, 160, false)]);
        assert_eq!((session.model.range(), shown(&session)), (range, all));
    }
}

#[test]
fn the_summary_counts_live_bytes_and_a_group_is_emphasized() {
    let mut session = open("mlp_train.pickle.zst", false, &["by allocations line"]);
    let end = session.model.recording().end_event();
    for event in [end / 5, end / 2, end * 4 / 5] {
        let content = run(&mut session, vec![command(format!("seek {event}"))]);
        let active = counters(&session, event).active;
        let device = session.model.device_state();
        let live = device.blocks().count();
        let expected = format!("{} allocations live at this moment, {}", live, ByteSize(active));
        let shown = text(&content.content);
        assert!(shown.replace(',', "").starts_with(&expected.replace(',', "")), "{expected}: {shown}");
        let Some(Node::Element(legend)) = content.legend.first() else { panic!("there is a legend") };
        assert!(legend.children.len() > 1, "{}", legend.text_content());
    }
    let before = picture(&session);
    let content = run(&mut session, vec![command("group line 0")]);
    assert_ne!(picture(&session), before, "the other groups are dimmed");
    assert!(!content.legend.is_empty());
    let _ = run(&mut session, vec![command("group line 0")]);
    assert_eq!(picture(&session), before);
}

#[test]
fn a_command_changes_the_layout() {
    let mut session = open("mlp_train.pickle.zst", false, &["layout"]);
    let is_by_address = |session: &Session| {
        matches!(allocations(session).expect("the picture is computed").layout(), AllocationsLayout::ByAddress(_))
    };
    assert!(is_by_address(&session));
    let _ = run(&mut session, vec![command("layout")]);
    assert!(!is_by_address(&session));
}

#[test]
fn picture_matches_golden_pictures() {
    let session = open("mlp_train.pickle.zst", true, &["peak-reserved", "axis events"]);
    check("allocations_dark", &picture(&session));
    let hovered = vec![pointer(PointerKind::Move, 330, 200, false)];
    let mut session = open("mlp_train.pickle.zst", false, &["peak-reserved", "axis events"]);
    let _ = run(&mut session, hovered.clone());
    check("allocations_light", &picture(&session));
    let address = ["mode allocations address", "by allocations size"];
    let session = open("frag_a_expandable.pickle.zst", true, &address);
    check("allocations_by_address_dark", &picture(&session));
    let mut session = open("frag_a_expandable.pickle.zst", false, &address);
    let _ = run(&mut session, hovered);
    check("allocations_by_address_light", &picture(&session));
}

#[test]
fn a_live_recording_is_shown_four_times_a_second() {
    let mut session = open("mlp_train.pickle.zst", true, &[]);
    session.model.reset("live", Origin::Live);
    session.model.set_memory_limit(60_000);
    let mut shown = Vec::new();
    let chunks = chunks(200_000);
    for (number, chunk) in (1..).zip(&chunks) {
        session.model.push(&chunk.bytes).expect("a valid recording");
        session.model.continue_discarding(4000);
        let request = FrameRequest { clock_ms: 16.0 * f64::from(number), ..FrameRequest::default() };
        let _ = session.frame(&request, &PageFacts::default(), &mut SessionReport::default());
        for _ in 0..4 {
            session.work(10_000).expect("a readable recording");
        }
        if let Some(AllocationsLayout::Stacked(layout)) = allocations(&session).map(|scene| scene.layout()) {
            shown.extend(layout.column(layout.column_count() - 1).map(|(moment, _)| moment));
        }
    }
    assert!(session.model.recording().first_event() > 0, "old events were discarded");
    shown.dedup();
    let quarters = chunks.len() * 16 / 250;
    assert!((quarters / 3..=quarters + 2).contains(&shown.len()), "{} pictures in {quarters} quarters", shown.len());
    let _ = run(&mut session, Vec::new());
    let AllocationsLayout::Stacked(layout) = allocations(&session).expect("the picture is computed").layout() else {
        panic!("stacked is the default")
    };
    for index in (0..layout.column_count()).step_by(11) {
        let (moment, total) = layout.column(index).expect("the column exists");
        assert_eq!(total, counters(&session, moment).active, "event {moment}");
    }
}

#[test]
fn allocations_look_as_before() {
    let mut session = testing::open("tour/resnet50_train.vram");
    let actions = [command("pane 0 allocations")];
    view_pictures::check(&mut session, &actions, Surface::Left, "views/allocations", "allocations");
}
