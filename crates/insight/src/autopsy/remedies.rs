//! Remedies of a failure: changes of the program or its settings, to be simulated.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vramscope_pool::Settings;
use vramscope_pool::rerun::Workload;
use vramscope_trace::{Allocation, Block, ByteSize, Category, Definitions, DeviceLifetimes, DeviceState, SiteId};

use super::candidate::{Alternative, Candidate, Change, RemedyKind};
use super::checkpointing::{ModuleCalls, checkpointed};
use super::contents::Lines;
use super::out_of_memory::OutOfMemory;
use crate::advice::Advisor;
use crate::failures::OomCause;
use crate::group::{GroupBy, Grouping, Phase};

/// Maximum number of program lines whose allocations are freed earlier in a trial, one line at a
/// time.
const MAX_LINES: usize = 8;
/// Minimum live bytes of a line for which a trial frees its memory earlier.
const MIN_LINE_BYTES: u64 = 1 << 20;
/// Divisor: avoiding a temporary is tried only if it has at least 1/16 of the bytes that a request
/// can obtain.
const TEMPORARY_SHARE: u64 = 16;
/// Numbers of parts into which requests are divided.
const PARTS: [u64; 3] = [2, 4, 8];

/// Lists the changes to try for one failure.
pub(super) struct Candidates<'a> {
    pub(super) oom: &'a OutOfMemory,
    pub(super) definitions: &'a Definitions,
    pub(super) lifetimes: &'a DeviceLifetimes,
    /// The memory before the failure.
    pub(super) device: &'a DeviceState,
    pub(super) workload: &'a Workload,
    pub(super) settings: &'a Settings,
    pub(super) capacity_bytes: Option<u64>,
    /// Whether the run is followed beyond the failed request.
    pub(super) is_followed: bool,
}

impl Candidates<'_> {
    /// Returns the candidates of all kinds, the smallest change first. Each has its alternatives in
    /// the order in which they are tried.
    pub(super) fn all(&self, lines: &mut Lines) -> Vec<Candidate> {
        let place = self.oom.request_place();
        let cause = self.oom.cause;
        let is_of_allocator = cause.is_of_allocator() || matches!(cause, OomCause::DeviceFull | OomCause::OverCap);
        let when = |condition: bool, detail: String, change: Change| {
            if condition { vec![Self::alternative(detail, change)] } else { Vec::new() }
        };
        let was_pending = self.oom.pytorch_issue == Some(189_504);
        let synchronize = format!("torch.cuda.synchronize() before {place}");
        let empty_cache = format!("torch.cuda.empty_cache() before {place}");
        let release = format!("delete the CUDA graphs and pools, then torch.cuda.empty_cache(), before {place}");
        let is_private = cause == OomCause::PrivatePool;
        let candidates = [
            (RemedyKind::Setting, self.settings(is_of_allocator)),
            (RemedyKind::Synchronize, when(was_pending, synchronize, Change::Synchronize)),
            (RemedyKind::EmptyCache, when(is_of_allocator, empty_cache, Change::EmptyCache)),
            (RemedyKind::WaitStream, self.wait_stream()),
            (RemedyKind::ReleasePool, when(is_private, release, Change::ReleasePools)),
            (RemedyKind::FreeEarlier, self.free_earlier(lines)),
            (RemedyKind::AvoidTemporary, self.avoid_temporary(lines)),
            (RemedyKind::SmallerBatch, self.smaller_batch(lines)),
            (RemedyKind::Checkpoint, self.checkpoint(lines)),
            (RemedyKind::SmallerState, self.smaller_state(lines)),
            (RemedyKind::SmallerParameters, self.smaller_parameters(lines)),
        ];
        let candidate = |(kind, alternatives)| Candidate {
            kind,
            is_local: match kind {
                RemedyKind::SmallerBatch
                | RemedyKind::Checkpoint
                | RemedyKind::SmallerState
                | RemedyKind::SmallerParameters => false,
                RemedyKind::AvoidTemporary => matches!(cause, OomCause::Temporary | OomCause::NeverFits),
                _ => is_of_allocator,
            },
            wants_least: kind == RemedyKind::Setting,
            alternatives,
        };
        let mut found: Vec<Candidate> = candidates.into_iter().map(candidate).collect();
        found.retain(|candidate| !candidate.alternatives.is_empty());
        found
    }

    /// Creates an alternative with the recorded settings.
    fn alternative(detail: String, change: Change) -> Alternative {
        Alternative { detail, settings: None, change }
    }

    /// Returns true if the contents of one step filled the memory.
    fn is_of_step(&self) -> bool {
        use OomCause::{Activations, DeviceFull, Outside, OverCap, Temporary};
        matches!(self.oom.cause, Activations | DeviceFull | Outside | OverCap | Temporary)
    }

    /// Returns the settings that [`advice`](crate::advice) tries first. If the program itself
    /// needed more (`is_of_allocator` is false), they are tried only if the run is followed beyond
    /// the failure: a setting may let it fail a little later.
    fn settings(&self, is_of_allocator: bool) -> Vec<Alternative> {
        let is_known_further = self.is_followed && self.is_of_step();
        if !is_of_allocator && !is_known_further {
            return Vec::new();
        }
        let mut advisor = Advisor::new(self.workload, self.settings, self.capacity_bytes);
        let mut tried = Vec::new();
        while let Some(run) = advisor.next_run() {
            tried.push(run.settings);
        }
        let recorded = Settings { limit_bytes: None, ..self.settings.clone() };
        tried.retain(|settings| *settings != recorded);
        let alternative = |settings: Settings| {
            let conf = settings.to_conf();
            let detail = match conf.as_str() {
                "" => "omit PYTORCH_CUDA_ALLOC_CONF".to_owned(),
                _ => format!("PYTORCH_CUDA_ALLOC_CONF={conf}"),
            };
            let settings = Settings { limit_bytes: self.settings.limit_bytes, ..settings };
            Alternative { detail, settings: Some(settings), change: Change::None }
        };
        tried.into_iter().map(alternative).collect()
    }

    /// Returns the alternative that frees all pending blocks at once.
    fn wait_stream(&self) -> Vec<Alternative> {
        let pending = self.device.blocks().filter(|block| block.pending_free);
        let requests: Vec<u64> = pending.map(request_of).collect();
        if self.oom.cause != OomCause::PendingFrees || requests.is_empty() {
            return Vec::new();
        }
        let detail = "torch.cuda.current_stream().wait_stream(other) in place of tensor.record_stream(other)";
        vec![Self::alternative(detail.to_owned(), Change::FreeAtOnce(requests.into()))]
    }

    /// Returns the alternatives that free memory earlier. Growing memory is freed at the end of the
    /// step that allocated it. Without growth, each line's memory is freed before the request, the
    /// line with least bytes first. Activations and gradients of the present step are needed, so
    /// they are not freed.
    fn free_earlier(&self, lines: &mut Lines) -> Vec<Alternative> {
        let place = self.oom.request_place();
        if self.oom.cause == OomCause::Leak {
            let (bytes, frees) = self.grown(lines);
            let detail = format!("free what {} keeps ({}) at the end of each step", self.oom.site, ByteSize(bytes));
            return if frees.is_empty() {
                Vec::new()
            } else {
                vec![Self::alternative(detail, Change::FreeBefore(frees.into()))]
            };
        }
        let mut by_line: BTreeMap<String, (u64, Vec<(u64, u64)>)> = BTreeMap::new();
        let mut names: BTreeMap<(u32, SiteId), String> = BTreeMap::new();
        for block in self.device.blocks() {
            let line = lines.of_block(self.definitions, block);
            let is_free = matches!(lines.category_of(block), Category::Unknown | Category::Input | Category::Temporary);
            if !is_free || lines.is_unnamed(line) {
                continue;
            }
            let name = names.entry((line, block.site));
            let name = name.or_insert_with(|| lines.name_of_request(self.definitions, line, block.site)).clone();
            if Some(&name) != self.oom.request_line.as_ref() {
                let (bytes, frees) = by_line.entry(name).or_default();
                *bytes = bytes.saturating_add(block.size);
                frees.push((request_of(block), self.oom.failure.event));
            }
        }
        by_line.retain(|_, (bytes, _)| *bytes >= MIN_LINE_BYTES);
        let mut ranked: Vec<_> = by_line.into_iter().map(|(name, (bytes, frees))| (bytes, name, frees)).collect();
        ranked.sort_by(|one, other| (other.0, &one.1).cmp(&(one.0, &other.1)));
        ranked.truncate(MAX_LINES);
        let alternative = |(bytes, name, frees): (u64, String, Vec<(u64, u64)>)| {
            let detail = format!("free the {} of {name} before {place}", ByteSize(bytes));
            Self::alternative(detail, Change::FreeBefore(frees.into()))
        };
        ranked.into_iter().rev().map(alternative).collect()
    }

    /// Finds the blocks of growing lines that outlive their step. Returns their bytes at the
    /// failure, and their requests, each with the event after its step.
    fn grown(&self, lines: &mut Lines) -> (u64, Vec<(u64, u64)>) {
        let failed = self.oom.failure.event;
        let (mut bytes, mut frees) = (0u64, Vec::new());
        for pair in self.oom.step_starts.windows(2) {
            for one in self.lifetimes.active_between(pair[0], pair[1]) {
                let is_of_step = one.start_observed && one.first_moment > pair[0] && one.first_moment <= pair[1];
                // Growing lines may also create memory that a program keeps.
                let is_kept = matches!(
                    lines.category_of_allocation(&one),
                    Category::Parameter | Category::OptimizerState | Category::Workspace
                );
                if is_of_step
                    && !is_kept
                    && one.is_active_at(pair[1])
                    && self.oom.growing.contains(&lines.of_allocation(self.definitions, &one))
                {
                    frees.push((one.first_moment, pair[1].saturating_add(1)));
                    if one.is_active_at(failed.saturating_sub(1)) {
                        bytes = bytes.saturating_add(one.size);
                    }
                }
            }
        }
        (bytes, frees)
    }

    /// Returns the alternatives that divide the failed request, and other requests of its line,
    /// into 2, 4 and 8 parts, and the alternative that omits them.
    fn avoid_temporary(&self, lines: &mut Lines) -> Vec<Alternative> {
        use OomCause::{DeviceFull, NeverFits, OverCap, Temporary};
        let failure = &self.oom.failure;
        let is_large = failure.rounded_bytes >= self.oom.obtainable_bytes() / TEMPORARY_SHARE;
        if !is_large || !matches!(self.oom.cause, DeviceFull | NeverFits | OverCap | Temporary) {
            return Vec::new();
        }
        let mut requests = Vec::new();
        if self.oom.request_line.is_some() {
            let of_request = lines.of_request(self.definitions, failure);
            for one in self.allocations() {
                let is_of_size = one.requested >= failure.requested_bytes / 2;
                if is_of_size && one.start_observed && lines.of_allocation(self.definitions, &one) == of_request {
                    requests.push(one.first_moment);
                }
            }
        }
        let requests: Arc<[u64]> = requests.into();
        let (place, bytes) = (self.oom.request_place(), failure.rounded_bytes);
        let alternative = |parts: u64| {
            let detail = match parts {
                0 => format!("avoid the temporary of {} at {place}", ByteSize(bytes)),
                _ => format!("compute {place} in {parts} parts, of {} each", ByteSize(bytes / parts)),
            };
            Self::alternative(detail, Change::Divide(requests.clone(), parts, true))
        };
        PARTS.into_iter().chain([0]).map(alternative).collect()
    }

    /// Returns the alternatives with a half, a quarter and an eighth of the batch. A batch scales
    /// activations, inputs, the gradients of both, and temporaries of both passes.
    fn smaller_batch(&self, lines: &Lines) -> Vec<Alternative> {
        let failure = &self.oom.failure;
        if !self.is_of_step() {
            return Vec::new();
        }
        let has_stacks = lines.has_stacks();
        let is_kept = |block: &Block| match lines.category_of(block) {
            Category::Parameter => true,
            Category::Unknown => block.since_event < self.oom.step_began,
            _ => false,
        };
        let kept: BTreeSet<u64> =
            self.device.blocks().filter(|&block| is_kept(block)).map(|block| block.size).collect();
        let mut phases = Grouping::new(GroupBy::Phase, 0);
        phases.update(self.definitions);
        let scales = |category: Category, site: SiteId, size: u64| match category {
            Category::Parameter | Category::OptimizerState | Category::Workspace | Category::Communication => false,
            Category::Gradient => !kept.contains(&size),
            Category::Temporary => match phases.phase_of(site) {
                Some(Phase::Forward) => true,
                Some(Phase::Backward) => !kept.contains(&size),
                Some(Phase::Optimizer | Phase::Other) | None => false,
            },
            Category::Activation | Category::Input | Category::Cache => true,
            Category::Unknown => !has_stacks && !kept.contains(&size),
        };
        let request_scales = scales(lines.category_of_site(failure.site), failure.site, failure.rounded_bytes);
        let is_training = self.oom.category_bytes(Category::Activation) > 0 || self.oom.cause == OomCause::Activations;
        if !is_training {
            return Vec::new();
        }
        let (mut requests, mut bytes) = (Vec::new(), if request_scales { failure.rounded_bytes } else { 0 });
        for one in self.allocations().filter(|one| one.start_observed) {
            if scales(lines.category_of_allocation(&one), one.site, one.size) {
                requests.push(one.first_moment);
                if one.is_active_at(failure.event.saturating_sub(1)) {
                    bytes = bytes.saturating_add(one.size);
                }
            }
        }
        let requests: Arc<[u64]> = requests.into();
        let alternative = |parts: u64| {
            let detail = format!("a batch of 1/{parts} ({} of the live memory scales with it)", ByteSize(bytes));
            Self::alternative(detail, Change::Divide(requests.clone(), parts, request_scales))
        };
        PARTS.map(alternative).into_iter().collect()
    }

    /// Returns the alternatives that checkpoint the repeated module calls with most activations.
    fn checkpoint(&self, lines: &Lines) -> Vec<Alternative> {
        if !self.is_of_step() {
            return Vec::new();
        }
        // The failed step repeats the step before it.
        let starts = &self.oom.step_starts;
        let from = starts.iter().rev().nth(1).copied().filter(|_| !self.oom.is_continued).unwrap_or(0);
        let repeated = starts.last().copied().filter(|_| self.is_followed && !self.oom.is_continued);
        let activations = self.allocations().filter(|one| {
            one.start_observed && one.first_moment > from && lines.category_of_allocation(one) == Category::Activation
        });
        let calls = ModuleCalls::new(self.definitions, activations, from, self.oom.failure.event);
        let alternative = |call: &super::checkpointing::ModuleCall| {
            let detail = format!(
                "torch.utils.checkpoint for {} ({} of activations in {} calls)",
                call.name,
                ByteSize(call.bytes),
                call.calls
            );
            let mut frees = checkpointed(call, self.oom.failure.event);
            frees.retain(|&(request, ..)| repeated.is_none_or(|failed_step| request <= failed_step));
            Self::alternative(detail, Change::FreeBetween(frees.into()))
        };
        calls.largest().iter().map(alternative).collect()
    }

    /// Returns the alternative that keeps the optimizer's state in a quarter of its bytes: 8 bits
    /// in place of 32.
    fn smaller_state(&self, lines: &Lines) -> Vec<Alternative> {
        if self.oom.cause != OomCause::OptimizerState {
            return Vec::new();
        }
        let state: Vec<Allocation> =
            self.allocations().filter(|one| lines.category_of_allocation(one) == Category::OptimizerState).collect();
        let bytes = state.iter().map(|one| one.size).sum();
        let requests = state.iter().map(|one| one.first_moment).collect();
        let detail = format!("an optimizer with 8-bit states ({} of states so far)", ByteSize(bytes));
        vec![Self::alternative(detail, Change::Divide(requests, 4, true))]
    }

    /// Returns the alternative that keeps the parameters in half of their bytes: 16 bits in place
    /// of 32.
    fn smaller_parameters(&self, lines: &Lines) -> Vec<Alternative> {
        if self.oom.cause != OomCause::Parameters {
            return Vec::new();
        }
        let is_parameter = |one: &Allocation| {
            matches!(lines.category_of_allocation(one), Category::Parameter | Category::Unknown)
                && one.size >= MIN_LINE_BYTES
        };
        let parameters: Vec<Allocation> = self.allocations().filter(is_parameter).collect();
        let bytes = parameters.iter().map(|one| one.size).sum();
        let requests = parameters.iter().map(|one| one.first_moment).collect();
        let detail = format!("parameters in 16 bits ({} so far)", ByteSize(bytes));
        vec![Self::alternative(detail, Change::Divide(requests, 2, true))]
    }

    /// Iterates over the allocations that the run makes: all allocations if the recording continues
    /// after the failure, else the allocations before it.
    fn allocations(&self) -> impl Iterator<Item = Allocation> + '_ {
        let until = if self.oom.is_continued { u64::MAX } else { self.oom.failure.event };
        self.lifetimes.iter().take_while(move |one| one.first_moment < until)
    }
}

/// Returns the number of the event that allocated a block.
fn request_of(block: &Block) -> u64 {
    block.since_event.saturating_add(1)
}
