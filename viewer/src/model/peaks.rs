//! The times and heights of the selected device's peaks of allocated and reserved bytes.

use std::ops::Range;

use vramscope_trace::{Counters, Peak};

use super::state::{FoundPeak, Model};
use crate::timeline::PeakMark;

/// Number of equal time slices of a recording. Until the event of a peak is loaded, the peak's time
/// is the start of its slice.
const SLICES: usize = 4096;

impl Model {
    /// Updates those of the selected device's peaks of allocated and reserved bytes that have
    /// changed or whose time was approximate.
    pub(super) fn find_peaks(&mut self) {
        let Some(series) = self.recording.series(self.device) else { return };
        let peaks = [series.peak_allocated(), series.peak_reserved()];
        let values: [fn(&Counters) -> u64; 2] = [|counters| counters.allocated, |counters| counters.reserved];
        for (index, (peak, value)) in peaks.into_iter().zip(values).enumerate() {
            let known = self.peaks[index];
            if known.peak == peak && !known.is_approximate {
                continue;
            }
            let exact_ns = self.event_time_ns(peak.event);
            let time_ns = exact_ns.unwrap_or_else(|| self.approximate_time_ns(peak, value));
            let mark = PeakMark { event: peak.event, time_ns, bytes: peak.bytes };
            self.changes.timeline |= mark != known.mark;
            self.peaks[index] = FoundPeak { peak, mark, is_approximate: exact_ns.is_none() };
        }
    }

    /// Returns the time in nanoseconds of a moment, which is the time of the event with the number
    /// `moment`; `None` if this event is not loaded. Moment 0 is the recording's start.
    #[must_use]
    pub fn event_time_ns(&mut self, moment: u64) -> Option<u64> {
        let Some(number) = moment.checked_sub(1) else { return Some(self.recording.start_ns()) };
        let event = self.lookup.event(&self.recording, number).ok()?;
        Some(event.map_or(self.recording.start_ns(), |event| event.time_ns))
    }

    /// Returns the start in nanoseconds of the time slice that contains `peak`. `value` returns the
    /// counter that has this peak.
    fn approximate_time_ns(&self, peak: Peak, value: fn(&Counters) -> u64) -> u64 {
        let whole = self.whole_times();
        let columns = self.recording.series(self.device).map(|series| series.columns(whole.start, whole.end, SLICES));
        let slice = columns.and_then(|columns| columns.iter().position(|column| value(&column.max) >= peak.bytes));
        let offset_ns = u128::from(whole.end - whole.start) * slice.unwrap_or(0) as u128 / SLICES as u128;
        whole.start + offset_ns as u64
    }

    /// Returns the byte ranges of the recording's file to load for the exact times of the selected
    /// device's peaks of allocated and reserved bytes.
    pub(super) fn missing_for_peaks(&self) -> Vec<Range<u64>> {
        let approximate = self.peaks.iter().filter(|found| found.is_approximate);
        approximate.flat_map(|found| self.missing_for_event_before(found.peak.event)).collect()
    }
}
