//! The passes through the model: where the backward passes are.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::evidence::{Evidence, RequestEvidence, RequestPhase};

/// A backward pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BackwardPass {
    /// The moment of its first request.
    pub(super) first: u64,
    /// The moment of its last request.
    pub(super) last: u64,
    /// The indexes of its requests.
    pub(super) requests: Range<usize>,
}

/// The backward passes of a program, in order. Backward passes of several losses, or of the parts
/// of a batch, count as one each.
#[derive(Clone, Debug, Default)]
pub(super) struct Passes(Vec<BackwardPass>);

impl Passes {
    /// Finds the backward passes: requests in a row that the backward pass made.
    pub(super) fn new(requests: &[RequestEvidence]) -> Self {
        let mut passes = Vec::new();
        let mut index = 0;
        while index < requests.len() {
            let length = requests[index..].iter().take_while(|one| one.phase == RequestPhase::Backward).count();
            if length > 0 {
                let range = index..index + length;
                let (first, last) = (requests[index].first, requests[range.end - 1].first);
                passes.push(BackwardPass { first, last, requests: range });
            }
            index += length.max(1);
        }
        Self(passes)
    }

    /// Returns the backward passes, in order.
    pub(super) fn all(&self) -> &[BackwardPass] {
        &self.0
    }

    /// Returns true if the program has no backward pass.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the index of the first backward pass that begins after `moment`: the number of
    /// passes that have begun.
    pub(super) fn next_index(&self, moment: u64) -> usize {
        self.0.partition_point(|pass| pass.first <= moment)
    }

    /// Returns the first backward pass that begins after `moment`.
    pub(super) fn next(&self, moment: u64) -> Option<&BackwardPass> {
        self.0.get(self.next_index(moment))
    }
}

/// The part of the highest live bytes by which they must fall or rise until a pass ends: 3 / 10.
const TURN: (u64, u64) = (3, 10);
/// Maximum lifetime, in events, of scratch memory, which says nothing about passes.
const SCRATCH_EVENTS: u64 = 4;

/// Sets [`RequestPhase::Backward`] for the requests of a recording without stacks that are made
/// while the live bytes fall.
///
/// Only blocks that a step keeps for a while count, and not those of the sizes of memory that
/// lasts: gradients and the temporaries of an optimizer's step have the parameters' sizes, and rise
/// while activations fall.
pub(super) fn find_by_live_bytes(evidence: &mut Evidence<'_>) {
    let (late, half) = (evidence.moment_after(9), evidence.moment_after(5) - evidence.range.0);
    let lasts = |one: &RequestEvidence| one.end == u64::MAX || one.end > late && one.end - one.first > half;
    let is_step = |one: &&RequestEvidence| !lasts(one) && one.end - one.first > SCRATCH_EVENTS;
    let bytes = |requests: &mut dyn Iterator<Item = &RequestEvidence>| -> u64 {
        requests.fold(0, |sum, one| sum.saturating_add(one.size))
    };
    let lasting: BTreeSet<u64> = evidence.requests.iter().filter(|one| lasts(one)).map(|one| one.size).collect();
    let of_steps = || evidence.requests.iter().filter(is_step);
    let other_sizes = bytes(&mut of_steps().filter(|one| !lasting.contains(&one.size)));
    let has_other_sizes = other_sizes >= bytes(&mut of_steps()) / 5;
    let counted = of_steps().filter(|one| !has_other_sizes || !lasting.contains(&one.size));
    let mut changes: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for one in counted {
        let begun = &mut changes.entry(one.first).or_default().0;
        *begun = begun.saturating_add(one.size);
        let ended = &mut changes.entry(one.end).or_default().1;
        *ended = ended.saturating_add(one.size);
    }
    let falls = falls(&changes);
    for one in evidence.requests.iter_mut().filter(|one| one.phase == RequestPhase::Other) {
        let after = falls.partition_point(|(from, _)| *from < one.first);
        if after > 0 && one.first <= falls[after - 1].1 {
            one.phase = RequestPhase::Backward;
        }
    }
}

/// Returns the spans in which live bytes fall: from the moment of a maximum to that of the next
/// minimum. `changes` has the bytes that begin and end, by moment. Empty with fewer than two.
fn falls(changes: &BTreeMap<u64, (u64, u64)>) -> Vec<(u64, u64)> {
    let mut live = 0u64;
    let series: Vec<(u64, u64)> = changes
        .iter()
        .map(|(moment, (begun, ended))| {
            live = live.saturating_add(*begun).saturating_sub(*ended);
            (*moment, live)
        })
        .collect();
    let highest = series.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    let turn = highest / TURN.1 * TURN.0;
    let mut spans = Vec::new();
    let (mut high, mut low) = ((0, 0), (0, 0));
    let mut is_rising = true;
    for (moment, bytes) in series {
        if is_rising {
            if bytes >= high.1 {
                high = (moment, bytes);
            } else if high.1 - bytes > turn {
                (is_rising, low) = (false, (moment, bytes));
            }
        } else if bytes < low.1 {
            low = (moment, bytes);
        } else if bytes - low.1 > turn {
            spans.push((high.0, low.0));
            (is_rising, high) = (true, (moment, bytes));
        }
    }
    if !is_rising {
        spans.push((high.0, low.0));
    }
    if spans.len() < 2 { Vec::new() } else { spans }
}
