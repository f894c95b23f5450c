//! A [`Series`] as bytes, so that a recording can be opened without a pass over its events.
//!
//! In order, every integer a varint:
//!
//! ```text
//! before the first event   event | allocated | active | reserved | requested
//! peaks                    events of the greatest allocated, active, reserved | greatest use by the process | in all
//! buckets of the counters  values a bucket | buckets | values of the last bucket | columns
//! buckets of the samples   the same; a series without samples has 0 buckets
//! column                   unit | for each bucket its value / unit (signed)
//! ```
//!
//! The columns of a kind of bucket are the end time and the moment, each as the difference to the bucket before; then for each of its
//! numbers `last`, the difference to the bucket before, `low`, by how much the least lies below `last`, and `high`, by how much the
//! greatest lies above it. A number that moves with another is written as its difference to that one: `active` and `requested` go with
//! `allocated`. All differences wrap around. Samples have no moment, and the column is not there.

use crate::buckets::{Bucket, Buckets, MAX_BUCKETS, Slice};
use crate::series::{Column, SampleColumn, Series, UsedPeaks};
use crate::state::{Counters, MemorySample};
use crate::varint::{Malformed, Reader, gcd, put, put_delta};

/// Written buckets are of so many events at least. A bucket of a real program's 4,000,000 events takes 17 bytes after zstd, an event 0.034.
/// A timeline whose columns are of fewer events is made from the events themselves.
const MIN_WRITTEN_EVENTS: u64 = 512;
/// Values of a bucket at most; more is not believed.
const MAX_BUCKET_VALUES: u64 = 1 << 48;

/// A kind of bucket as rows of numbers.
trait Row<const N: usize>: Slice {
    /// For each number the one before it that it moves with.
    const GOES_WITH: [Option<usize>; N];
    /// Whether a moment stands beside the numbers.
    const HAS_EVENT: bool;

    fn event(&self) -> u64;
    /// The last, the least and the greatest of each number.
    fn numbers(&self) -> [[u64; N]; 3];
    fn from_numbers(event: u64, numbers: [[u64; N]; 3]) -> Self;
}

fn of_counters(counters: Counters) -> [u64; 4] {
    [counters.allocated, counters.active, counters.reserved, counters.requested]
}

fn counters([allocated, active, reserved, requested]: [u64; 4]) -> Counters {
    Counters { allocated, active, reserved, requested }
}

impl Row<4> for Column {
    const GOES_WITH: [Option<usize>; 4] = [None, Some(0), None, Some(0)];
    const HAS_EVENT: bool = true;

    fn event(&self) -> u64 {
        self.event
    }

    fn numbers(&self) -> [[u64; 4]; 3] {
        [self.last, self.min, self.max].map(of_counters)
    }

    fn from_numbers(event: u64, numbers: [[u64; 4]; 3]) -> Self {
        let [last, min, max] = numbers.map(counters);
        Self { event, last, min, max }
    }
}

fn of_sample(sample: MemorySample) -> [u64; 3] {
    [sample.used_by_context, sample.used_by_others, sample.free]
}

impl Row<3> for SampleColumn {
    const GOES_WITH: [Option<usize>; 3] = [None; 3];
    const HAS_EVENT: bool = false;

    fn event(&self) -> u64 {
        0
    }

    fn numbers(&self) -> [[u64; 3]; 3] {
        [self.last, self.min, self.max].map(of_sample)
    }

    fn from_numbers(_: u64, numbers: [[u64; 3]; 3]) -> Self {
        let [last, min, max] = numbers.map(|[used_by_context, used_by_others, free]| MemorySample {
            used_by_context,
            used_by_others,
            free,
        });
        Self { last, min, max }
    }
}

/// Writes differences as multiples of their greatest common divisor: sizes are multiples of 512, and some clocks count microseconds.
pub(crate) fn put_column(out: &mut Vec<u8>, differences: &[u64]) {
    let unit = differences.iter().fold(0, |unit, &difference| gcd(unit, (difference as i64).unsigned_abs()));
    // 2⁶³ has no signed twin to divide by.
    let unit = if unit > i64::MAX as u64 { 1 } else { unit.max(1) };
    put(out, unit);
    for &difference in differences {
        put_delta(out, 0, (difference as i64 / unit as i64) as u64);
    }
}

/// Reads the differences that [`put_column`] wrote; `buckets` must have been checked against what is left to read.
pub(crate) fn read_column(reader: &mut Reader<'_>, buckets: usize) -> Result<Vec<u64>, Malformed> {
    let unit = reader.u64()?;
    (0..buckets).map(|_| Ok(reader.delta(0)?.wrapping_mul(unit))).collect()
}

fn put_buckets<const N: usize, S: Row<N>>(out: &mut Vec<u8>, buckets: &Buckets<S>, group: usize) {
    let (rows, values): (Vec<Bucket<S>>, Vec<u64>) = buckets.grouped(group).unzip();
    put(out, buckets.bucket_values().saturating_mul(group as u64));
    put(out, rows.len() as u64);
    put(out, values.last().copied().unwrap_or(0));
    let mut column = |value: &dyn Fn(&Bucket<S>) -> u64, against_before: bool| {
        let mut before = 0;
        let differences: Vec<u64> = rows
            .iter()
            .map(|row| {
                let value = value(row);
                let from = std::mem::replace(&mut before, if against_before { value } else { 0 });
                value.wrapping_sub(from)
            })
            .collect();
        put_column(out, &differences);
    };
    column(&|row| row.end_ns, true);
    if S::HAS_EVENT {
        column(&|row| row.slice.event(), true);
    }
    for (number, goes_with) in S::GOES_WITH.into_iter().enumerate() {
        let apart = |of: &dyn Fn(usize) -> u64| of(number).wrapping_sub(goes_with.map_or(0, of));
        column(&|row| apart(&|number| row.slice.numbers()[0][number]), true);
        for bound in [1, 2] {
            let from_last = |row: &Bucket<S>, number: usize| {
                let numbers = row.slice.numbers();
                numbers[0][number].abs_diff(numbers[bound][number])
            };
            column(&|row| apart(&|number| from_last(row, number)), false);
        }
    }
}

fn read_buckets<const N: usize, S: Row<N>>(reader: &mut Reader<'_>) -> Result<Buckets<S>, Malformed> {
    let bucket_values = reader.u64()?;
    if !bucket_values.is_power_of_two() || bucket_values > MAX_BUCKET_VALUES {
        return Err(reader.malformed("a bucket of a number of values that is no power of two"));
    }
    let columns = 1 + usize::from(S::HAS_EVENT) + 3 * N;
    let count = reader.count(columns)?;
    if count >= MAX_BUCKETS {
        return Err(reader.malformed("more buckets than a series has"));
    }
    let last_values = reader.u64()?;
    if last_values > bucket_values || (last_values == 0) != (count == 0) {
        return Err(reader.malformed("a last bucket of more values than a bucket has, or of none"));
    }
    let end_ns = read_running(reader, count, "a time that goes back")?;
    let events = if S::HAS_EVENT { read_running(reader, count, "a moment that goes back")? } else { vec![0; count] };
    let mut rows = vec![[[0; N]; 3]; count];
    for (number, goes_with) in S::GOES_WITH.into_iter().enumerate() {
        let mut lasts = 0u64;
        for (row, difference) in rows.iter_mut().zip(read_column(reader, count)?) {
            lasts = lasts.wrapping_add(difference);
            row[0][number] = lasts.wrapping_add(goes_with.map_or(0, |other| row[0][other]));
        }
        for bound in [1, 2] {
            for (row, apart) in rows.iter_mut().zip(read_column(reader, count)?) {
                let other = goes_with.map_or(0, |other| row[0][other].abs_diff(row[bound][other]));
                let away = apart.wrapping_add(other);
                let last = row[0][number];
                row[bound][number] = if bound == 1 { last.checked_sub(away) } else { last.checked_add(away) }
                    .ok_or_else(|| reader.malformed("a least or greatest value beyond 64 bits"))?;
            }
        }
    }
    let mut buckets = Buckets::of(bucket_values);
    for (index, ((end_ns, event), numbers)) in end_ns.into_iter().zip(events).zip(rows).enumerate() {
        let values = if index + 1 == count { last_values } else { bucket_values };
        buckets.push_bucket(Bucket { end_ns, slice: S::from_numbers(event, numbers) }, values);
    }
    Ok(buckets)
}

/// Reads a column of differences of values that do not go back.
pub(crate) fn read_running(reader: &mut Reader<'_>, count: usize, what: &'static str) -> Result<Vec<u64>, Malformed> {
    let mut at = 0u64;
    let differences = read_column(reader, count)?;
    differences
        .into_iter()
        .map(|difference| {
            at = at.checked_add(difference).ok_or_else(|| reader.malformed(what))?;
            Ok(at)
        })
        .collect()
}

/// Appends a series, its buckets of 512 events or more; what the driver said is kept to the sample.
pub(crate) fn put_series(out: &mut Vec<u8>, series: &Series) {
    let parts = series.parts();
    put(out, parts.start.event);
    of_counters(parts.start.last).into_iter().for_each(|number| put(out, number));
    parts.peak_events.into_iter().for_each(|event| put(out, event));
    put(out, parts.used_peaks.by_process);
    put(out, parts.used_peaks.in_all);
    let group = (MIN_WRITTEN_EVENTS / parts.buckets.bucket_values()).max(1);
    put_buckets(out, parts.buckets, group as usize);
    put_buckets(out, parts.samples, 1);
}

/// Reads what [`put_series`] wrote. It takes memory for ten times the bytes read at most.
pub(crate) fn read_series(reader: &mut Reader<'_>) -> Result<Series, Malformed> {
    let event = reader.u64()?;
    let mut number = || reader.u64();
    let start = Column::still(event, counters([number()?, number()?, number()?, number()?]));
    let peak_events = [number()?, number()?, number()?];
    let used_peaks = UsedPeaks { by_process: number()?, in_all: number()? };
    let buckets = read_buckets(reader)?;
    let samples = read_buckets(reader)?;
    Ok(Series::from_parts(start, buckets, samples, peak_events, used_peaks))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(series: &Series) -> Vec<u8> {
        let mut out = Vec::new();
        put_series(&mut out, series);
        out
    }

    fn decode(bytes: &[u8]) -> Result<Series, Malformed> {
        let mut reader = Reader::new(bytes);
        let series = read_series(&mut reader)?;
        reader.end()?;
        Ok(series)
    }

    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![any::<u64>(), 0..1000u64, (0..1u64 << 20).prop_map(|n| n * 512), Just(u64::MAX), Just(0)]
    }

    /// Steps of time and moment, counters, and now and then what the driver says.
    type Step = (u64, u64, [u64; 4], Option<[u64; 3]>);

    fn step() -> impl Strategy<Value = Step> {
        let sample = [number(), number(), number()];
        (0..1u64 << 40, 1..5u64, [number(), number(), number(), number()], prop::option::weighted(0.1, sample))
    }

    fn series(start: [u64; 4], steps: &[Step]) -> Series {
        let (mut event, mut time_ns) = (7, 1);
        let mut series = Series::new(event, counters(start));
        for &(ns, events, now, sample) in steps {
            (event, time_ns) = (event + events, time_ns + ns);
            series.push(event, time_ns, counters(now));
            if let Some([used_by_context, used_by_others, free]) = sample {
                let sample = MemorySample { used_by_context, used_by_others, free };
                series.push_sample(event, time_ns, counters(now), sample);
            }
        }
        series
    }

    proptest! {
        #[test]
        fn a_series_comes_back(
            start in [number(), number(), number(), number()],
            steps in prop::collection::vec(step(), 0..3000),
            more in prop::collection::vec(step(), 0..600),
        ) {
            let before = series(start, &steps);
            let bytes = encode(&before);
            let after = decode(&bytes).unwrap();
            prop_assert_eq!(after.bucket_events(), MIN_WRITTEN_EVENTS);
            prop_assert_eq!(encode(&after), bytes);
            let end: u64 = 1 + steps.iter().map(|step| step.0).sum::<u64>();
            // One column is all of it, however coarse the buckets.
            prop_assert_eq!(before.columns(0, end, 1), after.columns(0, end, 1));
            prop_assert_eq!(before.samples(0, end, 77), after.samples(0, end, 77));
            let peaks = |one: &Series| (one.peak_allocated(), one.peak_active(), one.peak_reserved(), one.used_peaks());
            prop_assert_eq!(peaks(&before), peaks(&after));
            // And it goes on as if nothing had been.
            let (mut going_on, mut whole) = (after, before);
            let mut event = 7 + steps.iter().map(|step| step.1).sum::<u64>();
            let mut time_ns = end;
            for (ns, events, now, _) in more {
                (event, time_ns) = (event + events, time_ns + ns);
                going_on.push(event, time_ns, counters(now));
                whole.push(event, time_ns, counters(now));
            }
            prop_assert_eq!(encode(&going_on), encode(&whole));
        }

        #[test]
        fn hostile_bytes_are_refused_or_taken(
            steps in prop::collection::vec(step(), 1..800), hits in prop::collection::vec((any::<usize>(), any::<u8>()), 1..9),
            end in any::<usize>(),
        ) {
            let mut bytes = encode(&series([1; 4], &steps));
            bytes.truncate(end % (bytes.len() * 2));
            for (at, byte) in hits {
                if !bytes.is_empty() {
                    let at = at % bytes.len();
                    bytes[at] = byte;
                }
            }
            if let Ok(series) = decode(&bytes) {
                prop_assert!(series.size_in_memory() <= 40 * bytes.len() + 4096);
                for column in series.columns(0, u64::MAX, 9) {
                    prop_assert!(column.min.allocated <= column.max.allocated);
                }
                let _ = series.samples(0, u64::MAX, 9);
            }
        }

        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn a_series_without_events_comes_back() {
        let empty = Series::default();
        assert_eq!(decode(&encode(&empty)).map(|series| series.columns(0, 9, 2)), Ok(empty.columns(0, 9, 2)));
    }

    #[test]
    fn values_beyond_64_bits_are_refused() {
        let head = [0; 10];
        // One bucket of one value, whose least allocated lies one below 0.
        let buckets: &[u8] = &[1, 1, 1, 1, 0, 1, 0, 1, 0, 1, 2];
        let bytes: Vec<u8> = head.iter().chain(buckets).copied().chain([0; 60]).collect();
        assert_eq!(decode(&bytes).map_err(|error| error.what), Err("a least or greatest value beyond 64 bits"));
    }
}
