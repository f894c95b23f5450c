//! Everything that is on the screen, as plain data: positions, texts and roles of colors.
//!
//! [`Scene::update`] computes it from the [`Model`]; [`Layers`] draws it and only reads it.

use vramscope_trace::{Block, DeviceState};

use crate::draw::bitmap::{Bitmap, Color};
use crate::draw::text::Typesetter;
use crate::draw::theme::Theme;
use crate::model::{Changes, Model};
use crate::page_texts::{LiveStatus, PageTexts};
use crate::segment_map::{self, AgeScale, AgeUnit, BlockGroups, FreedAt, HeatmapScene, Highlight, Hit, Layout};
use crate::timeline::{self, Cursor, Overlay, TimelineScene};

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

/// The inputs of the heatmap in addition to the [`Model`].
#[derive(Default)]
pub struct HeatmapInputs<'a> {
    /// The unit of ages.
    pub unit: AgeUnit,
    /// The groups that the coloring needs.
    pub groups: Option<&'a mut BlockGroups>,
    /// When blocks that are pending free were freed.
    pub freed_at: Option<FreedAt<'a>>,
    /// Returns true for highlighted blocks; without it, none is.
    pub highlight: Option<&'a dyn Fn(&Block) -> bool>,
    /// Address and size of the memory where a request would be placed, or that is in its way.
    pub proposed: Option<(u64, u64)>,
}

/// Everything on the screen, ready to draw: timeline, cursor, heatmap, highlights and texts.
#[derive(Default)]
pub struct Scene {
    /// The timeline without the cursor.
    pub timeline: Option<TimelineScene>,
    /// The cursor on the timeline, the selected range, and the column under the pointer.
    pub overlay: Overlay,
    /// The heatmap without highlights.
    pub heatmap: Option<HeatmapScene>,
    /// Address and size of the memory where a request would be placed, or that is in its way.
    pub proposed: Option<(u64, u64)>,
    /// The block or free range under the pointer.
    pub hovered: Option<Hit>,
    /// The selected block or free range.
    pub selected: Option<Hit>,
    /// Texts and states of the page's elements.
    pub texts: PageTexts,
}

impl Scene {
    /// Recomputes the heatmap of the model's device at its moment.
    pub fn update_heatmap(
        &mut self,
        model: &Model,
        viewport: &Viewport,
        inputs: HeatmapInputs<'_>,
        typesetter: &Typesetter,
    ) {
        let (device, recording) = (model.device_state(), model.recording());
        let layout = Layout::new(device, viewport.heatmap, viewport.scale, model.heatmap_view);
        let (now, longest) = match inputs.unit {
            AgeUnit::Events => (model.state().event(), recording.end_event().saturating_sub(recording.first_event())),
            AgeUnit::Time => (model.time_ns(), recording.end_ns().saturating_sub(recording.start_ns())),
        };
        let content = segment_map::HeatmapContent {
            color_by: model.color_by,
            ages: AgeScale { unit: inputs.unit, now, longest },
            freed_at: inputs.freed_at,
            groups: inputs.groups,
            highlight: inputs.highlight,
            ..segment_map::HeatmapContent::new(device, recording.definitions())
        };
        self.heatmap = Some(HeatmapScene::new(layout, viewport.heatmap.0 as i32, content, typesetter));
        self.proposed = inputs.proposed;
    }

    /// Recomputes the parts that `changes` names, apart from the timeline and the heatmap
    /// themselves. `pointer` is the pointer's pixel (x, y) on the heatmap, `None` if it is
    /// elsewhere; `last_step` as in [`PageTexts::update`].
    pub fn update(
        &mut self,
        model: &mut Model,
        changes: Changes,
        pointer: Option<(i32, i32)>,
        status: LiveStatus,
        last_step: Option<[u64; 3]>,
        typesetter: &Typesetter,
    ) {
        if changes.timeline || changes.moment || self.overlay.cursor.is_none() {
            let cursor = |scene| Cursor::new(scene, model.recording(), model.timed_moment(), typesetter);
            self.overlay.cursor = self.timeline.as_ref().map(cursor);
        }
        self.hovered = pointer.and_then(|point| self.hit(model.device_state(), point));
        self.selected = model.selected();
        self.texts.update(model, self.hovered, status, last_step);
    }

    /// Returns the block or free range at pixel (`x`, `y`) of the heatmap; `None` where there is no
    /// row.
    #[must_use]
    pub fn hit(&self, device: &DeviceState, (x, y): (i32, i32)) -> Option<Hit> {
        self.heatmap.as_ref()?.layout.hit(device, x, y)
    }
}

/// Returns the inputs of the timeline of the model's device and time range.
pub(crate) fn timeline_content(model: &Model) -> timeline::TimelineContent<'_> {
    timeline::TimelineContent {
        recording: model.recording(),
        device: model.device(),
        marks: model.marks(),
        peaks: model.peaks(),
        bands: model.bands(),
        range: model.range(),
    }
}

/// A picture in two layers: a base that is drawn only when it changes, and a copy of it on which
/// the cursor or the highlights are drawn each time.
pub struct Layers {
    base: Bitmap,
    composed: Bitmap,
}

impl Default for Layers {
    fn default() -> Self {
        let empty = Bitmap::new(1, 1, Color::default());
        Self { base: empty.clone(), composed: empty }
    }
}

impl Layers {
    /// Returns the picture's width and height in pixels.
    #[must_use]
    pub fn size(&self) -> (u32, u32) {
        (self.base.width() as u32, self.base.height() as u32)
    }

    /// Sets the picture's width and height in pixels and discards the drawn picture.
    pub fn resize(&mut self, (width, height): (u32, u32)) {
        self.base = Bitmap::new(width, height, Color::default());
    }

    /// Draws the timeline if `is_changed`, else reuses the last drawn one, and draws the cursor on
    /// a copy.
    pub fn draw_timeline(&mut self, scene: &Scene, is_changed: bool, theme: &Theme, typesetter: &mut Typesetter) {
        if let Some(timeline) = scene.timeline.as_ref().filter(|_| is_changed) {
            timeline::draw(timeline, theme, &mut self.base, typesetter);
        }
        self.composed.copy_from(&self.base);
        if let Some(timeline) = &scene.timeline {
            timeline::draw_overlay(&scene.overlay, timeline.scale(), theme, &mut self.composed, typesetter);
        }
    }

    /// Draws the heatmap if `is_changed`, else reuses the last drawn one, and outlines the
    /// selection and the object under the pointer on a copy.
    pub fn draw_heatmap(&mut self, scene: &Scene, is_changed: bool, theme: &Theme, typesetter: &mut Typesetter) {
        let Some(heatmap) = &scene.heatmap else { return };
        if is_changed {
            segment_map::draw(heatmap, theme, &mut self.base, typesetter);
        }
        self.composed.copy_from(&self.base);
        if let Some(range) = scene.proposed {
            segment_map::draw_placement(&mut self.composed, &heatmap.layout, theme, range);
        }
        let highlights = [(scene.selected, Highlight::Selected), (scene.hovered, Highlight::Hovered)];
        for (hit, highlight) in highlights.into_iter().filter_map(|(hit, highlight)| Some((hit?, highlight))) {
            let range = (hit.address, hit.size);
            segment_map::draw_highlight(&mut self.composed, &heatmap.layout, theme, range, highlight);
        }
    }

    /// Redraws the picture's base with `draw`, without the cursor or highlights.
    pub fn draw_base(&mut self, draw: impl FnOnce(&mut Bitmap)) {
        draw(&mut self.base);
    }

    /// Copies the base and draws the cursor or highlights on the copy with `draw`.
    pub fn compose(&mut self, draw: impl FnOnce(&mut Bitmap)) {
        self.composed.copy_from(&self.base);
        draw(&mut self.composed);
    }

    /// Returns the picture as last drawn, with cursor or highlights.
    #[must_use]
    pub fn picture(&self) -> &Bitmap {
        &self.composed
    }
}
