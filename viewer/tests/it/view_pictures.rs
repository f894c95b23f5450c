//! Golden pictures of every view with a picture, as a session draws them: in both color schemes and
//! at four sizes.
//!
//! Each view's folder has its pictures: `src/views/NAME/golden`, and `src/timeline/golden`.

use std::collections::BTreeSet;
use std::fs;

use vramscope_viewer::app::Session;
use vramscope_viewer::protocol::{Action, Screen, Surface};

use crate::files::{command, load_fixture, open};
use crate::golden_file::{compare, crate_path, is_updating};
use crate::still::{draw_until_still, drawn};
use crate::views_what_if::Page;

/// The sizes of the pictures in a window, in pixels, and pixels per unit of length.
#[derive(Clone, Copy)]
struct Size {
    timeline: (u32, u32),
    pane: (u32, u32),
    scale: f32,
}

/// A phone, a narrow and a usual window, and a screen with a fractional scale. The pictures are
/// low, so that the files are small.
const SIZES: [Size; 4] = [
    Size { timeline: (1080, 360), pane: (1080, 390), scale: 3.0 },
    Size { timeline: (560, 150), pane: (560, 280), scale: 1.0 },
    Size { timeline: (880, 170), pane: (880, 340), scale: 1.0 },
    Size { timeline: (1200, 280), pane: (1200, 390), scale: 1.5 },
];

/// The folders with golden pictures, relative to `src`.
const FOLDERS: [&str; 7] = [
    "timeline",
    "views/allocations",
    "views/compare",
    "views/flame",
    "views/fragmentation",
    "views/heatmap",
    "views/what_if",
];

/// Returns the screen at one of the sizes.
fn screen(size: Size, is_dark: bool) -> Screen {
    Screen { sizes: [size.timeline, size.pane, (0, 0)], scale: size.scale, is_dark }
}

/// Applies `actions` to a session, and compares its picture on a surface with the golden ones in
/// both color schemes and at all sizes. The pictures are called `name`, in a folder of `FOLDERS`.
#[track_caller]
fn check(session: &mut Session, actions: &[Action], surface: Surface, folder: &str, name: &str) {
    assert!(FOLDERS.contains(&folder));
    // The actions refer to the first size.
    draw_until_still(session, &screen(SIZES[0], false), actions);
    let mut differences = Vec::new();
    for size in SIZES {
        for is_dark in [false, true] {
            let screen = screen(size, is_dark);
            draw_until_still(session, &screen, &[]);
            let picture = drawn(session, &screen, surface);
            let first = &picture.bytes()[..4];
            assert!(picture.bytes().chunks_exact(4).any(|pixel| pixel != first), "{name} shows something");
            let (scheme, (width, height)) = (if is_dark { "dark" } else { "light" }, screen.sizes[surface as usize]);
            let path = crate_path(&format!("src/{folder}/golden/{name}_{width}x{height}_{scheme}.png"));
            differences.extend(compare(&path, &picture).err());
        }
    }
    assert!(differences.is_empty(), "{} pictures differ:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn timeline_looks_as_before() {
    let mut session = open("tour/resnet50_train.vram");
    session.model.select_range(Some((300, 500)));
    check(&mut session, &[command("seek 420")], Surface::Timeline, "timeline", "timeline");
}

#[test]
fn heatmap_looks_as_before() {
    let mut session = open("tour/oom_frag.vram");
    let actions = [command("pane 0 heatmap"), command("seek 700")];
    check(&mut session, &actions, Surface::Left, "views/heatmap", "heatmap");
}

#[test]
fn allocations_look_as_before() {
    let mut session = open("tour/resnet50_train.vram");
    let actions = [command("pane 0 allocations")];
    check(&mut session, &actions, Surface::Left, "views/allocations", "allocations");
}

#[test]
fn flame_graph_looks_as_before() {
    let mut session = open("tour/gpt_varlen.vram");
    let actions = [command("pane 0 flame"), command("peak-reserved")];
    check(&mut session, &actions, Surface::Left, "views/flame", "flame");
}

#[test]
fn fragmentation_looks_as_before() {
    let mut session = open("tour/gpt_varlen.vram");
    let actions = [command("pane 0 fragmentation")];
    check(&mut session, &actions, Surface::Left, "views/fragmentation", "fragmentation");
}

#[test]
fn two_compared_recordings_look_as_before() {
    let mut session = open("tour/gpt_varlen.vram");
    let second = load_fixture("tour/gpt_varlen_expandable.vram").recording;
    session.compare_with("gpt_varlen_expandable.vram", second).expect("both have events");
    check(&mut session, &[command("pane 0 compare")], Surface::Left, "views/compare", "recordings");
}

#[test]
fn pinned_moment_looks_as_before() {
    let mut session = open("mlp_train.pickle.zst");
    let actions = ["pane 0 compare", "seek 200", "pin-moment", "seek 900"].map(command);
    check(&mut session, &actions, Surface::Left, "views/compare", "pinned_moment");
}

#[test]
fn simulated_run_looks_as_before() {
    let mut page = Page::open("cudnn_benchmark_all.pickle.gz");
    page.run(&["filter whatif expandable_segments:True"]);
    assert!(page.simulated().is_some());
    check(&mut page.session, &[command("pane 0 whatif")], Surface::Left, "views/what_if", "simulated_run");
}

#[test]
fn every_picture_of_a_view_has_a_test() {
    if is_updating() {
        return;
    }
    let names = [
        ("timeline", "timeline"),
        ("views/allocations", "allocations"),
        ("views/compare", "pinned_moment"),
        ("views/compare", "recordings"),
        ("views/flame", "flame"),
        ("views/fragmentation", "fragmentation"),
        ("views/heatmap", "heatmap"),
        ("views/what_if", "simulated_run"),
    ];
    for folder in FOLDERS {
        let mut expected = BTreeSet::new();
        for (_, name) in names.iter().filter(|(in_folder, _)| *in_folder == folder) {
            for size in SIZES {
                let (width, height) = if folder == "timeline" { size.timeline } else { size.pane };
                expected.extend(["dark", "light"].map(|scheme| format!("{name}_{width}x{height}_{scheme}.png")));
            }
        }
        let files = fs::read_dir(crate_path(&format!("src/{folder}/golden"))).expect("the folder exists");
        let found: BTreeSet<String> =
            files.flatten().map(|file| file.file_name().to_string_lossy().into_owned()).collect();
        assert_eq!(found, expected, "src/{folder}/golden");
    }
}
