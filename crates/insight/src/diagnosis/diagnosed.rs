//! The result of a diagnosis, and the choice of remedies to simulate.

use std::collections::BTreeSet;

use vramscope_pool::Settings;
use vramscope_pool::rerun::Workload;
use vramscope_trace::{DeviceId, FormatError, Recording};

use super::finding::{Finding, reproduces_peak};
use crate::autopsy::{Autopsy, MAX_SEARCHES, RemedySearch};
use crate::history::History;

/// The problems of a recording.
#[derive(Clone, Debug)]
pub struct Diagnosed {
    /// The findings, the most serious first.
    pub findings: Vec<Finding>,
    /// The explanations of failed requests.
    pub autopsy: Autopsy,
}

impl Diagnosed {
    /// Returns the devices whose findings have remedies to simulate.
    #[must_use]
    pub fn devices_to_check(&self) -> BTreeSet<DeviceId> {
        let has_remedies = |one: &&Finding| one.can_be_checked() || one.failure_in(&self.autopsy).is_some();
        self.findings.iter().filter(has_remedies).map(|one| one.device).collect()
    }

    /// Returns the findings about failed requests of a device, at most [`MAX_SEARCHES`], each with
    /// the search for its remedies, whose result the caller [sets](Finding::set_remedies).
    /// `workload` is the program of the device; the pool may reserve `capacity_bytes`.
    ///
    /// # Errors
    /// An item is an error if a chunk cannot be read.
    pub fn remedy_searches<'a>(
        &'a mut self,
        recording: &'a Recording,
        history: &'a History,
        workload: &'a Workload,
        capacity_bytes: Option<u64>,
    ) -> impl Iterator<Item = Result<(&'a mut Finding, RemedySearch), FormatError>> {
        let autopsy = &self.autopsy;
        let of_device = self.findings.iter_mut().filter(|one| one.device == workload.device());
        let failures = of_device.filter_map(|one| one.failure_in(autopsy).map(|oom| (one, oom)));
        failures.take(MAX_SEARCHES).map(move |(one, oom)| {
            Ok((one, RemedySearch::new(recording, history, autopsy, oom, workload, capacity_bytes)?))
        })
    }

    /// Returns the findings about a device, except failed requests, that have remedies to
    /// [check](Finding::check). Returns none if a simulated run of the unchanged program, recorded
    /// under `settings`, has another reserved peak than the recorded one.
    pub fn findings_to_check(
        &mut self,
        workload: &Workload,
        settings: &Settings,
        capacity_bytes: Option<u64>,
    ) -> Vec<&mut Finding> {
        let is_of_device = |one: &&mut Finding| one.device == workload.device() && one.can_be_checked();
        let mut found: Vec<&mut Finding> = self.findings.iter_mut().filter(is_of_device).collect();
        if !found.is_empty() && !reproduces_peak(workload, settings, capacity_bytes) {
            found.clear();
        }
        found
    }
}
