//! Assigns private pools to segments whose pool the recording lacks, from the evidence about which
//! segments belong to different pools.
//!
//! Segments that do not exist at the end are assigned to as few private pools as possible.
//! Assignments in which consecutive requests use one pool are tried first. Running the history
//! through a pool decides whether an assignment is right.

use std::collections::HashMap;

use vramscope_trace::MempoolId;

use super::cursor::assumed_private_pool_id;
use super::history::History;
use super::pool_evidence::{NOT_BOTH_DEFAULT, NOT_ONE_PRIVATE, PoolEvidence, SegmentEvidence};
use super::reconstruct::Reconstructor;
use super::segment_tracker::SegmentIndex;
use crate::settings::Settings;

/// Maximum number of private pools that are assumed for segments whose pool the recording lacks.
/// The search runs once for each number from 0 to this one; no known history needs more.
const MAX_POOLS: usize = 12;
/// Maximum number of comparisons of segments in one search, which assigns segments to a given
/// number of private pools. A search ends after as many, with the assignments that it has found.
const MAX_COMPARISONS: u64 = 1 << 18;
/// Maximum number of entries to read while checking assumed private pools, as a multiple of the
/// history's number of entries. Once they are read, the best assignment found is used.
const MAX_READS: u64 = 8;
/// Minimum of the number of entries that may be read to check assumed private pools; it applies to
/// short histories.
const MIN_READ_ENTRIES: u64 = 50_000;
/// Maximum number of assignments of segments to pools that are tried for each number of assumed
/// private pools.
const MAX_ASSIGNMENTS: usize = 4;

/// A search for the private pools of the segments whose pool the recording lacks.
struct AssignmentSearch<'e> {
    evidence: &'e PoolEvidence,
    /// The segments without a known pool, in the order of creation.
    unknown: Vec<SegmentIndex>,
    /// The recorded or presently assigned pool of each segment; `None` if it has none yet.
    owners: Vec<Option<MempoolId>>,
    /// The private pools that the recording names.
    named: Vec<MempoolId>,
    /// Number of comparisons of segments made so far.
    comparisons: u64,
}

/// Returns the history with pools assigned to the segments whose pool the recording lacks; `None`
/// if no assignment helps. An assignment helps if it lets the calls of the whole history, or at
/// least of more than its first `matched` entries, be reconstructed.
pub(super) fn with_assumed_private_pools(history: &History, settings: &Settings, matched: usize) -> Option<History> {
    if history.has_pools_of_freed_segments || history.short_lived.is_empty() {
        return None;
    }
    let evidence = PoolEvidence::new(history, settings);
    let mut search = AssignmentSearch::new(&evidence);
    let mut budget = (history.entries.len() as u64).saturating_mul(MAX_READS).max(MIN_READ_ENTRIES);
    let (mut best, mut best_matched) = (None, matched);
    for pools in 0..=MAX_POOLS.min(search.unknown.len()) {
        for assignment in search.assignments(pools) {
            let named = history.with_owners(&assignment, pools);
            let Ok(mut reconstructor) = Reconstructor::new(&named, settings, false) else { return best };
            reconstructor.run();
            let (matched, is_complete) = (reconstructor.matched(), reconstructor.mismatch().is_none());
            budget = budget.saturating_sub(reconstructor.entries_read());
            if matched > best_matched || is_complete {
                (best, best_matched) = (Some(named), matched);
            }
            if is_complete || budget == 0 {
                return best;
            }
        }
    }
    best
}

impl<'e> AssignmentSearch<'e> {
    fn new(evidence: &'e PoolEvidence) -> Self {
        let owners: Vec<Option<MempoolId>> = evidence.segments.iter().map(|evidence| evidence.owner).collect();
        let unknown = (0..owners.len()).filter(|&segment| owners[segment].is_none()).collect();
        let is_private = |owner: &MempoolId| *owner != MempoolId::default();
        let mut named: Vec<MempoolId> = owners.iter().flatten().copied().filter(is_private).collect();
        named.sort_unstable();
        named.dedup();
        Self { evidence, unknown, owners, named, comparisons: MAX_COMPARISONS }
    }

    /// Returns the assignments of segments to pools, at most [`MAX_ASSIGNMENTS`], that use exactly
    /// `pools` assumed private pools and that the events of the history do not exclude.
    fn assignments(&mut self, pools: usize) -> Vec<HashMap<SegmentIndex, MempoolId>> {
        let mut assignments = Vec::new();
        // For each segment up to the present one, the pools left to try (the next one last) and the
        // number of assumed private pools in use before it.
        let mut open: Vec<(Vec<MempoolId>, usize)> = Vec::new();
        let mut used = 0;
        self.comparisons = MAX_COMPARISONS;
        loop {
            if open.len() == self.unknown.len() {
                if used == pools {
                    let is_private = |&segment: &SegmentIndex| Some((segment, self.owners[segment]?));
                    assignments.push(self.unknown.iter().filter_map(is_private).collect());
                }
                if assignments.len() == MAX_ASSIGNMENTS || self.unknown.is_empty() {
                    break;
                }
            } else {
                let segment = self.unknown[open.len()];
                open.push((self.candidates(segment, used, pools), used));
            }
            match self.advance(&mut open) {
                Some(used_now) => used = used_now,
                None => break,
            }
        }
        self.unknown.iter().for_each(|&segment| self.owners[segment] = None);
        assignments
    }

    /// Assigns the next candidate pool to the last segment in `open` that has an untried one.
    /// Returns how many assumed private pools are then in use; `None` if no candidate is left or
    /// the limit of comparisons is reached. For each assigned segment, `open` has its untried
    /// candidates and the number of assumed private pools in use before it.
    fn advance(&mut self, open: &mut Vec<(Vec<MempoolId>, usize)>) -> Option<usize> {
        loop {
            let segment = self.unknown[open.len().checked_sub(1)?];
            self.owners[segment] = None;
            let (left, used) = open.last_mut()?;
            let Some(owner) = left.pop() else {
                open.pop();
                continue;
            };
            let evidence = &self.evidence.segments[segment];
            let in_runs: usize = evidence.runs.iter().map(|&run| self.evidence.runs[run].len()).sum();
            self.comparisons =
                self.comparisons.checked_sub((1 + evidence.other_pool_segments.len() + in_runs) as u64)?;
            let used = *used + usize::from(owner == assumed_private_pool_id(*used));
            if self.may_belong_to(segment, owner) {
                self.owners[segment] = Some(owner);
                return Some(used);
            }
        }
    }

    /// Returns the pools to try for a segment, most likely last. The most likely ones served the
    /// requests of the segment's stream before and after it was created. `used` is the number of
    /// assumed private pools in use so far, `pools` the maximum.
    fn candidates(&self, segment: SegmentIndex, used: usize, pools: usize) -> Vec<MempoolId> {
        let SegmentEvidence { before, after, .. } = self.evidence.segments[segment];
        let neighbors = [before, after].into_iter().flatten().filter_map(|neighbor| self.owners[neighbor]);
        let assumed = (0..pools.min(used + 1)).map(assumed_private_pool_id);
        let all = neighbors.chain([MempoolId::default()]).chain(self.named.iter().copied()).chain(assumed);
        let mut candidates: Vec<MempoolId> = Vec::new();
        for owner in all {
            if !candidates.contains(&owner) {
                candidates.push(owner);
            }
        }
        candidates.reverse();
        candidates
    }

    /// Returns true if `segment` may belong to the pool `owner`; false if the events of the
    /// history, with the pools assigned to other segments so far, exclude it.
    fn may_belong_to(&self, segment: SegmentIndex, owner: MempoolId) -> bool {
        let exclusion = if owner == MempoolId::default() { NOT_BOTH_DEFAULT } else { NOT_ONE_PRIVATE };
        let evidence = &self.evidence.segments[segment];
        let is_excluded = |&(other, exclusions): &(SegmentIndex, u8)| {
            exclusions & exclusion != 0 && self.owners[other] == Some(owner)
        };
        !evidence.other_pool_segments.iter().any(is_excluded)
            && evidence.runs.iter().all(|&run| self.is_contiguous_in_run(&self.evidence.runs[run], segment, owner))
    }

    /// Returns true if the segments of each pool are adjacent in `run` when `segment` belongs to
    /// `owner`; false if segments of another pool are between them. `run` is a series of segments
    /// released in a row, and one call releases all of a pool's free segments together.
    fn is_contiguous_in_run(&self, run: &[SegmentIndex], segment: SegmentIndex, owner: MempoolId) -> bool {
        let Some(position) = run.iter().position(|&it| it == segment) else { return true };
        let (below, above) = (&run[..position], &run[position + 1..]);
        // On each side of the segment, other pools' segments must not be followed by more of
        // `owner`, and no other pool may be on both sides.
        let mut others = Vec::new();
        for (side, segments) in [below.iter().rev().collect::<Vec<_>>(), above.iter().collect()].into_iter().enumerate()
        {
            let mut passed_other_pool = false;
            for other in segments.into_iter().filter_map(|&segment| self.owners[segment]) {
                if other != owner {
                    passed_other_pool = true;
                    if others.contains(&(1 - side, other)) {
                        return false;
                    }
                    if others.last() != Some(&(side, other)) {
                        others.push((side, other));
                    }
                } else if passed_other_pool {
                    return false;
                }
            }
        }
        true
    }
}
