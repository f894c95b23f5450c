//! Pointer input on the pictures: charts work like the timeline; on other pictures, a click runs a
//! command, and dragging and the wheel move the picture.

use vramscope_draw::MomentAxis;

use super::input::{Drag, ZOOM_PER_PIXEL, is_drag};
use super::session::{Session, SessionReport};
use crate::command::Command;
use crate::linked_memory::LinkedMemory;
use crate::protocol::{Pointer, PointerKind, Surface};
use crate::view::PictureInput;
use crate::views::ViewId;

impl Session {
    /// Handles a pointer event on a picture.
    ///
    /// # Errors
    /// If the recording cannot be read, or a click runs a command that fails.
    pub(super) fn pointer(&mut self, pointer: &Pointer) -> Result<(), String> {
        let point = (pointer.x as i32, pointer.y as i32);
        match pointer.kind {
            PointerKind::Leave => self.input.set_hover(None),
            PointerKind::Move if pointer.surface == Surface::Timeline && pointer.is_touch => {}
            PointerKind::Move => self.input.set_hover(Some((pointer.surface, point))),
            PointerKind::Down if pointer.surface != Surface::Timeline => {
                self.input.set_hover(Some((pointer.surface, point)));
            }
            _ => {}
        }
        self.light_at_pointer(pointer.surface);
        let Some(pane) = pointer.surface.pane() else {
            self.pointer_on_timeline(pointer);
            return Ok(());
        };
        let Some(view) = self.panes.views()[pane] else { return Ok(()) };
        if let Some(input) = self.picture_input(pointer)
            && self.views.get_mut(view).input(self.model.device_state(), input)
        {
            self.model.moment_changed();
            return Ok(());
        }
        match self.views.get(view).moment_axis().map(MomentAxis::columns) {
            Some(columns) => {
                if !self.press_on_chart(pointer, view, columns)? {
                    self.pointer_on_chart(pointer, columns);
                }
                Ok(())
            }
            None => self.pointer_on_picture(pointer, view),
        }
    }

    /// Lights up the memory under the pointer on a picture in the others and in the tables; none
    /// while the pointer drags.
    fn light_at_pointer(&mut self, surface: Surface) {
        let is_on_it = self.input.pointer_on(surface).is_some() && self.input.drag.is_none();
        if is_on_it || self.details.lights.source == Some(surface) {
            let memory = if is_on_it { self.memory_at_pointer(surface) } else { Vec::new() };
            self.light(memory, Some(surface));
        }
    }

    /// Returns the memory that the pixel under the pointer on a picture stands for.
    fn memory_at_pointer(&mut self, surface: Surface) -> Vec<LinkedMemory> {
        let Some(point) = self.input.pointer_on(surface) else { return Vec::new() };
        let memory = match surface.pane().and_then(|pane| self.panes.views()[pane]) {
            Some(view) => self.with_view(view, |view, context, shared| view.linked(context, shared, point)),
            None => self.timeline.scene.as_ref().map(|timeline| timeline.memory_at(point).into_iter().collect()),
        };
        self.with_other_names(memory.unwrap_or_default())
    }

    /// Lets the light of a resting pointer go out if other memory is under it now: after a zoom, or
    /// at another moment. `bases` tells for each pane whether its picture has changed.
    pub(super) fn check_light(&mut self, bases: [bool; 2], has_timeline_changed: bool) {
        let Some(surface) = self.details.lights.source else { return };
        if surface.pane().map_or(has_timeline_changed, |pane| bases[pane])
            && self.memory_at_pointer(surface) != self.details.lights.hovered
        {
            self.light(Vec::new(), Some(surface));
        }
    }

    /// Converts the wheel, two fingers and double clicks to input on a picture.
    fn picture_input(&self, pointer: &Pointer) -> Option<PictureInput> {
        let point = (pointer.x as i32, pointer.y as i32);
        match pointer.kind {
            PointerKind::Wheel(dx, dy) => {
                // With Shift, browsers report the wheel as horizontal.
                let turned = if dy == 0.0 { dx } else { dy };
                let scale = f64::from(self.display.screen.scale);
                Some(PictureInput::Wheel {
                    point,
                    pixels: (dx * scale, dy * scale),
                    factor: (-turned * ZOOM_PER_PIXEL).exp(),
                    ctrl: pointer.ctrl,
                    alt: pointer.alt,
                    shift: pointer.shift,
                })
            }
            PointerKind::Pinch(factor) => Some(PictureInput::Pinch(point, factor)),
            PointerKind::DoubleClick => Some(PictureInput::DoubleClick),
            _ => None,
        }
    }

    /// Handles presses, movements and releases on a picture that is no chart.
    fn pointer_on_picture(&mut self, pointer: &Pointer, view: ViewId) -> Result<(), String> {
        let at = (pointer.x, pointer.y);
        match pointer.kind {
            PointerKind::Down => {
                let point = (pointer.x as i32, pointer.y as i32);
                let is_control = self.views.get_mut(view).input(self.model.device_state(), PictureInput::Press(point));
                self.input.drag = Some(match is_control {
                    true => Drag::Picture { last_x: pointer.x, last_y: pointer.y },
                    false => Drag::Press { x: pointer.x, y: pointer.y },
                });
                if is_control {
                    self.model.moment_changed();
                }
            }
            PointerKind::Move => {
                let last = match self.input.drag {
                    Some(Drag::Press { x, y }) if is_drag((x, y), at) => (x, y),
                    Some(Drag::Picture { last_x, last_y }) => (last_x, last_y),
                    _ => return Ok(()),
                };
                let pixels = ((pointer.x - last.0) as i32, (pointer.y - last.1) as i32);
                // What is left of a pixel counts for the next event.
                let (last_x, last_y) = (last.0 + f64::from(pixels.0), last.1 + f64::from(pixels.1));
                self.input.drag = Some(Drag::Picture { last_x, last_y });
                let point = (pointer.x as i32, pointer.y as i32);
                let input = PictureInput::Drag { point, pixels, is_touch: pointer.is_touch };
                if self.views.get_mut(view).input(self.model.device_state(), input) {
                    self.model.moment_changed();
                }
            }
            PointerKind::Up => {
                if let Some(Drag::Press { x, y }) = self.input.drag.take()
                    && !is_drag((x, y), at)
                {
                    return self.click(pointer, view).map(|_| ());
                }
            }
            PointerKind::Leave => self.input.drag = None,
            PointerKind::Wheel(..) | PointerKind::DoubleClick | PointerKind::Pinch(_) => {}
        }
        Ok(())
    }

    /// Returns the command that a click on the pixel under the pointer runs; `None` if it has none.
    fn command_at(&mut self, pointer: &Pointer, view: ViewId) -> Option<Command> {
        let point = (pointer.x as i32, pointer.y as i32);
        self.with_view(view, |view, context, shared| view.click(context, shared, point)).flatten()
    }

    /// Runs the command of the pixel under the pointer. Returns false if it has none.
    fn click(&mut self, pointer: &Pointer, view: ViewId) -> Result<bool, String> {
        let Some(command) = self.command_at(pointer, view) else { return Ok(false) };
        self.execute(&command, self.input.clock_ms, &mut SessionReport::default())?;
        Ok(true)
    }

    /// Handles presses on a chart: a click on a part that has a command runs it, and anything else
    /// changes the moment or the range. Returns true if the event needs no further handling.
    ///
    /// # Errors
    /// If a click runs a command that fails.
    fn press_on_chart(&mut self, pointer: &Pointer, view: ViewId, columns: (i32, i32)) -> Result<bool, String> {
        let Some(Drag::Press { x, y }) = self.input.drag else {
            let is_press = pointer.kind == PointerKind::Down && !pointer.shift;
            if is_press && self.command_at(pointer, view).is_some() {
                self.input.drag = Some(Drag::Press { x: pointer.x, y: pointer.y });
                return Ok(true);
            }
            return Ok(false);
        };
        let is_click = !is_drag((x, y), (pointer.x, pointer.y));
        match pointer.kind {
            PointerKind::Move if is_click => return Ok(true),
            PointerKind::Up if is_click => {
                if self.click(pointer, view)? {
                    self.input.drag = None;
                    return Ok(true);
                }
            }
            PointerKind::Move | PointerKind::Up => {}
            _ => return Ok(false),
        }
        self.input.drag = None;
        self.pointer_on_chart(&Pointer { kind: PointerKind::Down, x, y, ..*pointer }, columns);
        Ok(false)
    }

    /// Handles a pointer event on a chart from pixel column `x0` to `x1`, as if it were on the
    /// timeline above.
    fn pointer_on_chart(&mut self, pointer: &Pointer, (x0, x1): (i32, i32)) {
        let Some(plot) = self.timeline.scene.as_ref().map(|timeline| timeline.geometry.plot) else { return };
        let ratio = f64::from(plot.width()) / f64::from((x1 - x0).max(1));
        let kind = match pointer.kind {
            PointerKind::Wheel(dx, dy) if dx != 0.0 && !pointer.shift => PointerKind::Wheel(dx * ratio, dy),
            kind => kind,
        };
        // A column of the chart begins at that of the timeline nearest to it; see `chart_axis`.
        let x = f64::from(plot.x0) + ((pointer.x - f64::from(x0)) * ratio).round();
        let y = f64::from(plot.y0 + plot.y1) / 2.0;
        self.pointer_on_timeline(&Pointer { surface: Surface::Timeline, kind, x, y, ..*pointer });
    }
}
