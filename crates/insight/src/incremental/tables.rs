//! The tables by group, phase and span, computed in parts.

use vramscope_trace::DeviceId;

use super::{DeviceHistory, EVENTS_PER_CALL, GROWTH_DIVISOR};
use crate::group::{GroupBy, Grouping};
use crate::tables::{GroupTableScan, SpanTableScan};

/// The inputs of the tables by group and span: device, generations of the history and its
/// categories, and grouping.
type TableKey = (DeviceId, [u64; 2], GroupBy);

/// The cached tables of peaks and allocations by group, and of the bytes around phases and spans.
#[derive(Default)]
pub struct TableAnalysis {
    key: Option<TableKey>,
    /// The moment up to which the history was read when the last tables were begun.
    until: u64,
    /// The tables that are complete.
    shown: Option<(GroupTableScan, SpanTableScan)>,
    /// The tables that are being computed, and whether the first is complete.
    next: Option<(GroupTableScan, SpanTableScan, bool)>,
}

impl TableAnalysis {
    /// Continues computing the tables by one frame's work; `grouping` must group by `by`. Phases
    /// and spans are computed only if `by` is the phase. Returns the last complete tables, which
    /// may lack the newest events; `None` before the first. Sets `is_unfinished` if there is more
    /// to compute.
    pub fn advance(
        &mut self,
        source: &DeviceHistory<'_>,
        by: GroupBy,
        grouping: &mut Grouping,
        is_unfinished: &mut bool,
    ) -> Option<(&GroupTableScan, &SpanTableScan)> {
        let DeviceHistory { recording, marks, history, device, lifetimes, .. } = *source;
        let key = (device, [history.generation(), history.categories_generation()], by);
        if self.key != Some(key) {
            *self = Self { key: Some(key), ..Self::default() };
        }
        let until = history.until();
        let grown = until.saturating_sub(self.until);
        let is_outdated = grown > 0 && (source.is_complete || grown > self.until / GROWTH_DIVISOR);
        if self.next.is_none() && (self.shown.is_none() || is_outdated) {
            self.until = until;
            let range = (recording.first_event(), until);
            let spans = marks.spans_on(recording.info(), device).filter(|_| by == GroupBy::Phase);
            let spans = SpanTableScan::new(spans, recording.definitions(), range);
            self.next = Some((GroupTableScan::new(range.0, range.1), spans, false));
        }
        if let Some((groups, spans, has_groups)) = &mut self.next {
            let is_done = if *has_groups {
                spans.step(lifetimes, recording.definitions(), grouping)
            } else {
                // A history has the list of changes.
                *has_groups = groups.step(lifetimes, grouping, EVENTS_PER_CALL) != Some(false);
                false
            };
            if is_done {
                self.shown = self.next.take().map(|(groups, spans, _)| (groups, spans));
            } else {
                *is_unfinished = true;
            }
        }
        self.shown.as_ref().map(|(groups, spans)| (groups, spans))
    }
}
