//! Pointer input on the pictures in the panes, apart from the heatmap.

use crate::draw::picture::MomentAxis;
use crate::protocol::{Pointer, PointerKind, Surface};
use crate::timeline::moment_text;
use crate::views::{self, ViewKind};

use super::core::{Session, SessionReport};
use super::parts::{Drag, PanePicture, PaneScene};
use super::pointer::CLICK_DISTANCE;

impl Session {
    /// Returns the lines of text that the picture shows beside the pointer at pixel `point`.
    pub(super) fn pointer_text(&mut self, picture: &PanePicture, point: (i32, i32)) -> Vec<String> {
        match &picture.scene {
            PaneScene::Empty | PaneScene::Waiting(_) => Vec::new(),
            PaneScene::Allocations(scene, _) => self.with_context(ViewKind::Allocations, |context, options, caches| {
                views::allocations::lines(context, options, (&mut caches.shared, &caches.allocations), scene, point)
            }),
            PaneScene::Comparison(scene) => scene.values(point),
            PaneScene::Fragmentation(scene) => {
                let Some((moment, values)) = scene.hit(point).and_then(|_| scene.values(point.0)) else {
                    return Vec::new();
                };
                let time = moment_text(self.model.recording(), self.history().time_ns(moment));
                let mut lines = vec![format!("{time}, event {}", vramscope_trace::Count(moment))];
                lines.extend(values);
                lines
            }
            PaneScene::Flame(scene) => {
                let target = scene.hit(point).map(|hovered| hovered.target);
                target
                    .map(|target| {
                        self.with_context(ViewKind::Flame, |_, _, caches| scene.lines(caches.flame.graph(), target))
                    })
                    .unwrap_or_default()
            }
        }
    }

    /// Returns the command that a click on a pixel of a picture runs; `None` if it runs none.
    fn command_at(&mut self, pane: usize, point: (i32, i32)) -> Option<String> {
        let picture = std::mem::take(&mut self.pictures[pane]);
        let command = match &picture.scene {
            PaneScene::Empty | PaneScene::Waiting(_) | PaneScene::Fragmentation(_) | PaneScene::Comparison(_) => None,
            PaneScene::Allocations(scene, _) => {
                let target = scene.hit(point);
                target.and_then(|target| {
                    self.with_context(ViewKind::Allocations, |context, options, caches| {
                        views::allocations::command(context, options, &mut caches.shared, target)
                    })
                })
            }
            PaneScene::Flame(scene) => {
                let target = scene.hit(point).map(|hit| hit.target);
                target.map(|target| {
                    self.with_context(ViewKind::Flame, |_, _, caches| scene.command(caches.flame.graph(), target))
                })
            }
        };
        self.pictures[pane] = picture;
        command
    }

    /// Handles a pointer event on the picture of a pane, apart from the heatmap: charts change the
    /// moment and the range like the timeline, and a click on a flame graph zooms.
    ///
    /// # Errors
    /// If a click runs a command that fails.
    pub(super) fn pointer_on_picture(&mut self, pointer: &Pointer) -> Result<(), String> {
        let Some(pane) = pointer.surface.pane() else { return Ok(()) };
        match pointer.kind {
            PointerKind::Leave => self.set_hover(None),
            PointerKind::Move | PointerKind::Down => {
                self.set_hover(Some((pointer.surface, (pointer.x as i32, pointer.y as i32))));
            }
            _ => {}
        }
        if self.wheel_on_allocations(pointer, pane) {
            return Ok(());
        }
        let has_commands = !matches!(self.pictures[pane].scene, PaneScene::Fragmentation(_));
        if let Some(columns) = self.pictures[pane].axis().map(MomentAxis::columns) {
            if !has_commands || !self.press_on_chart(pointer, pane, columns)? {
                self.pointer_on_chart(pointer, columns);
            }
            return Ok(());
        }
        match pointer.kind {
            PointerKind::Down => self.drag = Some(Drag::Press { x: pointer.x, y: pointer.y }),
            PointerKind::Move if pointer.is_touch => {
                if let Some(Drag::Press { y, .. } | Drag::Scroll { last_y: y }) = self.drag
                    && (matches!(self.drag, Some(Drag::Scroll { .. })) || (pointer.y - y).abs() > CLICK_DISTANCE)
                {
                    self.drag = Some(Drag::Scroll { last_y: pointer.y });
                    self.scroll_picture(pane, y - pointer.y);
                }
            }
            PointerKind::Up => {
                if let Some(Drag::Press { x, y }) = self.drag.take()
                    && (pointer.x - x).hypot(pointer.y - y) <= CLICK_DISTANCE
                    && let Some(command) = self.command_at(pane, (pointer.x as i32, pointer.y as i32))
                {
                    return self.execute(&command, 0.0, &mut SessionReport::default());
                }
            }
            PointerKind::Leave => self.drag = None,
            PointerKind::Wheel(_, dy) => self.scroll_picture(pane, dy * f64::from(self.screen.scale)),
            PointerKind::Move | PointerKind::DoubleClick | PointerKind::Pinch(_) => {}
        }
        Ok(())
    }

    /// Handles presses on a chart whose parts can be clicked: a click on a part runs its command,
    /// and anything else changes the moment. Returns true if the event needs no further handling.
    ///
    /// # Errors
    /// If a click runs a command that fails.
    fn press_on_chart(&mut self, pointer: &Pointer, pane: usize, columns: (i32, i32)) -> Result<bool, String> {
        let Some(Drag::Press { x, y }) = self.drag else {
            if pointer.kind == PointerKind::Down && !pointer.shift {
                self.drag = Some(Drag::Press { x: pointer.x, y: pointer.y });
                return Ok(true);
            }
            return Ok(false);
        };
        let is_click = (pointer.x - x).hypot(pointer.y - y) <= CLICK_DISTANCE;
        match pointer.kind {
            PointerKind::Move if is_click => return Ok(true),
            PointerKind::Up if is_click => {
                if let Some(command) = self.command_at(pane, (pointer.x as i32, pointer.y as i32)) {
                    self.drag = None;
                    self.execute(&command, 0.0, &mut SessionReport::default())?;
                    return Ok(true);
                }
            }
            PointerKind::Move | PointerKind::Up => {}
            _ => return Ok(false),
        }
        self.drag = None;
        self.pointer_on_chart(&Pointer { kind: PointerKind::Down, x, y, ..*pointer }, columns);
        Ok(false)
    }

    /// Handles a pointer event on a chart from pixel column `x0` to `x1`, as if it were on the
    /// timeline above.
    fn pointer_on_chart(&mut self, pointer: &Pointer, (x0, x1): (i32, i32)) {
        let Some(plot) = self.scene.timeline.as_ref().map(|timeline| timeline.geometry.plot) else { return };
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

    /// Scrolls a flame graph down by `pixels`, at most to its ends.
    fn scroll_picture(&mut self, pane: usize, pixels: f64) {
        let picture = &mut self.pictures[pane];
        if let PaneScene::Flame(scene) = &picture.scene {
            picture.scroll = picture.scroll.saturating_add(pixels as i32).clamp(0, scene.max_scroll);
            self.model.moment_changed();
        }
    }
}
