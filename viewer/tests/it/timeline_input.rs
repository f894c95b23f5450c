//! Touch on the timeline, and its buttons.

use vramscope_viewer::protocol::{Action, Pointer, PointerKind};

use crate::testing::open;
use crate::timeline::{Page, pointer};

#[test]
fn second_finger_restores_the_moment() {
    let mut page = Page::new(open("mlp_train.pickle.zst"), true);
    page.session.seek(100).expect("a loaded moment");
    page.act(&[]);
    let touch = |kind, x: f64| match pointer(kind, x, 150.0) {
        Action::Pointer(pointer) => Action::Pointer(Pointer { is_touch: true, ..pointer }),
        action @ Action::Command(_) => action,
    };
    page.act(&[touch(PointerKind::Down, 500.0)]);
    assert_ne!(page.event(), 100, "one finger goes to a moment");
    let shown = page.session.model.shown_positions();
    for factor in [1.0, 2.0] {
        page.act(&[touch(PointerKind::Pinch(factor), 400.0)]);
        assert_eq!(page.event(), 100);
    }
    assert!(page.session.model.shown_positions() != shown, "two fingers zoom");
    // A gesture that ended before the pinch began stays.
    page.act(&[touch(PointerKind::Down, 300.0)]);
    page.act(&[touch(PointerKind::Up, 300.0), touch(PointerKind::Leave, 300.0)]);
    let event = page.event();
    page.act(&[touch(PointerKind::Pinch(2.0), 400.0)]);
    assert_eq!(page.event(), event);
}

#[test]
fn only_the_axis_of_time_has_a_button_for_idle_time() {
    let mut page = Page::new(open("mlp_train.pickle.zst"), false);
    for (axis, has_button) in [("events", false), ("steps", false), ("time", true)] {
        page.run(&format!("axis {axis}"));
        assert_eq!(page.bar.contains("idle time"), has_button, "{axis}: {}", page.bar);
    }
}
