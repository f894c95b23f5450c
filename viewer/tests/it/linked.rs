//! What the pointer on one picture or element lights up in the others.

use vramscope_viewer::app::{PageFacts, Session, SessionReport};
use vramscope_viewer::linked_memory::LinkedMemory;
use vramscope_viewer::protocol::{Action, FrameRequest, PageUpdate, Pointer, PointerKind, Screen, Surface};

use crate::testing::page::run;
use crate::testing::still::draw_until_still;
use crate::testing::{command, open_bytes};

/// The size of each picture, in pixels.
const SIZE: (u32, u32) = (700, 300);

/// Opens a recording of a program of many lines at its peak with the views `left` and `right` in
/// the panes.
fn session_with(left: &str, right: &str, commands: &[&str]) -> Session {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/pytorch/recordings/checkpoint_blocks-without.vram");
    let file = std::fs::read(path).expect("the repository contains the file");
    let mut session = open_bytes("checkpoint_blocks", &file);
    let screen = Screen { sizes: [(900, 160), SIZE, SIZE], scale: 1.0, is_dark: false };
    let panes = [format!("pane 0 {left}"), format!("pane 1 {right}")];
    let texts = ["peak", "split"].into_iter().chain(panes.iter().map(String::as_str)).chain(commands.iter().copied());
    let actions: Vec<Action> = texts.map(command).collect();
    draw_until_still(&mut session, &screen, &actions);
    session
}

/// Moves the pointer to a pixel of a picture and draws a frame.
fn point(session: &mut Session, surface: Surface, kind: PointerKind, (x, y): (i32, i32)) -> PageUpdate {
    let (x, y) = (f64::from(x), f64::from(y));
    let pointer = Pointer { surface, kind, x, y, shift: false, ctrl: false, alt: false, is_touch: false };
    let request = FrameRequest { actions: vec![Action::Pointer(pointer)], ..FrameRequest::default() };
    session.frame(&request, &PageFacts::default(), &mut SessionReport::default())
}

/// Returns the lowest pixel of a picture on which the pointer lights memory up, and that memory.
fn lowest_linked(session: &mut Session, surface: Surface) -> ((i32, i32), Vec<String>) {
    lowest_linked_to(session, surface, "")
}

/// Returns the lowest pixel of a picture on which the pointer lights memory up whose text begins
/// with `start`, and that memory.
fn lowest_linked_to(session: &mut Session, surface: Surface, start: &str) -> ((i32, i32), Vec<String>) {
    let points = (0..SIZE.1 as i32).rev().step_by(7).flat_map(|y| (0..SIZE.0 as i32).step_by(11).map(move |x| (x, y)));
    for at in points {
        let lit = point(session, surface, PointerKind::Move, at).lit;
        if lit.first().is_some_and(|first| first.starts_with(start)) {
            return (at, lit);
        }
    }
    panic!("no pixel lights anything up");
}

/// Asserts that the pointer on the picture `from` changes the picture `to` until it leaves.
fn check_link(session: &mut Session, from: Surface, to: Surface) -> Vec<String> {
    let plain = session.pixels(to).to_vec();
    let (at, lit) = lowest_linked(session, from);
    for text in &lit {
        assert!(text.parse::<LinkedMemory>().is_ok(), "{text}");
    }
    let _ = run(session, &[]);
    assert!(session.pixels(to) != plain, "{lit:?} changes the picture");
    let left = point(session, from, PointerKind::Leave, at);
    assert!(left.lit.is_empty());
    let _ = run(session, &[]);
    assert!(session.pixels(to) == plain, "the light goes out");
    lit
}

#[test]
fn block_on_the_map_lights_its_line_elsewhere() {
    for view in ["flame", "allocations"] {
        let mut session = session_with("device", view, &[]);
        let lit = check_link(&mut session, Surface::Left, Surface::Right);
        assert!(lit[0].starts_with("group line "), "{lit:?}");
        assert!(lit.iter().any(|text| text.starts_with("category ")), "{lit:?}");
        // The timeline is stacked by category: the line's bytes are a part of a layer.
        check_link(&mut session, Surface::Left, Surface::Timeline);
    }
}

#[test]
fn pictures_light_the_map() {
    let mut session = session_with("device", "flame", &[]);
    // The root has all blocks, so its children are pointed at.
    let lit = check_link(&mut session, Surface::Right, Surface::Left);
    assert!(lit[0].starts_with("call "), "{lit:?}");
    let mut session = session_with("device", "allocations", &["sort allocations bytes"]);
    let lit = check_link(&mut session, Surface::Right, Surface::Left);
    assert!(lit[0].starts_with("group "), "{lit:?}");
    let mut session = session_with("device", "flame", &["stack category"]);
    let lit = check_link(&mut session, Surface::Timeline, Surface::Left);
    assert!(lit[0].starts_with("category "), "{lit:?}");
}

#[test]
fn picture_under_the_pointer_is_not_dimmed() {
    let mut session = session_with("device", "flame", &[]);
    let (at, lit) = lowest_linked(&mut session, Surface::Left);
    let before = session.pixels(Surface::Left).to_vec();
    // Only the outline and the texts at the pointer differ from the picture without a pointer.
    let _ = point(&mut session, Surface::Left, PointerKind::Leave, at);
    let plain = session.pixels(Surface::Left).to_vec();
    let changed = before.chunks(4).zip(plain.chunks(4)).filter(|(one, other)| one != other).count();
    assert!(changed < before.len() / 16, "{changed} pixels differ although {lit:?} is elsewhere");
}

#[test]
fn rows_of_the_flame_graph_light_their_blocks() {
    let mut session = session_with("device", "flame", &[]);
    let plain = session.pixels(Surface::Left).to_vec();
    let (_, lit) = lowest_linked(&mut session, Surface::Right);
    let _ = run(&mut session, &[&format!("light {}", lit[0])]);
    assert!(session.pixels(Surface::Left) != plain);
    let flame = session.pixels(Surface::Right).to_vec();
    let _ = run(&mut session, &["light"]);
    assert!(session.pixels(Surface::Left) == plain && session.pixels(Surface::Right) != flame);
}

#[test]
fn escape_ignores_the_light_under_the_pointer() {
    let mut session = session_with("device", "flame", &["group line 0"]);
    assert!(session.model.selected_group().is_some());
    let _ = lowest_linked(&mut session, Surface::Left);
    let _ = run(&mut session, &["deselect"]);
    assert!(session.model.selected_group().is_none(), "one press is enough");
}

#[test]
fn groups_by_category_light_the_category() {
    let mut session = session_with("device", "flame", &["stack category", "by flame category"]);
    let plain = session.pixels(Surface::Timeline).to_vec();
    let (_, lit) = lowest_linked_to(&mut session, Surface::Right, "category ");
    assert!(lit[1].starts_with("group category "), "{lit:?}");
    let _ = run(&mut session, &[]);
    assert!(session.pixels(Surface::Timeline) != plain, "other layers are dimmed");
}

#[test]
fn light_goes_out_when_other_memory_is_under_a_resting_pointer() {
    let mut session = session_with("device", "flame", &[]);
    let _ = lowest_linked(&mut session, Surface::Left);
    let _ = run(&mut session, &["first"]);
    let request = FrameRequest::default();
    let lit = session.frame(&request, &PageFacts::default(), &mut SessionReport::default()).lit;
    assert!(lit.is_empty(), "{lit:?}");
}
