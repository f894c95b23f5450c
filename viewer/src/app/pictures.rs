//! The pictures in the panes, apart from the heatmap's: their scenes, and pointer input on them.
//!
//! A picture's base is computed and drawn again only if its inputs have changed; the moment, the
//! selected range and the object under the pointer are drawn on a copy of it.

use crate::comparison::{self};
use crate::draw::canvas::Canvas;
use crate::draw::picture::{MomentAxis, chart_columns, draw_moment, draw_notice, draw_pointer_text, draw_ticks};
use crate::protocol::Surface;
use crate::views::allocations::{self};
use crate::views::flame::{self, FlameScene};
use crate::views::fragmentation::{self, FragmentationScene};
use crate::views::{self, ViewCaches, ViewKind};

use super::core::Session;
use super::parts::{PanePicture, PaneScene, PictureBaseKey};

/// Text of a chart before the history has been read.
const READING: &str = "Reading the recording…";
/// Text on a picture of all allocations while the smaller allocations are not drawn yet.
const PAINTING: &str = "Drawing the smaller allocations…";

/// Maximum number of events in view for which fragmentation is computed from the events at once.
const FEW_EVENTS: u64 = 8_192;
/// Number of frames for which the view must stay unchanged before fragmentation is computed from
/// many events, which takes up to 30 ms.
pub(super) const QUIET_FRAMES: u32 = 5;

impl Session {
    /// Computes the panes' pictures whose inputs have changed. Returns true for each pane whose
    /// picture's base (without cursor and highlights) must be drawn again.
    pub(super) fn update_pictures(&mut self) -> [bool; 2] {
        let mut changed = [false; 2];
        for (pane, view) in self.panes.views().into_iter().enumerate() {
            let surface = Surface::PANES[pane];
            let mut picture = std::mem::take(&mut self.pictures[pane]);
            changed[pane] = match view {
                Some(ViewKind::Fragmentation) => self.update_fragmentation(&mut picture, surface),
                Some(ViewKind::Flame) => self.update_flame(&mut picture, surface),
                Some(ViewKind::Allocations) => self.update_allocations(&mut picture, surface),
                Some(view @ (ViewKind::Compare | ViewKind::WhatIf)) => {
                    self.update_comparison(&mut picture, surface, view)
                }
                _ => {
                    picture = PanePicture::default();
                    false
                }
            };
            self.pictures[pane] = picture;
        }
        changed
    }

    /// Creates the key of a view's picture on a surface. `numbers` are further inputs of the
    /// picture, `edges` the moments at the edges of a chart's columns.
    pub(super) fn key(&self, view: ViewKind, surface: Surface, numbers: Vec<u64>, edges: Vec<u64>) -> PictureBaseKey {
        let size = self.screen.sizes[surface as usize];
        PictureBaseKey { view, size, scale: self.screen.scale, is_dark: self.screen.is_dark, numbers, edges }
    }

    /// Returns the axis of a chart on a surface: its columns show the moments of the timeline's
    /// columns; the timeline may be wider. The axis has no columns until the history has been read.
    pub(super) fn chart_axis(&self, surface: Surface) -> MomentAxis {
        let (x0, x1) = chart_columns(self.screen.sizes[surface as usize].0, self.screen.scale);
        let edges = self.scene.timeline.as_ref().map_or(&[][..], |timeline| timeline.edges());
        let Some(last) = edges.len().checked_sub(1).filter(|&last| last > 0) else {
            return MomentAxis::new(x0, Vec::new());
        };
        let columns = (x1 - x0) as usize;
        let edge = |column: usize| edges[(column * last + columns / 2) / columns];
        let ticks = self.scene.timeline.as_ref().map(|timeline| timeline.axis_ticks(x1 - x0));
        let ticks = ticks.into_iter().flatten().map(|(x, text)| (x0 + x, text)).collect();
        MomentAxis::new(x0, (0..=columns).map(edge).collect()).with_ticks(ticks)
    }

    /// Computes the picture of fragmentation over time if its inputs have changed. Returns true if
    /// it must be drawn again.
    fn update_fragmentation(&mut self, picture: &mut PanePicture, surface: Surface) -> bool {
        let axis = self.chart_axis(surface);
        let numbers =
            self.with_context(ViewKind::Fragmentation, |context, options, ViewCaches { shared, fragmentation, .. }| {
                views::fragmentation::advance(context, options, shared, fragmentation);
                let percent = views::fragmentation::threshold_percent(options);
                let crossing = fragmentation.crossing().map_or(u64::MAX, |found| found.crossing.event);
                let requests = fragmentation.requests_until().unwrap_or(u64::MAX);
                let is_complete = u64::from(context.is_history_complete);
                let generation = context.history.generation();
                vec![u64::from(context.device.0), percent, crossing, requests, generation, is_complete]
            });
        let key = self.key(ViewKind::Fragmentation, surface, numbers, axis.edges().to_vec());
        let is_new = picture.key.as_ref() != Some(&key);
        let edges = axis.edges();
        let events = edges.last().zip(edges.first()).map_or(0, |(last, first)| last - first);
        picture.frames_until_exact = match picture.frames_until_exact {
            _ if is_new && events > FEW_EVENTS => Some(QUIET_FRAMES),
            _ if is_new => None,
            None => return false,
            Some(frames) => frames.checked_sub(1),
        };
        let is_exact = picture.frames_until_exact.is_none();
        if !is_exact {
            self.with_context(ViewKind::Fragmentation, |_, _, caches| caches.shared.is_unfinished = true);
            if !is_new {
                return false;
            }
        }
        let (size, scale) = (key.size, key.scale);
        let scene = self.with_context(ViewKind::Fragmentation, |context, options, caches| {
            let columns = match is_exact {
                true => caches.fragmentation.columns(context, axis.edges()),
                false => caches.fragmentation.quick_columns(context, axis.edges()),
            };
            let columns = columns.columns;
            let content = fragmentation::FragmentationContent {
                axis,
                columns,
                threshold: views::fragmentation::threshold_percent(options) as f64 / 100.0,
                crossing: caches.fragmentation.crossing().map(|one| (one.crossing.event, one.crossing.fragmentation)),
                notice: READING,
            };
            FragmentationScene::new(content, size, scale)
        });
        // Collecting the largest requests is part of computing the columns.
        let requests = self.with_context(ViewKind::Fragmentation, |_, _, caches| caches.fragmentation.requests_until());
        let mut key = key;
        key.numbers[3] = requests.unwrap_or(u64::MAX);
        (picture.key, picture.scene) = (Some(key), PaneScene::Fragmentation(Box::new(scene)));
        true
    }

    /// Computes the flame graph if its inputs have changed. Returns true if it must be drawn again.
    fn update_flame(&mut self, picture: &mut PanePicture, surface: Surface) -> bool {
        let (revision, zoom) =
            self.with_context(ViewKind::Flame, |context, options, ViewCaches { shared, flame, .. }| {
                let is_known = flame.update(context, options, shared).is_some();
                (if is_known { flame.revision() } else { 0 }, options.number)
            });
        if picture.key.as_ref().is_some_and(|key| key.numbers.get(1) != Some(&zoom.unwrap_or(0))) {
            picture.scroll = 0;
        }
        let numbers = vec![revision, zoom.unwrap_or(0), picture.scroll.unsigned_abs().into()];
        let mut key = self.key(ViewKind::Flame, surface, numbers, Vec::new());
        if picture.key.as_ref() == Some(&key) {
            return false;
        }
        let (size, scale, scroll) = (key.size, key.scale, picture.scroll);
        let scene = self.with_context(ViewKind::Flame, |context, options, caches| {
            let empty = vramscope_insight::flame::FlameGraph::default();
            let graph = if revision > 0 { caches.flame.graph() } else { &empty };
            let content = flame::FlameContent { graph, styles: caches.flame.styles(), zoom: options.number };
            FlameScene::new(content, size, scale, scroll, context.typesetter)
        });
        picture.scroll = scene.scroll;
        key.numbers[2] = picture.scroll.unsigned_abs().into();
        (picture.key, picture.scene) = (Some(key), PaneScene::Flame(Box::new(scene)));
        true
    }

    /// Computes the lines and heatmaps of a comparison if their inputs have changed. Returns true
    /// if they must be drawn again.
    fn update_comparison(&mut self, picture: &mut PanePicture, surface: Surface, view: ViewKind) -> bool {
        let range = self.model.zoomed_range().map(|range| (range.start, range.end));
        let mut numbers = self.with_context(view, |context, options, caches| {
            let is_known = if view == ViewKind::WhatIf {
                views::what_if::update_sides(context, &mut caches.what_if)
            } else {
                let (moments, unit) = (views::compare::moments(options), views::compare::axis_unit(options));
                caches.compare.update(context, moments, unit).is_ok()
            };
            if is_known { caches.compared(view).picture_numbers(context) } else { Vec::new() }
        });
        if numbers.is_empty() {
            *picture = PanePicture::default();
            return false;
        }
        numbers.extend(range.iter().flat_map(|(from, to)| [*from, *to]));
        let key = self.key(view, surface, numbers, Vec::new());
        if picture.key.as_ref() == Some(&key) {
            return false;
        }
        let (size, scale) = (key.size, key.scale);
        let scene =
            self.with_context(view, |context, _, caches| caches.compared(view).scene(context, range, size, scale));
        let Some(scene) = scene else { return false };
        (picture.key, picture.scene) = (Some(key), PaneScene::Comparison(Box::new(scene)));
        true
    }

    /// Draws the pictures of the panes, apart from the heatmap, and returns the surfaces that have
    /// changed. `changed` tells which bases must be drawn again; with `has_moved`, the moment, the
    /// selection or the object under the pointer has changed.
    pub(super) fn draw_pictures(&mut self, changed: [bool; 2], has_moved: bool) -> Vec<Surface> {
        let mut drawn = Vec::new();
        for (pane, is_changed) in changed.into_iter().enumerate() {
            let mut picture = std::mem::take(&mut self.pictures[pane]);
            let is_shown = !matches!(picture.scene, PaneScene::Empty);
            if is_shown && (is_changed || has_moved) {
                let surface = Surface::PANES[pane];
                let point = self.hover.filter(|(hovered, _)| *hovered == surface).map(|(_, point)| point);
                picture.pointer_text = point.map(|point| self.pointer_text(&picture, point)).unwrap_or_default();
                self.draw_picture(&picture, surface, point, is_changed);
                drawn.push(surface);
            } else if !is_shown {
                picture.pointer_text.clear();
            }
            self.pictures[pane] = picture;
        }
        drawn
    }

    /// Draws a picture on its surface, with the pointer at pixel `point`; unless `is_changed`, its
    /// base is the one drawn before.
    fn draw_picture(&mut self, picture: &PanePicture, surface: Surface, point: Option<(i32, i32)>, is_changed: bool) {
        let outlines = self.outlines(picture, point);
        let moment = (self.model.state().event(), self.model.selected_range());
        let (theme, scale) = (&self.theme, self.screen.scale);
        let (layers, typesetter) = (&mut self.layers[surface as usize], &mut self.typesetter);
        if is_changed {
            layers.draw_base(|frame| {
                match &picture.scene {
                    PaneScene::Empty => {}
                    PaneScene::Waiting(text) => {
                        draw_notice(&mut Canvas { bitmap: frame, typesetter }, text, scale, theme)
                    }
                    PaneScene::Fragmentation(scene) => fragmentation::draw(scene, theme, frame, typesetter),
                    PaneScene::Flame(scene) => flame::draw(scene, theme, frame, typesetter),
                    PaneScene::Allocations(scene, _) => allocations::draw(scene, theme, frame, typesetter),
                    PaneScene::Comparison(scene) => comparison::draw(scene, theme, frame, typesetter),
                }
                let bottom = match &picture.scene {
                    PaneScene::Fragmentation(scene) => scene.chart_rows().1,
                    PaneScene::Allocations(scene, _) => scene.geometry.plot.y1,
                    _ => return,
                };
                if let Some(axis) = picture.axis() {
                    draw_ticks(&mut Canvas { bitmap: frame, typesetter }, axis, bottom, scale, theme);
                }
            });
        }
        layers.compose(|frame| {
            match &picture.scene {
                PaneScene::Empty | PaneScene::Waiting(_) | PaneScene::Comparison(_) => {}
                PaneScene::Fragmentation(scene) => {
                    draw_moment(frame, &scene.axis, moment, scene.chart_rows(), scale, theme);
                }
                PaneScene::Allocations(scene, axis) => {
                    for (outline, highlight) in outlines {
                        allocations::draw_outline(frame, scene, theme, &outline, highlight);
                    }
                    let plot = scene.geometry.plot;
                    draw_moment(frame, axis, moment, (plot.y0, plot.y1), scale, theme);
                    if !scene.is_complete() {
                        let lines = [PAINTING.to_owned()];
                        let canvas = &mut Canvas { bitmap: frame, typesetter };
                        draw_pointer_text(canvas, &lines, (plot.x0, plot.y0), scale, theme);
                    }
                }
                PaneScene::Flame(scene) => {
                    if let Some(hovered) = point.and_then(|point| scene.hit(point)) {
                        flame::draw_highlight(frame, scene, theme, hovered);
                    }
                }
            }
            if let Some(point) = point {
                let canvas = &mut Canvas { bitmap: frame, typesetter };
                draw_pointer_text(canvas, &picture.pointer_text, point, scale, theme);
            }
        });
    }
}
