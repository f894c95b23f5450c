//! What would have prevented a failure: changes of the program or its settings, to be simulated.

use std::collections::{BTreeMap, BTreeSet};

use vramscope_pool::Settings;
use vramscope_pool::rerun::Edits;
use vramscope_trace::{Block, ByteSize, Category, FormatError, Recording, Replay};

use super::analysis::Autopsy;
use super::candidate::{Alternative, Candidate, RemedyKind};
use super::cause::OomCause;
use super::contents::Lines;
use super::out_of_memory::OutOfMemory;
use crate::history::History;

/// The most lines of the program that are tried to be freed earlier, one after the other.
const MAX_LINES: usize = 8;
/// Lines that hold less are not tried, in bytes.
const MIN_LINE_BYTES: u64 = 1 << 20;
/// A temporary of less than this share of what can be obtained is not tried to be avoided.
const TEMPORARY_SHARE: u64 = 16;

/// Lists the changes to try for one failure.
pub(super) struct Candidates<'a> {
    pub(super) recording: &'a Recording,
    pub(super) history: &'a History,
    pub(super) settings: &'a Settings,
    pub(super) oom: &'a OutOfMemory,
    /// The numbers of this failure's event and of later ones of the same request.
    pub(super) same_kind: &'a BTreeSet<u64>,
    /// Edits that every changed program has.
    pub(super) baseline: &'a Edits,
}

impl Candidates<'_> {
    /// Returns the candidates of all kinds, the smallest change first. Each has its alternatives in
    /// the order in which they are tried.
    ///
    /// # Errors
    /// If a chunk cannot be read.
    pub(super) fn all(&self) -> Result<Vec<Candidate>, FormatError> {
        let mut replay = Replay::new();
        let state = replay.seek(self.recording, self.oom.failure.event.saturating_sub(1))?;
        let device = state.device(self.oom.failure.device);
        let blocks: Vec<Block> = device.map(|device| device.blocks().copied().collect()).unwrap_or_default();
        let mut lines = Lines::new(self.recording);
        let candidates = [
            (RemedyKind::Setting, self.settings()),
            (RemedyKind::Synchronize, self.synchronize()),
            (RemedyKind::EmptyCache, self.empty_cache()),
            (RemedyKind::FreeEarlier, self.free_earlier(&blocks, &mut lines)),
            (RemedyKind::AvoidTemporary, self.avoid_temporary(&blocks, &mut lines)),
            (RemedyKind::SmallerBatch, self.smaller_batch(&blocks, &lines)),
            (RemedyKind::Checkpoint, self.checkpoint(&blocks, &mut lines)),
        ];
        let mut found: Vec<Candidate> =
            candidates.into_iter().map(|(kind, alternatives)| Candidate { kind, alternatives }).collect();
        found.retain(|candidate| !candidate.alternatives.is_empty());
        Ok(found)
    }

    fn event(&self) -> u64 {
        self.oom.failure.event
    }

    /// Returns an alternative that changes the program.
    fn edited(&self, detail: String, edits: Edits) -> Alternative {
        Alternative { detail, settings: self.settings.clone(), edits }
    }

    /// Returns true if the allocator's rules caused the failure, or may have. Where the program
    /// itself needed more, a setting would only let it fail a little later, which its recording
    /// does not show.
    fn is_of_allocator(&self) -> bool {
        use OomCause::{
            DeviceFull, Fragmentation, OtherStream, OverCap, PendingFrees, PoolWithoutRelease, PrivatePool,
        };
        let cause = self.oom.cause;
        matches!(cause, Fragmentation | OtherStream | PendingFrees | PoolWithoutRelease | PrivatePool)
            || matches!(cause, DeviceFull | OverCap)
    }

    /// Returns true if the contents of one step filled the memory.
    fn is_of_step(&self) -> bool {
        use OomCause::{Activations, DeviceFull, Outside, OverCap, Temporary};
        matches!(self.oom.cause, Activations | DeviceFull | Outside | OverCap | Temporary)
    }

    /// Returns the settings that help against fragmentation. They leave nothing out that the
    /// program set, except where both exclude each other.
    fn settings(&self) -> Vec<Alternative> {
        if !self.is_of_allocator() {
            return Vec::new();
        }
        const MIB: u64 = 1 << 20;
        let recorded = self.settings;
        let base = Settings { max_split_size_bytes: None, ..recorded.clone() };
        let mut tried = vec![base.clone(), Settings { expandable_segments: true, ..base.clone() }];
        // Without a cap the threshold has no effect (pytorch/pytorch#106660).
        if self.oom.is_capped() {
            tried.push(Settings { garbage_collection_threshold: 0.8, ..recorded.clone() });
        }
        tried.extend([64, 128, 256, 512].map(|mib| Settings {
            max_split_size_bytes: Some(mib * MIB),
            expandable_segments: false,
            ..recorded.clone()
        }));
        tried.retain(|settings| settings != recorded);
        let alternative = |settings: Settings| Alternative {
            detail: format!("PYTORCH_CUDA_ALLOC_CONF={}", settings.to_conf()),
            settings,
            edits: self.baseline.clone(),
        };
        tried.into_iter().map(alternative).collect()
    }

    fn synchronize(&self) -> Vec<Alternative> {
        if self.oom.cause != OomCause::PendingFrees && self.oom.free.pending_bytes == 0 {
            return Vec::new();
        }
        let mut edits = self.baseline.clone();
        self.same_kind.iter().for_each(|&event| edits.synchronize_before(event));
        vec![self.edited(format!("torch.cuda.synchronize() before {}", self.oom.request_line), edits)]
    }

    fn empty_cache(&self) -> Vec<Alternative> {
        if !self.is_of_allocator() {
            return Vec::new();
        }
        let mut edits = self.baseline.clone();
        self.same_kind.iter().for_each(|&event| edits.empty_cache_before(event));
        vec![self.edited(format!("torch.cuda.empty_cache() before {}", self.oom.request_line), edits)]
    }

    /// Returns one alternative for what grows, without the present step's part, or for each line
    /// that holds memory, that with least first. Activations and gradients of the present step are
    /// needed, so they are not freed.
    fn free_earlier(&self, blocks: &[Block], lines: &mut Lines<'_>) -> Vec<Alternative> {
        let mut by_line: BTreeMap<u32, (u64, Vec<u64>)> = BTreeMap::new();
        let (mut grown_bytes, mut grown) = (0u64, Vec::new());
        for block in blocks {
            let line = lines.group_of(block);
            let request = block.since_event.saturating_add(1);
            let name = lines.name(line);
            if block.since_event < self.oom.step_began && self.oom.growing.contains(&name) {
                grown_bytes = grown_bytes.saturating_add(block.size);
                grown.push(request);
            }
            let is_free = matches!(lines.category_of(block), Category::Unknown | Category::Input | Category::Temporary);
            if is_free && !lines.is_unknown(line) && name != self.oom.request_line {
                let (bytes, requests) = by_line.entry(line).or_default();
                *bytes = bytes.saturating_add(block.size);
                requests.push(request);
            }
        }
        let mut ranked: Vec<_> = by_line
            .into_iter()
            .filter(|&(_, (bytes, _))| bytes >= MIN_LINE_BYTES)
            .map(|(line, (bytes, requests))| (lines.name(line), bytes, requests))
            .collect();
        ranked.sort_by(|a, b| (b.1, &a.0).cmp(&(a.1, &b.0)));
        ranked.truncate(MAX_LINES);
        ranked.reverse();
        let mut tried = Vec::new();
        if !grown.is_empty() {
            tried.push((format!("{} from earlier steps", self.oom.site), grown_bytes, grown));
        } else {
            tried = ranked;
        }
        let alternative = |(name, bytes, requests): (String, u64, Vec<u64>)| {
            let mut edits = self.baseline.clone();
            requests.into_iter().for_each(|request| edits.free_before(request, self.event()));
            self.edited(format!("free the {} of {name} before {}", ByteSize(bytes), self.oom.request_line), edits)
        };
        tried.into_iter().map(alternative).collect()
    }

    /// Returns the failed request and its line's blocks in 2, 4 and 8 parts, then without them.
    fn avoid_temporary(&self, blocks: &[Block], lines: &mut Lines<'_>) -> Vec<Alternative> {
        use OomCause::{DeviceFull, NeverFits, OverCap, Temporary};
        let failure = &self.oom.failure;
        let is_large = failure.rounded_bytes >= self.oom.obtainable_bytes() / TEMPORARY_SHARE;
        if !is_large || !matches!(self.oom.cause, DeviceFull | NeverFits | OverCap | Temporary) {
            return Vec::new();
        }
        let mut of_line: Vec<(u64, u64)> = Vec::new();
        for block in blocks.iter().filter(|block| block.since_event >= self.oom.step_began) {
            let line = lines.group_of(block);
            if !lines.is_unknown(line) && lines.name(line) == self.oom.request_line {
                of_line.push((block.since_event.saturating_add(1), block.requested));
            }
        }
        of_line.extend(self.same_kind.iter().map(|&event| (event, failure.requested_bytes)));
        let line = &self.oom.request_line;
        let alternative = |parts: u64| {
            let mut edits = self.baseline.clone();
            of_line.iter().for_each(|&(event, bytes)| edits.resize(event, bytes.checked_div(parts).unwrap_or(0)));
            let detail = match parts {
                0 => format!("avoid the temporary of {} at {line}", ByteSize(failure.rounded_bytes)),
                _ => format!("compute {line} in {parts} parts, of {} each", ByteSize(failure.rounded_bytes / parts)),
            };
            self.edited(detail, edits)
        };
        [2, 4, 8, 0].map(alternative).into_iter().collect()
    }

    /// Returns batches of a half, a quarter and an eighth. What a batch scales are inputs,
    /// activations, temporaries and gradients of activations.
    ///
    /// Halves, because the recording ends in the middle of the step: a batch that only just passes
    /// the failed request would fail at a later one.
    fn smaller_batch(&self, blocks: &[Block], lines: &Lines<'_>) -> Vec<Alternative> {
        let failure = &self.oom.failure;
        let Some(lifetimes) = self.history.lifetimes(failure.device).filter(|_| self.is_of_step()) else {
            return Vec::new();
        };
        let is_kept = |block: &Block| match lines.category_of(block) {
            Category::Parameter => true,
            Category::Unknown => block.since_event < self.oom.step_began,
            _ => false,
        };
        let kept_sizes: BTreeSet<u64> = blocks.iter().filter(|block| is_kept(block)).map(|block| block.size).collect();
        let mut scaled: Vec<(u64, u64)> = Vec::new();
        for one in lifetimes.iter().take_while(|one| one.first_moment < failure.event) {
            let ends = one.allocated_until.is_some_and(|end| end <= failure.event);
            let scales = match lines.category(one.site) {
                Category::Parameter | Category::OptimizerState | Category::Workspace => false,
                Category::Gradient => !kept_sizes.contains(&one.size),
                Category::Activation | Category::Input | Category::Temporary => true,
                Category::Unknown => {
                    (ends || one.first_moment > self.oom.step_began) && !kept_sizes.contains(&one.size)
                }
            };
            if scales && one.start_observed {
                scaled.push((one.first_moment, one.requested));
            }
        }
        let request_scales = !matches!(
            lines.category(failure.site),
            Category::Parameter | Category::OptimizerState | Category::Workspace
        );
        let is_training = self.oom.category_bytes(Category::Activation) > 0 || self.oom.cause == OomCause::Activations;
        if !is_training || (scaled.is_empty() && !request_scales) {
            return Vec::new();
        }
        let alternative = |parts: u64| {
            let scale = |bytes: u64| (bytes / parts).max(1);
            let mut edits = self.baseline.clone();
            scaled.iter().for_each(|&(event, bytes)| edits.resize(event, scale(bytes)));
            if request_scales {
                self.same_kind.iter().for_each(|&event| edits.resize(event, scale(failure.requested_bytes)));
            }
            self.edited(format!("a batch of 1/{parts}"), edits)
        };
        [2, 4, 8].map(alternative).into_iter().collect()
    }

    /// Returns checkpointing of the line with most activations, then of all lines. Of each line's
    /// activations only the newest is kept: what is absent is computed again in the backward pass.
    fn checkpoint(&self, blocks: &[Block], lines: &mut Lines<'_>) -> Vec<Alternative> {
        if !self.is_of_step() {
            return Vec::new();
        }
        let mut by_line: BTreeMap<u32, (u64, Vec<u64>)> = BTreeMap::new();
        for block in blocks.iter().filter(|block| block.since_event >= self.oom.step_began) {
            let line = lines.group_of(block);
            if !lines.is_unknown(line) && lines.category_of(block) == Category::Activation {
                let (bytes, requests) = by_line.entry(line).or_default();
                *bytes = bytes.saturating_add(block.size);
                requests.push(block.since_event.saturating_add(1));
            }
        }
        let mut ranked: Vec<_> = by_line.into_iter().filter(|(_, (_, requests))| requests.len() > 1).collect();
        ranked.sort_by_key(|&(line, (bytes, _))| (std::cmp::Reverse(bytes), line));
        let free = |edits: &mut Edits, requests: &[u64]| {
            let mut requests = requests.to_vec();
            requests.sort_unstable();
            for pair in requests.windows(2) {
                edits.free_before(pair[0], pair[1].saturating_add(1));
            }
        };
        let mut alternatives = Vec::new();
        if let Some((line, (bytes, requests))) = ranked.first() {
            let mut edits = self.baseline.clone();
            free(&mut edits, requests);
            let name = lines.name(*line);
            let detail = format!("checkpoint the modules that run {name} ({} of activations)", ByteSize(*bytes));
            alternatives.push(self.edited(detail, edits));
        }
        if ranked.len() > 1 {
            let mut edits = self.baseline.clone();
            ranked.iter().for_each(|(_, (_, requests))| free(&mut edits, requests));
            alternatives.push(self.edited("checkpoint every repeated block".to_owned(), edits));
        }
        alternatives
    }
}

/// Returns the events of the failures of the same request from `oom` on: those of equal site, size
/// and stream.
pub(super) fn same_kind(autopsy: &Autopsy, oom: &OutOfMemory) -> BTreeSet<u64> {
    let kind = |one: &OutOfMemory| {
        let failure = &one.failure;
        (failure.device, failure.site, failure.rounded_bytes, failure.stream)
    };
    let later = autopsy.ooms.iter().filter(|one| kind(one) == kind(oom) && one.failure.event >= oom.failure.event);
    later.map(|one| one.failure.event).collect()
}
