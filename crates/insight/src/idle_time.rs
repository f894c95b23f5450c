//! Idle time: long intervals without events.

use std::ops::Range;

use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Recording, even_part};

use crate::history::History;

/// Minimum length of idle time that can be left out, as a divisor of the visible range: 2%.
const LEAST_SHARE: u64 = 50;
/// Minimum length of idle time that can be left out, as a multiple of the median time between two
/// events.
const LEAST_MEDIANS: u64 = 20;
/// Maximum number of pairs of neighboring events that are sampled for the median time between two
/// events.
const SAMPLES: u64 = 512;
/// Number of equal parts into which a recording's time is divided to find idle time.
const PARTS: u64 = 1_024;
/// Maximum number of intervals that are left out of one picture; the longest are chosen.
const MAX_INTERVALS: usize = 24;

/// Returns the idle times in a range of time that are longer than 2% of the range and than 20 times
/// the median time between two events; the events before and after an idle time lie outside of it.
/// `edges` are the moments at the boundaries of equally long pixel columns of the range. All times
/// are in nanoseconds.
#[must_use]
pub fn idle_times(recording: &Recording, history: &History, range: &Range<u64>, edges: &[u64]) -> Vec<Range<u64>> {
    let (Some(&first), Some(&last)) = (edges.first(), edges.last()) else { return Vec::new() };
    let median = median_gap_ns(history, first, last);
    let least = ((range.end - range.start) / LEAST_SHARE).max(median.saturating_mul(LEAST_MEDIANS)).max(2);
    let mut found: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    for run in edges.chunk_by(|one, next| one == next) {
        let (event, is_last) = (run[0], at + run.len() == edges.len());
        at += run.len();
        if run.len() < 2 {
            continue;
        }
        let from_ns = if event <= recording.first_event() { range.start } else { history.time_ns(event) };
        let is_end = event >= recording.end_event();
        let to_ns = if is_end { range.end } else { history.time_ns(event.saturating_add(1)) };
        // Between the events, which stay in view.
        let from_ns = from_ns.saturating_add(1).max(range.start);
        let to_ns = if is_last { to_ns.min(range.end) } else { to_ns.saturating_sub(1).min(range.end) };
        if to_ns.saturating_sub(from_ns) > least {
            found.push(from_ns..to_ns);
        }
    }
    sort_by_key(&mut found, |idle| std::cmp::Reverse(idle.end - idle.start));
    found.truncate(MAX_INTERVALS);
    sort_by_key(&mut found, |idle| idle.start);
    found
}

/// Returns true if more than half of the recording's time is idle.
#[must_use]
pub fn is_mostly_idle(recording: &Recording, history: &History) -> bool {
    let (start, end) = (recording.start_ns(), recording.end_ns());
    let length = end.saturating_sub(start);
    let moment = |part: u64| match part {
        0 => recording.first_event(),
        PARTS => recording.end_event(),
        _ => history.moment_at(start + even_part(length, part, PARTS)),
    };
    let edges: Vec<u64> = (0..=PARTS).map(moment).collect();
    let idle = idle_times(recording, history, &(start..end), &edges);
    idle.iter().map(|one| one.end - one.start).sum::<u64>() > length / 2
}

/// Returns the median time between two events from the moment `first` to the moment `last`, in
/// nanoseconds, from a sample of them.
fn median_gap_ns(history: &History, first: u64, last: u64) -> u64 {
    let count = last.saturating_sub(first).saturating_sub(1).min(SAMPLES);
    let event = |index: u64| first + 1 + even_part(last - first - 1, index, count);
    let gap = |event: u64| history.time_ns(event.saturating_add(1)).saturating_sub(history.time_ns(event));
    let mut gaps: Vec<u64> = (0..count).map(|index| gap(event(index))).collect();
    let middle = gaps.len() / 2;
    if gaps.is_empty() { 0 } else { *gaps.select_nth_unstable(middle).1 }
}
