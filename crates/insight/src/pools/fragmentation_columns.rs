//! Fragmentation over time: one column per pixel.

use vramscope_pool::Settings;
use vramscope_trace::{
    DeviceId, DeviceLifetimes, DeviceState, FormatError, FreeSpace, MemoryState, Metrics, MetricsSample, Recording,
};

use super::event_walk::EventWalk;
use super::largest_requests::LargestRequests;
use super::usage::{FreeMemory, free_memory};

/// Maximum number of events in view for which the columns are computed from the events. Applying
/// this many takes 20 ms.
const EXACT_EVENTS: u64 = 150_000;
/// Maximum number of visits of blocks and segments, over all columns, when the columns are computed
/// from the events. This many take 10 ms. On a device with many blocks, only some columns are
/// computed.
const EXACT_VISITS: u64 = 750_000;
/// Minimum number of columns that are computed from the events, however many blocks the device has.
const MIN_EXACT_COLUMNS: u64 = 8;

/// How well the free memory of a device could be used at the end of a column of a chart.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FragmentationColumn {
    /// The moment of the values: the column's end, or the last known moment by then.
    pub moment: u64,
    /// External fragmentation, from 0 to 1.
    pub fragmentation: f64,
    /// Lowest fragmentation of the known moments in the column, its begin and end included.
    pub min_fragmentation: f64,
    /// Highest fragmentation of the known moments in the column, its begin and end included.
    pub max_fragmentation: f64,
    /// Bytes of all segments.
    pub reserved_bytes: u64,
    /// Free blocks: number, bytes, and the largest.
    pub free: FreeSpace,
    /// Free bytes that the allocator could return to the driver. In a sampled column an upper
    /// bound: all free bytes of expandable segments count, also free bytes in pages with live
    /// blocks.
    pub releasable_bytes: u64,
    /// The other free bytes.
    pub stuck_bytes: u64,
    /// Bytes that rounding adds to the requested bytes.
    pub rounding_waste_bytes: u64,
    /// Size of the largest request in the column; 0 without a request. `None` if the caller did not
    /// pass the largest requests.
    pub largest_request_bytes: Option<u64>,
}

/// Where the values of [`FragmentationColumns`] come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnSource {
    /// From the events: exact at the end of every column or, on a device with many blocks, of every
    /// few columns. Each value is kept until the next.
    Events,
    /// From the metrics that were sampled while the recording was read: exact at the sampled
    /// moments, each kept until the next.
    Samples,
}

/// The columns of a chart of fragmentation over time.
#[derive(Clone, Debug, PartialEq)]
pub struct FragmentationColumns {
    /// The columns from left to right.
    pub columns: Vec<FragmentationColumn>,
    /// Where their values come from.
    pub source: ColumnSource,
}

impl FragmentationColumn {
    /// Creates a column whose only known moment is its end.
    fn new(moment: u64, reserved_bytes: u64, free: FreeSpace, stuck_bytes: u64, rounding_waste_bytes: u64) -> Self {
        let fragmentation = free.fragmentation();
        let stuck_bytes = stuck_bytes.min(free.total);
        Self {
            moment,
            fragmentation,
            min_fragmentation: fragmentation,
            max_fragmentation: fragmentation,
            reserved_bytes,
            free,
            releasable_bytes: free.total - stuck_bytes,
            stuck_bytes,
            rounding_waste_bytes,
            largest_request_bytes: None,
        }
    }

    /// Creates the column that ends with a memory state.
    fn from_state(moment: u64, device: &DeviceState, settings: &Settings) -> Self {
        let FreeMemory { space: free, stuck_bytes } = free_memory(device, settings);
        let counters = device.counters();
        Self::new(moment, counters.reserved, free, stuck_bytes, counters.rounding_waste_bytes())
    }

    /// Creates the column that ends with a sample.
    fn from_sample(sample: &MetricsSample) -> Self {
        let metrics: &Metrics = &sample.metrics;
        let rounding = metrics.rounding_waste_bytes();
        Self::new(sample.event, metrics.counters.reserved, metrics.free, metrics.inactive_split_bytes, rounding)
    }

    /// Extends the lowest and highest fragmentation by that of `other`, another moment.
    fn extend(&mut self, other: &Self) {
        self.min_fragmentation = self.min_fragmentation.min(other.fragmentation);
        self.max_fragmentation = self.max_fragmentation.max(other.fragmentation);
    }
}

/// Returns the fragmentation of a device over time: column i is from the moment `edges[i]` to the
/// moment `edges[i + 1]`.
///
/// `edges` must not decrease. `settings` are the allocator's, for the page size of expandable
/// segments. With `requests`, the columns also have the largest request: exact if the columns are
/// from the events, else as described at [`LargestRequests::between`].
///
/// The columns are computed from the events if few are in view and the device has few blocks, else
/// from the recording's [samples](Recording::metrics). The cost is linear in the number of columns.
#[must_use]
pub fn fragmentation_columns(
    recording: &Recording,
    device: DeviceId,
    edges: &[u64],
    settings: &Settings,
    requests: Option<(&DeviceLifetimes, &LargestRequests)>,
) -> FragmentationColumns {
    let (Some(&first), Some(&last)) = (edges.first(), edges.last()) else {
        return FragmentationColumns { columns: Vec::new(), source: ColumnSource::Samples };
    };
    let from_events = if last.saturating_sub(first) <= EXACT_EVENTS {
        // If a chunk is not loaded yet, the samples are shown.
        columns_from_events(recording, device, edges, settings).unwrap_or_default()
    } else {
        None
    };
    let (mut columns, source) = match from_events {
        Some(columns) => (columns, ColumnSource::Events),
        None => (columns_from_samples(recording, device, edges), ColumnSource::Samples),
    };
    match requests {
        Some((lifetimes, requests)) if source == ColumnSource::Events => {
            exact_largest_requests(&mut columns, edges, lifetimes, requests);
        }
        Some((_, requests)) => {
            for (column, range) in columns.iter_mut().zip(edges.windows(2)) {
                column.largest_request_bytes = Some(requests.between(range[0], range[1]));
            }
        }
        None => {}
    }
    FragmentationColumns { columns, source }
}

/// Returns the fragmentation of a device over time like [`fragmentation_columns`], but always from
/// the recording's samples: fast enough for a chart that changes in every frame.
#[must_use]
pub fn sampled_fragmentation_columns(
    recording: &Recording,
    device: DeviceId,
    edges: &[u64],
    requests: Option<&LargestRequests>,
) -> FragmentationColumns {
    let mut columns = if edges.is_empty() { Vec::new() } else { columns_from_samples(recording, device, edges) };
    if let Some(requests) = requests {
        for (column, range) in columns.iter_mut().zip(edges.windows(2)) {
            column.largest_request_bytes = Some(requests.between(range[0], range[1]));
        }
    }
    FragmentationColumns { columns, source: ColumnSource::Samples }
}

/// Returns the number of blocks and segments of a device.
fn size_of_device(state: &MemoryState, device: DeviceId) -> u64 {
    state.device(device).map_or(0, |state| (state.blocks().len() + state.segments().len()) as u64)
}

/// Returns the number of columns, of `count`, that may be computed from the events of a device with
/// `size` blocks and segments; `None` if more samples are in view. `walk` is at the first moment in
/// view, `last` is the last.
fn exact_columns(
    recording: &Recording,
    device: DeviceId,
    walk: &EventWalk,
    last: u64,
    (count, size): (u64, u64),
) -> Option<u64> {
    let exact = (EXACT_VISITS / size.max(1)).max(MIN_EXACT_COLUMNS).min(count);
    let series = recording.metrics(device);
    let samples = series.into_iter().flat_map(|series| series.between(walk.state().time_ns(), u64::MAX, |_, _| false));
    let in_view = samples.take_while(|sample| sample.event <= last).count() as u64;
    (exact == count || exact > in_view).then_some(exact)
}

/// Returns the columns from the events, computed at the ends of as many columns as
/// [`exact_columns`] allows; `None` if the samples in view are more.
fn columns_from_events(
    recording: &Recording,
    device: DeviceId,
    edges: &[u64],
    settings: &Settings,
) -> Result<Option<Vec<FragmentationColumn>>, FormatError> {
    let mut walk = EventWalk::of_device(recording, device, edges[0])?;
    let (count, last) = (edges.len() as u64 - 1, edges[edges.len() - 1]);
    let size = size_of_device(walk.state(), device).max(size_of_device(recording.end_state(), device));
    let Some(exact) = exact_columns(recording, device, &walk, last, (count, size)) else { return Ok(None) };
    // The device may have many more blocks in view than at its begin and at the end.
    let max_visits = 4 * EXACT_VISITS.max(exact * size);
    let at = |walk: &EventWalk| {
        let state = walk.state().device(device);
        state.map(|state| FragmentationColumn::from_state(walk.state().event(), state, settings)).unwrap_or_default()
    };
    let mut begin = at(&walk);
    let (mut columns, mut moved, mut visits) = (Vec::with_capacity(edges.len()), false, 0u64);
    for (index, &end) in (1u64..).zip(&edges[1..]) {
        while walk.state().event() < end && walk.next(recording)?.is_some() {
            moved = true;
        }
        // The last of each group of columns is computed.
        let is_due = index * exact / count > (index - 1) * exact / count;
        let mut column = if moved && is_due { at(&walk) } else { begin };
        if is_due {
            visits += if moved { size_of_device(walk.state(), device) } else { 0 };
            (moved, column.moment) = (false, end.max(column.moment));
        }
        let value = column;
        (column.min_fragmentation, column.max_fragmentation) = (value.fragmentation, value.fragmentation);
        column.extend(&begin);
        columns.push(column);
        begin = value;
        if visits > max_visits {
            return Ok(None);
        }
    }
    Ok(Some(columns))
}

/// Returns the columns from the samples of the recording; a column without one has the values of
/// the last sample before it, and zeros before the first.
fn columns_from_samples(recording: &Recording, device: DeviceId, edges: &[u64]) -> Vec<FragmentationColumn> {
    let samples = recording.metrics(device).into_iter().flat_map(|series| series.between(0, u64::MAX, |_, _| true));
    let mut samples = samples.map(|sample| FragmentationColumn::from_sample(&sample)).peekable();
    let mut current = FragmentationColumn::default();
    while let Some(sample) = samples.next_if(|sample| sample.moment <= edges[0]) {
        current = sample;
    }
    let mut columns = Vec::with_capacity(edges.len());
    for &end in &edges[1..] {
        let mut column = current;
        while let Some(sample) = samples.next_if(|sample| sample.moment <= end) {
            // Nothing is known before the first sample.
            let before = if current == FragmentationColumn::default() { sample } else { column };
            current = sample;
            let (min, max) = (before.min_fragmentation, before.max_fragmentation);
            column = FragmentationColumn { min_fragmentation: min, max_fragmentation: max, ..sample };
            column.extend(&sample);
        }
        columns.push(column);
    }
    columns
}

/// Sets the largest request of every column, from the allocations made in view and the failed
/// requests.
fn exact_largest_requests(
    columns: &mut [FragmentationColumn],
    edges: &[u64],
    lifetimes: &DeviceLifetimes,
    requests: &LargestRequests,
) {
    for (column, range) in columns.iter_mut().zip(edges.windows(2)) {
        column.largest_request_bytes = Some(requests.largest_failed(range[0], range[1]));
    }
    let (Some(&first), Some(&last)) = (edges.first(), edges.last()) else { return };
    for allocation in lifetimes.active_between(first, last) {
        if !allocation.start_observed || allocation.first_moment <= first {
            continue;
        }
        let index = edges.partition_point(|&edge| edge < allocation.first_moment).checked_sub(1);
        if let Some(column) = index.and_then(|index| columns.get_mut(index)) {
            let largest = column.largest_request_bytes.unwrap_or(0).max(allocation.requested);
            column.largest_request_bytes = Some(largest);
        }
    }
}
