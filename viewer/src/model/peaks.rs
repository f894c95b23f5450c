//! The peaks of the device on the screen: how high, and when.

use std::ops::Range;

use vramscope_trace::{Counters, Peak};

use super::Model;
use crate::timeline::PeakMark;

/// Slices of the recording to which the time of a peak is known before its events were read.
const SLICES: usize = 4096;

/// A peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Where in the recording.
    pub(super) peak: Peak,
    pub(super) mark: PeakMark,
    /// Whether the mark's time is that of a slice.
    is_near: bool,
}

impl Model {
    /// Looks for the peaks of the allocated and the reserved bytes, where they are others than before or were not known well.
    pub(super) fn find_peaks(&mut self) {
        let Some(series) = self.recording.series(self.device) else { return };
        let peaks = [series.peak_allocated(), series.peak_reserved()];
        let values: [fn(&Counters) -> u64; 2] = [|counters| counters.allocated, |counters| counters.reserved];
        for (index, (peak, value)) in peaks.into_iter().zip(values).enumerate() {
            let before = self.peaks[index];
            if before.peak == peak && !before.is_near {
                continue;
            }
            let known = self.time_of(peak.event);
            let time_ns = known.unwrap_or_else(|| self.time_near(peak, value));
            let found = Found { peak, mark: PeakMark { time_ns, bytes: peak.bytes }, is_near: known.is_none() };
            self.stale.timeline |= found.mark != before.mark;
            self.peaks[index] = found;
        }
    }

    /// The time of a moment; nothing where its events have not been read.
    fn time_of(&mut self, moment: u64) -> Option<u64> {
        let Some(number) = moment.checked_sub(1) else { return Some(self.recording.start_ns()) };
        let event = self.scout.event(&self.recording, number).ok()?;
        Some(event.map_or(self.recording.start_ns(), |event| event.time_ns))
    }

    /// The beginning of the slice in which a peak lies.
    fn time_near(&self, peak: Peak, value: fn(&Counters) -> u64) -> u64 {
        let whole = self.whole();
        let columns = self.recording.series(self.device).map(|series| series.columns(whole.start, whole.end, SLICES));
        let slice = columns.and_then(|columns| columns.iter().position(|column| value(&column.max) >= peak.bytes));
        let into = u128::from(whole.end - whole.start) * slice.unwrap_or(0) as u128 / SLICES as u128;
        whole.start + into as u64
    }

    /// What knowing the peaks' times takes.
    pub(super) fn missing_of_peaks(&self) -> Vec<Range<u64>> {
        let near = self.peaks.iter().filter(|found| found.is_near);
        near.flat_map(|found| self.missing_before(found.peak.event)).collect()
    }
}
