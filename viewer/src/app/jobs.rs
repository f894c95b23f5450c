//! Chooses the next computations of the page's worker, and stores their results.

use serde_json::Value;
use vramscope_insight::group::GroupBy;
use vramscope_trace::{DeviceId, Recording};

use crate::details::findings;
use crate::jobs::{Finished, Job, Jobs};
use crate::linked_memory::LinkedMemory;
use crate::model::Origin;
use crate::view::{Topic, group_called};
use crate::views::ViewId;

use super::parts::JobClock;
use super::session::Session;

/// Maximum number of events of a file that is analyzed for problems without a request of the user.
const AUTOMATIC_EVENTS: u64 = 5_000_000;
/// Minimum number of new events before a live recording is analyzed again: the first number, or the
/// events of the last analysis divided by the second number, whichever is more.
const LIVE_EVENTS: (u64, u64) = (500, 8);
/// Minimum time between two analyses of a live recording: milliseconds, or a multiple of the last
/// analysis's duration, whichever is longer, to leave processor time to a program on this machine.
const LIVE_INTERVAL: (f64, f64) = (3_000.0, 9.0);

impl Session {
    /// Returns the computations over the whole recording, and their results.
    pub fn jobs(&self) -> &Jobs {
        &self.analysis.jobs
    }

    /// Forgets the jobs and their results if another recording is on the page.
    pub(super) fn reset_jobs(&mut self) {
        let opened = self.model.opened();
        if self.analysis.job_clock.opened != opened {
            let saves = self.analysis.jobs.findings.saves;
            self.analysis.job_clock = JobClock { opened, ..JobClock::default() };
            self.analysis.jobs = Jobs::default();
            self.analysis.jobs.findings.saves = saves;
        }
    }

    /// Returns the computation that the page needs next, or `None`.
    pub fn wanted_job(&mut self) -> Option<Job> {
        self.reset_jobs();
        if self.is_empty() {
            return None;
        }
        let device = self.model.device();
        let views = self.panes.views().into_iter().flatten();
        let wanted = views.into_iter().find_map(|view| self.views.get(view).wanted_job(device, &self.analysis.jobs));
        if wanted.is_some() {
            return wanted;
        }
        self.wants_findings().then_some(Job::Findings)
    }

    /// Returns true if a pane shows what-if runs: the worker then keeps the recording for further
    /// runs.
    pub fn shows_what_if(&self) -> bool {
        self.panes.surface_of(ViewId::about(Topic::Settings)).is_some()
    }

    /// Returns true if the recording has neither events nor a memory state.
    fn is_empty(&self) -> bool {
        let recording = self.model.recording();
        recording.end_event() == recording.first_event() && recording.devices().next().is_none()
    }

    /// Returns true if the recording should be analyzed for problems now.
    fn wants_findings(&self) -> bool {
        let findings = &self.analysis.jobs.findings;
        let events = self.model.recording().end_event();
        match (self.model.origin(), findings.analyzed_events) {
            (Origin::Live, Some(_)) => self.next_analysis_in_ms() == Some(0.0),
            (Origin::Live, None) => events >= LIVE_EVENTS.0,
            // The events since the last analysis of a program that has ended.
            (Origin::Disconnected, Some(analyzed)) => analyzed < events,
            (_, None) => findings.is_wanted || events <= AUTOMATIC_EVENTS,
            (_, Some(_)) => false,
        }
    }

    /// Returns the milliseconds until a live recording that has grown is analyzed again. `None` if
    /// more events must arrive first, and for recordings that are not live.
    pub fn next_analysis_in_ms(&self) -> Option<f64> {
        let analyzed_events = self.analysis.jobs.findings.analyzed_events?;
        let (least, share) = LIVE_EVENTS;
        let has_grown = self.model.recording().end_event() >= analyzed_events + least.max(analyzed_events / share);
        let is_due = has_grown && self.model.origin() == Origin::Live;
        is_due.then(|| (self.analysis.job_clock.next_ms - self.input.clock_ms).max(0.0))
    }

    /// Returns true if the recording was analyzed for problems, or is empty; else requests the
    /// analysis.
    pub(super) fn has_findings(&mut self) -> bool {
        let is_empty = self.is_empty();
        let findings = &mut self.analysis.jobs.findings;
        findings.is_wanted = true;
        is_empty || findings.analyzed_events.is_some()
    }

    /// Stores which job the page's worker runs; `None` if it runs none.
    pub fn job_started(&mut self, job: Option<Job>) {
        if self.analysis.jobs.running != job {
            self.analysis.job_clock.started_ms = self.input.clock_ms;
            self.analysis.jobs.running = job;
            self.model.moment_changed();
        }
    }

    /// Stores the result of a job over a recording of `events` events: the analyzer's answer in
    /// JSON or a message for the user, and if the job [simulates](Job::simulates) settings, the
    /// simulated recording. Returns the problems that are new.
    pub fn job_finished(
        &mut self,
        job: Job,
        events: u64,
        answer: Result<String, String>,
        simulated: Option<Recording>,
    ) -> Vec<Value> {
        let answer = answer.and_then(|json| serde_json::from_str::<Value>(&json).map_err(|error| error.to_string()));
        self.model.moment_changed();
        let jobs = &mut self.analysis.jobs;
        jobs.running = None;
        match &job {
            Job::Findings => {
                let (least_ms, factor) = LIVE_INTERVAL;
                let pause_ms = (factor * (self.input.clock_ms - self.analysis.job_clock.started_ms)).max(least_ms);
                self.analysis.job_clock.next_ms = self.input.clock_ms + pause_ms;
                let is_first = jobs.findings.verdict.is_null();
                let is_growing = self.model.origin() == Origin::Live;
                let new = jobs.findings.update(events, answer, is_growing);
                if is_first {
                    self.go_to_failure_of_verdict();
                }
                return new;
            }
            Job::Advice { .. } => jobs.advice = Some(Finished { job, answer }),
            Job::WhatIf { conf, .. } => {
                let run = simulated.filter(|run| answer.is_ok() && run.devices().count() > 0);
                self.model.comparison.show_run(conf.as_deref().unwrap_or_default(), run);
                jobs.what_if = Some(Finished { job, answer });
                self.model.timeline_changed();
            }
        }
        Vec::new()
    }

    /// Goes to the failed request that the verdict is about, if the page still shows the moment at
    /// which the recording was opened.
    fn go_to_failure_of_verdict(&mut self) {
        let verdict = &self.analysis.jobs.findings.verdict;
        let is_failure = verdict["cause"].as_str().is_some_and(|cause| cause.starts_with("oom."));
        let device = verdict["device"].as_u64().and_then(|device| u16::try_from(device).ok());
        let place = device.map(DeviceId).zip(verdict["event"].as_u64());
        let Some((device, event)) = place.filter(|_| is_failure && self.model.is_at_opening()) else { return };
        if let Err(error) = self.set_device(device).and_then(|()| self.model.seek(event)) {
            self.analysis.messages.push(error.to_string());
        }
    }

    /// Looks for problems, again if that was done.
    pub(super) fn find_problems(&mut self) {
        let findings = &mut self.analysis.jobs.findings;
        (findings.is_wanted, findings.analyzed_events, findings.error) = (true, None, None);
    }

    /// Shows the moment of a finding, given by its index, and the view about it.
    ///
    /// # Errors
    /// If there is no such finding, or the recording cannot be read there: a message for the user.
    pub(super) fn show_finding(&mut self, index: usize) -> Result<(), String> {
        let finding = self.analysis.jobs.findings.list.get(index).ok_or("there is no such finding")?;
        let (topic, moment) = (findings::topic(finding), findings::moment(finding));
        let (part, site) = (findings::memory_part(finding), finding["site"].as_str().unwrap_or_default().to_owned());
        if let Some((device, event)) = moment {
            let moved = self.set_device(DeviceId(device)).and_then(|()| self.model.seek(event));
            moved.map_err(|error| error.to_string())?;
        }
        self.show_beside(ViewId::about(topic));
        let memory = match part {
            Some(part) => Some(LinkedMemory::Part(part)),
            None => self.group_called(GroupBy::Site, &site).map(|group| LinkedMemory::Group(GroupBy::Site, group)),
        };
        self.details.lights.kept = self.with_other_names(memory.into_iter().collect());
        self.model.everything_changed();
        Ok(())
    }

    /// Returns the number of the group that is called `name`, if the selected device has a block of
    /// it.
    fn group_called(&mut self, by: GroupBy, name: &str) -> Option<u32> {
        let (recording, device) = (self.model.recording(), self.model.device_state());
        let grouping = self.analysis.shared.groupings.get(by, recording);
        group_called(name, grouping, recording.definitions(), device).filter(|_| !name.is_empty())
    }
}
