//! The timeline: its axis, its stacked areas, the selected range, and texts about the moments under
//! the pointer.

use std::sync::Arc;

use vramscope_draw::Texture;
use vramscope_insight::composition::OTHER_LAYER;
use vramscope_insight::group::GroupBy;
use vramscope_insight::history::History;
use vramscope_insight::idle_time::is_mostly_idle;
use vramscope_insight::pools::PartKind;
use vramscope_trace::{DeviceId, MAX_EXACT_EVENTS, Replay};

use crate::device_map::knows_categories;
use crate::linked_memory::LinkedMemory;
use crate::model::{AllDevices, Changes, Origin};
use crate::protocol::Surface;
use crate::timeline::{
    self, AxisKind, Cursor, Hover, MAX_LANES, Options, QUICK_EVENTS, RangeTotals, Scale, SelectionBand, Stack,
    StackLayer, StepScale, TimedMoment, TimelineContent, TimelineScene, lanes_in_view,
};
use crate::view::{LitBlocks, QUIET_FRAMES, SharedCaches, group_styles};

use super::parts::TimelinePanel;
use super::session::Session;

/// Number of events after which the usual areas of a live recording's timeline are decided, even if
/// few categories are known.
const EVENTS_TO_DECIDE: u64 = 2000;

impl Session {
    /// Returns the timeline on the page; `None` before the first frame.
    pub fn timeline(&self) -> Option<&TimelineScene> {
        self.timeline.scene.as_ref()
    }

    /// Returns the history if it contains all events of the recording, or all but the newest few;
    /// else `None`.
    pub(super) fn complete_history(&self) -> Option<&History> {
        Some(self.history()).filter(|history| history.is_nearly_read(self.model.recording()))
    }

    /// Returns the axis that the user wants, or the axis of time if the recording has not been read
    /// yet or has no steps.
    fn scale_to_show(&mut self) -> Scale {
        let axis = self.model.axis();
        if axis == AxisKind::Time && self.model.stack().is_none() && !self.model.cuts_idle() {
            return Scale::Time;
        }
        self.want_history();
        if self.complete_history().is_none() {
            return Scale::Time;
        }
        match axis {
            AxisKind::Time => Scale::Time,
            AxisKind::Events => Scale::Events,
            AxisKind::Steps => self.step_scale().map_or(Scale::Time, Scale::Steps),
        }
    }

    /// Returns the steps for the axis; `None` if the recording has none.
    pub(super) fn step_scale(&mut self) -> Option<Arc<StepScale>> {
        let recording = self.model.recording();
        let (first, end) = (recording.first_event(), recording.end_event());
        let known = self.timeline.steps.take();
        let steps = self.with_views(|_, context, shared| {
            shared.update_steps(context)?;
            let key = (shared.steps.revision(), end);
            match known {
                Some((known, scale)) if known == key => Some((key, scale)),
                _ => Some((key, StepScale::new(shared.steps.steps(), first, end).map(Arc::new))),
            }
        });
        self.timeline.steps = steps;
        self.timeline.steps.as_ref().and_then(|(_, scale)| scale.clone())
    }

    /// Switches the timeline to the axis that the user wants, if it can be shown by now. The
    /// visible part of the recording stays unchanged.
    pub(super) fn update_axis(&mut self, changes: &mut Changes) {
        let opened = Some(self.model.opened());
        if self.model.origin() == Origin::File
            && self.timeline.idle_checked != opened
            && let Some(history) = self.complete_history()
        {
            let is_mostly_idle = is_mostly_idle(self.model.recording(), history);
            self.timeline.idle_checked = opened;
            self.model.set_mostly_idle(is_mostly_idle);
            changes.timeline |= is_mostly_idle;
            changes.moment |= is_mostly_idle;
        }
        if self.timeline.stack_decided != opened && self.decide_usual_stack() {
            self.timeline.stack_decided = opened;
            changes.timeline |= self.model.stack().is_some();
        }
        let scale = self.scale_to_show();
        if scale != *self.model.scale() {
            let is_other = scale.kind() != self.model.scale().kind();
            let part = self.part_on(&scale).filter(|_| is_other && self.model.is_zoomed());
            let pending = if scale.kind() == self.model.axis() { self.model.take_pending_part() } else { None };
            self.model.set_scale(scale, pending.or(part));
            changes.timeline = true;
            changes.moment = true;
        }
    }

    /// Decides which areas the timeline shows unless the user chooses others: live bytes by
    /// category if most of them have a known one, else the counters. Returns false while that is
    /// not known: the recording is being read, or has no blocks yet.
    fn decide_usual_stack(&mut self) -> bool {
        if self.complete_history().is_none() || self.model.device_state().blocks().len() == 0 {
            return false;
        }
        let (recording, state) = (self.model.recording(), self.model.device_state());
        let grouping = self.analysis.shared.groupings.get(GroupBy::Category, recording);
        let by = knows_categories(grouping, state).then_some(GroupBy::Category);
        // The first blocks of a program say little about the later ones.
        let is_early = self.model.origin() == Origin::Live && state.events() < EVENTS_TO_DECIDE;
        self.model.set_usual_stack(by);
        by.is_some() || !is_early
    }

    /// Converts the visible part of the recording to positions on `scale`; `None` before the first
    /// frame.
    fn part_on(&self, scale: &Scale) -> Option<std::ops::Range<u64>> {
        let axis = &self.timeline.scene.as_ref()?.axis;
        let end = |edge: Option<&u64>, time: Option<&u64>| Some(TimedMoment { event: *edge?, time_ns: *time? });
        let from = end(axis.edges().first(), axis.times().first())?;
        let to = end(axis.edges().last(), axis.times().last())?;
        Some(scale.position(from)..scale.position(to))
    }

    /// Returns true while the view has been unchanged for too few frames to compute exact counters;
    /// marks the timeline as changed when these frames have passed.
    pub(super) fn wait_for_exact_timeline(&mut self, changes: &mut Changes) -> bool {
        let Some(frames) = self.timeline.frames_until_exact else { return false };
        self.timeline.frames_until_exact = frames.checked_sub(1);
        changes.timeline |= frames == 0;
        frames > 0
    }

    /// Computes the timeline for its picture.
    pub(super) fn compute_timeline(&mut self) {
        self.reveal_lane();
        let (size, scale) = (self.display.size(Surface::Timeline), self.display.screen.scale);
        let model = &self.model;
        let (shown, previous) = (model.shown_positions(), self.timeline.scene.as_ref());
        let is_moving = previous.is_some_and(|previous| previous.axis.range() != shown);
        let options = Options {
            scale: model.scale().clone(),
            shown: Some(shown),
            whole: model.is_zoomed().then(|| model.whole_positions()),
            history: self.complete_history(),
            cuts_idle: model.cuts_idle(),
            run: model.comparison.run().and_then(|run| run.series(model.device())),
            previous,
            has_span_row: matches!(model.origin(), Origin::Live | Origin::Disconnected),
            first_lane: (!self.timeline.hides_lanes).then_some(self.timeline.first_lane),
            is_moving,
        };
        let content = TimelineContent {
            recording: model.recording(),
            device: model.device(),
            marks: model.marks(),
            peaks: model.peaks(),
            bands: model.bands(),
            range: model.range(),
        };
        let mut scene = TimelineScene::with_options(&content, &options, size, scale, &self.display.typesetter);
        let (first, last) = scene.edges().first().copied().zip(scene.edges().last().copied()).unwrap_or_default();
        let is_quick = model.recording().replayed_events(first, last) <= QUICK_EVENTS;
        let is_inexact = is_moving && !is_quick && last - first < MAX_EXACT_EVENTS;
        self.timeline.frames_until_exact = is_inexact.then_some(QUIET_FRAMES);
        let stack = self.stack(scene.edges());
        scene.stack = stack;
        self.model.set_shown_times(scene.axis.time_range());
        self.model.timeline_width = usize::try_from(scene.geometry.plot.width()).unwrap_or(0);
        self.timeline.scene = Some(scene);
    }

    /// Scrolls to the lane of the selected device if that is another one than before.
    fn reveal_lane(&mut self) {
        let (model, timeline) = (&self.model, &mut self.timeline);
        let height = self.display.size(Surface::Timeline).1;
        let in_view = lanes_in_view(model.recording(), height, self.display.screen.scale);
        if timeline.lane_device.replace(model.device()) != Some(model.device()) {
            let index = model.recording().devices().position(|device| device == model.device()).unwrap_or(0);
            timeline.first_lane = timeline.first_lane.min(index).max((index + 1).saturating_sub(in_view));
        }
    }

    /// Returns the number of lanes for which the page makes room below the timeline.
    pub(super) fn lane_count(&self) -> u8 {
        let count = self.model.recording().devices().take(MAX_LANES).count() as u8;
        if count < 2 || self.timeline.hides_lanes { 0 } else { count }
    }

    /// Scrolls the lanes of devices by one, down or up. Returns false if all are in view.
    pub(super) fn scroll_lanes(&mut self, is_down: bool) -> bool {
        let recording = self.model.recording();
        let in_view = lanes_in_view(recording, self.display.size(Surface::Timeline).1, self.display.screen.scale);
        let last = recording.devices().count().saturating_sub(in_view);
        let first = self.timeline.first_lane.min(last);
        self.timeline.first_lane = if is_down { (first + 1).min(last) } else { first.saturating_sub(1) };
        self.model.timeline_changed();
        last > 0
    }

    /// Selects the device of a lane, and goes to the moment at the pointer's pixel if that is on
    /// the lane's chart.
    pub(super) fn click_lane(&mut self, device: DeviceId, (x, y): (f64, f64)) {
        let Some(timeline) = &self.timeline.scene else { return };
        self.input.pending_seek = timeline.failure_on_lane(x as i32, y as i32);
        if self.input.pending_seek.is_none() && x >= f64::from(timeline.geometry.plot.x0) {
            self.input.scrub_x = Some(x);
        }
        if let Err(error) = self.set_device(device) {
            self.analysis.messages.push(error.to_string());
        }
    }

    /// Returns the areas of the stacked timeline between the moments `edges`; `None` if the
    /// counters are shown, or the areas are not known yet.
    fn stack(&mut self, edges: &[u64]) -> Option<Stack> {
        let (by, device, lit) = (self.model.stack()?, self.model.device(), self.lit_on_stack());
        let analysis = &mut self.analysis;
        let SharedCaches { compositions, block_groups, groupings, lit_sites, .. } = &mut analysis.shared;
        let composition = compositions.get(device, by)?;
        let (columns, groups) = composition.columns(&analysis.history, device, edges)?;
        let groups = groups.to_vec();
        let (recording, theme) = (self.model.recording(), &self.display.theme);
        let styles =
            group_styles(block_groups, (recording, AllDevices::OnDemand(&self.model)), composition.grouping(), &groups);
        let is_dimmed = |memory: Option<LinkedMemory>| lit.is_some() && memory != lit;
        let mut layers: Vec<StackLayer> = groups
            .iter()
            .zip(styles)
            .map(|(&group, style)| {
                let name = composition.grouping().cached_name(recording.definitions(), group);
                let memory = match by {
                    GroupBy::Category => {
                        let category = composition.grouping().category_at(group);
                        Some(LinkedMemory::Part(PartKind::Category(category)))
                    }
                    by => {
                        let known = groupings.get(by, recording).same_group(composition.grouping(), group);
                        known.map(|group| LinkedMemory::Group(by, group))
                    }
                };
                let (color, texture, is_dimmed) = (style.color(theme), style.texture(theme), is_dimmed(memory));
                StackLayer { name, group: Some(group), color, texture, memory, is_dimmed }
            })
            .collect();
        if columns.iter().any(|column| column.layers[usize::from(OTHER_LAYER)] > 0) {
            let color = self.display.theme.dim;
            let (texture, memory, is_dimmed) = (Texture::None, None, is_dimmed(None));
            layers.push(StackLayer { name: "all others".into(), group: None, color, texture, memory, is_dimmed });
        }
        let has_layer = layers.iter().any(|layer| layer.memory == lit);
        // Other parts of the device's memory have no blocks.
        let has_blocks =
            |lit: &LinkedMemory| !matches!(lit, LinkedMemory::Part(kind) if !matches!(kind, PartKind::Category(_)));
        let lit = lit.filter(|lit| !has_layer && has_blocks(lit)).and_then(|lit| {
            let moments: Vec<u64> = columns.iter().map(|column| column.moment).collect();
            let mut blocks = LitBlocks::new(lit, recording, (groupings, lit_sites));
            composition.layers_at(&analysis.history, device, &moments, |one| blocks.has(one))
        });
        Some(Stack { layers, columns, lit: lit.unwrap_or_default() })
    }

    /// Returns the lit memory that the stacked timeline shows: a layer, or parts of layers. `None`
    /// if it shows the counters.
    pub(super) fn lit_on_stack(&self) -> Option<LinkedMemory> {
        self.model.stack()?;
        self.details.lights.lit_on(Some(Surface::Timeline)).iter().find(|lit| !lit.is_whole()).copied()
    }

    /// Continues building the areas of the stacked timeline. Returns true if that can be continued
    /// at once.
    pub(super) fn work_on_stack(&mut self, max_changes: usize) -> bool {
        let (Some(by), true) = (self.model.stack(), self.complete_history().is_some()) else { return false };
        let device = self.model.device();
        let analysis = &mut self.analysis;
        let compositions = &mut analysis.shared.compositions;
        let known = compositions.get(device, by).map(|one| one.version());
        let recording = self.model.recording();
        let is_done = compositions.step(recording, &analysis.history, (device, by), max_changes);
        let version = compositions.get(device, by).map(|one| one.version());
        if version != known || std::mem::replace(&mut self.timeline.is_stack_due, !is_done) && is_done {
            self.model.timeline_changed();
        }
        !is_done
    }

    /// Returns true while the areas of the stacked timeline are not known yet.
    pub(super) fn is_stack_pending(&self) -> bool {
        let stack = self.timeline.scene.as_ref().map(|timeline| timeline.stack.is_some());
        self.model.stack().is_some() && stack != Some(true)
    }

    /// Draws the timeline, and the cursor and the selected range above it; the timeline itself only
    /// if it `is_changed`.
    pub(super) fn draw_timeline(&mut self, is_changed: bool) {
        let TimelinePanel { scene, overlay, .. } = &self.timeline;
        let Some(scene) = scene else { return };
        self.display.draw(
            Surface::Timeline,
            is_changed,
            |canvas, theme| timeline::draw(scene, theme, canvas.bitmap, canvas.typesetter),
            |canvas, theme| timeline::draw_overlay(overlay, scene.scale(), theme, canvas.bitmap, canvas.typesetter),
        );
    }

    /// Updates the overlay on the timeline's picture: cursor, selected range and pointer.
    pub(super) fn update_overlay(&mut self) {
        let totals = self.selection_totals();
        let selected = self.selected_moments();
        let Some(timeline) = &self.timeline.scene else { return };
        let (recording, typesetter) = (self.model.recording(), &self.display.typesetter);
        self.timeline.overlay.cursor = Some(Cursor::new(timeline, recording, self.model.timed_moment(), typesetter));
        let band = selected.zip(totals);
        self.timeline.overlay.selection =
            band.and_then(|(ends, totals)| SelectionBand::new(timeline, ends, &totals, typesetter));
        let counters = |device| self.model.counters_of(device);
        self.timeline.overlay.update_lanes(timeline, &counters, typesetter);
        let pointer = self.input.pointer_on(Surface::Timeline).map(|(x, _)| x);
        let plot = timeline.geometry.plot;
        self.timeline.overlay.pointer_x = pointer.filter(|x| (plot.x0..plot.x1).contains(x));
    }

    /// Returns the selected range's first and last moment with their times; `None` without a
    /// selected range.
    fn selected_moments(&mut self) -> Option<(TimedMoment, TimedMoment)> {
        let (from, to) = self.model.selected_range()?;
        let times = match (self.complete_history(), self.timeline.selected_times) {
            (_, Some((range, times))) if range == (from, to) => times,
            (Some(history), _) => (history.time_ns(from), history.time_ns(to)),
            (None, _) => {
                let start_ns = self.model.recording().start_ns();
                let mut time = |event| self.model.event_time_ns(event).unwrap_or(start_ns);
                (time(from), time(to))
            }
        };
        self.timeline.selected_times = Some(((from, to), times));
        Some((TimedMoment { event: from, time_ns: times.0 }, TimedMoment { event: to, time_ns: times.1 }))
    }

    /// Returns the selected range's length, number of events and allocated bytes; `None` without a
    /// selected range. While the user drags, the bytes are missing.
    pub(super) fn selection_totals(&mut self) -> Option<RangeTotals> {
        let (from, to) = self.selected_moments()?;
        let range = (self.model.device(), (from.event, to.event));
        if let Some((known, totals)) = self.timeline.totals
            && known == range
            && totals.allocated.is_some()
        {
            return Some(totals);
        }
        let mut totals = RangeTotals {
            events: to.event - from.event,
            length_ns: (!self.model.recording().info().lacks_times).then(|| to.time_ns.saturating_sub(from.time_ns)),
            allocated: None,
        };
        if !self.is_brushing() {
            let (recording, device) = (self.model.recording(), self.model.device());
            let mut replay = Replay::of_device(device);
            let mut allocated = |event: u64| {
                let state = replay.seek(recording, event).ok()?;
                Some(state.device(device).map_or(0, |device| device.counters().allocated))
            };
            totals.allocated = allocated(from.event).zip(allocated(to.event));
        }
        self.timeline.totals = Some((range, totals));
        Some(totals)
    }

    /// Returns texts about the moments under the pointer; `None` if the pointer is not on the
    /// timeline.
    pub(super) fn timeline_hover(&self) -> Option<Hover> {
        let timeline = self.timeline.scene.as_ref()?;
        let (x, y) = self.input.pointer_on(Surface::Timeline)?;
        let plot = timeline.geometry.plot;
        let is_in_chart = (plot.x0..plot.x1).contains(&x) && (y < plot.y1 || y >= timeline.geometry.lanes.y0);
        if !is_in_chart && timeline.incidents_at(x, y).is_empty() {
            return None;
        }
        let recording = self.model.recording();
        let time_ns = timeline.axis.moment_at(f64::from(x)).time_ns;
        let names = self.model.marks().names_at(recording, self.model.device(), time_ns);
        Some(Hover::new(timeline, recording, (x, y), &names))
    }
}
