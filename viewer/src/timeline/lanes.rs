//! The lanes below the axis: a small chart for each device of a recording of several.

use vramscope_draw::Rect;
use vramscope_trace::{CounterColumn, DeviceId, IncidentKind, Recording};

use super::columns::counters_of;
use super::content::TimelineContent;
use super::flags::moment_of;
use super::geometry::{Geometry, LANE, TEXT};
use super::measure::Measure;
use super::x_axis::XAxis;

/// Maximum number of lanes in view; further ones are scrolled into view.
pub const MAX_LANES: usize = 8;

/// Returns the number of devices' lanes that a timeline of `height` pixels with `scale` pixels per
/// unit shows. Lanes take at most half of the height; a recording of one device has none.
pub fn lanes_in_view(recording: &Recording, height: u32, scale: f32) -> usize {
    let count = recording.devices().take(MAX_LANES).count();
    if count < 2 { 0 } else { count.min((height as f32 / 2.0 / (LANE * scale).max(1.0)) as usize) }
}

/// The lane of a device: a small chart of its bytes below the timeline.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) device: DeviceId,
    /// The chart.
    pub(super) rect: Rect,
    /// Left of the chart.
    pub(super) label: Rect,
    /// The device's name, shortened to fit on the label.
    pub(super) name: String,
    /// The device's name, if it does not fit on the label.
    pub(super) long_name: Option<String>,
    /// Peaks of the allocated and reserved bytes in each pixel column.
    pub(super) columns: Vec<(u64, u64)>,
    /// Pixel column and moment of each out-of-memory error in view; errors in one column share a
    /// mark.
    pub(super) failures: Vec<(i32, u64)>,
    pub(super) is_selected: bool,
}

/// The devices' lanes in view, one below the other.
#[derive(Clone, Debug, Default)]
pub(super) struct Lanes {
    pub(super) lanes: Vec<Lane>,
    /// Upper end of all lanes' bytes: the highest peak of a device's reserved bytes.
    pub(super) top: u64,
    /// The visible part of all lanes; empty if all are in view.
    pub(super) scrollbar: Rect,
}

impl Lanes {
    /// Computes the lanes from the device with index `first` on; their counters are exact if at
    /// most `max_events` events have to be replayed for them. `same` are lanes that were computed
    /// for equal columns before; their counters are reused.
    pub(super) fn new(
        measure: &Measure,
        geometry: &Geometry,
        axis: &XAxis,
        content: &TimelineContent,
        (first, max_events): (usize, u64),
        same: Option<&Self>,
    ) -> Self {
        let (recording, area) = (content.recording, geometry.lanes);
        let height = measure.px(LANE).max(1);
        let in_view = (area.height() / height).max(0) as usize;
        let devices: Vec<DeviceId> = recording.devices().collect();
        let first = first.min(devices.len().saturating_sub(in_view));
        let peak = |&device: &DeviceId| recording.series(device).map_or(0, |series| series.peak_reserved().bytes);
        let top = devices.iter().map(peak).max().unwrap_or(0).max(1);
        let shown: Vec<DeviceId> = devices.iter().skip(first).take(in_view).copied().collect();
        let lane = |row: i32, device: DeviceId, columns: Vec<(u64, u64)>| {
            let y0 = area.y0 + row * height;
            let rect = Rect { y0, y1: y0 + height - measure.px(3.0), ..area };
            let label = Rect { x0: measure.px(2.0), x1: rect.x0 - measure.px(2.0), ..rect };
            let full = recording.info().device_short_label(device);
            let name = measure.typesetter.fit(&full, TEXT * measure.scale, (label.width() - measure.px(8.0)) as f32);
            let mut failures: Vec<(i32, u64)> = content
                .marks
                .incidents()
                .iter()
                .filter(|one| one.device == device && matches!(one.kind, IncidentKind::OutOfMemory { .. }))
                .filter_map(|one| Some((axis.column(moment_of(one))?, moment_of(one).event)))
                .collect();
            failures.dedup_by_key(|(x, _)| *x);
            Lane {
                device,
                rect,
                label,
                long_name: (name != full).then_some(full),
                name,
                columns,
                failures,
                is_selected: device == content.device,
            }
        };
        let same = same.filter(|same| same.lanes.iter().map(|lane| lane.device).eq(shown.iter().copied()));
        let columns: Vec<Vec<(u64, u64)>> = match same {
            Some(same) => same.lanes.iter().map(|lane| lane.columns.clone()).collect(),
            None => {
                let most = |column: &CounterColumn| (column.max.allocated, column.max.reserved);
                let counters = counters_of(recording, &shown, axis, max_events);
                counters.iter().map(|columns| columns.iter().map(most).collect()).collect()
            }
        };
        let parts = (0..).zip(shown.iter().zip(columns));
        let lanes: Vec<Lane> = parts.map(|(row, (&device, columns))| lane(row, device, columns)).collect();
        let mut scrollbar = Rect::default();
        if lanes.len() < devices.len() {
            let y = |index: usize| area.y0 + (area.height() as usize * index / devices.len()) as i32;
            let x0 = area.x1 + measure.px(6.0);
            scrollbar = Rect::new(x0, y(first), x0 + measure.px(5.0), y(first + lanes.len()));
        }
        Self { lanes, top, scrollbar }
    }

    /// Returns the moment of the out-of-memory error whose mark on a lane is nearest to pixel (`x`,
    /// `y`); `None` if no mark is within `reach` pixels to the left or right.
    pub(super) fn failure_at(&self, (x, y): (i32, i32), reach: i32) -> Option<u64> {
        let near = self.at(y)?.failures.iter().map(|&(at, event)| ((at - x).abs(), event));
        near.filter(|(distance, _)| *distance <= reach).min().map(|(_, event)| event)
    }

    /// Returns the lane at pixel row `y` of the picture; `None` above the lanes.
    pub(super) fn at(&self, y: i32) -> Option<&Lane> {
        // The space below a lane belongs to it.
        let index = self.lanes.partition_point(|lane| lane.rect.y0 <= y);
        index.checked_sub(1).and_then(|index| self.lanes.get(index))
    }
}
