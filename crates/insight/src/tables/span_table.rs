//! Allocated bytes before, within and after spans.

use std::collections::HashMap;

use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Definitions, DeviceLifetimes};

use crate::spans::Span;
use crate::steps::{AllocatedCurve, split_number};

/// The allocated bytes of a device around the spans of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanRow {
    /// The spans' name, without a number at its end.
    pub name: String,
    /// Number of spans with this name.
    pub count: u64,
    /// The moment at which the span with the highest peak begins. Of several, the first; the fields
    /// below describe it.
    pub from_event: u64,
    /// The moment at which it ends; the end of the recording if it is still open then.
    pub to_event: u64,
    /// Allocated bytes at the moment at which it begins.
    pub before_bytes: u64,
    /// The most allocated bytes at any moment of the span, its first and last included.
    pub peak_bytes: u64,
    /// Allocated bytes at the moment at which it ends.
    pub after_bytes: u64,
}

impl SpanRow {
    /// Returns the bytes that the span left allocated: those after it − those before it.
    #[must_use]
    pub fn kept_bytes(&self) -> i128 {
        i128::from(self.after_bytes) - i128::from(self.before_bytes)
    }
}

/// A span's bytes, while they are computed.
#[derive(Clone, Copy, Debug, Default)]
struct SpanBytes {
    from: u64,
    to: u64,
    before: u64,
    peak: u64,
    after: u64,
}

/// Returns the allocated bytes around the spans of each name, in the order in which the names first
/// occur. `spans` are those of the device's process, see
/// [`Marks::spans_on`](crate::spans::Marks::spans_on); single moments do not count. `from` and `to`
/// are the recording's first and last moment.
///
/// The cost is linear in the number of allocations and spans, except for sorting the spans. For
/// recordings with millions of allocations, use [`SpanTableScan`].
#[must_use]
pub fn span_table<'a>(
    spans: impl Iterator<Item = &'a Span>,
    definitions: &Definitions,
    lifetimes: &DeviceLifetimes,
    range: (u64, u64),
) -> Vec<SpanRow> {
    let mut scan = SpanTableScan::new(spans, definitions, range);
    while !scan.step(lifetimes) {}
    scan.rows
}

/// The allocated bytes around spans, computed in steps.
#[derive(Clone, Debug)]
pub struct SpanTableScan {
    rows: Vec<SpanRow>,
    /// The row of each span.
    row_of: Vec<usize>,
    /// The bytes of each span.
    bytes: Vec<SpanBytes>,
    /// The moments to look at: the moment, whether the span ends there, and the span. Ends are
    /// after beginnings.
    queries: Vec<(u64, bool, usize)>,
    /// Number of moments that have been looked at.
    answered: usize,
    curve: AllocatedCurve,
    /// Allocated bytes at the last moment that was visited.
    current: u64,
    /// The moments whose bytes no later moment reaches so far, so that the first one in a range
    /// that lasts until now has the most bytes of the range.
    maxima: Vec<(u64, u64)>,
}

impl SpanTableScan {
    /// Prepares the table of the spans of a device's process, in a recording whose first and last
    /// moment are `from` and `to`.
    #[must_use]
    pub fn new<'a>(spans: impl Iterator<Item = &'a Span>, definitions: &Definitions, (from, to): (u64, u64)) -> Self {
        let mut rows: Vec<SpanRow> = Vec::new();
        let mut by_name: HashMap<&str, usize> = HashMap::new();
        let mut row_of: Vec<usize> = Vec::new();
        let mut bytes: Vec<SpanBytes> = Vec::new();
        let mut queries: Vec<(u64, bool, usize)> = Vec::new();
        for span in spans.filter(|span| !span.is_instant) {
            let name = definitions.string(span.name);
            let base = match split_number(name) {
                ("", _) => name,
                (base, _) => base,
            };
            row_of.push(*by_name.entry(base).or_insert_with(|| {
                rows.push(SpanRow {
                    name: base.to_owned(),
                    count: 0,
                    from_event: 0,
                    to_event: 0,
                    before_bytes: 0,
                    peak_bytes: 0,
                    after_bytes: 0,
                });
                rows.len() - 1
            }));
            // Annotations of a damaged recording may be anywhere.
            let begin = span.from_event.min(to).max(from);
            let end = span.to_event.unwrap_or(to).min(to).max(begin);
            queries.extend([(begin, false, bytes.len()), (end, true, bytes.len())]);
            bytes.push(SpanBytes { from: begin, to: end, ..SpanBytes::default() });
        }
        sort_by_key(&mut queries, |&query| query);
        let curve = AllocatedCurve::new(from, to);
        Self { rows, row_of, bytes, queries, answered: 0, curve, current: 0, maxima: Vec::new() }
    }

    /// Visits about 260,000 events, and returns true once the rows are complete.
    pub fn step(&mut self, lifetimes: &DeviceLifetimes) -> bool {
        let Self { bytes, queries, answered, curve, current, maxima, .. } = self;
        let mut answer = |until: u64, current: u64, maxima: &[(u64, u64)]| {
            while let Some(&(_, is_end, index)) = queries.get(*answered).filter(|query| query.0 < until) {
                *answered += 1;
                let span = &mut bytes[index];
                if is_end {
                    let first = maxima.partition_point(|&(moment, _)| moment <= span.from);
                    let most = maxima.get(first).map_or(0, |&(_, bytes)| bytes);
                    (span.peak, span.after) = (most.max(span.before).max(current), current);
                } else {
                    span.before = current;
                }
            }
        };
        curve.advance(lifetimes, &mut |point| {
            answer(point.event, *current, maxima);
            *current = point.allocated_bytes;
            while maxima.pop_if(|&mut (_, bytes)| bytes <= *current).is_some() {}
            maxima.push((point.event, *current));
        });
        // Without spans, the curve need not be computed.
        if !curve.is_finished() && !queries.is_empty() {
            return false;
        }
        answer(u64::MAX, *current, maxima);
        for (row, span) in self.row_of.drain(..).zip(&self.bytes) {
            let row = &mut self.rows[row];
            if row.count == 0 || span.peak > row.peak_bytes {
                (row.from_event, row.to_event) = (span.from, span.to);
                (row.before_bytes, row.peak_bytes, row.after_bytes) = (span.before, span.peak, span.after);
            }
            row.count += 1;
        }
        true
    }

    /// Returns the rows, once all steps are done.
    #[must_use]
    pub fn rows(&self) -> &[SpanRow] {
        &self.rows
    }
}
