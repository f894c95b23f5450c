//! The state machine that chooses runs and collects their figures.

use std::collections::VecDeque;

use vramscope_pool::Settings;
use vramscope_pool::rerun::{RunSummary, Workload};

use super::candidates::Candidates;
use super::capacity_search::{CapacitySearch, Probe};
use super::request_profile::RequestProfile;
use super::result::{Advice, is_worthwhile};
use super::trial::Trial;

/// Number of tried settings at which refinement stops, to limit the time: a run of 4,000,000 events
/// takes 0.3 s.
const MAX_TRIALS: usize = 20;

/// A simulated run that an [`Advisor`] needs.
#[derive(Clone, Debug)]
pub struct Run {
    /// The settings.
    pub settings: Settings,
    /// Maximum bytes that the allocator may reserve; `None` for no limit.
    pub capacity_bytes: Option<u64>,
    /// Whether the run may end at its first request that fails with out of memory.
    pub stop_at_first_oom: bool,
    purpose: Purpose,
}

impl Run {
    /// Simulates the whole run and returns its figures.
    #[must_use]
    pub fn simulate(&self, workload: &Workload) -> RunSummary {
        match self.stop_at_first_oom {
            true => workload.simulate_to_first_oom(&self.settings, self.capacity_bytes),
            false => workload.simulate(&self.settings, self.capacity_bytes),
        }
    }
}

/// The purpose of a simulated run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// The trial with this index in [`Advisor::trials`].
    Trial(usize),
    /// A run of the bisection with this index in [`Advisor::searches`].
    Probe(usize, Probe),
}

/// The rounds of runs, in order. Each depends on the results of the rounds before it; only the
/// bisection under the recorded settings does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    SingleKeys,
    Combinations,
    Refinement,
    Capacities,
}

/// Chooses the simulated runs that answer which settings are best, and collects their figures.
///
/// [`next_run`](Self::next_run) returns runs until the next one depends on results that are still
/// missing. The caller makes several at once if it can, and passes each result to
/// [`finish`](Self::finish).
#[derive(Clone, Debug)]
pub struct Advisor {
    candidates: Candidates,
    recorded: RunSummary,
    capacity_bytes: Option<u64>,
    round: Round,
    /// Runs of the round that have not been handed out.
    waiting: VecDeque<Run>,
    /// Number of trials and of runs of the bisections that were handed out and are not finished.
    outstanding_trials: usize,
    outstanding_probes: usize,
    /// Settings tried, in the order in which they were chosen; without figures until the run is
    /// finished.
    trials: Vec<Trial>,
    /// The bisections under the recorded and then the best settings, each with whether a run is
    /// outstanding. The first one begins once the trial of the recorded settings is finished.
    searches: Vec<(CapacitySearch, bool)>,
    finished_runs: usize,
}

impl Advisor {
    /// Prepares the runs for a program that was recorded under `recorded` settings and whose
    /// allocator may reserve `capacity_bytes` (`None`: unlimited or unknown).
    #[must_use]
    pub fn new(workload: &Workload, recorded: &Settings, capacity_bytes: Option<u64>) -> Self {
        let candidates = Candidates::new(RequestProfile::new(workload, capacity_bytes), recorded);
        let mut advisor = Self {
            candidates,
            recorded: workload.recorded,
            capacity_bytes,
            round: Round::SingleKeys,
            waiting: VecDeque::new(),
            outstanding_trials: 0,
            outstanding_probes: 0,
            trials: Vec::new(),
            searches: Vec::new(),
            finished_runs: 0,
        };
        let singles = advisor.candidates.single(recorded);
        advisor.add_trials(singles);
        advisor.trials[0].is_recorded = true;
        advisor
    }

    /// Returns the next run, or `None` if all runs are handed out until another result arrives.
    /// After the last result, `None` means that the advice is complete.
    pub fn next_run(&mut self) -> Option<Run> {
        while self.waiting.is_empty() && self.outstanding_trials == 0 && self.round != Round::Capacities {
            self.begin_next_round();
        }
        if let Some(run) = self.waiting.pop_front() {
            self.outstanding_trials += 1;
            return Some(run);
        }
        let run = self.next_probe()?;
        self.outstanding_probes += 1;
        Some(run)
    }

    /// Takes the figures of a run that [`next_run`](Self::next_run) returned.
    pub fn finish(&mut self, run: &Run, summary: RunSummary) {
        self.finished_runs += 1;
        match run.purpose {
            Purpose::Trial(index) => {
                self.outstanding_trials -= 1;
                self.trials[index].predicted = summary;
                if self.trials[index].is_recorded {
                    // Its runs use processors that would otherwise wait for the last run of the
                    // round.
                    self.add_search(index);
                }
            }
            Purpose::Probe(index, probe) => {
                self.outstanding_probes -= 1;
                let (search, is_outstanding) = &mut self.searches[index];
                search.finish(probe, summary);
                *is_outstanding = false;
            }
        }
    }

    /// Returns the number of runs that were handed out and are not finished.
    #[must_use]
    pub fn outstanding_runs(&self) -> usize {
        self.outstanding_trials + self.outstanding_probes
    }

    /// Returns the number of finished runs and an estimate of the number of all runs.
    #[must_use]
    pub fn progress(&self) -> (usize, usize) {
        /// Number of runs of a typical bisection, to estimate the progress.
        const PROBES: usize = 12;
        let finished_trials = self.trials.len() - self.waiting.len() - self.outstanding_trials;
        let probes = PROBES.saturating_sub(self.finished_runs - finished_trials);
        let rest = match self.round {
            Round::SingleKeys => 8 + probes,
            Round::Combinations => 3 + probes,
            Round::Refinement => probes,
            Round::Capacities => self.searches.iter().filter(|(search, _)| search.next_probe().is_some()).count(),
        };
        (self.finished_runs, self.finished_runs + self.outstanding_runs() + self.waiting.len() + rest)
    }

    /// Returns the advice; `None` before all runs are finished.
    #[must_use]
    pub fn into_advice(mut self) -> Option<Advice> {
        if self.next_run().is_some() || self.outstanding_runs() > 0 {
            return None;
        }
        let mut smallest = self.searches.iter().map(|(search, _)| search.result());
        let (smallest_recorded, smallest_best) = (smallest.next().flatten(), smallest.next().flatten());
        let floor_bytes = self.candidates.floor_bytes();
        Some(Advice {
            recorded: self.recorded,
            floor_bytes,
            tried: self.ranked(),
            smallest_recorded,
            smallest_best,
            packed_bytes: None,
        })
    }

    /// Chooses the runs of the next round. A round may have none.
    fn begin_next_round(&mut self) {
        let ranked = self.ranked();
        self.round = match self.round {
            Round::SingleKeys => {
                let settings = self.candidates.combined(&ranked);
                self.add_trials(settings);
                Round::Combinations
            }
            Round::Combinations | Round::Refinement | Round::Capacities => {
                let room = MAX_TRIALS.saturating_sub(self.trials.len());
                let settings = self.candidates.refined(&ranked, room);
                if settings.is_empty() {
                    if is_worthwhile(&ranked)
                        && let Some(best) = self.trials.iter().position(|trial| trial.settings == ranked[0].settings)
                    {
                        self.add_search(best);
                    }
                    Round::Capacities
                } else {
                    self.add_trials(settings);
                    Round::Refinement
                }
            }
        };
    }

    /// Prepares the bisection under the settings of the finished trial with the index `trial`.
    fn add_search(&mut self, trial: usize) {
        let Trial { settings, predicted, .. } = &self.trials[trial];
        let search = CapacitySearch::new(settings, self.candidates.floor_bytes());
        self.searches.push((search.with_earlier_run(*predicted), false));
    }

    /// Adds a trial for each of the settings, and its run.
    fn add_trials(&mut self, settings: Vec<Settings>) {
        for settings in settings {
            let purpose = Purpose::Trial(self.trials.len());
            let capacity_bytes = self.capacity_bytes;
            self.waiting.push_back(Run {
                settings: settings.clone(),
                capacity_bytes,
                stop_at_first_oom: false,
                purpose,
            });
            self.trials.push(Trial { settings, predicted: RunSummary::default(), is_recorded: false });
        }
    }

    /// Returns all trials, best first.
    fn ranked(&self) -> Vec<Trial> {
        let mut ranked = self.trials.clone();
        ranked.sort_by(Trial::rank);
        ranked
    }

    /// Returns the next run of a bisection that has none outstanding.
    fn next_probe(&mut self) -> Option<Run> {
        let searches = self.searches.iter_mut().enumerate();
        let mut idle = searches.filter(|(_, (_, is_outstanding))| !is_outstanding);
        idle.find_map(|(index, (search, is_outstanding))| {
            let probe = search.next_probe()?;
            *is_outstanding = true;
            let capacity_bytes = if let Probe::Bytes(bytes) = probe { Some(bytes) } else { None };
            let purpose = Purpose::Probe(index, probe);
            Some(Run { settings: search.settings().clone(), capacity_bytes, stop_at_first_oom: true, purpose })
        })
    }
}
