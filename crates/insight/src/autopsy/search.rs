//! Checks remedies by simulation.

use std::borrow::Cow;
use std::collections::BTreeSet;

use vramscope_pool::Settings;
use vramscope_pool::rerun::{Edits, Simulation, Workload};
use vramscope_trace::{ByteSize, DeviceState, FormatError, NullSink, Recording, Replay};

use super::analysis::Autopsy;
use super::candidate::{Candidate, Remedy, RemedyKind};
use super::out_of_memory::OutOfMemory;
use super::remedies::Candidates;
use crate::failures::OomCause;
use crate::history::History;

/// Divisor: a remedy that saves less than 1/64 of the unchanged program's peak is not reported.
const MIN_SAVED_PART: u64 = 64;

/// Maximum number of different failures in a report for which remedies are searched.
pub const MAX_SEARCHES: usize = 8;

/// Divisor: a run with divided requests may reserve 1/64 less than the capacity, because a program
/// does not divide a request into exactly equal parts.
const DIVISION_MARGIN: u64 = 64;

/// How far the simulated runs of a failure are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Horizon {
    /// To the failed request and the recorded events after it, which are no complete step.
    Failure,
    /// To the end of the step after the failed one. The recording has neither, so both repeat the
    /// last complete step.
    NextStep,
    /// To the end of the recording, which has complete steps after the failure.
    Recorded,
}

impl Horizon {
    /// Returns the machine-readable name.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::Failure => "failure",
            Self::NextStep => "next_step",
            Self::Recorded => "recorded",
        }
    }
}

/// A simulated run that a [`RemedySearch`] needs. It does not depend on other runs.
#[derive(Clone, Debug)]
pub struct RemedyRun {
    /// The settings.
    pub settings: Settings,
    /// Maximum bytes that the allocator may reserve; `None` for no limit.
    pub capacity_bytes: Option<u64>,
    edits: Edits,
    purpose: Purpose,
}

impl RemedyRun {
    /// Returns the program of the run: `search_program`, changed by the run's edits.
    #[must_use]
    pub fn program<'w>(&self, search_program: &'w Workload) -> Cow<'w, Workload> {
        search_program.edited(&self.edits)
    }

    /// Simulates the whole run. A caller that simulates in steps uses [`program`](Self::program)
    /// with the run's settings and capacity.
    #[must_use]
    pub fn simulate(&self, search_program: &Workload) -> RunResult {
        let program = self.program(search_program);
        let mut run = Simulation::new(&*program, &self.settings, self.capacity_bytes, NullSink);
        run.advance(usize::MAX);
        RunResult { failed: run.failed_requests().to_vec(), peak_reserved_bytes: run.summary().peak_reserved_bytes }
    }
}

/// The result of a simulated run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunResult {
    /// The event numbers of the requests that failed ([`Simulation::failed_requests`]).
    pub failed: Vec<u64>,
    /// Peak of the reserved bytes.
    pub peak_reserved_bytes: u64,
}

/// The purpose of a simulated run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// The unchanged program, to check that it fails as recorded.
    Recorded,
    /// The unchanged program with enough memory.
    Unlimited,
    /// An alternative: the index of its trial, and its index in the trial.
    Alternative(usize, usize),
}

/// The remedies of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedies {
    /// Whether the unchanged program fails in the simulation as recorded. Otherwise no remedy can
    /// be checked, and none is listed.
    pub is_reproduced: bool,
    /// How far the runs were followed.
    pub follows: Horizon,
    /// The reserved peak of the unchanged program with enough memory.
    pub unchanged_peak_bytes: u64,
    /// The remedies, the smallest change first.
    pub remedies: Vec<Remedy>,
}

/// How far the alternatives of a candidate have been tried.
#[derive(Clone, Debug)]
struct Trial {
    candidate: Candidate,
    /// Index of the next alternative to try.
    next: usize,
    /// Whether a run of an alternative was handed out and is not finished.
    is_running: bool,
    /// Index of the best alternative so far, and its reserved peak in bytes.
    best: Option<(usize, u64)>,
}

impl Trial {
    /// Creates the trial of a candidate, before its first alternative.
    fn new(candidate: Candidate) -> Self {
        Self { candidate, next: 0, is_running: false, best: None }
    }

    /// Returns true if another alternative can be tried now.
    fn is_waiting(&self) -> bool {
        let is_done = self.best.is_some() && !self.candidate.wants_least;
        !self.is_running && !is_done && self.next < self.candidate.alternatives.len()
    }
}

/// Searches for changes that would have prevented one failure.
///
/// [`next_run`](Self::next_run) returns runs until the next one depends on results that are still
/// missing. The caller makes several at once if it can, and passes each result to
/// [`finish`](Self::finish).
#[derive(Clone, Debug)]
pub struct RemedySearch {
    settings: Settings,
    capacity_bytes: Option<u64>,
    cause: OomCause,
    is_capped: bool,
    obtainable_bytes: u64,
    /// The event of the failure, and later failures of equal requests that the runs reach.
    failed: Vec<u64>,
    /// Failures that a changed run may still have: the recorded ones of other requests.
    permitted: BTreeSet<u64>,
    /// Edits of every run. They add the private pool of the failed request, which recordings lack.
    baseline: Edits,
    /// The program with an assumed continuation after the failure, if none is recorded.
    continued: Option<Box<Workload>>,
    follows: Horizon,
    trials: Vec<Trial>,
    is_begun: bool,
    /// The results of the runs of the unchanged program.
    reproduced: Option<bool>,
    unchanged_peak_bytes: Option<u64>,
}

impl RemedySearch {
    /// Lists the changes to try for `oom`, one of the failures of `autopsy`. `workload` is the
    /// program of its device; the allocator may reserve `capacity_bytes`.
    ///
    /// # Errors
    /// If a chunk cannot be read.
    pub fn new(
        recording: &Recording,
        history: &History,
        autopsy: &Autopsy,
        oom: &OutOfMemory,
        workload: &Workload,
        capacity_bytes: Option<u64>,
    ) -> Result<Self, FormatError> {
        let event = oom.failure.event;
        let continued = if oom.is_continued { None } else { workload.continued(event, &oom.step_starts) };
        let follows = match &continued {
            _ if oom.is_continued => Horizon::Recorded,
            Some(_) => Horizon::NextStep,
            None => Horizon::Failure,
        };
        // An assumed continuation replaces the recorded events after the failure.
        let last = if continued.is_some() { event } else { u64::MAX };
        let failed: Vec<u64> = oom.events.iter().copied().filter(|&one| one >= event && one <= last).collect();
        let permitted = autopsy.events_of(oom.failure.device).filter(|one| !failed.contains(one)).collect();
        let mut baseline = Edits::default();
        let is_unused = oom.cause == OomCause::BlockNotUsed && autopsy.settings().max_split_size_bytes.is_none();
        if oom.cause == OomCause::PoolWithoutRelease || is_unused {
            baseline.from_private_pool.extend(&failed);
        }
        // The lower bound of a capacity that is not known exactly: with the upper bound, an
        // insufficient change could look sufficient.
        let capacity_bytes = [capacity_bytes, Some(oom.certain_bytes())].into_iter().flatten().min();
        let mut replay = Replay::new();
        let state = replay.seek(recording, event.saturating_sub(1))?;
        let empty = DeviceState::default();
        let mut trials = Vec::new();
        if let Some(lifetimes) = history.lifetimes(oom.failure.device) {
            let candidates = Candidates {
                oom,
                definitions: recording.definitions(),
                lifetimes,
                device: state.device(oom.failure.device).unwrap_or(&empty),
                workload,
                settings: autopsy.settings(),
                capacity_bytes,
                is_followed: follows != Horizon::Failure,
            };
            let mut lines = autopsy.lines(recording, oom.failure.device);
            trials = candidates.all(&mut lines).into_iter().map(Trial::new).collect();
        }
        Ok(Self {
            settings: autopsy.settings().clone(),
            capacity_bytes,
            cause: oom.cause,
            is_capped: oom.is_capped(),
            obtainable_bytes: oom.failure.obtainable_bytes(),
            failed,
            permitted,
            baseline,
            continued: continued.map(Box::new),
            follows,
            trials,
            is_begun: false,
            reproduced: None,
            unchanged_peak_bytes: None,
        })
    }

    /// Returns the program that the runs change: `workload`, or `workload` with an assumed
    /// continuation after the failure.
    #[must_use]
    pub fn program<'w>(&'w self, workload: &'w Workload) -> &'w Workload {
        self.continued.as_deref().unwrap_or(workload)
    }

    /// Returns the next run, or `None` if all runs are handed out until another result arrives.
    /// After the last result, `None` means that the search is complete.
    pub fn next_run(&mut self) -> Option<RemedyRun> {
        let run = |settings: &Settings, capacity_bytes, edits, purpose| {
            Some(RemedyRun { settings: settings.clone(), capacity_bytes, edits, purpose })
        };
        if !self.is_begun {
            self.is_begun = true;
            return run(&self.settings, self.capacity_bytes, self.baseline.clone(), Purpose::Recorded);
        }
        match (self.reproduced, self.unchanged_peak_bytes) {
            (Some(true), None) => {
                // The result of the run replaces this value.
                self.unchanged_peak_bytes = Some(u64::MAX);
                let unlimited = Settings { limit_bytes: None, ..self.settings.clone() };
                return run(&unlimited, None, self.baseline.clone(), Purpose::Unlimited);
            }
            (Some(true), Some(_)) => {}
            _ => return None,
        }
        let (index, trial) = self.trials.iter_mut().enumerate().find(|(_, trial)| trial.is_waiting())?;
        let number = trial.next;
        let alternative = &trial.candidate.alternatives[number];
        trial.next += 1;
        trial.is_running = true;
        let settings = alternative.settings.as_ref().unwrap_or(&self.settings);
        let edits = alternative.change.edits(&self.failed, &self.baseline);
        let margin = |bytes: u64| if alternative.change.is_division() { bytes / DIVISION_MARGIN } else { 0 };
        let capacity_bytes = self.capacity_bytes.map(|bytes| bytes - margin(bytes));
        run(settings, capacity_bytes, edits, Purpose::Alternative(index, number))
    }

    /// Takes the result of a run that [`next_run`](Self::next_run) returned.
    pub fn finish(&mut self, run: &RemedyRun, result: &RunResult) {
        let is_permitted = |event: &u64| self.permitted.contains(event);
        match run.purpose {
            Purpose::Recorded => {
                let first = self.failed.first();
                let is_recorded = |event: &u64| {
                    // Events after the failed request may be assumed, so they are not compared with
                    // the recording.
                    is_permitted(event) || self.failed.contains(event) || Some(event) > first
                };
                let fails = first.is_some_and(|first| result.failed.contains(first));
                self.reproduced = Some(fails && result.failed.iter().all(is_recorded));
            }
            Purpose::Unlimited => self.unchanged_peak_bytes = Some(result.peak_reserved_bytes),
            Purpose::Alternative(index, number) => {
                let helps = result.failed.iter().all(is_permitted);
                let trial = &mut self.trials[index];
                trial.is_running = false;
                let peak = result.peak_reserved_bytes;
                if helps && trial.best.is_none_or(|(_, best)| peak < best) {
                    trial.best = Some((number, peak));
                }
            }
        }
    }

    /// Returns the number of kinds of changes that have been tried, and the number of all.
    #[must_use]
    pub fn progress(&self) -> (usize, usize) {
        let is_tried = |trial: &&Trial| !trial.is_waiting() && !trial.is_running;
        (self.trials.iter().filter(is_tried).count(), self.trials.len())
    }

    /// Returns the remedies found, once the search is complete.
    #[must_use]
    pub fn into_remedies(self) -> Remedies {
        let unchanged_peak_bytes = self.unchanged_peak_bytes.unwrap_or(0);
        let is_reproduced = self.reproduced == Some(true);
        let is_followed = self.follows != Horizon::Failure;
        let mut remedies = Vec::new();
        for trial in &self.trials {
            let Some((number, peak_reserved_bytes)) = trial.best else { continue };
            let saves_bytes = unchanged_peak_bytes.saturating_sub(peak_reserved_bytes);
            if saves_bytes >= unchanged_peak_bytes / MIN_SAVED_PART {
                remedies.push(Remedy {
                    kind: trial.candidate.kind,
                    detail: trial.candidate.alternatives[number].detail.clone(),
                    saves_bytes,
                    peak_reserved_bytes,
                    is_checked: trial.candidate.is_local || is_followed,
                });
            }
        }
        if is_reproduced {
            remedies.extend(self.more_memory(unchanged_peak_bytes));
        }
        Remedies { is_reproduced, follows: self.follows, unchanged_peak_bytes, remedies }
    }

    /// Returns the memory that the unchanged program needs, as a remedy. A growing program has no
    /// such amount.
    fn more_memory(&self, unchanged_peak_bytes: u64) -> Option<Remedy> {
        let bytes = ByteSize(unchanged_peak_bytes);
        let (kind, detail) = match self.cause {
            OomCause::Leak => return None,
            _ if self.is_capped => (RemedyKind::LargerCap, format!("a cap of at least {bytes}")),
            OomCause::Outside => {
                let missing = ByteSize(unchanged_peak_bytes.saturating_sub(self.obtainable_bytes));
                let detail = format!("free at least {missing} of what other processes or libraries hold");
                (RemedyKind::FreeOutside, detail)
            }
            _ => return None,
        };
        let is_local = self.cause.is_of_allocator() || matches!(self.cause, OomCause::NeverFits | OomCause::Temporary);
        // A repeated step is an approximation, and so is the amount that it needs.
        let is_checked = match self.follows {
            Horizon::Failure => is_local,
            Horizon::NextStep => false,
            Horizon::Recorded => true,
        };
        Some(Remedy { kind, detail, saves_bytes: 0, peak_reserved_bytes: unchanged_peak_bytes, is_checked })
    }
}
