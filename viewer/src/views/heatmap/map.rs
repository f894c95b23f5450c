//! The heatmap's scene, and input on it.

use std::cell::RefCell;
use std::collections::HashMap;

use vramscope_draw::{Canvas, Theme};
use vramscope_insight::query::Now;
use vramscope_trace::{Block, DeviceState};

use crate::command::{Command, OptionChange};
use crate::link::PaneLink;
use crate::segment_map::{
    self, AgeScale, AgeUnit, ColorBy, HeatmapContent, HeatmapScene, Highlight, Hit, Layout, Scaling, SortBy,
    View as MapView,
};
use crate::view::{Context, Options, PictureFrame, PictureInput, RowWindow, SharedCaches, StoredOptions, fit};

/// The power of the wheel's factor by which the heatmap zooms, faster than the timeline.
const ZOOM_SPEED: i32 = 2;

/// The heatmap's picture.
#[derive(Default)]
pub(super) struct Picture {
    pub(super) scene: Option<HeatmapScene>,
    size: (u32, u32),
    /// Address and size of the memory where a request of the typed size would be placed, or that is
    /// in its way.
    proposed: Option<(u64, u64)>,
    /// The typed size whose placement was last scrolled to.
    revealed_size: String,
    hovered: Option<Hit>,
    selected: Option<Hit>,
}

/// The view "Heatmap". Its filter is a size: it shows where a request of that size would fit.
#[derive(Default)]
pub struct Heatmap {
    pub(super) options: MapOptions,
    pub(super) picture: Picture,
}

/// The options of the heatmap. Links state its colors, scale, order and zoom apart from the panes.
#[derive(Default)]
pub(super) struct MapOptions {
    pub(super) color_by: ColorBy,
    /// Scale, order of the rows, zoom and scroll position.
    pub(super) view: MapView,
    /// The options that every view has; the filter is the size of a request to place.
    pub(super) others: Options,
}

impl StoredOptions for MapOptions {
    fn pane_link(&self, view: &'static str) -> PaneLink {
        self.others.pane_link(view)
    }

    fn open(&mut self, pane: &PaneLink) -> bool {
        self.others.open(pane)
    }

    fn change(&mut self, change: OptionChange) -> Result<(), String> {
        match change {
            OptionChange::Mode(mode) => {
                self.view.scaling =
                    Scaling::from_name(&mode).ok_or_else(|| format!("the heatmap has no scale {mode:?}"))?;
                self.view.scroll = 0;
            }
            OptionChange::Sort(order) => {
                self.view.sort =
                    SortBy::from_name(&order).ok_or_else(|| format!("the heatmap has no order {order:?}"))?;
                self.view.scroll = 0;
            }
            change => return self.others.change(change),
        }
        Ok(())
    }

    fn filter(&self) -> &str {
        &self.others.filter
    }

    fn rows(&mut self) -> &mut RowWindow {
        &mut self.others.rows
    }
}

impl Heatmap {
    /// Computes the heatmap of the device at the moment.
    pub(super) fn compute(&mut self, context: &Context<'_>, shared: &mut SharedCaches, frame: &PictureFrame<'_>) {
        self.propose(context, shared);
        let recording = context.recording;
        let color_by = self.options.color_by;
        let counts_events = context.counts_events || recording.info().lacks_times;
        let unit = if counts_events { AgeUnit::Events } else { AgeUnit::Time };
        let free_moments = match color_by {
            ColorBy::LastChange => context.lifetimes().map(|lifetimes| {
                let freed =
                    lifetimes.live_at(context.moment).filter_map(|one| Some((one.address, one.allocated_until?)));
                freed.filter(|(_, freed_at)| *freed_at <= context.moment).collect::<HashMap<u64, u64>>()
            }),
            _ => None,
        };
        let freed_at = |block: &Block| {
            let event = *free_moments.as_ref()?.get(&block.address)?;
            Some(if unit == AgeUnit::Events { event } else { context.history.time_ns(event) })
        };
        let selected = context.selected_group;
        let grouping = selected.map(|(by, group)| (RefCell::new(shared.groupings.get(by, recording)), group));
        let filter = shared.searches.shown_filter.as_ref().map(|filter| &filter.matcher);
        let now = Now { moment: context.moment, time_ns: context.time_ns, history: context.history };
        let is_selected = |block: &Block| match &grouping {
            Some((known, group)) => known.borrow_mut().matches(*group, block),
            None => filter.is_some_and(|filter| filter.matches_block(context.device, block, &now)),
        };
        let (now, longest) = match unit {
            AgeUnit::Events => (context.moment, recording.end_event().saturating_sub(recording.first_event())),
            AgeUnit::Time => (context.time_ns, recording.end_ns().saturating_sub(recording.start_ns())),
        };
        let groups = color_by.group_by().map(|by| shared.block_groups.get(by, recording, context.all_devices));
        let layout = Layout::new(context.state, frame.size, frame.scale, self.options.view);
        let content = HeatmapContent {
            color_by,
            ages: AgeScale { unit, now, longest },
            freed_at: Some(&freed_at),
            groups,
            highlight: (selected.is_some() || filter.is_some()).then_some(&is_selected),
            ..HeatmapContent::new(context.state, context.definitions())
        };
        let scene = HeatmapScene::new(layout, frame.size.0 as i32, content, context.typesetter);
        self.options.view = scene.layout.view;
        (self.picture.scene, self.picture.size) = (Some(scene), frame.size);
    }

    /// Finds the memory that a request of the typed size would get, or the region in its way, and
    /// scrolls to it when another size was typed.
    fn propose(&mut self, context: &Context<'_>, shared: &mut SharedCaches) {
        let size = self.options.filter().to_owned();
        let is_new = self.picture.revealed_size != size;
        self.picture.proposed = shared.placement_of(context, &size).and_then(Result::ok).and_then(fit::outlined_range);
        let layout = self.picture.scene.as_ref().map(|scene| &scene.layout).filter(|_| is_new);
        if let Some(view) = layout.zip(self.picture.proposed).and_then(|(layout, (address, _))| layout.reveal(address))
        {
            self.options.view = view;
        }
        self.picture.revealed_size = size;
    }

    /// Stores the memory under the pointer and the selected memory, which are outlined.
    pub(super) fn set_highlights(&mut self, context: &Context<'_>, point: Option<(i32, i32)>) {
        self.picture.hovered = point.and_then(|point| self.hit_at(context.state, point));
        self.picture.selected = context.selected;
    }

    /// Returns the block or free range at a pixel; `None` where there is no row.
    pub(super) fn hit_at(&self, device: &DeviceState, (x, y): (i32, i32)) -> Option<Hit> {
        self.picture.scene.as_ref()?.layout.hit(device, x, y)
    }

    /// Returns the command that selects the memory at a pixel, or clears its selection.
    pub(super) fn command_at(&self, context: &Context<'_>, point: (i32, i32)) -> Command {
        let hit = self.hit_at(context.state, point);
        let is_selected = hit.zip(context.selected).is_some_and(|(hit, selected)| hit.is_same_allocation(&selected));
        match hit.filter(|_| !is_selected) {
            Some(hit) => Command::SelectAddress(hit.address),
            None => Command::DeselectAllocation,
        }
    }

    /// Draws the outlines of the placement of a typed size, of the selection and of the memory
    /// under the pointer.
    pub(super) fn draw_outlines(&self, canvas: &mut Canvas<'_>, theme: &Theme) {
        let Picture { scene: Some(scene), proposed, selected, hovered, .. } = &self.picture else { return };
        if let Some(range) = *proposed {
            segment_map::draw_placement(canvas.bitmap, &scene.layout, theme, range);
        }
        for (hit, highlight) in [(selected, Highlight::Selected), (hovered, Highlight::Hovered)] {
            if let Some(hit) = hit {
                let range = (hit.address, hit.size);
                segment_map::draw_highlight(canvas.bitmap, &scene.layout, theme, range, highlight);
            }
        }
    }

    /// Scrolls, pans or zooms the heatmap. The wheel scrolls; with Ctrl it makes rows higher or
    /// lower, and with Alt or Shift bytes wider or narrower.
    pub(super) fn move_map(&mut self, device: &DeviceState, input: PictureInput) -> bool {
        let both = |layout: &Layout, factor: f64, point: (i32, i32)| {
            let rows = layout.zoom_rows(factor as f32, point.1);
            Layout::new(device, self.picture.size, layout.scale, rows).zoom_columns(device, factor, point)
        };
        let Some(layout) = self.picture.scene.as_ref().map(|scene| &scene.layout) else { return false };
        let view = match input {
            PictureInput::Wheel { point, factor, ctrl: true, .. } => {
                layout.zoom_rows(factor.powi(ZOOM_SPEED) as f32, point.1)
            }
            PictureInput::Wheel { point, factor, alt, shift, .. } if alt || shift => {
                layout.zoom_columns(device, factor.powi(ZOOM_SPEED), point)
            }
            PictureInput::Wheel { pixels: (x, y), .. } => layout.pan(x as i32, y as i32),
            PictureInput::Drag { pixels: (x, y), .. } => layout.pan(-x, -y),
            PictureInput::Pinch(point, factor) => both(layout, factor, point),
            PictureInput::Zoom(factor) => {
                let middle = (f64::midpoint(layout.map.x0.into(), layout.map.x1.into()) as i32, layout.map.y1 / 2);
                let selected = self.picture.selected.and_then(|hit| {
                    let columns = |row| layout.columns(row, hit.address, hit.size);
                    let row = layout.rows_of(hit.address).find(|row| columns(row).is_some())?;
                    let (x0, x1) = columns(row)?;
                    Some((i32::midpoint(x0, x1), i32::midpoint(row.y0, row.y1)))
                });
                both(layout, factor, selected.unwrap_or(middle))
            }
            PictureInput::DoubleClick | PictureInput::Fit => {
                let MapView { scaling, sort, .. } = self.options.view;
                MapView { scaling, sort, ..MapView::default() }
            }
        };
        self.set_view(device, view);
        true
    }

    /// Shows another part of the device's memory. The next input of this frame continues from it.
    pub(super) fn set_view(&mut self, device: &DeviceState, view: MapView) {
        self.options.view = view;
        if let Some(scene) = &mut self.picture.scene {
            scene.layout = Layout::new(device, self.picture.size, scene.layout.scale, view);
            self.options.view = scene.layout.view;
        }
    }
}
