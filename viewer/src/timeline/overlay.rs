//! The overlay on a copy of the timeline's picture: the cursor, the selected range, and a line
//! under the pointer.

use vramscope_draw::{Rect, Typesetter};
use vramscope_trace::{ByteSize, Count, Counters, DeviceId, DurationNs, Recording};

use super::geometry::TEXT;
use super::lanes::Lane;
use super::measure::{Measure, Tag};
use super::scale::{AxisKind, TimedMoment};
use super::scene::{TimelineScene, moment_text};

/// The moment on the screen: a line and its time on the axis; if it is out of sight, an arrow at
/// the chart's edge with the distance.
#[derive(Clone, Debug)]
pub struct Cursor {
    /// The line; `None` out of sight.
    pub(super) line: Option<Rect>,
    pub(super) label: Rect,
    pub(super) text: String,
    pub(super) scale: f32,
    /// Whether the moment is left of the chart, if it is out of sight.
    pub(super) is_left: bool,
    /// Labels of the axis that the cursor's label would cover a part of.
    pub(super) covered: Vec<Rect>,
}

impl Cursor {
    /// Computes the cursor at a moment.
    pub fn new(scene: &TimelineScene, recording: &Recording, at: TimedMoment, typesetter: &Typesetter) -> Self {
        let (geometry, measure) = (&scene.geometry, Measure { scale: scene.scale, typesetter });
        let plot = geometry.plot;
        let Some(x) = scene.axis.column(at) else { return Self::out_of_sight(scene, at, &measure) };
        let stroke = measure.px(1.5).max(1);
        let left = x - stroke / 2;
        let line = Rect::new(left, geometry.span_rows.y0, left + stroke, plot.y1 + measure.px(5.0));
        let text = match scene.axis.scale().kind() {
            AxisKind::Time => moment_text(recording, at.time_ns),
            AxisKind::Events | AxisKind::Steps => format!("event {}", Count(at.event)),
        };
        let width = measure.text_width(&text, TEXT, 12.0);
        let x0 = (x - width / 2).clamp(0, (geometry.width - width).max(0));
        // Below the lowest label of the byte axis, which it would cover at the left edge.
        let label = Rect::new(x0, plot.y1 + measure.px(5.0), x0 + width, plot.y1 + measure.px(20.0));
        let near = Rect { x0: label.x0 - measure.px(4.0), x1: label.x1 + measure.px(4.0), ..label };
        let covered =
            scene.axis_label_rects.iter().filter(|rect| near.intersect(**rect).width() > 0).copied().collect();
        Self { line: Some(line), label, text, scale: scene.scale, is_left: false, covered }
    }

    /// Computes the arrow to a moment out of sight.
    fn out_of_sight(scene: &TimelineScene, at: TimedMoment, measure: &Measure) -> Self {
        let (plot, range) = (scene.geometry.plot, scene.axis.range());
        let position = scene.axis.scale().position(at);
        let is_left = position < range.start;
        let text = match scene.axis.scale().kind() {
            AxisKind::Time => {
                let distance = if is_left { range.start - position } else { position - range.end };
                format!("{} {}", DurationNs(distance), if is_left { "earlier" } else { "later" })
            }
            AxisKind::Events | AxisKind::Steps => {
                let edges = scene.axis.edges();
                let (first, last) = (edges.first().copied().unwrap_or(0), edges.last().copied().unwrap_or(0));
                let distance = if is_left { first.saturating_sub(at.event) } else { at.event.saturating_sub(last) };
                format!("{} {}", Count(distance).of("event", "events"), if is_left { "earlier" } else { "later" })
            }
        };
        let width = measure.text_width(&text, TEXT, 20.0);
        let y1 = plot.y1 - measure.px(4.0);
        let x0 = if is_left { plot.x0 } else { (plot.x1 - width).max(plot.x0) };
        let label = Rect::new(x0, (y1 - measure.px(16.0)).max(plot.y0), x0 + width, y1);
        Self { line: None, label, text, scale: scene.scale, is_left, covered: Vec::new() }
    }

    /// Returns true if the moment is out of sight and pixel (`x`, `y`) is on the arrow to it.
    pub fn is_arrow_at(&self, x: i32, y: i32) -> bool {
        self.line.is_none() && self.label.contains(x, y)
    }

    /// Returns true if pixel (`x`, `y`) is on the cursor's line or its label, or near the line.
    pub fn is_handle_at(&self, x: i32, y: i32) -> bool {
        let reach = (4.0 * self.scale).round() as i32;
        let is_near = |line: Rect| Rect { x0: line.x0 - reach, x1: line.x1 + reach, ..line }.contains(x, y);
        self.line.is_some_and(|line| is_near(line) || self.label.contains(x, y))
    }
}

/// The selected range on the chart, with its length.
#[derive(Clone, Debug)]
pub struct SelectionBand {
    pub(super) rect: Rect,
    pub(super) label: Option<Tag>,
}

/// Length and content of a range of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeTotals {
    /// Number of events.
    pub events: u64,
    /// Length in nanoseconds; `None` if the recording has no times.
    pub length_ns: Option<u64>,
    /// The device's allocated bytes at the range's start and end.
    pub allocated: Option<(u64, u64)>,
}

impl RangeTotals {
    /// Returns the totals as text: `1.24 s · 12,345 events · allocated +1.2 GiB`.
    pub fn text(&self) -> String {
        let mut text = self.length_ns.map_or_else(String::new, |ns| format!("{} · ", DurationNs(ns)));
        text += &Count(self.events).of("event", "events");
        if let Some((before, after)) = self.allocated {
            let (sign, difference) = if after >= before { ("+", after - before) } else { ("−", before - after) };
            text += &format!(" · allocated {sign}{}", ByteSize(difference));
        }
        text
    }
}

impl SelectionBand {
    /// Computes the band of a range between two moments; `None` if it is out of sight.
    pub fn new(
        scene: &TimelineScene,
        (from, to): (TimedMoment, TimedMoment),
        totals: &RangeTotals,
        typesetter: &Typesetter,
    ) -> Option<Self> {
        let (plot, measure) = (scene.geometry.plot, Measure { scale: scene.scale, typesetter });
        let (x0, x1) = (scene.axis.x(from), scene.axis.x(to).saturating_add(1));
        if x1 <= plot.x0 || x0 >= plot.x1 {
            return None;
        }
        let rect = Rect { x0: x0.max(plot.x0), x1: x1.min(plot.x1).max(x0.max(plot.x0) + 1), ..plot };
        let text = totals.text();
        let width = measure.text_width(&text, TEXT - 0.5, 8.0);
        let middle = i32::midpoint(rect.x0, rect.x1);
        // Outside of a narrow band, but within the chart.
        let x0 = (middle - width / 2).clamp(plot.x0, (plot.x1 - width).max(plot.x0));
        let y0 = plot.y0 + measure.px(2.0);
        let label = (plot.height() > measure.px(40.0))
            .then(|| Tag { rect: Rect::new(x0, y0, x0 + width, y0 + measure.px(15.0)), text });
        Some(Self { rect, label })
    }
}

/// Everything that is drawn on a copy of the timeline's picture.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    /// The selected range.
    pub selection: Option<SelectionBand>,
    /// The pixel column under the pointer.
    pub pointer_x: Option<i32>,
    /// The moment on the screen.
    pub cursor: Option<Cursor>,
    /// The overlay on the lanes of devices.
    pub lanes: LaneOverlay,
}

/// The overlay on the lanes: each device's bytes at the moment on the screen.
#[derive(Clone, Debug, Default)]
pub struct LaneOverlay {
    /// The lanes.
    pub(super) rect: Rect,
    /// A text on each lane.
    pub(super) tags: Vec<Tag>,
}

impl Overlay {
    /// Computes the overlay on the lanes; `counters` returns a device's byte counters at the moment
    /// on the screen.
    pub fn update_lanes(
        &mut self,
        scene: &TimelineScene,
        counters: &dyn Fn(DeviceId) -> Counters,
        typesetter: &Typesetter,
    ) {
        let measure = Measure { scale: scene.scale, typesetter };
        let tag = |lane: &Lane| {
            let counters = counters(lane.device);
            let name = lane.long_name.iter().map(|name| format!("{name}: ")).collect::<String>();
            let text = format!("{name}{} of {}", ByteSize(counters.allocated), ByteSize(counters.reserved));
            let x0 = lane.rect.x0 + measure.px(4.0);
            let x1 = x0 + measure.text_width(&text, TEXT - 0.5, 8.0);
            Tag { rect: Rect::new(x0, lane.rect.y0 + measure.px(2.0), x1, lane.rect.y1 - measure.px(2.0)), text }
        };
        self.lanes = LaneOverlay { rect: scene.geometry.lanes, tags: scene.lanes.lanes.iter().map(tag).collect() };
    }
}
