//! The counters and the memory samples of each pixel column of a timeline.

use std::ops::Range;

use vramscope_trace::{CounterColumn, CounterSeries, Counters, DeviceId, FormatError, Recording, Replay, SampleColumn};

use super::x_axis::XAxis;

/// The most events in view that are applied one by one, so that the columns of an axis that is not
/// evenly spaced in time are exact. Applying this many takes about 2 ms.
const EXACT_EVENTS: u64 = 16_384;

/// Returns the counters of a device in each pixel column of an axis.
pub(super) fn counters(recording: &Recording, device: DeviceId, axis: &XAxis, width: usize) -> Vec<CounterColumn> {
    let Range { start, end } = axis.range();
    if axis.is_even_time() {
        return recording.columns(device, start, end, width);
    }
    let edges = axis.edges();
    let events = edges.last().zip(edges.first()).map_or(0, |(last, first)| last - first);
    // If a chunk is not loaded yet, use the series.
    let exact = if events <= EXACT_EVENTS { exact_counters(recording, device, edges).ok() } else { None };
    exact.unwrap_or_else(|| {
        let Some(series) = recording.series(device) else { return vec![CounterColumn::default(); width] };
        counters_between(series, axis.times())
    })
}

/// Returns the counters between each two of `times`, exact to within a bucket of the series.
pub(super) fn counters_between(series: &CounterSeries, times: &[u64]) -> Vec<CounterColumn> {
    times.windows(2).filter_map(|pair| series.columns(pair[0], pair[1], 1).pop()).collect()
}

/// Returns the counters between each two moments of `edges`, by applying every event.
fn exact_counters(recording: &Recording, device: DeviceId, edges: &[u64]) -> Result<Vec<CounterColumn>, FormatError> {
    let first = edges.first().copied().unwrap_or(0);
    let mut replay = Replay::new();
    let mut state = replay.seek(recording, first)?.clone();
    let mut columns = Vec::with_capacity(edges.len());
    let mut last = state.device(device).map(|device| device.counters()).unwrap_or_default();
    for pair in edges.windows(2) {
        let mut column = CounterColumn { event: pair[1], last, min: last, max: last };
        while state.event() < pair[1] {
            let index = state.event();
            match replay.event(recording, index)? {
                Some(event) => {
                    state.apply(&event);
                    if recording.has_correction_at(state.event()) {
                        state = replay.seek(recording, state.event())?.clone();
                    }
                }
                // The state after missing events.
                None => {
                    let next = recording.next_event(index).unwrap_or(recording.end_event()).max(index + 1);
                    state = replay.seek(recording, next)?.clone();
                    if state.event() <= index {
                        break;
                    }
                }
            }
            let counters = state.device(device).map(|device| device.counters()).unwrap_or_default();
            column.min = combine(column.min, counters, u64::min);
            column.max = combine(column.max, counters, u64::max);
            last = counters;
        }
        column.last = last;
        columns.push(column);
    }
    Ok(columns)
}

/// Combines two sets of counters: each counter of the result is `pick` of its two values.
fn combine(a: Counters, b: Counters, pick: impl Fn(u64, u64) -> u64) -> Counters {
    Counters {
        allocated: pick(a.allocated, b.allocated),
        active: pick(a.active, b.active),
        reserved: pick(a.reserved, b.reserved),
        requested: pick(a.requested, b.requested),
    }
}

/// Returns the memory samples of a device in each pixel column of an axis; `None` for columns
/// before the first sample.
pub(super) fn samples(series: &CounterSeries, axis: &XAxis, width: usize) -> Vec<Option<SampleColumn>> {
    if axis.is_even_time() {
        let Range { start, end } = axis.range();
        return series.samples(start, end, width);
    }
    axis.times().windows(2).map(|pair| series.samples(pair[0], pair[1], 1).pop().flatten()).collect()
}
