//! Fragmentation over time, as the page and scripts get it.

use crate::testing::{command, open, view_pictures};
use serde_json::Value;
use vramscope_trace::{DeviceState, Metrics, Replay};
use vramscope_viewer::app::{PageFacts, Session, SessionReport};
use vramscope_viewer::protocol::{Action, FrameRequest, Pointer, PointerKind, Screen, Surface};
use vramscope_viewer::ui::Node;

/// Returns the metrics as scripts get them.
fn rows(session: &mut Session, options: &str) -> Vec<Value> {
    let rows = session.rows("metrics", options).expect("the view has rows");
    serde_json::from_str(&rows).expect("a list of objects")
}

/// Calls `check` with the session's device at a moment.
fn at(session: &Session, event: u64, check: impl FnOnce(&DeviceState)) {
    let mut replay = Replay::new();
    let state = replay.seek(session.model.recording(), event).expect("a readable recording");
    check(state.device(session.model.device()).unwrap_or(&DeviceState::default()));
}

/// Checks a share, as exactly as JSON is read.
#[track_caller]
fn check_share(value: &Value, expected: f64) {
    let share = value.as_f64().expect("a number");
    assert!((share - expected).abs() < 1e-12, "{share} instead of {expected}");
}

#[test]
fn metrics_are_those_of_the_moment() {
    for name in ["streams.pickle.gz", "frag_a_expandable.pickle.zst", "nested_pools.pickle.gz"] {
        let mut session = open(name);
        let (first, end) = (session.model.recording().first_event(), session.model.recording().end_event());
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..20 {
            let event = random.u64(first..=end);
            let rows = rows(&mut session, &format!(r#"{{"event": {event}}}"#));
            at(&session, event, |device| {
                let metrics = Metrics::at(device, |_, _| true);
                let all = &rows[0];
                assert_eq!((&all["pool"], all["event"].as_u64()), (&Value::from("all"), Some(event)));
                check_share(&all["fragmentation"], metrics.fragmentation());
                assert_eq!(all["free_bytes"].as_u64(), Some(metrics.free.total));
                assert_eq!(all["largest_free_bytes"].as_u64(), Some(metrics.free.largest));
                assert_eq!(all["rounding_waste_bytes"].as_u64(), Some(metrics.rounding_waste_bytes()));
                assert_eq!(all["allocated_bytes"].as_u64(), Some(metrics.counters.allocated));
            });
            for field in ["free_bytes", "releasable_bytes", "stuck_bytes", "reserved_bytes", "active_bytes"] {
                let sum: u64 = rows[1..].iter().filter_map(|row| row[field].as_u64()).sum();
                assert_eq!(rows[0][field].as_u64(), Some(sum), "{field} of {name} at {event}");
            }
            assert_eq!(
                rows[0]["free_bytes"].as_u64(),
                rows[0]["releasable_bytes"].as_u64().zip(rows[0]["stuck_bytes"].as_u64()).map(|(a, b)| a + b)
            );
        }
    }
}

#[test]
fn metrics_over_time_are_exact_at_their_moments() {
    for name in ["streams.pickle.gz", "frag_a_expandable.pickle.zst"] {
        let mut session = open(name);
        let rows = rows(&mut session, r#"{"mode": "time", "limit": 50}"#);
        assert_eq!(rows.len(), 50);
        let mut before = 0;
        for row in &rows {
            let event = row["event"].as_u64().expect("an event number");
            assert!(event >= before);
            before = event;
            at(&session, event, |device| {
                check_share(&row["fragmentation"], device.free_space().fragmentation());
                assert_eq!(row["free_bytes"].as_u64(), Some(device.free_space().total));
            });
        }
        assert_eq!(before, session.model.recording().end_event());
    }
}

/// Runs actions until nothing changes, and returns the text of the left pane.
fn shown(session: &mut Session, mut actions: Vec<Action>) -> String {
    session.resend();
    let mut text = String::new();
    for _ in 0..1_000 {
        let mut report = SessionReport::default();
        let request = FrameRequest { actions: std::mem::take(&mut actions), ..FrameRequest::default() };
        let frame = session.frame(&request, &PageFacts::default(), &mut report);
        assert_eq!(report, SessionReport::default());
        if let Some(pane) = &frame.panes[0] {
            let texts = pane.content.iter().map(|node| match node {
                Node::Element(element) => element.text_content(),
                Node::Text(text) => text.clone(),
            });
            text = texts.collect::<Vec<_>>().join("\n").replace('\u{a0}', " ");
        }
        session.work(0).expect("a readable recording");
        if !session.model.has_changed() {
            break;
        }
    }
    text
}

#[test]
fn first_moment_above_a_value_is_found() {
    for (name, percent) in [("streams.pickle.gz", 80), ("streams.pickle.gz", 35), ("frag_a_expandable.pickle.zst", 50)]
    {
        let mut session = open(name);
        let commands = ["pane 0 fragmentation".to_owned(), format!("number fragmentation {percent}")];
        let text = shown(&mut session, commands.map(command).to_vec());
        let recording = session.model.recording();
        let mut replay = Replay::new();
        let first = (recording.first_event()..=recording.end_event()).find(|&event| {
            let state = replay.seek(recording, event).expect("a readable recording");
            let device = state.device(session.model.device());
            device.is_some_and(|device| device.free_space().fragmentation() > f64::from(percent) / 100.0)
        });
        match first {
            Some(event) => {
                let event = vramscope_trace::Count(event);
                let expected = format!("first passed {percent}% at event {event} ");
                assert!(text.starts_with("Fragmentation ") && text.contains(&expected), "{name}: {expected}: {text}");
            }
            None => assert!(text.contains(&format!("never exceeds {percent}%")), "{name}: {text}"),
        }
    }
}

#[test]
fn pointers_on_the_chart_seek_and_zoom_like_on_the_timeline() {
    let mut session = open("streams.pickle.gz");
    let screen = Screen { sizes: [(900, 160), (500, 300), (0, 0)], scale: 1.0, is_dark: true };
    let request = FrameRequest { screen: Some(screen), ..FrameRequest::default() };
    let _ = session.frame(&request, &PageFacts::default(), &mut SessionReport::default());
    let _ = shown(&mut session, vec![command("pane 0 fragmentation")]);
    let pointer = |surface, kind, x| {
        Action::Pointer(Pointer { surface, kind, x, y: 100.0, shift: false, ctrl: false, alt: false, is_touch: false })
    };
    // The middles of the plots, which begin 64 pixels from the left and end 22 from the right.
    let (chart, timeline) = (64.0 + (500.0 - 86.0) / 2.0, 64.0 + (900.0 - 86.0) / 2.0);
    let mut moments = Vec::new();
    for (surface, x) in [(Surface::Left, chart), (Surface::Timeline, timeline)] {
        let _ = shown(&mut session, vec![command("first")]);
        let _ = shown(&mut session, vec![pointer(surface, PointerKind::Down, x), pointer(surface, PointerKind::Up, x)]);
        moments.push(session.model.state().event());
    }
    assert_eq!(moments[0], moments[1]);
    let mut ranges = Vec::new();
    for (surface, x) in [(Surface::Left, chart), (Surface::Timeline, timeline)] {
        let _ = shown(&mut session, vec![command("fit-all")]);
        let _ = shown(&mut session, vec![pointer(surface, PointerKind::Wheel(0.0, -300.0), x)]);
        ranges.push(session.model.range());
    }
    assert_eq!(ranges[0], ranges[1]);
    assert_ne!(ranges[0].end - ranges[0].start, 0);
}

#[test]
fn click_on_the_chart_goes_to_a_moment_of_its_column() {
    let mut session = open("mlp_train.pickle.zst");
    let screen = Screen { sizes: [(1280, 160), (490, 300), (0, 0)], scale: 1.0, is_dark: true };
    let request = FrameRequest { screen: Some(screen), ..FrameRequest::default() };
    let _ = session.frame(&request, &PageFacts::default(), &mut SessionReport::default());
    for axis in ["events", "time"] {
        let commands = ["pane 0 fragmentation".to_owned(), format!("axis {axis}")];
        let _ = shown(&mut session, commands.map(command).to_vec());
        let edges = session.timeline().expect("a timeline").edges().to_vec();
        // The plots begin 64 pixels from the left and end 22 from the right.
        let (columns, last) = (490 - 86, edges.len() - 1);
        let edge = |column: usize| edges[(column * last + columns / 2) / columns];
        for column in (0..columns).step_by(3) {
            let pointer = |kind| {
                let (surface, x, y) = (Surface::Left, (64 + column) as f64, 100.0);
                Action::Pointer(Pointer { surface, kind, x, y, shift: false, ctrl: false, alt: false, is_touch: false })
            };
            let _ = shown(&mut session, vec![pointer(PointerKind::Down), pointer(PointerKind::Up)]);
            let (event, range) = (session.model.state().event(), edge(column)..=edge(column + 1));
            assert!(range.contains(&event), "column {column} by {axis}: event {event} is not in {range:?}");
        }
    }
}

#[test]
fn fragmentation_looks_as_before() {
    let mut session = open("tour/gpt_varlen.vram");
    let actions = [command("pane 0 fragmentation")];
    view_pictures::check(&mut session, &actions, Surface::Left, "views/fragmentation", "fragmentation");
}
