//! The input that a session has received and not finished.

use crate::protocol::Surface;
use crate::timeline::TimedMoment;

/// Maximum distance in pixels that a pressed pointer moves in a click; beyond it, the user drags.
pub(super) const CLICK_DISTANCE: f64 = 5.0;
/// Speed of zooming with the wheel: each CSS pixel changes the shown range by a factor of e to this
/// power.
pub(super) const ZOOM_PER_PIXEL: f64 = 0.0015;

/// Pointer, gestures, and the moments to go to in the next frame.
#[derive(Default)]
pub(super) struct Input {
    /// The pointer's pixel on a picture.
    pub(super) hover: Option<(Surface, (i32, i32))>,
    pub(super) hover_changed: bool,
    pub(super) drag: Option<Drag>,
    /// The pixel column of the timeline to go to in the next frame.
    pub(super) scrub_x: Option<f64>,
    /// The event number of the moment to go to in the next frame.
    pub(super) pending_seek: Option<u64>,
    /// The page's clock at the last frame, in milliseconds.
    pub(super) clock_ms: f64,
}

impl Input {
    /// Stores the pointer's pixel on a picture; `None` if it is on none.
    pub(super) fn set_hover(&mut self, hover: Option<(Surface, (i32, i32))>) {
        if self.hover != hover {
            self.hover = hover;
            self.hover_changed = true;
        }
    }

    /// Returns the pointer's pixel on a picture; `None` if it is elsewhere.
    pub(super) fn pointer_on(&self, surface: Surface) -> Option<(i32, i32)> {
        self.hover.filter(|(hovered, _)| *hovered == surface).map(|(_, point)| point)
    }

    /// Forgets gestures and the moments to go to.
    pub(super) fn cancel(&mut self) {
        (self.drag, self.scrub_x, self.pending_seek) = (None, None, None);
    }
}

/// The effect of dragging on a picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Drag {
    /// Changes the moment.
    Scrub,
    /// Moves the timeline's range.
    Pan { last_x: f64 },
    /// Moves the timeline's range with the overview strip; the pointer holds the range `offset`
    /// after its start.
    Overview { offset: u64 },
    /// Selects a range on the timeline, or goes to a moment if the pointer does not move.
    Brush { start_x: f64, start: TimedMoment, has_moved: bool },
    /// Moves the picture of a pane; pixels of the pointer's last position.
    Picture { last_x: f64, last_y: f64 },
    /// Runs the command of the pixel under the pointer when it is released there.
    Press { x: f64, y: f64 },
}

/// Returns true if the pointer at (`x`, `y`) has moved too far from where it was pressed for a
/// click.
pub(super) fn is_drag(pressed: (f64, f64), (x, y): (f64, f64)) -> bool {
    (x - pressed.0).hypot(y - pressed.1) > CLICK_DISTANCE
}
