//! Pointer input on the pictures: scrub, pan, zoom, hover and select.

use crate::protocol::{Pointer, PointerKind, Surface};
use crate::views::ViewKind;

use super::core::Session;

/// Speed of zooming with the wheel: each CSS pixel changes the timeline's range by a factor of e to
/// this power.
pub(super) const ZOOM_PER_PIXEL: f64 = 0.0015;

/// Maximum distance in pixels that a pressed pointer moves in a click; beyond it, the user drags.
pub(super) const CLICK_DISTANCE: f64 = 5.0;

impl Session {
    /// Handles a pointer event on a picture.
    ///
    /// # Errors
    /// If the recording cannot be read.
    pub(super) fn pointer(&mut self, pointer: &Pointer) -> Result<(), String> {
        match pointer.surface {
            Surface::Timeline => {
                match pointer.kind {
                    PointerKind::Leave => self.set_hover(None),
                    PointerKind::Move if !pointer.is_touch => {
                        self.set_hover(Some((Surface::Timeline, (pointer.x as i32, pointer.y as i32))));
                    }
                    _ => {}
                }
                self.pointer_on_timeline(pointer);
            }
            surface => match surface.pane().and_then(|pane| self.panes.views()[pane]) {
                Some(ViewKind::Heatmap) => self.pointer_on_heatmap(pointer),
                _ => return self.pointer_on_picture(pointer),
            },
        }
        Ok(())
    }

    /// Stores the pointer's pixel on a pane's picture; `None` if it is on none.
    pub(super) fn set_hover(&mut self, hover: Option<(Surface, (i32, i32))>) {
        if self.hover != hover {
            self.hover = hover;
            self.hover_changed = true;
        }
    }
}
