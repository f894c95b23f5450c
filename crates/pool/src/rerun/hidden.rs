//! Private pools that a recording does not name, found from what is known of which segments are of different pools.
//!
//! The segments that are gone at the end and of which nothing is said are given to as few private pools as it takes. Of several ways to do
//! so the one is tried first in which requests change the pool seldom. Whether it explains the history, the pool itself says.

use std::collections::HashMap;

use vramscope_trace::MempoolId;

use super::areas::AreaIndex;
use super::evidence::{Evidence, Fact, NOT_BOTH_DEFAULT, NOT_ONE_PRIVATE};
use super::history::History;
use super::read::Reader;
use super::script::assumed_pool;
use crate::settings::Settings;

/// More private pools at a time nobody has needed, and each is a search.
const MOST_POOLS: usize = 12;
/// Comparisons with other segments that the search may cost, for each number of pools.
const MOST_COMPARISONS: u64 = 1 << 18;
/// How often the history may be read, counted in its entries; short ones more often.
const MOST_READINGS: u64 = 8;
const LEAST_ENTRIES: u64 = 50_000;
/// Ways to give segments to the same number of pools.
const MOST_WAYS: usize = 4;

/// Gives segments to pools.
struct Search<'e> {
    evidence: &'e Evidence,
    /// The segments whose pool is to be found, in the order in which they came.
    unknown: Vec<AreaIndex>,
    /// By segment.
    owners: Vec<Option<MempoolId>>,
    /// Pools that the recording names.
    named: Vec<MempoolId>,
    comparisons: u64,
}

/// The history with private pools named where it names none, so that it can be read to the end, or else further than `matched` entries.
/// Nothing where naming none leads as far.
pub(super) fn with_hidden_pools(history: &History, settings: &Settings, matched: usize) -> Option<History> {
    if history.names_lost_pools || history.short_lived.is_empty() {
        return None;
    }
    let evidence = Evidence::of(history, settings);
    let mut search = Search::new(&evidence);
    let mut budget = (history.entries.len() as u64).saturating_mul(MOST_READINGS).max(LEAST_ENTRIES);
    let (mut best, mut furthest) = (None, matched);
    for pools in 0..=MOST_POOLS.min(search.unknown.len()) {
        for way in search.ways(pools) {
            let named = history.with_owners(&way, pools);
            let Ok(mut reader) = Reader::new(&named, settings, false) else { return best };
            reader.read();
            let (matched, is_whole) = (reader.matched(), reader.mismatch().is_none());
            budget = budget.saturating_sub(reader.read_entries());
            if matched > furthest || is_whole {
                (best, furthest) = (Some(named), matched);
            }
            if is_whole || budget == 0 {
                return best;
            }
        }
    }
    best
}

impl<'e> Search<'e> {
    fn new(evidence: &'e Evidence) -> Self {
        let owners: Vec<Option<MempoolId>> = evidence.facts.iter().map(|fact| fact.owner).collect();
        let unknown = (0..owners.len()).filter(|&area| owners[area].is_none()).collect();
        let private = |owner: &MempoolId| *owner != MempoolId::default();
        let mut named: Vec<MempoolId> = owners.iter().flatten().copied().filter(private).collect();
        named.sort_unstable();
        named.dedup();
        Self { evidence, unknown, owners, named, comparisons: MOST_COMPARISONS }
    }

    /// Ways to give every segment a pool so that `pools` private ones are used that have no name.
    fn ways(&mut self, pools: usize) -> Vec<HashMap<AreaIndex, MempoolId>> {
        let mut ways = Vec::new();
        // The pools left to try for each segment up to the present one, the next one last, and how many were in use before it.
        let mut open: Vec<(Vec<MempoolId>, usize)> = Vec::new();
        let mut used = 0;
        self.comparisons = MOST_COMPARISONS;
        loop {
            if open.len() == self.unknown.len() {
                if used == pools {
                    let private = |&area: &AreaIndex| Some((area, self.owners[area]?));
                    ways.push(self.unknown.iter().filter_map(private).collect());
                }
                if ways.len() == MOST_WAYS || self.unknown.is_empty() {
                    break;
                }
            } else {
                let area = self.unknown[open.len()];
                open.push((self.candidates(area, used, pools), used));
            }
            match self.next(&mut open) {
                Some(now) => used = now,
                None => break,
            }
        }
        self.unknown.iter().for_each(|&area| self.owners[area] = None);
        ways
    }

    /// Gives the last segment that has a pool left to try the next one. Returns how many are in use then.
    fn next(&mut self, open: &mut Vec<(Vec<MempoolId>, usize)>) -> Option<usize> {
        loop {
            let area = self.unknown[open.len().checked_sub(1)?];
            self.owners[area] = None;
            let (left, used) = open.last_mut()?;
            let Some(owner) = left.pop() else {
                open.pop();
                continue;
            };
            let fact = &self.evidence.facts[area];
            let in_runs: usize = fact.runs.iter().map(|&run| self.evidence.runs[run].len()).sum();
            self.comparisons = self.comparisons.checked_sub((1 + fact.others.len() + in_runs) as u64)?;
            let used = *used + usize::from(owner == assumed_pool(*used));
            if self.may_have(area, owner) {
                self.owners[area] = Some(owner);
                return Some(used);
            }
        }
    }

    /// The pools to try for a segment, the likeliest last: first those that requests of its stream asked before and behind it.
    fn candidates(&self, area: AreaIndex, used: usize, pools: usize) -> Vec<MempoolId> {
        let Fact { before, behind, .. } = self.evidence.facts[area];
        let beside = [before, behind].into_iter().flatten().filter_map(|beside| self.owners[beside]);
        let assumed = (0..pools.min(used + 1)).map(assumed_pool);
        let all = beside.chain([MempoolId::default()]).chain(self.named.iter().copied()).chain(assumed);
        let mut candidates: Vec<MempoolId> = Vec::new();
        for owner in all {
            if !candidates.contains(&owner) {
                candidates.push(owner);
            }
        }
        candidates.reverse();
        candidates
    }

    fn may_have(&self, area: AreaIndex, owner: MempoolId) -> bool {
        let how = if owner == MempoolId::default() { NOT_BOTH_DEFAULT } else { NOT_ONE_PRIVATE };
        let fact = &self.evidence.facts[area];
        let is_other = |&(other, differs): &(AreaIndex, u8)| differs & how != 0 && self.owners[other] == Some(owner);
        !fact.others.iter().any(is_other)
            && fact.runs.iter().all(|&run| self.is_in_one_piece(&self.evidence.runs[run], area, owner))
    }

    /// Whether the segments of each pool follow each other in a run, with `area` of `owner`.
    fn is_in_one_piece(&self, run: &[AreaIndex], area: AreaIndex, owner: MempoolId) -> bool {
        let Some(place) = run.iter().position(|&it| it == area) else { return true };
        let (below, above) = (&run[..place], &run[place + 1..]);
        // Beyond the next segments of other pools there is none of the same, and none of those on both sides.
        let mut others = Vec::new();
        for (side, segments) in [below.iter().rev().collect::<Vec<_>>(), above.iter().collect()].into_iter().enumerate()
        {
            let mut is_left = false;
            for other in segments.into_iter().filter_map(|&segment| self.owners[segment]) {
                if other != owner {
                    is_left = true;
                    if others.contains(&(1 - side, other)) {
                        return false;
                    }
                    if others.last() != Some(&(side, other)) {
                        others.push((side, other));
                    }
                } else if is_left {
                    return false;
                }
            }
        }
        true
    }
}
