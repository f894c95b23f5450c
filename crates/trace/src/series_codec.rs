//! Encodes a [`CounterSeries`], so that a recording can be opened without a pass over its events.
//!
//! In order, every integer a varint:
//!
//! ```text
//! before the first event   event | allocated | active | reserved | requested
//! peaks                    events of the allocated, active, reserved peak | used by the process | by all
//! counter buckets          values per bucket | buckets | values in the last bucket | columns
//! sample buckets           likewise; a series without samples has 0 buckets
//! column                   see `number_column`
//! ```
//!
//! The columns of a kind of bucket are the end time and the moment, each as the difference to the
//! previous bucket; then, for each counter, `last` as the difference to the previous bucket, and
//! the distances of its minimum and maximum from `last`. A counter that moves with another
//! (`active` and `requested` with `allocated`) is stored as its difference to that one. Differences
//! wrap around. Samples have no moment, so that column is absent for them.

use crate::counter_series::{CounterColumn, CounterSeries, SampleColumn, UsedMemoryPeaks};
use crate::counters::{Counters, MemorySample};
use crate::number_column::{put_column, put_differences, read_column, read_differences, read_increasing};
use crate::time_pyramid::{Bucket, MAX_BUCKETS, TimePyramid, TimeSlice};
use crate::varint::{PayloadError, Reader, put};

/// Minimum number of events in a bucket of the counters that the index stores. In a real program's
/// recording of 4,000,000 events a bucket takes 17 bytes after Zstandard, or 0.034 bytes an event.
/// Timelines at a closer zoom replay the events.
const MIN_STORED_EVENTS: u64 = 512;
/// Maximum number of events or samples per bucket that a reader accepts; more is an error.
const MAX_BUCKET_VALUES: u64 = 1 << 48;

/// A time slice of `N` counters or memory sample values. The index stores the last value, the
/// minimum and the maximum of each.
trait BucketCounters<const N: usize>: TimeSlice {
    /// For each of the `N` values, the position of an earlier value to which the difference is
    /// stored; `None` if the value itself is stored.
    const RELATIVE_TO: [Option<usize>; N];
    /// Whether the moment at the end of the time slice is stored, too.
    const HAS_EVENT: bool;

    /// Returns the moment at the end of the time slice, or 0 if [`HAS_EVENT`](Self::HAS_EVENT) is
    /// false.
    fn event(&self) -> u64;
    /// Returns the last value, the minimum and the maximum of each number, as three rows.
    fn numbers(&self) -> [[u64; N]; 3];
    /// Creates a time slice from `event`, the moment at its end, and `numbers`: the last value, the
    /// minimum and the maximum of each number, as three rows.
    fn from_numbers(event: u64, numbers: [[u64; N]; 3]) -> Self;
}

impl BucketCounters<4> for CounterColumn {
    const RELATIVE_TO: [Option<usize>; 4] = [None, Some(0), None, Some(0)];
    const HAS_EVENT: bool = true;

    fn event(&self) -> u64 {
        self.event
    }

    fn numbers(&self) -> [[u64; 4]; 3] {
        [self.last, self.min, self.max].map(Counters::to_array)
    }

    fn from_numbers(event: u64, numbers: [[u64; 4]; 3]) -> Self {
        let [last, min, max] = numbers.map(Counters::from_array);
        Self { event, last, min, max }
    }
}

impl BucketCounters<3> for SampleColumn {
    const RELATIVE_TO: [Option<usize>; 3] = [None; 3];
    const HAS_EVENT: bool = false;

    fn event(&self) -> u64 {
        0
    }

    fn numbers(&self) -> [[u64; 3]; 3] {
        [self.last, self.min, self.max].map(MemorySample::to_array)
    }

    fn from_numbers(_: u64, numbers: [[u64; 3]; 3]) -> Self {
        let [last, min, max] = numbers.map(MemorySample::from_array);
        Self { last, min, max }
    }
}

/// Appends the smallest buckets of a pyramid to `out`; every `group` adjacent buckets are merged
/// into one.
fn put_buckets<const N: usize, S: BucketCounters<N>>(out: &mut Vec<u8>, buckets: &TimePyramid<S>, group: usize) {
    let (rows, values): (Vec<Bucket<S>>, Vec<u64>) = buckets.grouped(group).unzip();
    put(out, buckets.bucket_values().saturating_mul(group as u64));
    put(out, rows.len() as u64);
    put(out, values.last().copied().unwrap_or(0));
    put_differences(out, rows.iter().map(|row| row.end_ns));
    if S::HAS_EVENT {
        put_differences(out, rows.iter().map(|row| row.slice.event()));
    }
    for (number, relative_to) in S::RELATIVE_TO.into_iter().enumerate() {
        let relative = |of: &dyn Fn(usize) -> u64| of(number).wrapping_sub(relative_to.map_or(0, of));
        let last_of = |row: &Bucket<S>| {
            let [last, ..] = row.slice.numbers();
            relative(&|counter| last[counter])
        };
        put_differences(out, rows.iter().map(last_of));
        for bound in [1, 2] {
            let distance_from_last = |row: &Bucket<S>| {
                let numbers = row.slice.numbers();
                relative(&|counter| numbers[0][counter].abs_diff(numbers[bound][counter]))
            };
            put_column(out, &rows.iter().map(distance_from_last).collect::<Vec<u64>>());
        }
    }
}

/// Reads the buckets that [`put_buckets`] wrote, as the smallest buckets of a new pyramid.
fn read_buckets<const N: usize, S: BucketCounters<N>>(reader: &mut Reader<'_>) -> Result<TimePyramid<S>, PayloadError> {
    let bucket_values = reader.u64()?;
    if !bucket_values.is_power_of_two() || bucket_values > MAX_BUCKET_VALUES {
        return Err(reader.payload_error("values per bucket are not a power of two"));
    }
    let columns = 1 + usize::from(S::HAS_EVENT) + 3 * N;
    let count = reader.count(columns)?;
    if count >= MAX_BUCKETS {
        return Err(reader.payload_error("more buckets than a series can have"));
    }
    let last_values = reader.u64()?;
    if last_values > bucket_values || (last_values == 0) != (count == 0) {
        return Err(reader.payload_error("invalid number of values in the last bucket"));
    }
    let end_ns = read_increasing(reader, count, "time decreases")?;
    let events = if S::HAS_EVENT { read_increasing(reader, count, "moment decreases")? } else { vec![0; count] };
    let mut rows = vec![[[0; N]; 3]; count];
    for (number, relative_to) in S::RELATIVE_TO.into_iter().enumerate() {
        for (row, last) in rows.iter_mut().zip(read_differences(reader, count)?) {
            row[0][number] = last.wrapping_add(relative_to.map_or(0, |other| row[0][other]));
        }
        for bound in [1, 2] {
            for (row, relative) in rows.iter_mut().zip(read_column(reader, count)?) {
                let other = relative_to.map_or(0, |other| row[0][other].abs_diff(row[bound][other]));
                let away = relative.wrapping_add(other);
                let last = row[0][number];
                row[bound][number] = if bound == 1 { last.checked_sub(away) } else { last.checked_add(away) }
                    .ok_or_else(|| reader.payload_error("minimum or maximum above 64 bits"))?;
            }
        }
    }
    let mut buckets = TimePyramid::new(bucket_values);
    for (index, ((end_ns, event), numbers)) in end_ns.into_iter().zip(events).zip(rows).enumerate() {
        let values = if index + 1 == count { last_values } else { bucket_values };
        buckets.push_bucket(Bucket { end_ns, slice: S::from_numbers(event, numbers) }, values);
    }
    Ok(buckets)
}

/// Appends a device's counters over time to `out`, in buckets of at least 512 events, and all its
/// memory samples.
pub(crate) fn put_series(out: &mut Vec<u8>, series: &CounterSeries) {
    put(out, series.start.event);
    let peak_events = [series.peak_allocated(), series.peak_active(), series.peak_reserved()].map(|peak| peak.event);
    let used = series.used_memory_peaks;
    let used = [used.by_process, used.by_all_processes];
    for number in series.start.last.to_array().into_iter().chain(peak_events).chain(used) {
        put(out, number);
    }
    let group = (MIN_STORED_EVENTS / series.buckets.bucket_values()).max(1);
    put_buckets(out, &series.buckets, group as usize);
    put_buckets(out, &series.samples, 1);
}

/// Reads the counters over time that [`put_series`] wrote. Allocates at most ten times the bytes
/// read.
pub(crate) fn read_series(reader: &mut Reader<'_>) -> Result<CounterSeries, PayloadError> {
    let event = reader.u64()?;
    let mut number = || reader.u64();
    let counters = Counters::from_array([number()?, number()?, number()?, number()?]);
    let start = CounterColumn::from_counters(event, counters);
    let peak_events = [number()?, number()?, number()?];
    let used_memory_peaks = UsedMemoryPeaks { by_process: number()?, by_all_processes: number()? };
    let buckets = read_buckets(reader)?;
    let samples = read_buckets(reader)?;
    Ok(CounterSeries::from_parts(start, buckets, samples, peak_events, used_memory_peaks))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::number_column::damage;

    /// Returns the encoded series.
    fn encode(series: &CounterSeries) -> Vec<u8> {
        let mut out = Vec::new();
        put_series(&mut out, series);
        out
    }

    /// Returns the series that `bytes` encode; an error if bytes are left.
    fn decode(bytes: &[u8]) -> Result<CounterSeries, PayloadError> {
        let mut reader = Reader::new(bytes);
        let series = read_series(&mut reader)?;
        reader.end()?;
        Ok(series)
    }

    /// Returns a strategy for values of counters, with extreme ones.
    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![any::<u64>(), 0..1000u64, (0..1u64 << 20).prop_map(|n| n * 512), Just(u64::MAX), Just(0)]
    }

    /// Time and event increments, counters, and sometimes a memory sample.
    type Step = (u64, u64, [u64; 4], Option<[u64; 3]>);

    /// Returns a strategy for steps.
    fn step() -> impl Strategy<Value = Step> {
        let sample = [number(), number(), number()];
        (0..1u64 << 40, 1..5u64, [number(), number(), number(), number()], prop::option::weighted(0.1, sample))
    }

    /// Returns a series that begins with the counters `start` and continues with the steps.
    fn series(start: [u64; 4], steps: &[Step]) -> CounterSeries {
        let (mut event, mut time_ns) = (7, 1);
        let mut series = CounterSeries::new(event, Counters::from_array(start));
        for &(ns, events, now, sample) in steps {
            (event, time_ns) = (event + events, time_ns + ns);
            series.push(event, time_ns, Counters::from_array(now));
            if let Some([used_by_context, used_by_others, free]) = sample {
                let sample = MemorySample { used_by_context, used_by_others, free };
                series.push_sample(event, time_ns, Counters::from_array(now), sample);
            }
        }
        series
    }

    proptest! {
        #[test]
        fn decoded_series_equals_the_original(
            start in [number(), number(), number(), number()],
            steps in prop::collection::vec(step(), 0..3000),
            more in prop::collection::vec(step(), 0..600),
        ) {
            let before = series(start, &steps);
            let bytes = encode(&before);
            let after = decode(&bytes).unwrap();
            prop_assert_eq!(after.bucket_events(), MIN_STORED_EVENTS);
            prop_assert_eq!(encode(&after), bytes);
            let end: u64 = 1 + steps.iter().map(|step| step.0).sum::<u64>();
            // A single column covers everything, whatever the bucket size.
            prop_assert_eq!(before.columns(0, end, 1), after.columns(0, end, 1));
            prop_assert_eq!(before.samples(0, end, 77), after.samples(0, end, 77));
            let peaks = |one: &CounterSeries| {
                (one.peak_allocated(), one.peak_active(), one.peak_reserved(), one.used_memory_peaks())
            };
            prop_assert_eq!(peaks(&before), peaks(&after));
            // More events have the same effect on both.
            let (mut decoded, mut original) = (after, before);
            let mut event = 7 + steps.iter().map(|step| step.1).sum::<u64>();
            let mut time_ns = end;
            for (ns, events, now, _) in more {
                (event, time_ns) = (event + events, time_ns + ns);
                decoded.push(event, time_ns, Counters::from_array(now));
                original.push(event, time_ns, Counters::from_array(now));
            }
            prop_assert_eq!(encode(&decoded), encode(&original));
        }

        #[test]
        fn damaged_bytes_are_rejected_or_decode_to_valid_series(
            steps in prop::collection::vec(step(), 1..800),
            hits in prop::collection::vec((any::<usize>(), any::<u8>()), 1..9),
            end in any::<usize>(),
        ) {
            let mut bytes = encode(&series([1; 4], &steps));
            damage(&mut bytes, &hits, end);
            if let Ok(series) = decode(&bytes) {
                prop_assert!(series.memory_bytes() <= 40 * bytes.len() + 4096);
                for column in series.columns(0, u64::MAX, 9) {
                    prop_assert!(column.min.allocated <= column.max.allocated);
                }
                let _ = series.samples(0, u64::MAX, 9);
            }
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn empty_series_is_decoded() {
        let empty = CounterSeries::default();
        assert_eq!(decode(&encode(&empty)).map(|series| series.columns(0, 9, 2)), Ok(empty.columns(0, 9, 2)));
    }

    #[test]
    fn values_above_64_bits_are_rejected() {
        let header = [0; 10];
        // One bucket of one value, whose minimum of allocated bytes is −1.
        let buckets: &[u8] = &[1, 1, 1, 1, 0, 1, 0, 1, 0, 1, 2];
        let bytes: Vec<u8> = header.iter().chain(buckets).copied().chain([0; 60]).collect();
        assert_eq!(decode(&bytes).map_err(|error| error.reason), Err("minimum or maximum above 64 bits"));
    }
}
