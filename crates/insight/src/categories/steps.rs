//! What steps request besides gradients: optimizer state, scratch memory, input and activations.

use std::collections::{BTreeMap, HashMap, HashSet};

use vramscope_trace::Category;

use super::evidence::{RequestEvidence, RequestPhase};
use super::infer::{Inference, MIN_KEPT};
use super::passes::BackwardPass;
use super::sizes::count;

/// Minimum bytes of scratch memory of a library.
const MIN_SCRATCH: u64 = 1 << 20;
/// Number of backward passes, at most, that must begin with a copy that is optimizer state.
const MAX_COMPARED_PASSES: usize = 16;

impl Inference<'_> {
    /// Returns the lines of the program that make a copy of the parameters between two backward
    /// passes (the site and the number of passes before it), and whether the copy is optimizer
    /// state: from the first one on, each backward pass begins with a copy of this line. Other
    /// copies are gradients, added up or kept for each part of a batch.
    pub(super) fn lines_of_copies(&self) -> HashMap<(u32, usize), Category> {
        if !self.evidence.has_stacks {
            return HashMap::new();
        }
        let mut gradients_end = vec![0; self.passes.all().len() + 1];
        for (one, known) in self.requests.iter().zip(&self.known) {
            if known.is_some_and(|known| known.category == Category::Gradient) {
                let passed = self.passes.next_index(one.first);
                gradients_end[passed] = one.end.max(gradients_end[passed]);
            }
        }
        let mut lines: BTreeMap<u32, BTreeMap<usize, Vec<RequestEvidence>>> = BTreeMap::new();
        for index in self.unknown() {
            let one = self.requests[index];
            let passed = self.passes.next_index(one.first);
            // Without modules, a forward pass of the program's own may request these sizes.
            let is_outside = self.has_modules || one.first < gradients_end[passed];
            if one.phase == RequestPhase::Other && is_outside && self.parameters.has_width_of(one.size) {
                lines.entry(one.site).or_default().entry(passed).or_default().push(one);
            }
        }
        let mut copies = HashMap::new();
        for (site, mut by_pass) in lines {
            by_pass.retain(|_, blocks| self.parameters.is_copy(&count(blocks.iter().map(|one| one.size))));
            let category = if self.is_always_live(&by_pass) { Category::OptimizerState } else { Category::Gradient };
            copies.extend(by_pass.into_keys().map(|passed| ((site, passed), category)));
        }
        copies
    }

    /// Returns true if each of the backward passes after the first of some copies begins with a
    /// live one. `by_pass` has the blocks of the copies by the number of passes before them.
    fn is_always_live(&self, by_pass: &BTreeMap<usize, Vec<RequestEvidence>>) -> bool {
        let Some(first) = by_pass.keys().next().copied().filter(|first| *first > 0) else { return false };
        let is_live = |(number, pass): (usize, &BackwardPass)| {
            let blocks = by_pass.range(..=number).flat_map(|(_, blocks)| blocks);
            let blocks = blocks.filter(|one| one.first <= pass.first && pass.first < one.end);
            self.parameters.is_copy(&count(blocks.map(|one| one.size)))
        };
        self.passes.all().iter().enumerate().skip(first).take(MAX_COMPARED_PASSES).all(is_live)
    }

    /// What an optimizer keeps, scratch memory of libraries, and all that the backward pass and the
    /// optimizer free.
    pub(super) fn states_and_scratch(&mut self, copies: &HashMap<(u32, usize), Category>) {
        let kept: HashSet<u64> = self.requests.iter().filter(|one| !one.is_momentary()).map(|one| one.size).collect();
        let steps = self.passes.all().len().max(1) as u64;
        let half_step = self.evidence.range.1.saturating_sub(self.first_pass) / steps / 2;
        for index in self.unknown() {
            let one = self.requests[index];
            let passed = self.passes.next_index(one.first);
            let outlives_next = match self.passes.all().get(passed) {
                Some(pass) => one.end > pass.last,
                None => one.end == u64::MAX,
            };
            let is_scratch = one.is_momentary() && one.size >= MIN_SCRATCH && !kept.contains(&one.size);
            let category = match one.phase {
                RequestPhase::Forward | RequestPhase::Backward if is_scratch => Category::Workspace,
                RequestPhase::Backward if self.evidence.site(&one).is_recomputed => Category::Activation,
                RequestPhase::Backward => Category::Temporary,
                RequestPhase::Optimizer if outlives_next || self.outlives_last(&one, half_step) => {
                    Category::OptimizerState
                }
                RequestPhase::Optimizer => Category::Temporary,
                RequestPhase::Other if outlives_next => match copies.get(&(one.site, passed)) {
                    Some(category) => *category,
                    None => continue,
                },
                RequestPhase::Forward | RequestPhase::Other | RequestPhase::Older => continue,
            };
            self.set(index, category);
        }
    }

    /// Returns true if a block that is requested after the last backward pass lives for longer than
    /// `half_step` events.
    fn outlives_last(&self, one: &RequestEvidence, half_step: u64) -> bool {
        self.passes.next(one.first).is_none() && one.end.saturating_sub(one.first) > half_step
    }

    /// What the program requests before the first module of a step is input; the rest of the
    /// forward pass is activations and temporaries.
    pub(super) fn inputs_and_activations(&mut self) {
        let mut is_before_modules = true;
        let mut passed = usize::MAX;
        let mut first_site = None;
        for index in 0..self.requests.len() {
            let one = self.requests[index];
            let next = self.passes.next_index(one.first);
            if next != passed || matches!(one.phase, RequestPhase::Backward | RequestPhase::Optimizer) {
                (passed, is_before_modules, first_site) = (next, true, None);
            }
            is_before_modules &= one.phase != RequestPhase::Forward;
            if self.known[index].is_some() || one.phase == RequestPhase::Older {
                continue;
            }
            let is_kept = self.is_kept_for_backward(&one);
            let mut is_input = false;
            let has_pass = self.has_modules || !self.passes.is_empty();
            if one.phase == RequestPhase::Other && is_before_modules && is_kept && has_pass {
                // Without modules, only the first line of a step is known to come before the pass;
                // without stacks, only its first request.
                is_input = self.has_modules || *first_site.get_or_insert(one.site) == one.site;
                is_before_modules = self.has_modules || is_input && self.evidence.has_stacks;
            }
            let is_activation = if self.passes.is_empty() { one.phase == RequestPhase::Forward } else { is_kept };
            let category = match () {
                () if is_input => Category::Input,
                () if is_activation => Category::Activation,
                () if one.end == u64::MAX => continue,
                () => Category::Temporary,
            };
            self.set(index, category);
        }
    }

    /// Returns true if a block of the forward pass lives until the backward pass begins; without
    /// backward passes, for some events.
    fn is_kept_for_backward(&self, one: &RequestEvidence) -> bool {
        match self.passes.next(one.first) {
            Some(pass) => one.end > pass.first,
            None if self.passes.is_empty() => one.end.saturating_sub(one.first) > MIN_KEPT / 2,
            None => one.end.saturating_sub(one.first) > 8 * MIN_KEPT,
        }
    }
}
