//! A [`MetricsSeries`] as bytes, so that a recording's metrics over time are there without a pass over its events.
//!
//! In order, every integer a varint:
//!
//! ```text
//! moments | groups | rows | events between two moments
//! columns of the moments   event, time and what was allocated so far (blocks, bytes), each as the difference to the moment before
//! groups                   small or large | private pool (two) | stream
//! columns of the rows      group, as the difference to the row before | moment, likewise | then the numbers of the metrics, likewise
//! ```
//!
//! A row is the metrics of one group at one moment; they stand group by group, so that a row is like the one before it. A column is
//! written as in `series_code`.

use super::series::{Churn, MAX_GROUPS, MAX_SAMPLES, MetricsSeries, Moment};
use super::{CLASSES, Metrics};
use crate::event::{MempoolId, Pool, PoolKind, StreamId};
use crate::series_code::{put_column, read_column, read_running};
use crate::state::{Counters, FreeSpace};
use crate::varint::{Malformed, Reader, put};

/// Moments are written for every so many events, on average: a closer look costs a replay of so few.
const EVENTS_A_MOMENT: u64 = 4096;
/// But no fewer than these.
const MIN_MOMENTS: u64 = 16;
/// Numbers of one row.
const NUMBERS: usize = 12 + CLASSES;

fn numbers(metrics: &Metrics) -> [u64; NUMBERS] {
    let Metrics { segments, counters, free, free_squares, inactive_split, inactive_split_bytes, free_by_class } =
        *metrics;
    let Counters { allocated, active, reserved, requested } = counters;
    let [low, high] = [free_squares as u64, (free_squares >> 64) as u64];
    let sums = [segments, allocated, active, reserved, requested, free.total, free.largest, free.blocks];
    let mut numbers = [0; NUMBERS];
    numbers[..8].copy_from_slice(&sums);
    numbers[8..12].copy_from_slice(&[low, high, inactive_split, inactive_split_bytes]);
    numbers[12..].copy_from_slice(&free_by_class);
    numbers
}

/// The metrics of such numbers, if they go together as far as shares of them stay between 0 and 1.
fn metrics(numbers: &[u64; NUMBERS]) -> Option<Metrics> {
    let [segments, allocated, active, reserved, requested, total, largest, blocks, low, high, splits, split_bytes, ..] =
        *numbers;
    let mut free_by_class = [0; CLASSES];
    free_by_class.copy_from_slice(&numbers[12..]);
    let by_class = free_by_class.iter().try_fold(0u64, |sum, &bytes| sum.checked_add(bytes))?;
    let free_squares = u128::from(high) << 64 | u128::from(low);
    let fits = by_class == total && largest <= total && free_squares <= u128::from(total) * u128::from(total);
    fits.then_some(Metrics {
        segments,
        counters: Counters { allocated, active, reserved, requested },
        free: FreeSpace { total, largest, blocks },
        free_squares,
        inactive_split: splits,
        inactive_split_bytes: split_bytes,
        free_by_class,
    })
}

/// Writes the differences of values to the ones before.
fn put_running(out: &mut Vec<u8>, values: impl Iterator<Item = u64>) {
    let mut before = 0;
    let differences: Vec<u64> = values.map(|value| value.wrapping_sub(std::mem::replace(&mut before, value))).collect();
    put_column(out, &differences);
}

/// Appends a series, thinned to a moment for every 4,096 events.
pub(crate) fn put_metrics(out: &mut Vec<u8>, series: &MetricsSeries) {
    let mut series = series.clone();
    let span = series.moments.first().zip(series.moments.last()).map_or(0, |(first, last)| last.event - first.event);
    while series.moments.len() as u64 > MIN_MOMENTS.max(span / EVENTS_A_MOMENT) {
        series.drop_every_second();
    }
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
    rows.sort_by_key(|&(group, moment, _)| (group, moment));
    for number in [series.moments.len() as u64, groups.len() as u64, rows.len() as u64, series.interval] {
        put(out, number);
    }
    let each: [fn(&Moment) -> u64; 4] =
        [|one| one.event, |one| one.time_ns, |one| one.churn.allocations, |one| one.churn.bytes];
    each.into_iter().for_each(|value| put_running(out, series.moments.iter().map(value)));
    for (pool, stream) in groups {
        for number in [pool.kind as u64, pool.owner.0, pool.owner.1, stream.0] {
            put(out, number);
        }
    }
    put_running(out, rows.iter().map(|row| row.0));
    put_running(out, rows.iter().map(|row| row.1));
    for number in 0..NUMBERS {
        put_running(out, rows.iter().map(|(_, _, metrics)| numbers(metrics)[number]));
    }
}

/// Reads what [`put_metrics`] wrote. It takes memory for ten times the bytes read at most.
pub(crate) fn read_metrics(reader: &mut Reader<'_>) -> Result<MetricsSeries, Malformed> {
    let (moments, groups, rows) = (reader.count(4)?, reader.count(4)?, reader.count(2 + NUMBERS)?);
    if moments > MAX_SAMPLES || rows > MAX_GROUPS.max(groups) {
        return Err(reader.malformed("more moments or groups than metrics over time have"));
    }
    let interval = reader.u64()?.max(1);
    let mut running = |what| read_running(reader, moments, what);
    let (events, times) = (running("a moment that goes back")?, running("a time that goes back")?);
    let (allocations, bytes) = (running("more allocated than 64 bits say")?, running("more bytes than 64 bits say")?);
    let groups = (0..groups).map(|_| read_group(reader)).collect::<Result<Vec<_>, _>>()?;
    let wrapping = |differences: Vec<u64>| {
        differences.into_iter().scan(0u64, |at, difference| {
            *at = at.wrapping_add(difference);
            Some(*at)
        })
    };
    let mut places = Vec::with_capacity(rows);
    let of_rows = wrapping(read_column(reader, rows)?).zip(wrapping(read_column(reader, rows)?));
    for (group, moment) in of_rows {
        let group = usize::try_from(group).ok().and_then(|group| groups.get(group));
        let group = group.ok_or_else(|| reader.malformed("metrics of an unknown pool and stream"))?;
        places.push((moment, *group, [0; NUMBERS]));
    }
    for number in 0..NUMBERS {
        let column = wrapping(read_column(reader, rows)?);
        places.iter_mut().zip(column).for_each(|(row, value)| row.2[number] = value);
    }
    places.sort_by_key(|&(moment, group, _)| (moment, group));

    let mut series = MetricsSeries::starting_with(interval);
    let mut places = places.into_iter().peekable();
    for (number, (((event, time_ns), allocations), bytes)) in
        (0u64..).zip(events.into_iter().zip(times).zip(allocations).zip(bytes))
    {
        while let Some((_, group, numbers)) = places.next_if(|row| row.0 == number) {
            let metrics = metrics(&numbers).ok_or_else(|| reader.malformed("free blocks that do not add up"))?;
            series.groups.push((group, metrics));
        }
        let end = series.groups.len();
        series.moments.push(Moment { event, time_ns, churn: Churn { allocations, bytes }, end });
    }
    if places.next().is_some() {
        return Err(reader.malformed("metrics of an unknown moment"));
    }
    series.churn = series.moments.last().map(|last| last.churn).unwrap_or_default();
    Ok(series)
}

fn read_group(reader: &mut Reader<'_>) -> Result<(Pool, StreamId), Malformed> {
    let kind = match reader.u64()? {
        0 => PoolKind::Small,
        1 => PoolKind::Large,
        _ => return Err(reader.malformed("a pool of an unknown kind")),
    };
    let owner = MempoolId(reader.u64()?, reader.u64()?);
    Ok((Pool { kind, owner }, StreamId(reader.u64()?)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::{DeviceId, Event, EventKind};
    use crate::site::SiteId;
    use crate::state::{MemoryState, Segment};

    fn encode(series: &MetricsSeries) -> Vec<u8> {
        let mut out = Vec::new();
        put_metrics(&mut out, series);
        out
    }

    fn decode(bytes: &[u8]) -> Result<MetricsSeries, Malformed> {
        let mut reader = Reader::new(bytes);
        let series = read_metrics(&mut reader)?;
        reader.end()?;
        Ok(series)
    }

    /// The series of a program that takes and gives back blocks in segments of several streams; each step is an address.
    fn series(steps: &[u64]) -> MetricsSeries {
        let (mut state, mut series) = (MemoryState::default(), MetricsSeries::new());
        let (pool, site) = (Pool::default_of(PoolKind::Large), SiteId(0));
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
            let there = state.device(DeviceId(0)).is_some_and(|device| device.block_at(address).is_some());
            let (size, stream) = (512 + step % 7 * 512, StreamId(stream));
            let kind = if there {
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
        fn a_series_comes_back_thinner(steps in prop::collection::vec(0..4000u64, 0..3000)) {
            let before = series(&steps);
            let bytes = encode(&before);
            let after = decode(&bytes).unwrap();
            prop_assert!(after.len() <= before.len().max(MIN_MOMENTS as usize));
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
        fn hostile_bytes_are_refused_or_taken(
            steps in prop::collection::vec(0..4000u64, 0..600), hits in prop::collection::vec((any::<usize>(), any::<u8>()), 1..9),
            end in any::<usize>(),
        ) {
            let mut bytes = encode(&series(&steps));
            bytes.truncate(end % (bytes.len() * 2));
            for (at, byte) in hits {
                if !bytes.is_empty() {
                    let at = at % bytes.len();
                    bytes[at] = byte;
                }
            }
            if let Ok(series) = decode(&bytes) {
                prop_assert!(series.size_in_memory() <= 100 * bytes.len() + 4096);
                for sample in series.between(0, u64::MAX, |_, _| true) {
                    let metrics = sample.metrics;
                    prop_assert!((0.0..=1.0).contains(&metrics.fragmentation()));
                    let _ = (metrics.free_space_index(), metrics.unusable_share(1 << 20), metrics.rounding_waste());
                }
            }
        }

        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }
}
