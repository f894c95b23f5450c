//! Allocated bytes before, within and after spans and phases.

use std::collections::HashMap;

use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Definitions, DeviceLifetimes};

use crate::group::{GroupBy, Grouping};
use crate::spans::Span;
use crate::steps::{AllocatedCurve, split_number};

/// Index of the row of the requests of unknown phase, after the rows of the four phases, which are
/// in the order of [`Phase`](crate::group::Phase).
const UNKNOWN_PHASE: usize = 4;

/// The allocated bytes of a device around the spans of one name, or around the occurrences of one
/// phase, see [`phase_table`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpanRow {
    /// The spans' name, without a number at its end; or the name of the phase.
    pub name: String,
    /// Number of spans with this name, or of the phase's occurrences.
    pub count: u64,
    /// The moment at which the span with the highest peak begins. Of several, the first; the fields
    /// below describe it.
    pub from_event: u64,
    /// The moment at which it ends; the end of the recording if it is still open then.
    pub to_event: u64,
    /// Allocated bytes at the moment at which it begins.
    pub before_bytes: u64,
    /// Peak of the allocated bytes in the span, its first and last moment included.
    pub peak_bytes: u64,
    /// Allocated bytes at the moment at which it ends.
    pub after_bytes: u64,
}

impl SpanRow {
    /// Returns the bytes that the span left allocated: bytes after it − bytes before it.
    #[must_use]
    pub fn kept_bytes(&self) -> i128 {
        i128::from(self.after_bytes) - i128::from(self.before_bytes)
    }

    /// Counts a span, and takes its bytes if its peak is the highest so far.
    fn add(&mut self, span: SpanBytes) {
        if self.count == 0 || span.peak > self.peak_bytes {
            (self.from_event, self.to_event) = (span.from, span.to);
            (self.before_bytes, self.peak_bytes, self.after_bytes) = (span.before, span.peak, span.after);
        }
        self.count += 1;
    }
}

/// The bytes of a span or of a phase's occurrence, while they are computed.
#[derive(Clone, Copy, Debug, Default)]
struct SpanBytes {
    from: u64,
    to: u64,
    before: u64,
    peak: u64,
    after: u64,
}

/// Returns the allocated bytes around the spans of each name, in the order in which the names first
/// occur. `spans` are the spans of the device's process, see
/// [`Marks::spans_on`](crate::spans::Marks::spans_on); single moments do not count. `range` is the
/// recording's first and last moment.
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
    // A grouping by another key than the phase computes no phases.
    while !scan.step(lifetimes, definitions, &mut Grouping::new(GroupBy::Site, 0)) {}
    scan.rows
}

/// Returns the allocated bytes around the phases of a device, from its requests alone: no spans are
/// needed. The rows are in the order forward, backward, optimizer, other, and last the requests of
/// unknown phase; phases without requests have no row. No rows if `grouping` does not group by
/// phase. `range` is the recording's first and last moment.
///
/// An occurrence of a phase is a run of consecutive allocations of the device whose requests are in
/// this phase, as long as possible. It begins at the moment before its first allocation, and ends
/// at the moment before the first allocation of the next run; the last one ends with the recording.
/// Frees neither begin nor end an occurrence. Blocks whose allocation was not recorded have no
/// phase and interrupt none, but their bytes count. A relabelled block has the phase of its last
/// site.
///
/// The cost is linear in the number of allocations. For recordings with millions of them, use
/// [`SpanTableScan`].
#[must_use]
pub fn phase_table(
    definitions: &Definitions,
    grouping: &mut Grouping,
    lifetimes: &DeviceLifetimes,
    range: (u64, u64),
) -> Vec<SpanRow> {
    let mut scan = SpanTableScan::new(std::iter::empty(), definitions, range);
    while !scan.step(lifetimes, definitions, grouping) {}
    scan.phases
}

/// The allocated bytes around spans and phases, computed in steps.
#[derive(Clone, Debug)]
pub struct SpanTableScan {
    rows: Vec<SpanRow>,
    /// The rows of the phases and, at [`UNKNOWN_PHASE`], of requests of unknown phase; rows without
    /// requests are removed at the end.
    phases: Vec<SpanRow>,
    /// The position in `phases` and the bytes of the occurrence that lasts until now.
    occurrence: Option<(usize, SpanBytes)>,
    /// The last moment.
    to: u64,
    /// The index in `rows` of each span's row.
    row_of: Vec<usize>,
    /// The bytes of each span.
    bytes: Vec<SpanBytes>,
    /// The moments to look at: the moment, whether a span ends there, and the index of the span.
    /// Ends are after beginnings.
    queries: Vec<(u64, bool, usize)>,
    /// Number of moments that have been looked at.
    answered: usize,
    curve: AllocatedCurve,
    /// Allocated bytes at the last moment that was visited.
    current: u64,
    /// Moments and their allocated bytes, if no later moment has had as many bytes so far. The
    /// first of them in a range that lasts until now is the peak of the range.
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
                rows.push(SpanRow { name: base.to_owned(), ..SpanRow::default() });
                rows.len() - 1
            }));
            // Annotations of a damaged recording may be anywhere.
            let begin = span.from_event.min(to).max(from);
            let end = span.to_event.unwrap_or(to).min(to).max(begin);
            queries.extend([(begin, false, bytes.len()), (end, true, bytes.len())]);
            bytes.push(SpanBytes { from: begin, to: end, ..SpanBytes::default() });
        }
        sort_by_key(&mut queries, |&query| query);
        Self {
            rows,
            phases: vec![SpanRow::default(); UNKNOWN_PHASE + 1],
            occurrence: None,
            to,
            row_of,
            bytes,
            queries,
            answered: 0,
            curve: AllocatedCurve::new(from, to),
            current: 0,
            maxima: Vec::new(),
        }
    }

    /// Visits about 260,000 events, and returns true once the rows are complete. Phases are
    /// computed only if `grouping` groups by phase, see [`phase_table`]. All steps need the same
    /// lifetimes and grouping.
    pub fn step(&mut self, lifetimes: &DeviceLifetimes, definitions: &Definitions, grouping: &mut Grouping) -> bool {
        let Self { phases, occurrence, bytes, queries, answered, curve, current, maxima, .. } = self;
        let has_phases = grouping.by() == GroupBy::Phase;
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
            let origin = point.origin.filter(|_| has_phases).and_then(|number| lifetimes.origin(number));
            if let Some(origin) = origin {
                let group = grouping.group_of_origin(&origin, 0, false);
                let phase = grouping.phase(group).map_or(UNKNOWN_PHASE, |phase| phase as usize);
                if occurrence.is_none_or(|(last, _)| last != phase) {
                    // The moment before the allocation.
                    let from = point.event.saturating_sub(1);
                    end_occurrence(occurrence, phases, from, *current);
                    *occurrence = Some((phase, SpanBytes { from, before: *current, ..SpanBytes::default() }));
                    if phases[phase].name.is_empty() {
                        phases[phase].name = grouping.group_name(definitions, group);
                    }
                }
            }
            *current = point.allocated_bytes;
            if let Some((_, one)) = occurrence {
                one.peak = one.peak.max(*current);
            }
            while maxima.pop_if(|&mut (_, bytes)| bytes <= *current).is_some() {}
            maxima.push((point.event, *current));
        });
        // Without spans and phases, the curve need not be computed.
        if !curve.is_finished() && (has_phases || !queries.is_empty()) {
            return false;
        }
        answer(u64::MAX, *current, maxima);
        end_occurrence(occurrence, phases, self.to, *current);
        phases.retain(|row| row.count > 0);
        for (row, span) in self.row_of.drain(..).zip(&self.bytes) {
            self.rows[row].add(*span);
        }
        true
    }

    /// Returns the rows of the spans, once all steps are done.
    #[must_use]
    pub fn rows(&self) -> &[SpanRow] {
        &self.rows
    }

    /// Returns the rows of the phases, once all steps are done, see [`phase_table`].
    #[must_use]
    pub fn phases(&self) -> &[SpanRow] {
        &self.phases
    }
}

/// Adds an occurrence of a phase, which ends at a moment with `after` allocated bytes, to its row.
fn end_occurrence(occurrence: &mut Option<(usize, SpanBytes)>, phases: &mut [SpanRow], to: u64, after: u64) {
    if let Some((phase, one)) = occurrence.take() {
        phases[phase].add(SpanBytes { to, after, peak: one.peak.max(one.before), ..one });
    }
}
