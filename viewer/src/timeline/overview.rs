//! The overview strip: the whole recording, with the visible part marked.

use std::ops::Range;
use std::sync::Arc;

use vramscope_draw::Rect;
use vramscope_insight::history::History;
use vramscope_trace::{DeviceId, Recording};

use super::columns::columns_of;
use super::scale::{AxisKind, Scale};
use super::x_axis::XAxis;

/// The overview strip: the whole recording below the axis, with the visible part marked.
#[derive(Clone, Debug)]
pub(super) struct Overview {
    pub(super) strip: Rect,
    /// The visible part.
    pub(super) window: Rect,
    /// Peaks of the allocated and reserved bytes in each pixel column.
    pub(super) columns: Arc<[(u64, u64)]>,
    /// The inputs of the columns and the axis.
    key: OverviewKey,
    /// Peak of the reserved bytes in all columns.
    pub(super) top: u64,
    /// The axis of the whole recording.
    axis: Arc<XAxis>,
}

/// The inputs of the overview strip: device, kind of axis, positions of the whole recording,
/// rectangle, number of events, and the width to which idle time is shortened.
type OverviewKey = (DeviceId, AxisKind, Range<u64>, Rect, u64, Option<i32>);

impl Overview {
    /// Computes the strip. `whole` has the positions of the whole recording, `shown` the positions
    /// in view. Reuses the columns of `previous`, an earlier strip, if its inputs are equal. Idle
    /// time is shortened to `idle_width` pixels; `None` shows all of it.
    pub(super) fn new(
        (recording, device, history): (&Recording, DeviceId, Option<&History>),
        (scale, idle_width): (&Scale, Option<i32>),
        strip: Rect,
        whole: Range<u64>,
        shown: &Range<u64>,
        previous: Option<&Self>,
    ) -> Self {
        let idle_width = idle_width.filter(|_| history.is_some());
        let key = (device, scale.kind(), whole.clone(), strip, recording.end_event(), idle_width);
        let known = previous.filter(|previous| previous.key == key);
        let (axis, columns) = known.map_or_else(
            || {
                // An axis of all time needs no moments.
                let history = history.filter(|_| *scale != Scale::Time || idle_width.is_some());
                let axis = XAxis::new(scale.clone(), strip, &whole, recording, history, idle_width);
                let columns = recording.series(device).map(|series| columns_of(series, &axis));
                let bytes = columns.iter().flatten().map(|column| (column.max.allocated, column.max.reserved));
                (Arc::new(axis), bytes.collect())
            },
            |known| (Arc::clone(&known.axis), Arc::clone(&known.columns)),
        );
        let top = columns.iter().map(|&(_, reserved)| reserved).max().unwrap_or(0).max(1);
        // A very small part is still visible.
        let x0 = axis.x_of(shown.start).min(strip.x1 - 3).max(strip.x0);
        let x1 = axis.x_of(shown.end).clamp(x0 + 3, strip.x1.max(x0 + 3));
        Self { strip, window: Rect { x0, x1, ..strip }, columns, key, top, axis }
    }

    /// Returns the position on the axis at `x` pixels from the picture's left edge.
    pub(super) fn position_at(&self, x: f64) -> u64 {
        self.axis.position_at(x)
    }
}
