//! Memory that lasts from before the first pass: parameters, optimizer state, and caches.

use std::collections::BTreeMap;

use vramscope_trace::Category;

use super::evidence::{RequestEvidence, RequestPhase};
use super::infer::{Inference, WORKSPACES};
use super::sizes::{Parameters, SizeCounts, count};

/// Minimum number of events between the requests of two blocks that last, in which a pass through
/// the model may be.
const MIN_PAUSE: u64 = 32;
/// Minimum number of different sizes of parameters in a recording without stacks: blocks of one or
/// two sizes may be anything.
const MIN_PARAMETER_SIZES: usize = 3;

impl Inference<'_> {
    /// Memory that lasts from before the first pass: parameters, optimizer state, and caches.
    pub(super) fn before_first_pass(&mut self, survivors: &[Vec<usize>]) {
        if !self.evidence.has_stacks {
            self.model_by_pauses();
            return;
        }
        let mut gradients = SizeCounts::new();
        for pass in survivors {
            for (size, number) in count(pass.iter().map(|index| self.requests[*index].size)) {
                let most = gradients.entry(size).or_default();
                *most = number.max(*most);
            }
        }
        let first_backward = self.passes.all().first().map_or(self.first_pass, |pass| pass.first);
        let is_early = |one: &RequestEvidence| match one.phase {
            RequestPhase::Older => true,
            RequestPhase::Other => one.first < self.first_pass.max(first_backward),
            _ => false,
        };
        let early: Vec<usize> = self
            .unknown()
            .into_iter()
            .filter(|index| is_early(&self.requests[*index]) && self.lasts(&self.requests[*index]))
            .collect();
        let (older, own): (Vec<usize>, Vec<usize>) =
            early.into_iter().partition(|index| self.requests[*index].phase == RequestPhase::Older);
        let mut by_address = older;
        by_address.sort_by_key(|index| self.requests[*index].address);
        self.model_memory(&by_address, &gradients);
        if self.passes.is_empty() {
            self.memory_without_gradients(&own);
        } else {
            self.early_copies(&own);
            self.model_memory(&own, &gradients);
        }
    }

    /// Lines that make a copy of the known parameters before the first pass, in any width, make
    /// optimizer state.
    fn early_copies(&mut self, blocks: &[usize]) {
        let mut by_site: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for &index in blocks {
            by_site.entry(self.requests[index].site).or_default().push(index);
        }
        for indexes in by_site.into_values() {
            if self.parameters.is_copy(&count(indexes.iter().map(|index| self.requests[*index].size))) {
                indexes.into_iter().for_each(|index| self.set(index, Category::OptimizerState));
            }
        }
    }

    /// Without stacks, the first pass through the model is the first long pause between the
    /// requests of two blocks that last: parameters come before it, optimizer state after it.
    fn model_by_pauses(&mut self) {
        // Memory that later steps keep is growth.
        let state_end = self.passes.all().get(1).map_or(self.evidence.range.1, |pass| pass.last);
        let is_of_model =
            |one: &RequestEvidence| self.lasts(one) && one.first <= state_end.min(self.evidence.moment_after(5));
        let lasting: Vec<usize> =
            self.unknown().into_iter().filter(|index| is_of_model(&self.requests[*index])).collect();
        let moments: Vec<u64> = lasting.iter().map(|index| self.requests[*index].first).collect();
        let pauses = || moments.windows(2).map(|pair| (pair[0], pair[1] - pair[0]));
        let longest = pauses().map(|(_, pause)| pause).max().unwrap_or(0);
        let first_long = pauses().find(|(_, pause)| *pause > MIN_PAUSE && *pause >= longest / 2);
        let created = first_long.map_or(u64::MAX, |(moment, _)| moment);
        let is_parameter = |index: &usize| self.requests[*index].first <= created;
        let (parameters, others): (Vec<usize>, Vec<usize>) = lasting.into_iter().partition(is_parameter);
        let sizes = Parameters::new(parameters.iter().map(|index| self.requests[*index].size));
        let is_model = sizes.sizes() >= MIN_PARAMETER_SIZES;
        for index in parameters {
            self.set(index, Category::Parameter);
        }
        for index in others {
            let one = &self.requests[index];
            if is_model && sizes.has_width_of(one.size) {
                self.set(index, Category::OptimizerState);
            }
        }
    }

    /// The first copy of the gradients' sizes is the parameters, unless these are known; further
    /// copies are optimizer state.
    fn model_memory(&mut self, blocks: &[usize], gradients: &SizeCounts) {
        let mut seen = SizeCounts::new();
        for &index in blocks {
            let one = &self.requests[index];
            let trained = gradients.get(&one.size).copied().unwrap_or(0);
            let is_known = self.parameters.of_size(one.size) > 0;
            let number = seen.entry(one.size).or_default();
            *number += 1;
            let category = match one.phase {
                _ if trained > 0 && (is_known || *number > trained) => Category::OptimizerState,
                RequestPhase::Older if trained == 0 && !is_known && WORKSPACES.contains(&one.size) => {
                    Category::Workspace
                }
                RequestPhase::Other if trained == 0 && !is_known && one.first >= self.first_pass => continue,
                _ => Category::Parameter,
            };
            self.set(index, category);
        }
    }

    /// Without a backward pass: blocks of one or two sizes, an even number of each, beside known
    /// parameters are a cache; everything else is parameters.
    fn memory_without_gradients(&mut self, blocks: &[usize]) {
        let counts = count(blocks.iter().map(|index| self.requests[*index].size));
        let is_cache = |size: u64| {
            let number = counts.get(&size).copied().unwrap_or(0);
            self.parameters.bytes() > 0 && counts.len() <= 2 && number >= 4 && number % 2 == 0
        };
        let found: Vec<(usize, bool)> =
            blocks.iter().map(|&index| (index, is_cache(self.requests[index].size))).collect();
        for (index, is_cache) in found {
            self.set(index, if is_cache { Category::Cache } else { Category::Parameter });
        }
    }
}
