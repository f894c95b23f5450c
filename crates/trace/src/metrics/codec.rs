//! Encodes a [`MetricsSeries`], so that opening a recording needs no pass over its events.
//!
//! In order, every integer a varint:
//!
//! ```text
//! moments | groups | rows | events between two moments
//! columns of the moments   event, time and allocations so far (blocks, bytes), each as the
//!                          difference to the previous moment
//! groups                   small or large | private pool (two) | stream
//! columns of the rows      group, moment, then the values of the metrics, each as the difference
//!                          to the previous row
//! ```
//!
//! A row holds the metrics of one group at one moment. Rows are sorted by group, so that each
//! resembles the previous one. `number_column` describes a column.

use super::metric_values::{CLASSES, Metrics};
use super::series::{Churn, MAX_GROUPS, MAX_SAMPLES, MetricsSeries, Moment};
use crate::counters::{Counters, FreeSpace};
use crate::event::{MempoolId, PoolKey, PoolKind, StreamId};
use crate::number_column::{put_differences, read_differences, read_increasing};
use crate::sort::sort_by_key;
use crate::varint::{PayloadError, Reader, put};

/// Number of values that the index stores for the metrics of one pool and stream at one moment.
const VALUES: usize = 12 + CLASSES;

/// Returns the values of `metrics` in the order in which the index stores them.
fn row_values(metrics: &Metrics) -> [u64; VALUES] {
    let Metrics { segments, counters, free, free_squares, inactive_split, inactive_split_bytes, free_by_class } =
        *metrics;
    let Counters { allocated, active, reserved, requested } = counters;
    let [low, high] = [free_squares as u64, (free_squares >> 64) as u64];
    let sums = [segments, allocated, active, reserved, requested, free.total, free.largest, free.blocks];
    let mut numbers = [0; VALUES];
    numbers[..8].copy_from_slice(&sums);
    numbers[8..12].copy_from_slice(&[low, high, inactive_split, inactive_split_bytes]);
    numbers[12..].copy_from_slice(&free_by_class);
    numbers
}

/// Returns the metrics for which [`row_values`] returns `numbers`; `None` if the values contradict
/// each other: a share would not be between 0 and 1.
fn metrics_from_values(numbers: &[u64; VALUES]) -> Option<Metrics> {
    let [segments, allocated, active, reserved, requested, total, largest, blocks, low, high, splits, split_bytes, ..] =
        *numbers;
    let mut free_by_class = [0; CLASSES];
    free_by_class.copy_from_slice(&numbers[12..]);
    let by_class = free_by_class.iter().try_fold(0u64, |sum, &bytes| sum.checked_add(bytes))?;
    let free_squares = u128::from(high) << 64 | u128::from(low);
    let is_valid = by_class == total && largest <= total && free_squares <= u128::from(total) * u128::from(total);
    is_valid.then_some(Metrics {
        segments,
        counters: Counters { allocated, active, reserved, requested },
        free: FreeSpace { total, largest, blocks },
        free_squares,
        inactive_split: splits,
        inactive_split_bytes: split_bytes,
        free_by_class,
    })
}

/// Appends a device's metrics over time to `out`, for the index: one moment per 4,096 events on
/// average.
pub(crate) fn put_metrics(out: &mut Vec<u8>, series: &MetricsSeries) {
    let series = series.thinned();
    let groups = series.groups();
    let mut rows = Vec::with_capacity(series.groups.len());
    let mut start = 0;
    for (number, moment) in series.moments.iter().enumerate() {
        for (group, metrics) in &series.groups[start..moment.end] {
            let group = groups.partition_point(|known| known < group);
            rows.push((group as u64, number as u64, metrics));
        }
        start = moment.end;
    }
    sort_by_key(&mut rows, |&(group, moment, _)| (group, moment));
    for number in [series.moments.len() as u64, groups.len() as u64, rows.len() as u64, series.interval] {
        put(out, number);
    }
    let each: [fn(&Moment) -> u64; 4] =
        [|one| one.event, |one| one.time_ns, |one| one.churn.allocations, |one| one.churn.bytes];
    each.into_iter().for_each(|value| put_differences(out, series.moments.iter().map(value)));
    for (pool, stream) in groups {
        for number in [pool.kind as u64, pool.owner.0, pool.owner.1, stream.0] {
            put(out, number);
        }
    }
    put_differences(out, rows.iter().map(|row| row.0));
    put_differences(out, rows.iter().map(|row| row.1));
    for number in 0..VALUES {
        put_differences(out, rows.iter().map(|(_, _, metrics)| row_values(metrics)[number]));
    }
}

/// Reads the metrics over time that [`put_metrics`] wrote. Allocates at most ten times the bytes
/// read.
pub(crate) fn read_metrics(reader: &mut Reader<'_>) -> Result<MetricsSeries, PayloadError> {
    let (moments, groups, rows) = (reader.count(4)?, reader.count(4)?, reader.count(2 + VALUES)?);
    if moments > MAX_SAMPLES || rows > MAX_GROUPS.max(groups) {
        return Err(reader.payload_error("more moments or groups than a series can have"));
    }
    let interval = reader.u64()?.max(1);
    let mut increasing = |reason| read_increasing(reader, moments, reason);
    let (events, times) = (increasing("moment decreases")?, increasing("time decreases")?);
    let (allocations, bytes) =
        (increasing("allocation count above 64 bits")?, increasing("allocated bytes above 64 bits")?);
    let groups = (0..groups).map(|_| read_group(reader)).collect::<Result<Vec<_>, _>>()?;
    let mut table = Vec::with_capacity(rows);
    let (groups_of_rows, moments_of_rows) = (read_differences(reader, rows)?, read_differences(reader, rows)?);
    for (group, moment) in groups_of_rows.into_iter().zip(moments_of_rows) {
        let group = usize::try_from(group).ok().and_then(|group| groups.get(group));
        let group = group.ok_or_else(|| reader.payload_error("row of an unknown group"))?;
        table.push((moment, *group, [0; VALUES]));
    }
    for number in 0..VALUES {
        let column = read_differences(reader, rows)?;
        table.iter_mut().zip(column).for_each(|(row, value)| row.2[number] = value);
    }
    sort_by_key(&mut table, |&(moment, group, _)| (moment, group));

    let mut series = MetricsSeries::with_interval(interval);
    let mut table = table.into_iter().peekable();
    for (number, (((event, time_ns), allocations), bytes)) in
        (0u64..).zip(events.into_iter().zip(times).zip(allocations).zip(bytes))
    {
        while let Some((_, group, numbers)) = table.next_if(|row| row.0 == number) {
            let metrics =
                metrics_from_values(&numbers).ok_or_else(|| reader.payload_error("free blocks do not add up"))?;
            series.groups.push((group, metrics));
        }
        let end = series.groups.len();
        series.moments.push(Moment { event, time_ns, churn: Churn { allocations, bytes }, end });
    }
    if table.next().is_some() {
        return Err(reader.payload_error("row of an unknown moment"));
    }
    series.churn = series.moments.last().map(|last| last.churn).unwrap_or_default();
    Ok(series)
}

/// Reads the pool and stream that encoded metrics belong to.
fn read_group(reader: &mut Reader<'_>) -> Result<(PoolKey, StreamId), PayloadError> {
    let kind = match reader.u64()? {
        0 => PoolKind::Small,
        1 => PoolKind::Large,
        _ => return Err(reader.payload_error("unknown pool kind")),
    };
    let owner = MempoolId(reader.u64()?, reader.u64()?);
    Ok((PoolKey { kind, owner }, StreamId(reader.u64()?)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::{DeviceId, Event, EventKind};
    use crate::memory_state::MemoryState;
    use crate::metrics::series::MIN_STORED_MOMENTS;
    use crate::number_column::damage;
    use crate::segment::Segment;
    use crate::site::SiteId;

    /// Returns the encoded series.
    fn encode(series: &MetricsSeries) -> Vec<u8> {
        let mut out = Vec::new();
        put_metrics(&mut out, series);
        out
    }

    /// Returns the series that `bytes` encode; an error if bytes are left.
    fn decode(bytes: &[u8]) -> Result<MetricsSeries, PayloadError> {
        let mut reader = Reader::new(bytes);
        let series = read_metrics(&mut reader)?;
        reader.end()?;
        Ok(series)
    }

    /// Returns the series of a program that allocates and frees blocks in segments of several
    /// streams; each step selects an address.
    fn series(steps: &[u64]) -> MetricsSeries {
        let (mut state, mut series) = (MemoryState::default(), MetricsSeries::new());
        let (pool, site) = (PoolKey::default_of(PoolKind::Large), SiteId(0));
        let device = state.device_mut(DeviceId(0));
        for stream in 0..4 {
            let (address, size) = ((stream + 1) << 24, 1 << 24);
            let stream = StreamId(stream);
            device.insert_segment(Segment {
                address,
                size,
                stream,
                pool,
                expandable: stream.0 > 2,
                site,
                since_event: 0,
            });
        }
        for step in steps {
            let stream = step % 4;
            let address = ((stream + 1) << 24) + step / 4 % 1000 * 4096;
            let is_live = state.device(DeviceId(0)).is_some_and(|device| device.block_at(address).is_some());
            let (size, stream) = (512 + step % 7 * 512, StreamId(stream));
            let kind = if is_live {
                EventKind::FreeCompleted { address, site }
            } else {
                EventKind::BlockAllocated { address, size, requested: size - 3, stream, pool, site }
            };
            let event = Event { device: DeviceId(0), time_ns: 1000 * state.event(), kind };
            state.apply(&event);
            if let Some(device) = state.device(DeviceId(0)) {
                series.event(state.event(), &event, device);
            }
        }
        series
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn decoded_series_is_a_subset_of_the_original(steps in prop::collection::vec(0..4000u64, 0..3000)) {
            let before = series(&steps);
            let bytes = encode(&before);
            let after = decode(&bytes).unwrap();
            prop_assert!(after.len() <= before.len().max(MIN_STORED_MOMENTS as usize));
            prop_assert!(after.is_empty() == before.is_empty());
            let all = |series: &MetricsSeries, stream: u64| {
                series.between(0, u64::MAX, |_, of| of.0 == stream).collect::<Vec<_>>()
            };
            for stream in 0..5 {
                let (before, after) = (all(&before, stream), all(&after, stream));
                prop_assert!(after.iter().all(|sample| before.contains(sample)));
                prop_assert_eq!(before.last(), after.last());
            }
            prop_assert_eq!(encode(&after), bytes);
        }

        #[test]
        fn damaged_bytes_are_rejected_or_decode_to_valid_series(
            steps in prop::collection::vec(0..4000u64, 0..600),
            hits in prop::collection::vec((any::<usize>(), any::<u8>()), 1..9),
            end in any::<usize>(),
        ) {
            let mut bytes = encode(&series(&steps));
            damage(&mut bytes, &hits, end);
            if let Ok(series) = decode(&bytes) {
                prop_assert!(series.memory_bytes() <= 100 * bytes.len() + 4096);
                for sample in series.between(0, u64::MAX, |_, _| true) {
                    let metrics = sample.metrics;
                    prop_assert!((0.0..=1.0).contains(&metrics.fragmentation()));
                    let _ = (metrics.free_space_index(), metrics.unusable_share(1 << 20), metrics.rounding_waste());
                }
            }
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }
}
