//! The counters and the memory samples of each pixel column of a timeline.

use std::ops::Range;

use vramscope_trace::{CounterColumn, CounterSeries, DeviceId, Recording, SampleColumn};

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
    let exact = if is_exact { recording.exact_columns_between(devices, edges).ok() } else { None };
    exact.unwrap_or_else(|| {
        let columns = |device: &DeviceId| match recording.series(*device) {
            Some(series) => columns_of(series, axis),
            None => vec![CounterColumn::default(); axis.times().len().saturating_sub(1)],
        };
        devices.iter().map(columns).collect()
    })
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
