//! Results that several views use, kept between frames.

use std::ops::Range;

use vramscope_insight::failures::Failures;
use vramscope_insight::memory_summary::{MemorySummary, MemorySummaryScan};
use vramscope_insight::placement::{Placement, placement, recorded_settings};
use vramscope_pool::Settings;
use vramscope_trace::{DeviceId, FormatError, Recording, Replay};

use super::computed::{
    Compositions, DeviceHistory, PeakAnalysis, StepAnalysis, TableAnalysis, TemporaryScan, UnfreedAnalysis,
};
use super::context::{Context, Groupings};
use super::groups::BlockGroupCache;
use super::searches::Searches;
use crate::view::fit::FitCache;

/// Cached results about a recording that several views use, or one view without a cache of its own.
/// They are extended when the recording grows or another view needs more.
#[derive(Default)]
pub struct SharedCaches {
    /// The groupings of blocks.
    pub groupings: Groupings,
    /// Live bytes by group over time.
    pub compositions: Compositions,
    /// Out-of-memory errors; `None` before a view needs them.
    failures: Option<Failures>,
    /// For each failure, the placement that its request needed; `None` if it is unknown.
    failed_placements: Vec<Option<Placement>>,
    /// The steps of the device, and the results that depend on them.
    pub steps: StepAnalysis,
    /// The explanation of the peak.
    pub peak: PeakAnalysis,
    /// Allocations that are not freed.
    pub unfreed: UnfreedAnalysis,
    /// The tables by group and by span.
    pub tables: TableAnalysis,
    /// Temporaries.
    pub temporaries: TemporaryScan,
    /// The table of all counters, and its device.
    summary: Option<(DeviceId, MemorySummaryScan)>,
    /// The searches of the lists of events and allocations.
    pub searches: Searches,
    /// Where a request of the size that the user typed would be placed.
    pub fit: FitCache,
    /// Groups of blocks for the heatmap's colors.
    pub block_groups: BlockGroupCache,
    /// Byte ranges of the recording's file, each one chunk, that a view needs and that are not
    /// loaded.
    pub missing: Vec<Range<u64>>,
    /// Whether a view shows partial results, and continues in the next frame.
    pub is_unfinished: bool,
}

/// Maximum number of events that the computation of a table of counters visits in one frame, at
/// about half a microsecond each.
const EVENTS_PER_FRAME: u64 = 16_384;

impl SharedCaches {
    /// Returns the allocator's settings as recorded, with the cap that the recording's
    /// out-of-memory errors show.
    #[must_use]
    pub fn settings(&mut self, context: &Context<'_>) -> Settings {
        let mut settings = recorded_settings(context.recording.info());
        if let Ok(failures) = self.failures(context.recording) {
            settings.limit_bytes = failures.cap(context.recording, context.device).most_bytes();
        }
        settings
    }

    /// Returns the out-of-memory errors of the recording, all read.
    ///
    /// # Errors
    /// If an error's moment is not loaded, or cannot be read.
    pub fn failures(&mut self, recording: &Recording) -> Result<&Failures, FormatError> {
        let failures = self.failures.get_or_insert_with(|| Failures::new(recorded_settings(recording.info())));
        failures.step(recording, usize::MAX)?;
        Ok(failures)
    }

    /// Returns, for each of the recording's out-of-memory errors, where the allocator looked for
    /// memory and the blocks in the way; `None` where they are unknown.
    ///
    /// # Errors
    /// If an error's moment is not loaded, or cannot be read.
    pub fn failed_placements(&mut self, recording: &Recording) -> Result<&[Option<Placement>], FormatError> {
        self.failures(recording)?;
        let Some(failures) = &self.failures else { return Ok(&[]) };
        let known = self.failed_placements.len();
        let mut replay = Replay::new();
        for failure in failures.failures().iter().skip(known) {
            let state = replay.seek(recording, failure.event.saturating_sub(1))?;
            let cap = failures.cap(recording, failure.device).about_bytes();
            let settings = Settings { limit_bytes: cap, ..recorded_settings(recording.info()) };
            let placement =
                state.device(failure.device).and_then(|device| placement(device, &failure.request(), &settings).ok());
            self.failed_placements.push(placement);
        }
        Ok(&self.failed_placements)
    }

    /// Updates the steps of the context's device. Returns the device's history, or `None` if too
    /// little of the recording has been read to search steps.
    pub fn update_steps<'a>(&mut self, context: &Context<'a>) -> Option<DeviceHistory<'a>> {
        let source = context.device_history()?;
        self.is_unfinished |= self.steps.update(&source);
        self.steps.is_known().then_some(source)
    }

    /// Returns the table of all counters of the context's device at its moment; `None` until the
    /// events before the moment have been visited, which may take several frames.
    ///
    /// # Errors
    /// If the events before the moment are not loaded, or cannot be read.
    pub fn summary(&mut self, context: &Context<'_>) -> Result<Option<MemorySummary>, FormatError> {
        let (recording, device) = (context.recording, context.device);
        let known = self.summary.take().filter(|(known, _)| *known == device);
        let continued = known.and_then(|(_, mut scan)| scan.continue_to(recording, context.moment).then_some(scan));
        let mut scan = match continued {
            Some(scan) => scan,
            None => MemorySummaryScan::new(recording, device, context.moment)?,
        };
        let is_done = scan.step(recording, EVENTS_PER_FRAME)?;
        self.is_unfinished |= !is_done;
        let summary = is_done.then(|| scan.summary());
        self.summary = Some((device, scan));
        Ok(summary)
    }
}
