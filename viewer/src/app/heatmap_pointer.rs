//! Pointer input on the heatmap: hover, select, scroll, pan and zoom.

use crate::protocol::{Pointer, PointerKind};

use super::core::Session;
use super::parts::Drag;
use super::pointer::{CLICK_DISTANCE, ZOOM_PER_PIXEL};

/// Factor by which the wheel zooms the heatmap faster than the timeline.
const ZOOM_SPEED: f64 = 2.0;

impl Session {
    /// Handles a pointer event on the heatmap: hover, select, scroll, pan and zoom.
    pub(super) fn pointer_on_heatmap(&mut self, pointer: &Pointer) {
        let point = (pointer.x as i32, pointer.y as i32);
        match pointer.kind {
            PointerKind::Down => self.drag = Some(Drag::Press { x: pointer.x, y: pointer.y }),
            PointerKind::Move => {
                self.set_hover(Some((pointer.surface, point)));
                self.drag_heatmap(pointer);
            }
            PointerKind::Up => {
                if let Some(Drag::Press { x, y }) = self.drag.take()
                    && (pointer.x - x).hypot(pointer.y - y) <= CLICK_DISTANCE
                {
                    self.select_at(point);
                }
            }
            PointerKind::Leave => {
                self.drag = None;
                self.set_hover(None);
            }
            // Its two clicks have selected and deselected the object there.
            PointerKind::DoubleClick => self.reset_heatmap_zoom(),
            PointerKind::Wheel(dx, dy) => self.wheel_on_heatmap(pointer, (dx, dy)),
            PointerKind::Pinch(factor) => self.zoom_heatmap(factor, factor, point),
        }
    }

    /// Handles the wheel on the heatmap: it scrolls; with Ctrl it makes rows higher or lower, and
    /// with Alt or Shift bytes wider or narrower.
    fn wheel_on_heatmap(&mut self, pointer: &Pointer, (dx, dy): (f64, f64)) {
        let point = (pointer.x as i32, pointer.y as i32);
        // With Shift, browsers report the wheel as horizontal.
        let turned = if dy == 0.0 { dx } else { dy };
        let factor = (-turned * ZOOM_PER_PIXEL * ZOOM_SPEED).exp();
        if pointer.ctrl {
            self.zoom_heatmap(factor, 1.0, point);
        } else if pointer.alt || pointer.shift {
            self.zoom_heatmap(1.0, factor, point);
        } else {
            let scale = f64::from(self.screen.scale);
            self.change_heatmap_view(|layout, _| layout.pan((dx * scale) as i32, (dy * scale) as i32));
        }
    }

    /// Moves the heatmap with the pointer if it is dragged.
    fn drag_heatmap(&mut self, pointer: &Pointer) {
        let (last_x, last_y) = match self.drag {
            Some(Drag::Press { x, y }) if (pointer.x - x).hypot(pointer.y - y) > CLICK_DISTANCE => (x, y),
            Some(Drag::Heatmap { last_x, last_y }) => (last_x, last_y),
            _ => return,
        };
        let (x, y) = ((last_x - pointer.x) as i32, (last_y - pointer.y) as i32);
        // What is left of a pixel counts for the next event.
        self.drag = Some(Drag::Heatmap { last_x: last_x - f64::from(x), last_y: last_y - f64::from(y) });
        self.change_heatmap_view(|layout, _| layout.pan(x, y));
    }

    /// Selects the block or free range at a pixel of the heatmap, or clears the selection if that
    /// is selected already.
    fn select_at(&mut self, point: (i32, i32)) {
        let hit = self.scene.hit(self.model.device_state(), point);
        let selected = self.model.selected();
        let is_selected = hit.zip(selected).is_some_and(|(hit, selected)| hit.is_same_allocation(&selected));
        self.model.select(hit.filter(|_| !is_selected).map(|hit| hit.address));
    }
}
