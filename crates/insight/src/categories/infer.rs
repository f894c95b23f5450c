//! The rules that compare lifetimes, sizes and passes.

use std::collections::{BTreeMap, HashMap};

use vramscope_trace::Category;

use super::evidence::{Evidence, RequestEvidence, RequestPhase};
use super::passes::{Passes, find_by_live_bytes};
use super::sizes::Parameters;
use crate::group::{Confidence, KnownCategory};

/// Bytes that PyTorch requests for the workspaces of cuBLAS and cuBLASLt
/// (`aten/src/ATen/cuda/CublasHandlePool.cpp`): on GPUs of compute capability 9.0, on others, and
/// for cuBLASLt alone.
pub(super) const WORKSPACES: [u64; 3] = [LARGE_WORKSPACE, (4096 * 2 + 16 * 8) << 10, 1 << 20];
/// The largest of them, of which a block is a workspace even if a parameter has this size.
const LARGE_WORKSPACE: u64 = 32 << 20;
/// Minimum requests of a line whose blocks grow.
const MIN_GROWING: usize = 6;
/// Minimum lifetime, in events, of a block of a cache or of an input without a backward pass.
pub(super) const MIN_KEPT: u64 = 8;

/// The rules at work: the evidence, and what is known so far.
pub(super) struct Inference<'a> {
    pub(super) requests: &'a [RequestEvidence],
    pub(super) evidence: &'a Evidence<'a>,
    pub(super) passes: Passes,
    /// The first moment of a pass through the model.
    pub(super) first_pass: u64,
    /// Memory that lives longer lasts.
    pub(super) last_from: u64,
    pub(super) has_modules: bool,
    pub(super) known: Vec<Option<KnownCategory>>,
    /// The sizes of the parameters found so far.
    pub(super) parameters: Parameters,
}

/// Infers the categories of all requests, in their order.
pub(super) fn categories(evidence: &mut Evidence<'_>) -> Vec<Option<KnownCategory>> {
    let known: Vec<_> = evidence.requests.iter().map(|one| evidence.site(one).known).collect();
    if !evidence.has_stacks {
        find_by_live_bytes(evidence);
    }
    let passes = Passes::new(&evidence.requests);
    let is_pass = |one: &&RequestEvidence| matches!(one.phase, RequestPhase::Forward | RequestPhase::Backward);
    let first_pass = match evidence.requests.iter().find(is_pass) {
        Some(one) => one.first,
        None if evidence.has_stacks => return known,
        None => evidence.range.1,
    };
    let last_pass = passes.all().get(1..).and_then(|passes| passes.last()).map_or(u64::MAX, |pass| pass.first);
    let mut inference = Inference {
        requests: &evidence.requests,
        evidence: &*evidence,
        first_pass,
        last_from: last_pass.min(evidence.moment_after(9)),
        has_modules: evidence.sites.iter().any(|site| site.calls_module),
        passes,
        known,
        parameters: Parameters::default(),
    };
    inference.infer();
    if !evidence.has_stacks && !inference.shows_training() {
        return evidence.requests.iter().map(|one| evidence.site(one).known).collect();
    }
    inference.known
}

impl Inference<'_> {
    /// Applies all rules in their order.
    fn infer(&mut self) {
        self.sharded_parameters();
        if self.passes.is_empty() {
            self.named_caches();
        }
        self.count_parameters();
        self.library_workspaces();
        let survivors: Vec<Vec<usize>> = (0..self.passes.all().len()).map(|number| self.survivors(number)).collect();
        self.before_first_pass(&survivors);
        self.count_parameters();
        self.gradients(&survivors);
        if self.passes.is_empty() {
            self.growing_caches();
        }
        let copies = self.lines_of_copies();
        self.states_and_scratch(&copies);
        self.inputs_and_activations();
    }

    /// Returns true if gradients and optimizer state show that the passes are those of a model:
    /// together they have as many bytes as half of its parameters.
    fn shows_training(&self) -> bool {
        let of_training = |(_, known): &(_, &Option<KnownCategory>)| {
            known.is_some_and(|known| matches!(known.category, Category::Gradient | Category::OptimizerState))
        };
        let trained = self.requests.iter().zip(&self.known).filter(of_training).map(|(one, _)| one.size);
        let parameters = self.parameters.bytes();
        parameters > 0 && trained.fold(0, u64::saturating_add) >= parameters / 2
    }

    /// Sets the category of a request that has none.
    pub(super) fn set(&mut self, index: usize, category: Category) {
        if self.known[index].is_none() && !self.evidence.site(&self.requests[index]).is_unknown {
            self.known[index] = Some(KnownCategory { category, confidence: Confidence::Likely });
        }
    }

    /// Returns the indexes of the requests without a category.
    pub(super) fn unknown(&self) -> Vec<usize> {
        let is_unknown =
            |index: &usize| self.known[*index].is_none() && !self.evidence.site(&self.requests[*index]).is_unknown;
        (0..self.requests.len()).filter(is_unknown).collect()
    }

    /// Returns true if a block lives until the last pass.
    pub(super) fn lasts(&self, one: &RequestEvidence) -> bool {
        one.end > self.last_from
    }

    /// Counts the sizes of the parameters found so far.
    fn count_parameters(&mut self) {
        let is_parameter =
            |(_, known): &(_, &Option<KnownCategory>)| known.is_some_and(|known| known.category == Category::Parameter);
        let parameters = self.requests.iter().zip(&self.known).filter(is_parameter);
        self.parameters = Parameters::new(parameters.map(|(one, _)| one.size));
    }

    /// What FSDP keeps from the beginning on are the parameters, not gathered ones.
    fn sharded_parameters(&mut self) {
        for (index, one) in self.requests.iter().enumerate() {
            let is_kept = one.first < self.first_pass && self.lasts(one);
            let is_recorded = self.known[index].is_some_and(|known| known.confidence == Confidence::Recorded);
            if self.evidence.site(one).is_sharding && is_kept && !is_recorded {
                self.known[index] =
                    Some(KnownCategory { category: Category::Parameter, confidence: Confidence::Named });
            }
        }
    }

    /// Blocks that a function named after a cache keeps. In training, they are activations.
    fn named_caches(&mut self) {
        for index in self.unknown() {
            let one = &self.requests[index];
            let is_kept = one.end.saturating_sub(one.first) > MIN_KEPT;
            if is_kept
                && matches!(one.phase, RequestPhase::Forward | RequestPhase::Other)
                && self.evidence.site(one).names_cache
            {
                self.known[index] = Some(KnownCategory { category: Category::Cache, confidence: Confidence::Named });
            }
        }
    }

    /// The workspaces of cuBLAS: one a thread and stream, requested in a pass and kept.
    fn library_workspaces(&mut self) {
        let mut found: HashMap<_, u32> = HashMap::new();
        for index in self.unknown() {
            let one = &self.requests[index];
            let is_kept =
                one.end == u64::MAX || one.end - one.first > self.evidence.range.1.saturating_sub(one.first) / 2;
            let is_pass = match one.phase {
                RequestPhase::Forward | RequestPhase::Backward => one.first >= self.first_pass,
                // Without modules, the program itself multiplies matrices.
                RequestPhase::Other => !self.has_modules,
                RequestPhase::Older | RequestPhase::Optimizer => false,
            };
            if !is_kept || !is_pass || !WORKSPACES.contains(&one.size) {
                continue;
            }
            // The backward pass has a thread of its own, which only stacks tell.
            let thread = one.phase == RequestPhase::Backward && self.evidence.has_stacks;
            let number = found.entry((one.size, thread, one.stream)).or_default();
            *number += 1;
            let threads = if self.evidence.has_stacks { 1 } else { 2 };
            let is_parameter = self.parameters.of_size(one.size) > 0 && one.size != LARGE_WORKSPACE;
            if *number <= threads && !is_parameter {
                self.set(index, Category::Workspace);
            }
        }
    }

    /// Blocks of lines whose requests grow from call to call, and that live until the next one.
    fn growing_caches(&mut self) {
        let mut by_site: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for index in self.unknown() {
            let one = &self.requests[index];
            if matches!(one.phase, RequestPhase::Forward | RequestPhase::Other) {
                by_site.entry(one.site).or_default().push(index);
            }
        }
        for indexes in by_site.into_values().filter(|indexes| indexes.len() >= MIN_GROWING) {
            let sizes: Vec<u64> = indexes.iter().map(|index| self.requests[*index].size).collect();
            let grown = sizes.windows(2).filter(|pair| pair[1] > pair[0]).count();
            let shrunk = sizes.windows(2).filter(|pair| pair[1] < pair[0]).count();
            if grown < 2 || shrunk > grown / 8 {
                continue;
            }
            let first = |index: usize| self.requests[indexes[index]].first;
            let interval = (first(indexes.len() - 1) - first(0)) / indexes.len() as u64;
            for index in indexes {
                let one = &self.requests[index];
                if one.end.min(self.evidence.range.1).saturating_sub(one.first) > interval.saturating_mul(3) {
                    self.set(index, Category::Cache);
                }
            }
        }
    }
}
