//! Checks remedies by simulation.

use std::collections::BTreeSet;

use vramscope_pool::Settings;
use vramscope_pool::rerun::{Edits, Simulation, Workload};
use vramscope_trace::{FormatError, NullSink, Recording};

use super::analysis::Autopsy;
use super::candidate::{Candidate, Remedy};
use super::cause::OomCause;
use super::out_of_memory::OutOfMemory;
use super::remedies::{Candidates, same_kind};
use crate::history::History;

/// Tries what would have prevented one failure. Candidates do not depend on each other: callers
/// with threads check several at once.
#[derive(Clone, Debug)]
pub struct RemedySearch {
    settings: Settings,
    capacity_bytes: Option<u64>,
    needed_bytes: u64,
    failed: u64,
    /// Failures that a changed run may still have: the recorded ones of other requests.
    permitted: BTreeSet<u64>,
    /// The failed request and later ones of its kind.
    same_kind: BTreeSet<u64>,
    candidates: Vec<Candidate>,
    /// What is not recorded of the program: that the failed request was for a private pool.
    baseline: Edits,
}

impl RemedySearch {
    /// Lists the changes to try for `oom`, one of the failures of `autopsy`. `settings` are the
    /// recorded ones; the allocator may reserve `capacity_bytes`.
    ///
    /// # Errors
    /// If a chunk cannot be read.
    pub fn new(
        recording: &Recording,
        history: &History,
        autopsy: &Autopsy,
        oom: &OutOfMemory,
        settings: &Settings,
        capacity_bytes: Option<u64>,
    ) -> Result<Self, FormatError> {
        let same_kind = same_kind(autopsy, oom);
        let mut baseline = Edits::default();
        if oom.cause == OomCause::PoolWithoutRelease {
            same_kind.iter().for_each(|&event| baseline.request_from_private_pool(event));
        }
        let same = &same_kind;
        let candidates =
            Candidates { recording, history, settings, oom, same_kind: same, baseline: &baseline }.all()?;
        // Never more than what the program could have had: a limit that is not known exactly
        // could make a change look sufficient that is not.
        let capacity_bytes = [capacity_bytes, Some(oom.certain_bytes())].into_iter().flatten().min();
        let all = autopsy.ooms.iter().map(|one| one.failure.event);
        Ok(Self {
            settings: settings.clone(),
            capacity_bytes,
            needed_bytes: oom.failure.usage.reserved_bytes.saturating_add(oom.failure.segment_bytes),
            failed: oom.failure.event,
            permitted: all.filter(|event| !same_kind.contains(event)).collect(),
            same_kind,
            candidates,
            baseline,
        })
    }

    /// Returns the candidates, the smallest change first.
    #[must_use]
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// Returns true if the unchanged program fails in the simulation as it was recorded. Otherwise
    /// no remedy can be checked.
    #[must_use]
    pub fn is_reproduced(&self, workload: &Workload) -> bool {
        let failed = workload.edited(&self.baseline).failed_requests(&self.settings, self.capacity_bytes);
        let is_recorded = |event| self.permitted.contains(event) || self.same_kind.contains(event);
        failed.contains(&self.failed) && failed.iter().all(is_recorded)
    }

    /// Simulates the alternatives of a candidate in order, and returns the first that helps: in its
    /// run neither the failed request nor another fails, other than those recorded as failed.
    #[must_use]
    pub fn check(&self, workload: &Workload, candidate: &Candidate) -> Option<Remedy> {
        candidate.alternatives.iter().find_map(|alternative| {
            let edited = workload.edited(&alternative.edits);
            let mut run = Simulation::new(&*edited, &alternative.settings, self.capacity_bytes, NullSink);
            run.advance(usize::MAX);
            if !run.failed_requests().iter().all(|event| self.permitted.contains(event)) {
                return None;
            }
            let peak_reserved_bytes = run.summary().peak_reserved_bytes;
            Some(Remedy {
                kind: candidate.kind,
                detail: alternative.detail.clone(),
                saves_bytes: self.needed_bytes.saturating_sub(peak_reserved_bytes),
                peak_reserved_bytes,
            })
        })
    }
}
