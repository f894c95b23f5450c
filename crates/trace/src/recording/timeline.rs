//! Computes the columns of a timeline, and the moment at a given time.

use std::ops::Range;

use super::recording_data::Recording;
use super::replay::Replay;
use super::stored_chunk::StoredChunk;
use crate::counter_series::{CounterColumn, CounterSeries, slice_end};
use crate::error::FormatError;
use crate::event::DeviceId;
use crate::memory_state::MemoryState;
use crate::sort::sort_by_key;
use crate::time_pyramid::TimeSlice;

/// Maximum average number of events per column at which [`Recording::columns`] replays the events,
/// so that columns are exact. With more events, a bucket of the [`CounterSeries`] is narrower than
/// a column, unless the recording was opened by its index, whose buckets are larger.
const EXACT_EVENTS_PER_COLUMN: u64 = 32;
/// Maximum number of intervals without events in one view for which [`Recording::columns`] replays
/// events to be exact; the longest are chosen.
const MAX_CORRECTED_GAPS: usize = 8;
/// Divisor that gives the minimum length, in columns, of an interval without events that
/// [`Recording::columns`] makes exact: the number of columns in view ÷ this divisor, but at least
/// 4.
const MIN_GAP_DIVISOR: usize = 256;
/// Maximum number of events that [`Recording::columns`] replays for an interval without events:
/// four times the usual number between two full states.
const MAX_GAP_EVENTS: u64 = 1 << 16;
/// Maximum number of events that [`Recording::columns`] replays if a column has more than 32 events
/// but is narrower than a bucket of the [`CounterSeries`], as in a recording opened by its index.
/// Replaying this many takes 4 ms.
pub const MAX_EXACT_EVENTS: u64 = 150_000;

impl Recording {
    /// Returns a device's counters over `width` equal slices of the time from `from_ns` to `to_ns`,
    /// in nanoseconds since the recording's time 0.
    ///
    /// Exact if few events are in view; else exact to within a bucket of the device's
    /// [`CounterSeries`], the smallest time slice that it stores. A device without events has
    /// zeros.
    #[must_use]
    pub fn columns(&self, device: DeviceId, from_ns: u64, to_ns: u64, width: usize) -> Vec<CounterColumn> {
        let moment_at = |edge: usize| self.event_at_time(edge_time(from_ns, to_ns, width, edge));
        self.columns_with(device, &moment_at, (from_ns, to_ns), width, u64::MAX)
    }

    /// Returns the [columns](Self::columns), for a caller that knows the moments at the edges of
    /// the slices: `edges` has the [moment](Self::event_at_time) at the start of each and at the
    /// end of the last. The columns are not exact if more than `max_events` events would have to be
    /// [replayed](Self::replayed_events).
    #[must_use]
    pub fn columns_between(
        &self,
        device: DeviceId,
        edges: &[u64],
        (from_ns, to_ns): (u64, u64),
        max_events: u64,
    ) -> Vec<CounterColumn> {
        let moment_at = |edge: usize| edges.get(edge).copied().unwrap_or(0);
        self.columns_with(device, &moment_at, (from_ns, to_ns), edges.len().saturating_sub(1), max_events)
    }

    /// Returns the `width` columns of `from_ns..to_ns`; `moment_at` returns the moment at the edge
    /// with an index from 0 to `width`. The columns are not exact if more than `max_events` events
    /// would have to be replayed.
    fn columns_with(
        &self,
        device: DeviceId,
        moment_at: &dyn Fn(usize) -> u64,
        (from_ns, to_ns): (u64, u64),
        width: usize,
        max_events: u64,
    ) -> Vec<CounterColumn> {
        let Some(series) = self.series(device) else { return vec![CounterColumn::default(); width] };
        // If a chunk is not loaded yet, use the series.
        exact_between(series, (moment_at(0), moment_at(width)), width)
            .filter(|&(first, last)| self.replayed_events(first, last) <= max_events)
            .and_then(|between| self.exact_columns(device, between, (from_ns, to_ns), width).ok())
            .unwrap_or_else(|| {
                let mut columns = series.columns(from_ns, to_ns, width);
                self.correct_gaps(device, &mut columns, moment_at, max_events);
                columns
            })
    }

    /// Replaces the columns of long intervals without events by exact ones.
    ///
    /// All events of a bucket appear in the column in which the bucket ends. If a bucket contains a
    /// long interval without events, the events before the interval would appear only after it. An
    /// interval stays as it is if more than `max_events` or [`MAX_GAP_EVENTS`] events would have to
    /// be replayed to its start.
    fn correct_gaps(
        &self,
        device: DeviceId,
        columns: &mut [CounterColumn],
        moment_at: &dyn Fn(usize) -> u64,
        max_events: u64,
    ) {
        let mut replay = Replay::of_device(device);
        for gap in longest_gaps(columns) {
            let event = moment_at(gap.start + 1);
            if event <= columns[gap.start].event || self.replayed_events(event, event) > max_events.min(MAX_GAP_EVENTS)
            {
                continue;
            }
            // If a chunk is not loaded yet, the columns stay as they are.
            if let Ok(state) = replay.seek(self, event) {
                let unchanged = CounterColumn::from_counters(event, state.counters(device));
                columns[gap.start].extend(&unchanged);
                columns[gap.start + 1..gap.end].fill(unchanged);
            }
        }
    }

    /// Returns the number of events that a replay of the moments `from` to `to` applies: the events
    /// in between, and the events since the last full state before `from`.
    #[must_use]
    pub fn replayed_events(&self, from: u64, to: u64) -> u64 {
        let states = self.state_chunks.partition_point(|stored| stored.first_event <= from);
        let state = states.checked_sub(1).and_then(|index| self.state_chunks.get(index));
        to.saturating_sub(state.map_or(self.first_event(), |stored| stored.first_event))
    }

    /// Returns the byte ranges that are not in memory and that [`columns`](Self::columns) needs to
    /// be exact. Empty if so many events are in view that the result is not exact anyway.
    #[must_use]
    pub fn missing_for_columns(&self, device: DeviceId, from_ns: u64, to_ns: u64, width: usize) -> Vec<Range<u64>> {
        // Whole chunks first: the exact moments decode the two chunks at the range's ends.
        let (first, last) = (self.chunk_at_time(from_ns), self.chunk_at_time(to_ns));
        let first = first.map_or(self.end_event(), |stored| stored.first_event);
        let last = last.map_or(self.end_event(), StoredChunk::end_event);
        if self.missing_between(first, last).is_empty() {
            return Vec::new();
        }
        let moments = (self.event_at_time(from_ns), self.event_at_time(to_ns));
        let between = self.series(device).and_then(|series| exact_between(series, moments, width));
        between.map_or_else(Vec::new, |(first, last)| self.missing_between(first, last))
    }

    /// Computes `width` columns of `from_ns..to_ns` by applying every event from the moment `first`
    /// to the moment `last`.
    fn exact_columns(
        &self,
        device: DeviceId,
        (first, last): (u64, u64),
        (from_ns, to_ns): (u64, u64),
        width: usize,
    ) -> Result<Vec<CounterColumn>, FormatError> {
        let column_at = |state: &MemoryState| CounterColumn::from_counters(state.event(), state.counters(device));
        let mut columns = Vec::with_capacity(width);
        let mut replay = Replay::of_device(device);
        let state = replay.seek(self, first)?;
        let mut column = column_at(state);
        replay.advance::<true>(self, last, |state| {
            while columns.len() < width && state.time_ns() > slice_end(from_ns, to_ns, width, columns.len()) {
                columns.push(column);
                column = CounterColumn::from_counters(column.event, column.last);
            }
            column.extend(&column_at(state));
        })?;
        while columns.len() < width {
            columns.push(column);
            column = CounterColumn::from_counters(column.event, column.last);
        }
        Ok(columns)
    }

    /// Returns the counters of devices between each two neighbors of `edges` (moments, ascending),
    /// by applying every event from the first edge to the last. The moment of a column is its end.
    /// What is known only at the end of a gap counts from there on.
    ///
    /// # Errors
    /// If a chunk is not loaded or cannot be read, see [`Replay::seek`].
    pub fn exact_columns_between(
        &self,
        devices: &[DeviceId],
        edges: &[u64],
    ) -> Result<Vec<Vec<CounterColumn>>, FormatError> {
        let (first, last) = edges.first().copied().zip(edges.last().copied()).unwrap_or_default();
        let mut replay = if let [device] = devices { Replay::of_device(*device) } else { Replay::new() };
        let state = replay.seek(self, first)?;
        let counters = |&device: &DeviceId| CounterColumn::from_counters(first, state.counters(device));
        let mut current: Vec<CounterColumn> = devices.iter().map(counters).collect();
        let mut columns = vec![Vec::with_capacity(edges.len()); devices.len()];
        let mut ends = edges.iter().copied().skip(1).peekable();
        let mut finish_column = |end: u64, current: &mut [CounterColumn]| {
            for (columns, column) in columns.iter_mut().zip(current) {
                columns.push(CounterColumn { event: end, ..*column });
                *column = CounterColumn::from_counters(end, column.last);
            }
        };
        replay.advance::<true>(self, last, |state| {
            while let Some(end) = ends.next_if(|&end| state.event() > end) {
                finish_column(end, &mut current);
            }
            for (column, &device) in current.iter_mut().zip(devices) {
                column.extend(&CounterColumn::from_counters(state.event(), state.counters(device)));
            }
        })?;
        ends.for_each(|end| finish_column(end, &mut current));
        Ok(columns)
    }

    /// Returns the first chunk of events that ends later than `time_ns` nanoseconds; `None` if all
    /// end before.
    pub(super) fn chunk_at_time(&self, time_ns: u64) -> Option<&StoredChunk> {
        self.event_chunks.get(self.event_chunks.partition_point(|stored| stored.end_ns <= time_ns))
    }

    /// Returns the last moment whose time is at most `time_ns` nanoseconds, or the first moment if
    /// all are later. If the chunk of events at that time is not loaded, returns the chunk's first
    /// moment.
    #[must_use]
    pub fn event_at_time(&self, time_ns: u64) -> u64 {
        Replay::new().event_at_time(self, time_ns)
    }
}

/// Returns the time of an edge of `width` equal slices of a time range: the start of the slice with
/// index `edge`, or the end of the last.
fn edge_time(from_ns: u64, to_ns: u64, width: usize, edge: usize) -> u64 {
    edge.checked_sub(1).map_or(from_ns, |slice| slice_end(from_ns, to_ns, width, slice))
}

/// Returns the first and the last moment of a time range if its events are few enough for `width`
/// exact columns, else `None`.
fn exact_between(series: &CounterSeries, (first, last): (u64, u64), width: usize) -> Option<(u64, u64)> {
    let exact_up_to = EXACT_EVENTS_PER_COLUMN.saturating_mul(width as u64);
    let in_buckets = series.bucket_events().saturating_mul(width as u64).min(MAX_EXACT_EVENTS);
    // The range may be reversed, and a damaged index may contain any times.
    (last.checked_sub(first)? <= exact_up_to.max(in_buckets)).then_some((first, last))
}

/// Returns the longest ranges of column indexes in which no event happens, at most
/// [`MAX_CORRECTED_GAPS`], from left to right.
fn longest_gaps(columns: &[CounterColumn]) -> Vec<Range<usize>> {
    let shortest = (columns.len() / MIN_GAP_DIVISOR).max(4);
    let mut at = 0;
    let ranges = columns.chunk_by(|one, next| one.event == next.event).map(|range| {
        let begin = at;
        at += range.len();
        // The first column of a range has the event.
        begin + 1..at
    });
    let mut gaps: Vec<Range<usize>> = ranges.filter(|gap| gap.len() >= shortest).collect();
    sort_by_key(&mut gaps, |gap| std::cmp::Reverse(gap.len()));
    gaps.truncate(MAX_CORRECTED_GAPS);
    sort_by_key(&mut gaps, |gap| gap.start);
    gaps
}
