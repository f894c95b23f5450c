//! Results that several views use, kept between frames.

use std::ops::Range;

use vramscope_insight::failures::Failures;
use vramscope_insight::group::Groupings;
use vramscope_insight::incremental::{Compositions, DeviceHistory, StepAnalysis};
use vramscope_insight::placement::{Placement, placement, recorded_settings};
use vramscope_pool::Settings;
use vramscope_trace::{FormatError, Recording, Replay};

use super::context::Context;
use super::filters::Searches;
use super::groups::BlockGroupCache;
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
    /// What the filters of several views share.
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
}
