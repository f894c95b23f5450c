//! The counters and the memory samples of each pixel column of a timeline.

use std::ops::Range;

use vramscope_trace::{
    CounterColumn, CounterSeries, Counters, DeviceId, FormatError, MemoryState, Recording, Replay, SampleColumn,
};

use super::x_axis::XAxis;

/// Maximum number of events in view that are applied one by one, so that the columns of an axis
/// that is not evenly spaced in time are exact. Applying this many takes about 2 ms.
const EXACT_EVENTS: u64 = 16_384;

/// Returns the counters of a device in each pixel column of an axis. Exact counters are computed if
/// that takes replaying at most `max_events` events; else the counters come from the device's
/// counter series, and are exact to within one of its buckets.
pub(super) fn counters(
    recording: &Recording,
    device: DeviceId,
    axis: &XAxis,
    width: usize,
    max_events: u64,
) -> Vec<CounterColumn> {
    let Range { start, end } = axis.range();
    if axis.is_even_time() {
        return match axis.exact_edges().filter(|edges| edges.len() == width + 1) {
            Some(edges) => recording.columns_between(device, edges, (start, end), max_events),
            None => recording.columns(device, start, end, width),
        };
    }
    counters_of(recording, &[device], axis, max_events).pop().unwrap_or_else(|| vec![CounterColumn::default(); width])
}

/// Returns the counters of several devices in each pixel column of an axis. If few events are in
/// view, and at most `max_events` have to be replayed for them, the counters are exact; else they
/// are exact to within a bucket of the series.
pub(super) fn counters_of(
    recording: &Recording,
    devices: &[DeviceId],
    axis: &XAxis,
    max_events: u64,
) -> Vec<Vec<CounterColumn>> {
    let edges = axis.edges();
    let (first, last) = edges.first().copied().zip(edges.last().copied()).unwrap_or_default();
    let is_exact = last - first <= EXACT_EVENTS && recording.replayed_events(first, last) <= max_events;
    // If a chunk is not loaded yet, use the series.
    let exact = if is_exact { exact_counters(recording, devices, edges).ok() } else { None };
    exact.unwrap_or_else(|| {
        let columns = |device: &DeviceId| match recording.series(*device) {
            Some(series) => columns_of(series, axis),
            None => vec![CounterColumn::default(); axis.times().len().saturating_sub(1)],
        };
        devices.iter().map(columns).collect()
    })
}

/// Returns the counters of devices between each two moments of `edges`, by applying every event.
fn exact_counters(
    recording: &Recording,
    devices: &[DeviceId],
    edges: &[u64],
) -> Result<Vec<Vec<CounterColumn>>, FormatError> {
    let first = edges.first().copied().unwrap_or(0);
    let mut replay = Replay::new();
    let mut state = replay.seek(recording, first)?.clone();
    let counters = |state: &MemoryState, device: DeviceId| {
        state.device(device).map(|device| device.counters()).unwrap_or_default()
    };
    let constant = |event: u64, last: Counters| CounterColumn { event, last, min: last, max: last };
    let start = |&device: &DeviceId| constant(first, counters(&state, device));
    let mut current: Vec<CounterColumn> = devices.iter().map(start).collect();
    let mut columns = vec![Vec::with_capacity(edges.len()); devices.len()];
    for pair in edges.windows(2) {
        for column in &mut current {
            *column = constant(pair[1], column.last);
        }
        while state.event() < pair[1] {
            let index = state.event();
            // A gap or a correction may change every device.
            let mut changed = None;
            match replay.event(recording, index)? {
                Some(event) => {
                    state.apply(&event);
                    changed = Some(event.device);
                    if recording.has_correction_at(state.event()) {
                        state = replay.seek(recording, state.event())?.clone();
                        changed = None;
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
            for (column, &device) in current.iter_mut().zip(devices) {
                if changed.is_none_or(|changed| changed == device) {
                    column.last = counters(&state, device);
                    column.min = combine(column.min, column.last, u64::min);
                    column.max = combine(column.max, column.last, u64::max);
                }
            }
        }
        for (columns, column) in columns.iter_mut().zip(&current) {
            columns.push(*column);
        }
    }
    Ok(columns)
}

/// Combines two sets of counters: each counter of the result is `pick` of its two values.
fn combine(a: Counters, b: Counters, pick: fn(u64, u64) -> u64) -> Counters {
    Counters {
        allocated: pick(a.allocated, b.allocated),
        active: pick(a.active, b.active),
        reserved: pick(a.reserved, b.reserved),
        requested: pick(a.requested, b.requested),
    }
}

/// Returns the counters of a simulated run, which has the times of the recording, in each pixel
/// column of an axis of the recording; exact to within a bucket of the series.
pub(super) fn columns_of(series: &CounterSeries, axis: &XAxis) -> Vec<CounterColumn> {
    if axis.is_even_time() {
        let Range { start, end } = axis.range();
        return series.columns(start, end, axis.times().len().saturating_sub(1));
    }
    series.columns_between(axis.times())
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
