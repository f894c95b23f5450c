//! The result of a diagnosis, and the choice of remedies to simulate.

use std::collections::BTreeSet;

use vramscope_pool::Settings;
use vramscope_pool::rerun::Workload;
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{DeviceId, FormatError, Recording};

use super::examined::ExaminedDevice;
use super::finding::{
    CheckedRemedy, Finding, LARGE_SAVING_BYTES, MIN_OVER_RESERVED_PERCENT, MIN_SMALL_OVER_RESERVED_PERCENT, Problem,
    Severity, is_share, reproduces_peak,
};
use super::remedy::advised_trials;
use crate::autopsy::{Autopsy, MAX_SEARCHES, RemedySearch};
use crate::history::History;

/// The problems of a recording.
#[derive(Clone, Debug)]
pub struct Diagnosed {
    /// The findings, the most serious first.
    pub findings: Vec<Finding>,
    /// The explanations of failed requests.
    pub autopsy: Autopsy,
    /// The devices, with the evidence that the rules had.
    pub devices: Vec<ExaminedDevice>,
    /// Findings that only count once a simulation proves that their remedy reserves less.
    pub(super) unproven: Vec<Finding>,
}

impl Diagnosed {
    /// Returns the devices whose findings have remedies to simulate.
    #[must_use]
    pub fn devices_to_check(&self) -> BTreeSet<DeviceId> {
        let has_remedies = |one: &&Finding| one.can_be_checked() || one.failure_in(&self.autopsy).is_some();
        let found = self.findings.iter().filter(has_remedies);
        found.chain(&self.unproven).map(|one| one.device).collect()
    }

    /// Adds the findings that their [check](Finding::check) has proven to the others. Call it once
    /// all devices are checked.
    pub fn adopt_proven(&mut self) {
        let mut proven = Vec::new();
        for one in self.unproven.drain(..) {
            let Some(CheckedRemedy { saves_bytes, peak_reserved_bytes, .. }) = one.checked else { continue };
            let recorded_bytes = saves_bytes.saturating_add(peak_reserved_bytes);
            if one.problem == Problem::EvaluationPeak {
                // What an evaluation needs beyond training may cost more than its own bytes.
                let recorded_bytes = saves_bytes.saturating_add(peak_reserved_bytes);
                self.findings.push(Finding { severity: Severity::of(saves_bytes, recorded_bytes), ..one });
                continue;
            }
            if one.problem != Problem::OverReserved {
                proven.push(one);
                continue;
            }
            let (least_percent, severity) = match saves_bytes {
                LARGE_SAVING_BYTES.. => (MIN_OVER_RESERVED_PERCENT, Severity::of(saves_bytes, recorded_bytes)),
                _ => (MIN_SMALL_OVER_RESERVED_PERCENT, Severity::Low),
            };
            let finding = Finding { bytes: saves_bytes, severity, ..one };
            if is_share(saves_bytes, least_percent, recorded_bytes) {
                proven.push(finding);
            } else if let Some(device) = self.devices.iter_mut().find(|device| device.device == finding.device) {
                device.lesser_saving = Some(finding);
            }
        }
        // Temporaries that no line of the program requested, such as workspaces of convolutions,
        // cannot be avoided by it.
        let is_explained = |one: &Finding| {
            let is_of_library = one.problem == Problem::TemporaryPeak && !one.names_call;
            let is_waste = |waste: &Finding| waste.device == one.device && waste.problem == Problem::OverReserved;
            is_of_library && proven.iter().any(is_waste)
        };
        self.findings.retain(|one| !is_explained(one));
        for mut waste in proven {
            // Large temporaries of the program leave large free blocks behind, and a remedy of the
            // program may save as much as settings.
            let is_larger = |one: &Finding| {
                let saves_more = one.checked.is_some_and(|checked| checked.saves_bytes >= waste.bytes);
                let is_stale = matches!(one.problem, Problem::StaleGradients | Problem::StaleResults);
                let is_of_program = one.problem.is_mistake() && !is_stale && waste.problem == Problem::OverReserved;
                (one.problem == Problem::TemporaryPeak && one.bytes > waste.bytes) || (is_of_program && saves_more)
            };
            if self.findings.iter().any(|one| one.device == waste.device && is_larger(one)) {
                waste.severity = Severity::Low;
            }
            self.findings.push(waste);
        }
        sort_by_severity(&mut self.findings);
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
        let is_waste = |one: &&mut Finding| one.device == workload.device() && one.problem == Problem::OverReserved;
        for one in self.unproven.iter_mut().filter(is_waste) {
            one.trials = advised_trials(workload, settings, capacity_bytes);
        }
        let mut found: Vec<&mut Finding> =
            self.findings.iter_mut().chain(&mut self.unproven).filter(is_of_device).collect();
        if !found.is_empty() {
            let is_reproduced = reproduces_peak(workload, settings, capacity_bytes);
            let of_workload = self.devices.iter_mut().find(|one| one.device == workload.device());
            if let Some(device) = of_workload {
                device.is_reproduced = Some(is_reproduced);
            }
            if !is_reproduced {
                found.clear();
            }
        }
        found
    }
}

/// Sorts findings, the most serious first; among equally serious ones, mistakes of the program come
/// before what it needs.
pub(super) fn sort_by_severity(findings: &mut [Finding]) {
    sort_by_key(findings, |one| std::cmp::Reverse((one.severity, one.problem.is_mistake(), one.bytes)));
}
