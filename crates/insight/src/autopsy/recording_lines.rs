//! The lines of a recorded program, for analyses that examine one recording.

use std::collections::BTreeMap;

use vramscope_trace::{Allocation, Category, Definitions, DeviceLifetimes, Recording, SiteId};

use super::contents::{Growing, Lines, calling_frames, common_call, compared_steps, module_calls};
use crate::group::{BACKWARD_PASS, DeviceCategories, GroupBy, Grouping, Phase};
use crate::steps::Steps;

/// [`Lines`] with the definitions of their recording.
pub(crate) struct RecordingLines<'r> {
    definitions: &'r Definitions,
    lines: Lines,
    phases: Grouping,
}

impl<'r> RecordingLines<'r> {
    /// Creates the lines of a recording, without any named so far.
    pub(crate) fn new(recording: &'r Recording) -> Self {
        let (lines, phases) = (Lines::new(recording), Grouping::of(GroupBy::Phase, recording));
        Self { definitions: recording.definitions(), lines, phases }
    }

    /// Returns the number of the line that requested an allocation.
    pub(crate) fn group_of_allocation(&mut self, one: &Allocation) -> u32 {
        self.lines.of_allocation(self.definitions, one)
    }

    /// Returns the name of the line that requested an allocation, with its caller if the function
    /// serves several others.
    pub(crate) fn name_of_request(&mut self, one: &Allocation) -> String {
        let line = self.group_of_allocation(one);
        self.lines.name_of_request(self.definitions, line, one.site)
    }

    /// Returns the name of the line that requested most bytes of some blocks, such as the one that
    /// calls the backward pass; `None` if no line is known.
    pub(crate) fn line_of_most_bytes(&mut self, blocks: &[Allocation]) -> Option<String> {
        let mut bytes: BTreeMap<u32, u64> = BTreeMap::new();
        for one in blocks {
            let sum = bytes.entry(self.group_of_allocation(one)).or_default();
            *sum = sum.saturating_add(one.size);
        }
        let (line, _) = bytes.into_iter().max_by_key(|(_, bytes)| *bytes)?;
        let name = self.lines.name(line);
        (!self.lines.is_unnamed(line) || name.starts_with(BACKWARD_PASS)).then_some(name)
    }

    /// Sets the inferred categories of a device, whose allocations are examined from now on.
    pub(crate) fn set_categories(&mut self, categories: &DeviceCategories) {
        self.lines.set_categories(categories);
    }

    /// Returns the category of an allocation, recorded or inferred.
    pub(crate) fn category_of(&self, one: &Allocation) -> Category {
        self.lines.category_of_allocation(one)
    }

    /// Returns the category of an allocation that was recorded or that its stack names; else
    /// `Unknown`.
    pub(crate) fn named_category(&self, one: &Allocation) -> Category {
        self.lines.named_category(one)
    }

    /// Returns the phase of a site's requests; `None` if nothing tells.
    pub(crate) fn phase(&self, site: SiteId) -> Option<Phase> {
        self.phases.phase_of(site)
    }

    /// Returns the calls of the program that led to a request, from the innermost on: file and line
    /// of each frame outside of modules. Empty without stacks.
    pub(crate) fn calls(&self, site: SiteId) -> Vec<(u32, u32)> {
        calling_frames(self.definitions, site).into_iter().map(|frame| (frame.file.0, frame.line)).collect()
    }

    /// Returns the line of the program that calls the outermost module around a request: file and
    /// line; `None` outside of modules.
    pub(crate) fn outer_module_call(&self, site: SiteId) -> Option<(u32, u32)> {
        module_calls(self.definitions, site).last().map(|frame| (frame.file.0, frame.line))
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
