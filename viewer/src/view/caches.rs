//! Results that several views use, kept between frames.

use std::ops::Range;

use vramscope_insight::group::{DeviceCategories, Groupings};
use vramscope_insight::incremental::{Compositions, DeviceHistory, FailureAnalysis, StepAnalysis};
use vramscope_insight::placement::Placement;

use super::context::Context;
use super::filters::Searches;
use super::groups::BlockGroupCache;
use super::lit_blocks::LitSites;

/// Cached results about a recording that several views use, or one view without a cache of its own.
/// They are extended when the recording grows or another view needs more.
#[derive(Default)]
pub struct SharedCaches {
    /// The groupings of blocks.
    pub groupings: Groupings,
    /// Live bytes by group over time.
    pub compositions: Compositions,
    /// The out-of-memory errors, and where requests would be placed.
    pub failures: FailureAnalysis,
    /// The steps of the device, and the results that depend on them.
    pub steps: StepAnalysis,
    /// What the filters of several views share.
    pub searches: Searches,
    /// Groups of blocks for the map's colors.
    pub block_groups: BlockGroupCache,
    /// The sites below the lit node of a flame graph.
    pub(crate) lit_sites: LitSites,
    /// Byte ranges of the recording's file, each one chunk, that a view needs and that are not
    /// loaded.
    pub missing: Vec<Range<u64>>,
    /// Whether a view shows partial results, and continues in the next frame.
    pub is_unfinished: bool,
}

impl SharedCaches {
    /// Sets the inferred categories of the device whose blocks are shown from now on.
    pub(crate) fn set_categories(&mut self, categories: &DeviceCategories) {
        self.groupings.set_categories(categories);
        self.block_groups.set_categories(categories);
    }

    /// Returns where the allocator would place a request of the typed `size` at the moment; `None`
    /// if nothing was typed.
    ///
    /// # Errors
    /// If the size is invalid, or the request cannot be placed: a message for the user.
    pub fn placement_of(&mut self, context: &Context<'_>, size: &str) -> Option<Result<&Placement, &str>> {
        self.failures.placement_of(context.recording, (context.device, context.moment, context.state), size)
    }

    /// Updates the steps of the context's device. Returns the device's history, or `None` if too
    /// little of the recording has been read to search steps.
    pub fn update_steps<'a>(&mut self, context: &Context<'a>) -> Option<DeviceHistory<'a>> {
        let source = context.device_history()?;
        self.is_unfinished |= self.steps.update(&source);
        self.steps.is_known().then_some(source)
    }
}
