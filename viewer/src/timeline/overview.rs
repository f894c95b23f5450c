//! The overview strip: the whole recording, with the visible part marked.

use std::ops::Range;
use std::sync::Arc;

use vramscope_insight::history::History;
use vramscope_trace::{DeviceId, Recording};

use super::scale::{AxisKind, Scale};
use super::x_axis::XAxis;
use crate::frame::Rect;

/// The whole recording below the axis, with the visible part marked.
#[derive(Clone, Debug)]
pub(super) struct Overview {
    pub(super) strip: Rect,
    /// The visible part.
    pub(super) window: Rect,
    /// The most allocated and reserved bytes in each pixel column.
    pub(super) columns: Arc<[(u64, u64)]>,
    /// What the columns were computed from.
    key: (DeviceId, AxisKind, Range<u64>, Rect, u64),
    /// The most reserved bytes in any column.
    pub(super) top: u64,
    /// The positions of the whole recording on the axis.
    whole: Range<u64>,
}

impl Overview {
    /// Computes the strip. `whole` has the positions of the whole recording, `shown` those in view.
    /// The columns of `previous`, an earlier strip, are used again if they are the same.
    pub(super) fn new(
        (recording, device, history): (&Recording, DeviceId, Option<&History>),
        scale: &Scale,
        strip: Rect,
        whole: Range<u64>,
        shown: &Range<u64>,
        previous: Option<&Self>,
    ) -> Self {
        // An axis of time needs no moments.
        let history = history.filter(|_| *scale != Scale::Time);
        let key = (device, scale.kind(), whole.clone(), strip, recording.end_event());
        let known = previous.filter(|previous| previous.key == key).map(|previous| Arc::clone(&previous.columns));
        let columns = known.unwrap_or_else(|| {
            let Some(series) = recording.series(device) else { return Arc::default() };
            let columns = if *scale == Scale::Time {
                series.columns(whole.start, whole.end, strip.width().unsigned_abs() as usize)
            } else {
                let axis = XAxis::new(scale.clone(), strip, &whole, recording, history, None);
                series.columns_between(axis.times())
            };
            columns.iter().map(|column| (column.max.allocated, column.max.reserved)).collect()
        });
        let top = columns.iter().map(|&(_, reserved)| reserved).max().unwrap_or(0).max(1);
        // A very small part is still visible.
        let x = |position: u64| {
            let ratio = position.saturating_sub(whole.start) as f64 / (whole.end - whole.start).max(1) as f64;
            strip.x0 + (ratio * f64::from(strip.width())) as i32
        };
        let x0 = x(shown.start).min(strip.x1 - 3).max(strip.x0);
        let x1 = x(shown.end).clamp(x0 + 3, strip.x1.max(x0 + 3));
        Self { strip, window: Rect { x0, x1, ..strip }, columns, key, top, whole }
    }

    /// Returns the position at `x` pixels from the picture's left edge.
    pub(super) fn position_at(&self, x: f64) -> u64 {
        let ratio = (x - f64::from(self.strip.x0)) / f64::from(self.strip.width().max(1));
        let length = (self.whole.end - self.whole.start) as f64;
        self.whole.start.saturating_add((ratio.clamp(0.0, 1.0) * length) as u64)
    }
}
