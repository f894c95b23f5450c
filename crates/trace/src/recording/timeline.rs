//! Counters over slices of time, and moments by their time.

use std::ops::Range;

use super::Recording;
use crate::buckets::Slice;
use crate::decoder::each_event;
use crate::error::FormatError;
use crate::event::DeviceId;
use crate::pack::Unpacker;
use crate::replay::Replay;
use crate::series::{Column, Series, slice_end};
use crate::state::MemoryState;

/// Columns of a timeline are exact while fewer events than this many a column are in view; beyond, a bucket of the series is narrower than a
/// column anyway, in a recording that was read as a whole.
const EXACT_EVENTS_PER_COLUMN: u64 = 32;
/// The longest stretches without events are looked into, so many, of this share of the width at least.
const MENDED_GAPS: usize = 8;
const GAP_SHARE: usize = 256;
/// Events in view up to which columns are exact where buckets are wider, as they are in an index. Replaying these takes 4 ms.
const EXACT_EVENTS: u64 = 150_000;

impl Recording {
    /// A device's counters over `width` equal slices of time: exact where few events are in view, else to within a bucket of the device's
    /// [`Series`](crate::Series).
    #[must_use]
    pub fn columns(&self, device: DeviceId, from_ns: u64, to_ns: u64, width: usize) -> Vec<Column> {
        let Some(series) = self.series(device) else { return vec![Column::default(); width] };
        // Where a chunk is not there yet, the series has to do.
        self.exact_between(series, from_ns, to_ns, width)
            .and_then(|between| self.exact_columns(device, between, (from_ns, to_ns), width).ok())
            .unwrap_or_else(|| {
                let mut columns = series.columns(from_ns, to_ns, width);
                self.mend_gaps(device, &mut columns, from_ns, to_ns);
                columns
            })
    }

    /// A bucket counts where it ends, so where nothing happens for long in the middle of one, its first events would be seen only after that. Of
    /// stretches that are so long that one sees it, they are looked up.
    fn mend_gaps(&self, device: DeviceId, columns: &mut [Column], from_ns: u64, to_ns: u64) {
        let width = columns.len();
        let mut replay = Replay::new();
        for gap in longest_gaps(columns) {
            let event = self.event_at_time(slice_end(from_ns, to_ns, width, gap.start));
            // Where a chunk is not there yet, it stays as it is.
            if let (true, Ok(state)) = (event > columns[gap.start].event, replay.seek(self, event)) {
                let counters = state.device(device).map(|device| device.counters()).unwrap_or_default();
                let still = Column::still(event, counters);
                columns[gap.start].extend(&still);
                columns[gap.start + 1..gap.end].fill(still);
            }
        }
    }

    /// The bytes that are not here and that [`columns`](Self::columns) would be exact with; none where so many events are in view that it is
    /// not exact anyway.
    #[must_use]
    pub fn missing_for_columns(&self, device: DeviceId, from_ns: u64, to_ns: u64, width: usize) -> Vec<Range<u64>> {
        let between = self.series(device).and_then(|series| self.exact_between(series, from_ns, to_ns, width));
        between.map_or_else(Vec::new, |(first, last)| self.missing_between(first, last))
    }

    /// The first and the last moment of a stretch of time, where so few events lie between them that its columns are exact.
    fn exact_between(&self, series: &Series, from_ns: u64, to_ns: u64, width: usize) -> Option<(u64, u64)> {
        let (first, last) = (self.event_at_time(from_ns), self.event_at_time(to_ns));
        let exact_up_to = EXACT_EVENTS_PER_COLUMN.saturating_mul(width as u64);
        let in_buckets = series.bucket_events().saturating_mul(width as u64).min(EXACT_EVENTS);
        // Time may be asked for from its end to its beginning, and an index may say anything.
        (last.checked_sub(first)? <= exact_up_to.max(in_buckets)).then_some((first, last))
    }

    fn exact_columns(
        &self,
        device: DeviceId,
        (first, last): (u64, u64),
        (from_ns, to_ns): (u64, u64),
        width: usize,
    ) -> Result<Vec<Column>, FormatError> {
        let counters = |state: &MemoryState| state.device(device).map(|device| device.counters()).unwrap_or_default();
        let mut columns = Vec::with_capacity(width);
        let mut replay = Replay::new();
        let state = replay.seek(self, first)?;
        let mut column = Column::still(state.event(), counters(state));
        replay.advance::<true>(self, last, |state| {
            while columns.len() < width && state.time_ns() > slice_end(from_ns, to_ns, width, columns.len()) {
                columns.push(column);
                column = Column::still(column.event, column.last);
            }
            column.extend(&Column::still(state.event(), counters(state)));
        })?;
        while columns.len() < width {
            columns.push(column);
            column = Column::still(column.event, column.last);
        }
        Ok(columns)
    }

    /// The last moment whose time is at most `time_ns`; the first moment where all are later. Where the events of that time have not been
    /// read yet, the first of them.
    #[must_use]
    pub fn event_at_time(&self, time_ns: u64) -> u64 {
        let chunk = self.event_chunks.partition_point(|stored| stored.end_ns <= time_ns);
        let Some(stored) = self.event_chunks.get(chunk) else { return self.end_event() };
        let mut number = stored.first_event;
        let mut later = false;
        // A chunk is decoded without error once, when it is taken in.
        if let Ok(packed) = stored.chunk(&self.source) {
            let _ = each_event(&packed, &mut Unpacker::default(), |event| {
                later |= event.time_ns > time_ns;
                number += u64::from(!later);
            });
        }
        number
    }
}

/// The longest stretches of columns in which nothing ends, in order.
fn longest_gaps(columns: &[Column]) -> Vec<Range<usize>> {
    let shortest = (columns.len() / GAP_SHARE).max(4);
    let mut at = 0;
    let stretches = columns.chunk_by(|one, next| one.event == next.event).map(|stretch| {
        let begin = at;
        at += stretch.len();
        // In the first column of it something ended.
        begin + 1..at
    });
    let mut gaps: Vec<Range<usize>> = stretches.filter(|gap| gap.len() >= shortest).collect();
    gaps.sort_by_key(|gap| std::cmp::Reverse(gap.len()));
    gaps.truncate(MENDED_GAPS);
    gaps.sort_by_key(|gap| gap.start);
    gaps
}
