//! Golden pictures of every view with a picture, as a session draws them: in both color schemes and
//! at four sizes.
//!
//! Each view's folder has its pictures: `src/views/NAME/golden`, and `src/timeline/golden`.

use vramscope_viewer::app::Session;
use vramscope_viewer::protocol::{Action, Screen, Surface};

use super::golden_file::{compare, crate_path};
use super::still::{draw_until_still, drawn};

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

/// Returns the screen at one of the sizes.
fn screen(size: Size, is_dark: bool) -> Screen {
    Screen { sizes: [size.timeline, size.pane, (0, 0)], scale: size.scale, is_dark }
}

/// Applies `actions` to a session, and compares its picture on a surface with the golden ones in
/// both color schemes and at all sizes. The pictures are `src/FOLDER/golden/NAME_….png`.
#[track_caller]
pub(crate) fn check(session: &mut Session, actions: &[Action], surface: Surface, folder: &str, name: &str) {
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
