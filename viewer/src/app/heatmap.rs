//! The heatmap: its inputs, the commands that change it, and the selected group.

use std::cell::RefCell;
use std::collections::HashMap;

use vramscope_insight::group::GroupBy;
use vramscope_insight::query::Now;
use vramscope_trace::Block;

use crate::model::AllDevices;
use crate::protocol::Surface;
use crate::scene::{HeatmapInputs, Viewport};
use crate::segment_map::{AgeUnit, ColorBy, Layout, Scaling, SortBy, View};
use crate::timeline::AxisKind;
use crate::view::fit;
use crate::view::groups::group_called;
use crate::views::{ViewCaches, ViewKind, list};

use super::commands::number;
use super::core::Session;

/// Factor by which a key press makes rows higher and bytes wider.
const ZOOM_FACTOR: f64 = 1.5;

impl Session {
    /// Executes a command that concerns the heatmap or the selected group. Returns false if it is
    /// another command.
    ///
    /// # Errors
    /// If an argument is invalid.
    pub(super) fn heatmap_command(&mut self, name: &str, argument: &str) -> Result<bool, String> {
        let is_heatmap_active = self.panes.active() == ViewKind::Heatmap;
        if name.starts_with("heatmap-") && self.heatmap_surface().is_none() {
            return Err("no pane shows the heatmap: press 1".to_owned());
        }
        let view = &mut self.model.heatmap_view;
        match (name, argument.split_once(' ').unwrap_or((argument, ""))) {
            ("color", ("", "")) => self.change_color(true),
            ("color-previous", _) => self.change_color(false),
            ("color", (color, _)) => {
                let found = ColorBy::from_name(color);
                self.model.color_by = found.ok_or_else(|| format!("there is no coloring by {color:?}"))?;
            }
            ("layout", (chosen, _)) if chosen == "heatmap" || (chosen.is_empty() && is_heatmap_active) => {
                view.scaling = match view.scaling {
                    Scaling::EachSegment => Scaling::Common,
                    Scaling::Common => Scaling::EachSegment,
                };
                view.scroll = 0;
            }
            ("mode", ("heatmap", mode)) => {
                view.scaling = Scaling::from_name(mode).ok_or_else(|| format!("the heatmap has no scale {mode:?}"))?;
                view.scroll = 0;
            }
            ("sort", ("heatmap", order)) => {
                view.sort = SortBy::from_name(order).ok_or_else(|| format!("the heatmap has no order {order:?}"))?;
                view.scroll = 0;
            }
            ("heatmap-zoom-in", _) => self.zoom_at_selection(ZOOM_FACTOR),
            ("heatmap-zoom-out", _) => self.zoom_at_selection(1.0 / ZOOM_FACTOR),
            ("heatmap-fit", _) => self.reset_heatmap_zoom(),
            ("group", (by, group)) => {
                let by = GroupBy::from_name(by).ok_or_else(|| format!("there is no grouping by {by:?}"))?;
                // With an event number, it also goes to that moment.
                let (group, moment) = group.split_once(' ').unwrap_or((group, ""));
                let group = Some((by, number(name, group)?));
                self.heatmap.pending_group = None;
                if !moment.is_empty() {
                    self.model.seek(number(name, moment)?).map_err(|error| error.to_string())?;
                }
                let is_selected = self.model.selected_group() == group;
                self.model.select_group(group.filter(|_| !is_selected || !moment.is_empty()));
            }
            _ => return Ok(false),
        }
        self.model.moment_changed();
        Ok(true)
    }

    /// Makes the heatmap's colors show the next property of blocks (`forward`), or the previous
    /// one.
    fn change_color(&mut self, forward: bool) {
        let count = ColorBy::ALL.len();
        let current = ColorBy::ALL.iter().position(|color_by| *color_by == self.model.color_by).unwrap_or(0);
        let next = if forward { current + 1 } else { current + count - 1 };
        self.model.color_by = ColorBy::ALL[next % count];
    }

    /// Clears the selected group. Returns false if none is selected.
    pub(super) fn deselect_group(&mut self) -> bool {
        let pending = self.heatmap.pending_group.take();
        let was_selected = self.model.selected_group().is_some() || pending.is_some();
        self.model.select_group(None);
        was_selected
    }

    /// Makes rows and bytes of the heatmap `factor` times as large around the selection, or around
    /// the middle of the picture.
    fn zoom_at_selection(&mut self, factor: f64) {
        let Some(heatmap) = &self.scene.heatmap else { return };
        let layout = &heatmap.layout;
        let middle = (f64::midpoint(layout.map.x0.into(), layout.map.x1.into()) as i32, layout.map.y1 / 2);
        let selected = self.model.selected().and_then(|hit| {
            let row = layout.rows_of(hit.address).find(|row| layout.columns(row, hit.address, hit.size).is_some())?;
            let (x0, x1) = layout.columns(row, hit.address, hit.size)?;
            Some((i32::midpoint(x0, x1), i32::midpoint(row.y0, row.y1)))
        });
        self.zoom_heatmap(factor, factor, selected.unwrap_or(middle));
    }

    /// Makes rows of the heatmap `rows` times as high and bytes `columns` times as wide; the memory
    /// at pixel `point` stays there.
    pub(super) fn zoom_heatmap(&mut self, rows: f64, columns: f64, point: (i32, i32)) {
        if rows != 1.0 {
            self.change_heatmap_view(|layout, _| layout.zoom_rows(rows as f32, point.1));
        }
        if columns != 1.0 {
            self.change_heatmap_view(|layout, device| layout.zoom_columns(device, columns, point));
        }
    }

    /// Resets zoom and scroll position of the heatmap: it shows its first rows at their whole
    /// width.
    pub(super) fn reset_heatmap_zoom(&mut self) {
        let view = &mut self.model.heatmap_view;
        *view = View { scaling: view.scaling, sort: view.sort, ..View::default() };
        self.model.moment_changed();
    }

    /// Changes the heatmap's zoom and scroll position to the view that `change` returns for the
    /// layout and the device's memory. Does nothing if no pane shows the heatmap.
    pub(super) fn change_heatmap_view(&mut self, change: impl FnOnce(&Layout, &vramscope_trace::DeviceState) -> View) {
        let Some((surface, heatmap)) = self.heatmap_surface().zip(self.scene.heatmap.as_mut()) else { return };
        let device = self.model.device_state();
        let view = change(&heatmap.layout, device);
        // The next event of this frame continues from here.
        heatmap.layout = Layout::new(device, self.screen.sizes[surface as usize], self.screen.scale, view);
        self.model.heatmap_view = heatmap.layout.view;
        self.model.moment_changed();
    }

    /// Computes the heatmap if a pane shows it.
    pub(super) fn update_heatmap(&mut self, viewport: &Viewport) {
        self.find_pending_group();
        self.find_shown_filter();
        if self.heatmap_surface().is_none() {
            self.scene.heatmap = None;
            return;
        }
        let proposed = self.proposed_range();
        let model = &self.model;
        let (recording, state, memory) = (model.recording(), model.state(), AllDevices::OnDemand(model));
        let caches = &mut self.analysis.caches.shared;
        let counts_events = model.axis() == AxisKind::Events || model.recording().info().lacks_times;
        let unit = if counts_events { AgeUnit::Events } else { AgeUnit::Time };
        let free_moments = match model.color_by {
            ColorBy::LastChange => self.analysis.history.lifetimes(model.device()).map(|lifetimes| {
                let freed =
                    lifetimes.live_at(state.event()).filter_map(|one| Some((one.address, one.allocated_until?)));
                freed.filter(|(_, freed_at)| *freed_at <= state.event()).collect::<HashMap<u64, u64>>()
            }),
            _ => None,
        };
        let history = &self.analysis.history;
        let freed_at = |block: &Block| {
            let event = *free_moments.as_ref()?.get(&block.address)?;
            Some(if unit == AgeUnit::Events { event } else { history.time_ns(event) })
        };
        let group_by = model.color_by.group_by();
        let selected = model.selected_group();
        let grouping = selected.map(|(by, group)| (RefCell::new(caches.groupings.get(by, recording)), group));
        let filter = caches.searches.shown_filter.as_ref().map(|filter| &filter.matcher);
        let now = Now { moment: state.event(), time_ns: model.time_ns(), history };
        let is_selected = |block: &Block| match &grouping {
            Some((known, group)) => known.borrow_mut().matches(*group, block),
            None => filter.is_some_and(|filter| filter.matches_block(model.device(), block, &now)),
        };
        let inputs = HeatmapInputs {
            unit,
            groups: group_by.map(|by| caches.block_groups.get(by, recording, memory)),
            freed_at: Some(&freed_at),
            highlight: (selected.is_some() || filter.is_some()).then_some(&is_selected),
            proposed,
        };
        self.scene.update_heatmap(model, viewport, inputs, &self.typesetter);
        let layout = self.scene.heatmap.as_ref().map(|heatmap| &heatmap.layout);
        if let Some(layout) = layout {
            self.model.heatmap_view = layout.view;
        }
    }

    /// Finds the filter that the user has typed in a pane's list, the pane used last first, and
    /// stores it; pictures outline the blocks that match it.
    fn find_shown_filter(&mut self) {
        let [one, other] = self.panes.views();
        let active = self.panes.active();
        let views = [Some(active), one, other].into_iter().flatten();
        let lists = views.filter(|view| matches!(view, ViewKind::List | ViewKind::Sites));
        let mut found = None;
        for view in lists {
            found = found.or_else(|| {
                self.with_context(view, |context, options, caches| {
                    list::shown_filter(context, options, &mut caches.shared)
                })
            });
        }
        self.analysis.caches.shared.searches.shown_filter = found;
    }

    /// Returns the address and size of the memory that a request of the typed size would get, or of
    /// the region in the way of it; `None` if no size is typed, or there is no such memory. Scrolls
    /// to it when another size was typed.
    fn proposed_range(&mut self) -> Option<(u64, u64)> {
        let size = self.analysis.options(ViewKind::Heatmap).filter.clone();
        let is_new = self.heatmap.revealed_size != size;
        if size.is_empty() {
            self.heatmap.revealed_size.clear();
            return None;
        }
        let range = self.with_context(ViewKind::Heatmap, |context, options, ViewCaches { shared, .. }| {
            let settings = shared.settings(context);
            let found = fit::fit(context, &options.filter, &settings, &mut shared.fit);
            found?.ok().and_then(fit::outlined_range)
        });
        let layout = self.scene.heatmap.as_ref().map(|heatmap| &heatmap.layout).filter(|_| is_new);
        if let Some(view) = layout.zip(range).and_then(|(layout, (address, _))| layout.reveal(address)) {
            self.model.heatmap_view = view;
        }
        self.heatmap.revealed_size = size;
        range
    }

    /// Selects the group that a link names, once the selected device has a block of that group.
    fn find_pending_group(&mut self) {
        let Some((by, name)) = &self.heatmap.pending_group else { return };
        let (recording, device) = (self.model.recording(), self.model.device_state());
        let grouping = self.analysis.caches.shared.groupings.get(*by, recording);
        if let Some(group) = group_called(name, grouping, recording.definitions(), device) {
            self.model.select_group(Some((*by, group)));
            self.heatmap.pending_group = None;
        }
    }

    /// Selects the group that a link names; `None` keeps the selected one.
    pub(super) fn select_linked_group(&mut self, group: Option<(GroupBy, String)>) {
        if group.is_some() {
            self.heatmap.pending_group = group;
            self.model.moment_changed();
        }
    }

    /// Returns the grouping and the name of the selected group, or of the link's group while that
    /// is not found yet; `None` without either.
    pub(super) fn named_group(&self) -> Option<(GroupBy, String)> {
        let Some((by, group)) = self.model.selected_group() else { return self.heatmap.pending_group.clone() };
        let grouping = self.analysis.caches.shared.groupings.known(by)?;
        Some((by, grouping.group_name(self.model.recording().definitions(), group)))
    }

    /// Returns the pane that shows the heatmap, if one does.
    pub(super) fn heatmap_surface(&self) -> Option<Surface> {
        self.panes.surface_of(ViewKind::Heatmap)
    }
}
