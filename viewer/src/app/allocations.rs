//! The picture of all allocations: its computation, and the wheel on it.

use vramscope_trace::FormatError;

use crate::model::Origin;
use crate::protocol::{Pointer, PointerKind, Surface};
use crate::segment_map::Highlight;
use crate::views::allocations::{self, AllocationsScene, Outline};
use crate::views::{self, ViewCaches, ViewKind};

use super::core::Session;
use super::parts::{PanePicture, PaneScene, PictureBaseKey};
use super::pointer::ZOOM_PER_PIXEL;

/// Minimum time in milliseconds between two computations of the allocations picture while its
/// recording grows.
const LEAST_INTERVAL_MS: f64 = 250.0;

impl Session {
    /// Advances the index behind the allocations picture by about `max_changes` changes of
    /// allocations, if a pane shows it. Returns true if there are more changes that can be read at
    /// once.
    ///
    /// # Errors
    /// If an event cannot be read.
    pub(super) fn work_on_allocations(&mut self, max_changes: usize) -> Result<bool, FormatError> {
        if self.panes.surface_of(ViewKind::Allocations).is_none() {
            return Ok(false);
        }
        let (before, more, after) = self.with_context(ViewKind::Allocations, |context, options, caches| {
            let shown = |ViewCaches { shared, allocations, .. }: &mut ViewCaches| {
                let waiting = views::allocations::waiting_text(context, options, shared, allocations);
                (waiting, views::allocations::picture_key(context, options, shared, allocations))
            };
            let before = shown(caches);
            let own = (&mut caches.shared, &mut caches.allocations);
            let more = views::allocations::advance(context, options, own, max_changes);
            (before, more, shown(caches))
        });
        if before != after {
            self.model.moment_changed();
        }
        more
    }

    /// Computes the picture of all allocations over time again if its inputs have changed. If the
    /// picture is an address map, each call paints a bounded part of it. Returns true if the
    /// picture has changed and must be drawn.
    pub(super) fn update_allocations(&mut self, picture: &mut PanePicture, surface: Surface) -> bool {
        let axis = self.chart_axis(surface);
        let (numbers, waiting) =
            self.with_context(ViewKind::Allocations, |context, options, ViewCaches { shared, allocations, .. }| {
                let waiting = views::allocations::waiting_text(context, options, shared, allocations);
                (views::allocations::picture_key(context, options, shared, allocations), waiting)
            });
        let Some(numbers) = numbers.filter(|_| waiting.is_none() && axis.edges().len() > 1) else {
            let text = waiting.unwrap_or_default();
            let is_same = matches!(&picture.scene, PaneScene::Waiting(shown) if *shown == text);
            picture.scene = PaneScene::Waiting(text);
            let key = self.key(ViewKind::Allocations, surface, Vec::new(), Vec::new());
            return picture.key.replace(key.clone()) != Some(key) || !is_same;
        };
        let until = numbers.until.len();
        let all = [numbers.until, numbers.chosen].concat();
        let key = self.key(ViewKind::Allocations, surface, all, axis.edges().to_vec());
        if picture.key.as_ref() != Some(&key) {
            let is_shown = matches!(picture.scene, PaneScene::Allocations(..));
            if is_shown && self.is_too_early(picture, &key, until) {
                self.analysis.caches.shared.is_unfinished = true;
                return false;
            }
            let geometry = allocations::Geometry::new(key.size, key.scale);
            let scene = self.with_context(ViewKind::Allocations, |context, options, caches| {
                let caches = (&mut caches.shared, &caches.allocations);
                views::allocations::scene(context, options, caches, (axis.edges(), geometry))
            });
            let Some(scene) = scene else { return false };
            self.analysis.caches.shared.is_unfinished |= !scene.is_complete();
            (picture.key, picture.drawn_ms) = (Some(key), self.clock_ms);
            picture.scene = PaneScene::Allocations(Box::new(scene), axis);
            return true;
        }
        let PaneScene::Allocations(scene, _) = &mut picture.scene else { return false };
        if scene.is_complete() {
            return false;
        }
        self.with_context(ViewKind::Allocations, |context, options, ViewCaches { shared, allocations, .. }| {
            let is_unfinished = views::allocations::paint(context, options, (shared, allocations), scene);
            shared.is_unfinished |= is_unfinished;
        });
        true
    }

    /// Returns true if the allocations picture should not be recomputed yet: the last one is less
    /// than 250 ms old, and since then only the recording has grown. The first `until` numbers of
    /// the key grow with the recording.
    fn is_too_early(&self, last: &PanePicture, key: &PictureBaseKey, until: usize) -> bool {
        let Some(before) = &last.key else { return false };
        let is_live = self.model.origin() == Origin::Live || !self.analysis.is_complete();
        let has_grown = before.numbers.get(..until) != key.numbers.get(..until) || self.model.is_following();
        let is_same = before.numbers.get(until..) == key.numbers.get(until..)
            && (before.size, before.scale, before.is_dark) == (key.size, key.scale, key.is_dark);
        let age_ms = self.clock_ms - last.drawn_ms;
        is_live && has_grown && is_same && (0.0..LEAST_INTERVAL_MS).contains(&age_ms)
    }

    /// Returns the outlines to draw on a picture of all allocations: those of the selected
    /// allocation and of the one at the pointer's pixel `point`.
    pub(super) fn outlines(&mut self, picture: &PanePicture, point: Option<(i32, i32)>) -> Vec<(Outline, Highlight)> {
        let PaneScene::Allocations(scene, _) = &picture.scene else { return Vec::new() };
        let hovered = point.and_then(|point| match scene.hit(point) {
            Some(allocations::Target::Allocation { row }) => Some(row),
            _ => None,
        });
        self.with_context(ViewKind::Allocations, |context, options, caches| {
            let selected = views::allocations::selected_row(context);
            let rows = [(hovered, Highlight::Hovered), (selected, Highlight::Selected)].into_iter();
            let mut outline = |row| views::allocations::outline(context, options, &mut caches.shared, scene, row);
            rows.filter_map(|(row, highlight)| Some((outline(row?), highlight))).collect()
        })
    }

    /// Handles the wheel on the vertical axis of a picture of all allocations: with Ctrl it zooms,
    /// with Alt it scrolls. A double click shows all of the axis. Returns false if the caller must
    /// still handle the event: any other event, and the double click.
    pub(super) fn wheel_on_allocations(&mut self, pointer: &Pointer, pane: usize) -> bool {
        let PaneScene::Allocations(scene, _) = &self.pictures[pane].scene else { return false };
        let is_by_address = matches!(scene.layout(), allocations::AllocationsLayout::ByAddress(_));
        let zoom = match pointer.kind {
            PointerKind::Wheel(_, dy) if pointer.ctrl => {
                views::allocations::zoom_at(scene, pointer.y as i32, (dy * ZOOM_PER_PIXEL).exp())
            }
            PointerKind::Wheel(_, dy) if pointer.alt => {
                views::allocations::scroll_by(scene, -dy * f64::from(self.screen.scale))
            }
            PointerKind::DoubleClick => None,
            _ => return false,
        };
        self.analysis.caches.allocations.set_zoom(is_by_address, zoom);
        self.model.moment_changed();
        // A double click also shows the whole recording.
        pointer.kind != PointerKind::DoubleClick
    }

    /// Returns the picture of all allocations; `None` if no pane shows it, or it cannot be computed
    /// yet.
    #[must_use]
    pub fn allocations(&self) -> Option<&AllocationsScene> {
        self.pictures.iter().find_map(|picture| match &picture.scene {
            PaneScene::Allocations(scene, _) => Some(&**scene),
            _ => None,
        })
    }

    /// Switches the picture of all allocations to its other layout (stacked or by address) if a
    /// pane shows it.
    pub(super) fn change_allocations_layout(&mut self) {
        if self.panes.surface_of(ViewKind::Allocations).is_some() {
            let options = self.analysis.options(ViewKind::Allocations);
            options.mode = Some(views::allocations::other_layout(options).to_owned());
            self.model.moment_changed();
        }
    }
}
