//! Golden pictures of the panes: fragmentation over time and flame graphs, as a session draws them.

use vramscope_draw::Bitmap;
use vramscope_viewer::app::Session;
use vramscope_viewer::protocol::{Action, Pointer, PointerKind, Screen, Surface};

use crate::testing::golden_file::check;
use crate::testing::still::{draw_until_still, drawn};
use crate::testing::{command, open};

/// Applies actions and draws until nothing changes; returns the left pane's picture.
fn picture(session: &mut Session, screen: &Screen, actions: &[Action]) -> Bitmap {
    draw_until_still(session, screen, actions);
    drawn(session, screen, Surface::Left)
}

/// Returns the screen with a left picture of a size.
fn screen(size: (u32, u32), scale: f32, is_dark: bool) -> Screen {
    Screen { sizes: [(size.0 + 200, 160), size, (0, 0)], scale, is_dark }
}

/// Returns the pointer moving to a pixel of the left picture.
fn hover(x: f64, y: f64) -> Action {
    let kind = PointerKind::Move;
    Action::Pointer(Pointer {
        surface: Surface::Left,
        kind,
        x,
        y,
        shift: false,
        ctrl: false,
        alt: false,
        is_touch: false,
    })
}

#[test]
fn fragmentation_matches_golden_pictures() {
    let mut session = open("streams.pickle.gz");
    let show = [command("pane 0 fragmentation")];
    check("fragmentation_dark", &picture(&mut session, &screen((700, 300), 1.0, true), &show));
    let at_pointer = [hover(300.0, 200.0)];
    check("fragmentation_light", &picture(&mut session, &screen((700, 300), 1.0, false), &at_pointer));
}

#[test]
fn flame_graph_matches_golden_pictures() {
    let mut session = open("mlp_train.pickle.zst");
    let show = [command("pane 0 flame"), command("peak-reserved")];
    check("flame_dark", &picture(&mut session, &screen((700, 260), 1.0, true), &show));
    let unfolded = [command("mode flame moment-unfolded"), hover(200.0, 60.0)];
    check("flame_light", &picture(&mut session, &screen((700, 260), 1.0, false), &unfolded));
}

#[test]
fn allocations_match_golden_pictures() {
    let mut session = open("mlp_train.pickle.zst");
    let show = [command("pane 0 allocations")];
    let dark = screen((700, 260), 1.0, true);
    let stacked = picture(&mut session, &dark, &show);
    let mut hovers =
        (40..660).step_by(40).flat_map(|x| (20..250).step_by(30).map(move |y| hover(f64::from(x), f64::from(y))));
    assert!(
        hovers.any(|at_pointer| picture(&mut session, &dark, &[at_pointer]) != stacked),
        "a text is under the pointer"
    );
    let click = |x: f64, y: f64| {
        let pointer = |kind| Pointer {
            surface: Surface::Left,
            kind,
            x,
            y,
            shift: false,
            ctrl: false,
            alt: false,
            is_touch: false,
        };
        [PointerKind::Down, PointerKind::Up].map(|kind| Action::Pointer(pointer(kind)))
    };
    let before = session.model.state().event();
    let _ = picture(&mut session, &dark, &click(400.0, 240.0));
    assert!(
        session.model.selected_since().is_some() && session.model.state().event() == before,
        "the lowest band is selected"
    );
    let _ = picture(&mut session, &dark, &click(400.0, 10.0));
    assert_ne!(session.model.state().event(), before, "above all bands, a click changes the moment");
    let by_address = picture(&mut session, &dark, &[command("mode allocations address")]);
    assert!(by_address != stacked, "the layouts differ");
}
