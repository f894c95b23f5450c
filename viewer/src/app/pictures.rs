//! The pictures in the panes: computing and drawing what has changed.

use std::cell::OnceCell;

use vramscope_draw::MomentAxis;
use vramscope_draw::picture::{chart_columns, draw_pointer_text};

use super::session::Session;
use crate::model::Origin;
use crate::protocol::{PageUpdate, Surface};
use crate::timeline::TimelineScene;
use crate::view::{PictureFrame, shown_filter};
use crate::views::ViewId;

/// Returns the axis of a chart in a picture that is `width` pixels wide: its columns show the
/// moments of the timeline's columns; the timeline may be wider. The axis has no columns until the
/// timeline has been computed.
fn chart_axis(timeline: Option<&TimelineScene>, width: u32, scale: f32) -> MomentAxis {
    let (x0, x1) = chart_columns(width, scale);
    let edges = timeline.map_or(&[][..], TimelineScene::edges);
    let Some((timeline, last)) = timeline.zip(edges.len().checked_sub(1)).filter(|&(_, last)| last > 0) else {
        return MomentAxis::new(x0, Vec::new());
    };
    let columns = (x1 - x0) as usize;
    let edge = |column: usize| edges[(column * last + columns / 2) / columns];
    let ticks = timeline.axis_ticks(x1 - x0).into_iter().map(|(x, text)| (x0 + x, text)).collect();
    MomentAxis::new(x0, (0..=columns).map(edge).collect()).with_ticks(ticks)
}

impl Session {
    /// Computes the panes' pictures whose inputs have changed. Returns true for each pane whose
    /// picture's base (without cursor and highlights) must be drawn again.
    pub(super) fn update_pictures(&mut self) -> [bool; 2] {
        self.find_pending_group();
        self.find_shown_filter();
        let timeline = self.timeline.scene.take();
        let screen = &self.display.screen;
        let (scale, is_dark, clock_ms) = (screen.scale, screen.is_dark, self.input.clock_ms);
        let zoomed_ns = self.model.zoomed_range().map(|range| (range.start, range.end));
        let is_growing = self.model.origin() == Origin::Live || !self.analysis.is_complete();
        let is_following = self.model.is_following();
        let mut changed = [false; 2];
        for (pane, view) in self.panes.views().into_iter().enumerate() {
            let Some(view) = view.filter(|view| view.info().picture_label.is_some()) else {
                self.sent.drawn[pane] = None;
                continue;
            };
            let size = self.display.size(Surface::PANES[pane]);
            let create_axis = || chart_axis(timeline.as_ref(), size.0, scale);
            let frame = PictureFrame {
                size,
                scale,
                is_dark,
                clock_ms,
                zoomed_ns,
                is_growing,
                is_following,
                create_axis: &create_axis,
                axis: OnceCell::new(),
            };
            let is_changed = self.with_view(view, |view, context, shared| view.update_picture(context, shared, &frame));
            changed[pane] = is_changed.unwrap_or_default() || self.sent.drawn[pane] != Some(view);
        }
        self.timeline.scene = timeline;
        changed
    }

    /// Draws the pictures of the panes and adds them to `update`. `bases` tells for each pane
    /// whether its picture's base must be drawn again.
    pub(super) fn draw_pictures(&mut self, bases: [bool; 2], update: &mut PageUpdate) {
        let moment = (self.model.state().event(), self.model.selected_range());
        let scale = self.display.screen.scale;
        self.details.hovered = None;
        for (pane, is_changed) in bases.into_iter().enumerate() {
            self.sent.pointer_text[pane].clear();
            let Some(view) = self.pictured(pane) else { continue };
            let surface = Surface::PANES[pane];
            let point = self.input.pointer_on(surface);
            let lines = self.with_view(view, |view, context, shared| view.hover(context, shared, point));
            let lines = lines.unwrap_or_default();
            let shown = self.views.get(view);
            if let Some(point) = point {
                self.details.hovered = self.details.hovered.or(shown.hit(self.model.device_state(), point));
            }
            self.display.draw(
                surface,
                is_changed,
                |canvas, theme| shown.draw(canvas, theme),
                |canvas, theme| {
                    shown.draw_highlights(canvas, theme, moment);
                    if let Some(point) = point {
                        draw_pointer_text(canvas, &lines, point, scale, theme);
                    }
                },
            );
            self.sent.pointer_text[pane] = lines;
            self.sent.drawn[pane] = Some(view);
            update.pictures.push((surface, 0, 0));
        }
    }

    /// Returns the view in a pane if it has a picture to draw.
    fn pictured(&self, pane: usize) -> Option<ViewId> {
        let view = self.panes.views()[pane].filter(|view| view.info().picture_label.is_some() && view.is_loaded())?;
        self.views.get(view).has_picture().then_some(view)
    }

    /// Finds the filter that the user has typed in a pane's list, the pane used last first, and
    /// stores it; pictures outline the blocks that match it.
    fn find_shown_filter(&mut self) {
        let [one, other] = self.panes.views();
        let views = [Some(self.panes.active()), one, other].into_iter().flatten();
        let mut found = None;
        for view in views.filter(|view| view.info().outlines_matches) {
            found = found.or_else(|| {
                self.with_views(|views, context, shared| {
                    shown_filter(context, views.get_mut(view).options().filter(), &mut shared.searches)
                })
            });
        }
        self.analysis.shared.searches.shown_filter = found;
    }
}
