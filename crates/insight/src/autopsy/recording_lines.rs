//! The lines of a recorded program, for analyses that examine one recording.

use vramscope_trace::{Allocation, Category, Definitions, DeviceLifetimes, Recording, SiteId};

use super::contents::{Growing, Lines, common_call, compared_steps};
use crate::steps::Steps;

/// [`Lines`] with the definitions of their recording.
pub(crate) struct RecordingLines<'r> {
    definitions: &'r Definitions,
    lines: Lines,
}

impl<'r> RecordingLines<'r> {
    /// Creates the lines of a recording, without any named so far.
    pub(crate) fn new(recording: &'r Recording) -> Self {
        Self { definitions: recording.definitions(), lines: Lines::new(recording) }
    }

    /// Returns the number of the line that requested an allocation.
    pub(crate) fn group_of_allocation(&mut self, one: &Allocation) -> u32 {
        self.lines.of_allocation(self.definitions, one)
    }

    /// Returns the category of a site, recorded or inferred.
    pub(crate) fn category(&self, site: SiteId) -> Category {
        self.lines.category(site)
    }

    /// Returns the innermost call of the program from which nearly all bytes of `requests` (site
    /// and bytes of each) were requested; `None` without stacks.
    pub(crate) fn common_call(&self, requests: impl Iterator<Item = (SiteId, u64)>) -> Option<String> {
        common_call(self.definitions, requests)
    }

    /// Returns the lines that grow from step to step until event `until`.
    pub(crate) fn growth(&mut self, lifetimes: &DeviceLifetimes, steps: &Steps, until: u64) -> Option<Growing> {
        let mut compared = compared_steps(steps, until)?;
        while !compared.step(lifetimes, |one| self.lines.of_allocation(self.definitions, one)) {}
        self.lines.growing(self.definitions, &compared)
    }
}
