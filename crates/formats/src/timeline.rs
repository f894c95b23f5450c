//! Reads memory timelines of PyTorch's profiler: `export_memory_timeline` as JSON.
//!
//! Two forms exist (`torch/profiler/_memory_profiler.py`). `.json` is a list of times, in
//! microseconds, and a list of the bytes of each category at each time; `.raw.json` is a list of
//! changes: time in nanoseconds, action, bytes and category. Neither has addresses or blocks: a
//! block for each category stands for its memory, and gets another size at each change.

use serde_json::error::Error as JsonError;
use vramscope_trace::{
    Category, DeviceId, DeviceInfo, Event, EventKind, Interner, PoolKey, RecordingInfo, SegmentSource, Sink, Site,
    SiteId, StreamId,
};

use crate::error::ReadError;
use crate::limits::Limits;
use crate::progress::{ImportPhase, ProgressReporter};
use crate::summary::{ImportSummary, WRITER};

/// The categories of a timeline in the order of their indices, with the scope of those that
/// recordings do not have.
const CATEGORIES: [(Category, &str); 8] = [
    (Category::Parameter, ""),
    (Category::OptimizerState, ""),
    (Category::Input, ""),
    (Category::Temporary, ""),
    (Category::Activation, ""),
    (Category::Gradient, ""),
    (Category::Unknown, "autograd detail"),
    (Category::Unknown, "no category"),
];
/// Distance of the addresses that stand for two categories, in bytes.
const ADDRESS_STEP: u64 = 1 << 48;
/// Memory of a parsed number for each byte of its text, at most.
const PARSED_BYTES_PER_BYTE: u64 = 16;
/// Number of moments between two calls of the caller's progress function.
const PROGRESS_MOMENTS: usize = 1 << 14;
/// The device of a timeline, which does not name it.
const DEVICE: DeviceId = DeviceId(0);

/// The bytes of each category at each moment.
type Moments = Vec<(i64, [u64; CATEGORIES.len()])>;

/// Returns true if a JSON text begins as a timeline: a list of lists.
pub(crate) fn is_timeline(text: &[u8]) -> bool {
    let mut letters = text.iter().filter(|byte| !byte.is_ascii_whitespace());
    letters.next() == Some(&b'[') && letters.next() == Some(&b'[')
}

/// Reads a timeline and passes its events to the sink that `begin` creates. For parameters, result
/// and errors see the crate's public function [`import`](crate::import()).
pub(crate) fn import<S: Sink>(
    bytes: &[u8],
    name: &str,
    limits: &Limits,
    reporter: &mut ProgressReporter<'_>,
    begin: impl FnOnce(&RecordingInfo) -> S,
) -> Result<(S, ImportSummary), ReadError> {
    if (bytes.len() as u64).saturating_mul(PARSED_BYTES_PER_BYTE) > limits.max_bytes {
        return Err(ReadError::at(0, "this memory timeline is too large"));
    }
    let moments = moments(bytes)?;
    reporter.set_read_bytes(bytes.len() as u64);
    let epoch_ns = moments.first().map_or(0, |(time_ns, _)| *time_ns);
    let is_empty = |bytes: &[u64]| bytes.iter().all(|bytes| *bytes == 0);
    let device = DeviceInfo {
        device: DEVICE.0,
        history_complete: moments.first().is_none_or(|(_, bytes)| is_empty(bytes)),
        lacks_requested: true,
        lacks_streams: true,
        segments: SegmentSource::Unknown,
        ..DeviceInfo::default()
    };
    let note = "A memory timeline has the bytes of each category, without blocks, lines and reserved memory: one \
                block for each category stands for its memory.";
    let info = RecordingInfo {
        source: name.to_owned(),
        writer: WRITER.to_owned(),
        epoch_unix_ns: u64::try_from(epoch_ns).unwrap_or(0),
        devices: vec![device],
        ..RecordingInfo::default()
    };
    let mut interner = Interner::default();
    let sites = CATEGORIES.map(|(category, scope)| {
        let scope = interner.string(scope);
        interner.site(Site { scope, category, ..Site::default() })
    });
    let mut sink = begin(&info);
    interner.take_new().iter().for_each(|definition| sink.define(definition));
    let (mut before, mut events) = ([0; CATEGORIES.len()], 0);
    for (number, (time_ns, bytes)) in moments.iter().enumerate() {
        let time_ns = u64::try_from(time_ns.saturating_sub(epoch_ns)).unwrap_or(0);
        // Decreases come first, so that the sum never exceeds both of the moments.
        for grows in [false, true] {
            for (index, (old, new)) in before.iter().zip(bytes).enumerate().filter(|(_, (old, new))| old != new) {
                if (new > old) == grows {
                    for kind in resized(index, sites[index], *old, *new) {
                        sink.event(&Event { device: DEVICE, time_ns, kind });
                        events += 1;
                    }
                }
            }
        }
        before = *bytes;
        if number % PROGRESS_MOMENTS == 0 {
            reporter.report(ImportPhase::Writing, number as u64, moments.len() as u64, number as u64)?;
        }
    }
    reporter.report(ImportPhase::Writing, 1, 1, moments.len() as u64)?;
    let info = RecordingInfo { import_notes: vec![note.to_owned()], ..info };
    Ok((sink, ImportSummary { info, events, contradictions: 0 }))
}

/// Returns the events that give the block of a category another size.
fn resized(index: usize, site: SiteId, old: u64, new: u64) -> Vec<EventKind> {
    let (address, stream, pool) = ((index as u64 + 1) * ADDRESS_STEP, StreamId(0), PoolKey::default());
    let mut kinds = Vec::new();
    if old > 0 {
        kinds.push(EventKind::FreeCompleted { address, site });
    }
    if new < old {
        kinds.push(EventKind::SegmentUnmapped { address: address + new, size: old - new, site });
    } else {
        kinds.push(EventKind::SegmentMapped { address: address + old, size: new - old, stream, pool, site });
    }
    if new > 0 {
        kinds.push(EventKind::BlockAllocated { address, size: new, requested: new, stream, pool, site });
    }
    kinds
}

/// Returns the moments of a timeline, in the order of time.
fn moments(bytes: &[u8]) -> Result<Moments, ReadError> {
    let invalid = |error: JsonError| {
        let problem = format!("a JSON list of lists, but not a memory timeline of PyTorch: {error}");
        ReadError::at(0, problem).with_source(error)
    };
    let sums = serde_json::from_slice::<(Vec<i64>, Vec<Vec<u64>>)>(bytes);
    let mut moments: Moments = match sums {
        Ok((times, rows)) => {
            if times.len() != rows.len() {
                return Err(ReadError::at(0, "a memory timeline with another number of times than of sums"));
            }
            // Each row begins with a 0.
            let of_row = |row: &Vec<u64>| std::array::from_fn(|index| row.get(index + 1).copied().unwrap_or(0));
            times.iter().zip(&rows).map(|(time_us, row)| (time_us.saturating_mul(1000), of_row(row))).collect()
        }
        Err(error) if error.is_eof() => return Err(ReadError::truncated(bytes.len())),
        Err(_) => from_changes(&serde_json::from_slice::<Vec<(i64, i64, i64, usize)>>(bytes).map_err(invalid)?),
    };
    let highest = moments.iter().flat_map(|(_, bytes)| bytes).max().copied().unwrap_or(0);
    if highest >= ADDRESS_STEP {
        return Err(ReadError::at(0, "a memory timeline with more bytes than any device has"));
    }
    // Memory from before the timeline has the time -1.
    let first = moments.iter().map(|(time_ns, _)| *time_ns).find(|time_ns| *time_ns > 0).unwrap_or(0);
    moments.iter_mut().for_each(|(time_ns, _)| *time_ns = (*time_ns).max(first));
    moments.sort_by_key(|(time_ns, _)| *time_ns);
    Ok(moments)
}

/// Returns the bytes of each category after each change; changes of one time are one moment.
fn from_changes(changes: &[(i64, i64, i64, usize)]) -> Moments {
    let (mut bytes, mut moments) = ([0u64; CATEGORIES.len()], Moments::new());
    for &(time_ns, _, change, category) in changes {
        let category = category.min(CATEGORIES.len() - 1);
        bytes[category] = bytes[category].saturating_add_signed(change);
        match moments.last_mut().filter(|(last_ns, _)| *last_ns == time_ns) {
            Some((_, last)) => *last = bytes,
            None => moments.push((time_ns, bytes)),
        }
    }
    moments
}

#[cfg(test)]
mod tests {
    use vramscope_trace::{MemorySink, MemoryState};

    use super::*;
    use crate::{ignore_progress, import};

    /// Returns the allocated bytes at the end, their peak after any event, and the last time.
    fn totals(text: &str) -> (u64, u64, u64) {
        let imported =
            import(text.as_bytes(), "a.json", &Limits::default(), &mut ignore_progress, |_| MemorySink::default());
        let (sink, _) = imported.expect("the timeline is valid");
        let (mut state, mut peak) = (MemoryState::default(), 0);
        for event in &sink.events {
            state.apply(event);
            peak = peak.max(state.device(DEVICE).map_or(0, |device| device.counters().allocated));
        }
        let device = state.device(DEVICE).expect("the device was used");
        assert_eq!((device.inconsistencies(), device.counters().reserved), (0, device.counters().allocated));
        (device.counters().allocated, peak, sink.events.last().map_or(0, |event| event.time_ns))
    }

    #[test]
    fn both_forms_have_their_sums() {
        let sums =
            "[[5, 7, 9], [[0, 10, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 30, 0, 0, 4], [0, 0, 0, 0, 0, 0, 0, 0, 4]]]";
        assert_eq!(totals(sums), (4, 34, 4000));
        let changes = "[[-1, 1, 100, 7], [5, 2, 50, 4], [6, 3, -50, 4], [6, 3, 50, 1], [9, 4, -100, 7]]";
        assert_eq!(totals(changes), (50, 150, 4));
    }

    #[test]
    fn other_lists_are_errors() {
        let limits = Limits::default();
        for text in
            ["[[1, 2], [3]]", "[[1], [[0]], 3]", "[[1, 2, 3, 4], [1, 2", "[[5], []]", "[[\"a\"]]", "[[1,1,9e18,1]]"]
        {
            let read = import(text.as_bytes(), "a.json", &limits, &mut ignore_progress, |_| MemorySink::default());
            assert!(read.is_err(), "{text}");
        }
    }
}
