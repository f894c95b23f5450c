//! Checks that the histogram counts every allocation once, that the filter of a cell finds the
//! cell's allocations, and what the picture and clicks on it show.

use serde_json::Value;
use vramscope_insight::query::Query;
use vramscope_viewer::app::Session;
use vramscope_viewer::protocol::{Action, Pointer, PointerKind, Screen, Surface};

use super::*;
use crate::testing::still::draw_until_still;
use crate::testing::{command, open, view_pictures};

/// Returns the rows of a view as scripts get them.
fn rows(session: &mut Session, view: &str, options: &Value) -> Vec<Value> {
    let rows = session.rows(view, &options.to_string()).expect("the view has rows");
    serde_json::from_str(&rows).expect("a list of objects")
}

/// Returns the sum of a column.
fn sum(rows: &[Value], column: &str) -> u64 {
    rows.iter().map(|row| row[column].as_u64().expect("a number")).sum()
}

#[test]
fn filters_of_all_cells_are_valid() {
    for unit in [LifeUnit::Time, LifeUnit::Events] {
        for size in 0..64 {
            for life in (0..20).chain([LifetimeCell::NOT_FREED]) {
                let filter = filter_of(LifetimeCell { size, life }, unit);
                let query = Query::parse(&filter).unwrap_or_else(|error| panic!("{filter}: {error}"));
                assert!(!query.is_empty(), "{filter}");
            }
        }
    }
}

#[test]
fn cells_hold_the_allocations_that_their_filters_find() {
    for name in ["tour/resnet50_train.vram", "streams.pickle.gz", "tour/oom_frag.vram"] {
        let mut session = open(name);
        let (first, end) = (session.model.recording().first_event(), session.model.recording().end_event());
        for mode in ["time", "events"] {
            for (from, to) in [(first, end), (first + (end - first) / 3, end - (end - first) / 4)] {
                let range = serde_json::json!({ "from": from, "to": to });
                let options = serde_json::json!({ "mode": mode, "from": from, "to": to });
                let cells = rows(&mut session, "lifetimes", &options);
                let all = rows(&mut session, "allocations", &merged(&range, &[("mode", "range")]));
                assert_eq!(sum(&cells, "allocations"), all.len() as u64, "{name}");
                assert_eq!(sum(&cells, "bytes"), sum(&all, "bytes"), "{name}");
                for cell in &cells {
                    let filter = cell["filter"].as_str().expect("a text");
                    let found =
                        rows(&mut session, "allocations", &merged(&range, &[("mode", "range"), ("filter", filter)]));
                    assert_eq!(cell["allocations"].as_u64(), Some(found.len() as u64), "{name}: {filter}");
                    assert_eq!(cell["bytes"].as_u64(), Some(sum(&found, "bytes")), "{name}: {filter}");
                }
            }
        }
    }
}

/// Returns options with further texts.
fn merged(options: &Value, texts: &[(&str, &str)]) -> Value {
    let mut options = options.clone();
    for (name, text) in texts {
        options[*name] = Value::from(*text);
    }
    options
}

#[test]
fn click_lists_the_allocations_of_a_cell() {
    let mut session = open("tour/resnet50_train.vram");
    let screen = Screen { sizes: [(900, 160), (900, 500), (0, 0)], scale: 1.0, is_dark: false };
    draw_until_still(&mut session, &screen, &[command("pane 0 lifetimes")]);
    let (point, cell) = {
        let view = session.views.of_type::<Lifetimes>().expect("a view");
        let scene = view.scene.as_ref().expect("a picture");
        let mut points = (0..500).flat_map(|y| (0..900).map(move |x| (x, y)));
        let point = points.find(|point| scene.hit(*point).is_some()).expect("a cell");
        (point, scene.hit(point).expect("a cell"))
    };
    let press = |kind| {
        let (x, y) = (f64::from(point.0), f64::from(point.1));
        let surface = Surface::Left;
        Action::Pointer(Pointer { surface, kind, x, y, shift: false, ctrl: false, alt: false, is_touch: false })
    };
    draw_until_still(&mut session, &screen, &[PointerKind::Down, PointerKind::Up].map(press));
    let selected = session.views.of_type::<Lifetimes>().and_then(Lifetimes::selected);
    assert_eq!(selected, Some(cell));
    let fragment = session.link().fragment();
    assert!(fragment.contains(&cell.number().to_string()), "{fragment}");
    draw_until_still(&mut session, &screen, &[command("deselect")]);
    assert_eq!(session.views.of_type::<Lifetimes>().and_then(Lifetimes::selected), None);
}

#[test]
fn lifetimes_look_as_before() {
    let mut session = open("tour/resnet50_train.vram");
    let actions = [command("pane 0 lifetimes")];
    view_pictures::check(&mut session, &actions, Surface::Left, "views/lifetimes", "lifetimes");
}
