//! Gradients, and without stacks, what an optimizer keeps among blocks of their sizes.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use vramscope_trace::Category;

use super::infer::Inference;
use super::sizes::{SizeCounts, count};

impl Inference<'_> {
    /// Returns the requests of a backward pass without a category that outlive it. Without stacks,
    /// only its end is known: the live bytes may rise until some gradients exist.
    pub(super) fn survivors(&self, number: usize) -> Vec<usize> {
        let pass = &self.passes.all()[number];
        let previous = number.checked_sub(1).map_or(0, |before| self.passes.all()[before].requests.end);
        let begin = if self.evidence.has_stacks { pass.requests.start } else { previous };
        let survives = |index: &usize| {
            let one = &self.requests[*index];
            self.known[*index].is_none() && one.end > pass.last && !self.evidence.site(one).is_recomputed
        };
        (begin..pass.requests.end).filter(survives).collect()
    }

    /// Gradients: blocks of the parameters' sizes that outlive their backward pass.
    pub(super) fn gradients(&mut self, survivors: &[Vec<usize>]) {
        let mut found = Vec::new();
        for pass in survivors {
            let pass: Vec<usize> = pass.iter().copied().filter(|index| self.known[*index].is_none()).collect();
            let sizes = count(pass.iter().map(|index| self.requests[*index].size));
            let width = self.parameters.width_of_copies(&sizes);
            let is_of_parameter = |size: u64| self.parameters.of_size(width.parameter_of(size)) > 0;
            found.extend(pass.into_iter().filter(|index| is_of_parameter(self.requests[*index].size)));
        }
        if !self.evidence.has_stacks {
            found = self.without_surplus(found);
        }
        let lasting: HashSet<usize> =
            if self.evidence.has_stacks { HashSet::new() } else { self.kept_by_optimizer(&found) };
        for index in found {
            let is_state = lasting.contains(&index);
            self.set(index, if is_state { Category::OptimizerState } else { Category::Gradient });
        }
    }

    /// Returns the gradients without those that exceed one live block for each parameter: the
    /// blocks that live longest, which are optimizer state if they last.
    fn without_surplus(&mut self, gradients: Vec<usize>) -> Vec<usize> {
        // By size: end and index of each live block, in the order of the ends.
        let mut live: BTreeMap<u64, BTreeSet<(u64, usize)>> = BTreeMap::new();
        let mut surplus = HashSet::new();
        for &index in &gradients {
            let one = &self.requests[index];
            let of_size = live.entry(one.size).or_default();
            while of_size.first().is_some_and(|(end, _)| *end <= one.first) {
                of_size.pop_first();
            }
            of_size.insert((one.end, index));
            let most = self.parameters.of_size(one.size);
            if most > 0 && of_size.len() as u64 > most {
                surplus.extend(of_size.pop_last().map(|(_, longest)| longest));
            }
        }
        for &index in &surplus {
            if self.lasts(&self.requests[index]) {
                self.set(index, Category::OptimizerState);
            }
        }
        gradients.into_iter().filter(|index| !surplus.contains(index)).collect()
    }

    /// Returns the blocks among gradients of a recording without stacks that an optimizer keeps,
    /// whose step seems part of the backward pass: those that last, unless the program keeps its
    /// gradients, of which the first copy lasts then.
    fn kept_by_optimizer(&self, gradients: &[usize]) -> HashSet<usize> {
        let (lasting, passing): (Vec<usize>, Vec<usize>) =
            gradients.iter().partition(|index| self.lasts(&self.requests[**index]));
        let sum =
            |indexes: &[usize]| indexes.iter().fold(0u64, |sum, index| sum.saturating_add(self.requests[*index].size));
        let passes = self.passes.all().len().saturating_sub(1).max(1) as u64;
        let frees_gradients = sum(&passing) > self.parameters.bytes().saturating_mul(passes) / 2;
        let mut seen = SizeCounts::new();
        let is_state = |index: &usize| {
            let size = self.requests[*index].size;
            let number = seen.entry(size).or_default();
            *number += 1;
            frees_gradients || *number > self.parameters.of_size(size)
        };
        lasting.into_iter().filter(is_state).collect()
    }
}
