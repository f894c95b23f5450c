//! Everything that is on the screen, as plain data: positions, texts and roles of colors.
//!
//! [`Scene::update`] computes it from the [`Model`]; [`Layers`] draws it and only reads it.

use vramscope_trace::DeviceState;

use crate::frame::{Color, Frame};
use crate::heatmap::{self, HeatmapScene, Highlight, Hit, Layout};
use crate::model::{Changes, Model};
use crate::page_texts::{LiveStatus, PageTexts};
use crate::text::Typesetter;
use crate::theme::Theme;
use crate::timeline::{self, Cursor, TimelineScene};

/// The sizes of the timeline's and the heatmap's pictures in pixels, and the pixels per unit of
/// layout (the screen's device pixel ratio; 1 unit is a CSS pixel).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Viewport {
    /// Width and height of the timeline in pixels.
    pub timeline: (u32, u32),
    /// Width and height of the heatmap in pixels.
    pub heatmap: (u32, u32),
    /// Pixels per unit.
    pub scale: f32,
}

/// Everything on the screen, ready to draw: timeline, cursor, heatmap, highlights and texts.
#[derive(Default)]
pub struct Scene {
    /// The timeline without the cursor.
    pub timeline: Option<TimelineScene>,
    /// The moment on the timeline.
    pub cursor: Option<Cursor>,
    /// The heatmap without highlights.
    pub heatmap: Option<HeatmapScene>,
    /// The block or free range under the pointer.
    pub hovered: Option<Hit>,
    /// The selected block or free range.
    pub selected: Option<Hit>,
    /// Texts and states of the page's elements.
    pub texts: PageTexts,
}

impl Scene {
    /// Recomputes the parts that `changes` names. `pointer` is the pointer's pixel (x, y) on the
    /// heatmap, `None` if it is elsewhere.
    ///
    /// Stores the timeline's width and the clamped scroll position of the heatmap in `model`.
    pub fn update(
        &mut self,
        model: &mut Model,
        changes: Changes,
        viewport: &Viewport,
        pointer: Option<(i32, i32)>,
        status: LiveStatus,
        typesetter: &Typesetter,
    ) {
        if changes.timeline || self.timeline.is_none() {
            let scene = timeline_scene(model, viewport, typesetter);
            model.timeline_width = usize::try_from(scene.geometry.plot.width()).unwrap_or(0);
            self.timeline = Some(scene);
        }
        if changes.timeline || changes.moment || self.heatmap.is_none() {
            let timeline = self.timeline.as_ref();
            self.cursor = timeline.and_then(|scene| Cursor::new(scene, model.recording(), model.time_ns(), typesetter));
            let scene = heatmap_scene(model, viewport, typesetter);
            model.heatmap_view.scroll = scene.layout.scroll;
            self.heatmap = Some(scene);
        }
        self.hovered = pointer.and_then(|point| self.hit(model.device_state(), point));
        self.selected = model.selected();
        self.texts.update(model, self.hovered, status);
    }

    /// Returns the block or free range at pixel (`x`, `y`) of the heatmap; `None` where there is no
    /// row.
    #[must_use]
    pub fn hit(&self, device: &DeviceState, (x, y): (i32, i32)) -> Option<Hit> {
        self.heatmap.as_ref()?.layout.hit(device, x, y)
    }
}

/// Computes the timeline of the model's device and time range.
fn timeline_scene(model: &Model, viewport: &Viewport, typesetter: &Typesetter) -> TimelineScene {
    let content = timeline::Content {
        recording: model.recording(),
        device: model.device(),
        marks: model.marks(),
        peaks: model.peaks(),
        bands: model.bands(),
        range: model.range(),
    };
    TimelineScene::new(&content, viewport.timeline, viewport.scale, typesetter)
}

/// Computes the heatmap of the model's device at its moment, clamping the scroll position.
fn heatmap_scene(model: &Model, viewport: &Viewport, typesetter: &Typesetter) -> HeatmapScene {
    let device = model.device_state();
    let layout = Layout::new(device, viewport.heatmap, viewport.scale, model.heatmap_view);
    let content = heatmap::Content { device, definitions: model.recording().definitions(), color_by: model.color_by };
    HeatmapScene::new(layout, viewport.heatmap.0 as i32, content, typesetter)
}

/// A picture in two layers: a base that is drawn only when it changes, and a copy of it on which
/// the cursor or the highlights are drawn each time.
pub struct Layers {
    base: Frame,
    composed: Frame,
}

impl Default for Layers {
    fn default() -> Self {
        let empty = Frame::new(1, 1, Color::default());
        Self { base: empty.clone(), composed: empty }
    }
}

impl Layers {
    /// Returns the picture's width and height in pixels.
    #[must_use]
    pub fn size(&self) -> (u32, u32) {
        (self.base.width() as u32, self.base.height() as u32)
    }

    /// Sets the picture's width and height in pixels and discards what was drawn.
    pub fn resize(&mut self, (width, height): (u32, u32)) {
        self.base = Frame::new(width, height, Color::default());
    }

    /// Draws the timeline and the cursor; unless `is_changed`, the timeline is the one drawn
    /// before.
    pub fn draw_timeline(&mut self, scene: &Scene, is_changed: bool, theme: &Theme, typesetter: &mut Typesetter) {
        if let Some(timeline) = scene.timeline.as_ref().filter(|_| is_changed) {
            timeline::draw(timeline, theme, &mut self.base, typesetter);
        }
        self.composed.copy_from(&self.base);
        if let Some(cursor) = &scene.cursor {
            timeline::draw_cursor(cursor, theme, &mut self.composed, typesetter);
        }
    }

    /// Draws the heatmap and outlines the selection and what is under the pointer; unless
    /// `is_changed`, the heatmap is the one drawn before.
    pub fn draw_heatmap(&mut self, scene: &Scene, is_changed: bool, theme: &Theme, typesetter: &mut Typesetter) {
        let Some(heatmap) = &scene.heatmap else { return };
        if is_changed {
            heatmap::draw(heatmap, theme, &mut self.base, typesetter);
        }
        self.composed.copy_from(&self.base);
        let highlights = [(scene.selected, Highlight::Selected), (scene.hovered, Highlight::Hovered)];
        for (hit, highlight) in highlights.into_iter().filter_map(|(hit, highlight)| Some((hit?, highlight))) {
            let range = (hit.address, hit.size);
            heatmap::draw_highlight(&mut self.composed, &heatmap.layout, theme, range, highlight);
        }
    }

    /// Returns the picture as last drawn, with cursor or highlights.
    #[must_use]
    pub fn picture(&self) -> &Frame {
        &self.composed
    }
}
