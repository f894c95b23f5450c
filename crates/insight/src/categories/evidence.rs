//! The evidence about a device's allocations: lifetimes, sizes, and the facts of their stacks.

use std::collections::HashMap;

use vramscope_trace::{Category, Definitions, DeviceLifetimes, Recording, Site, SiteId};

use super::known::{Confidence, KnownCategory};
use crate::frames::{Distributed, EnginePhase, FactsCache, FrameMark, RecordedStacks, StackFacts};
use crate::group::{Phase, named_phase};

/// The allocator rounds requests up to multiples of this (`kMinBlockSize` in
/// `c10/core/AllocatorConfig.h`).
const MIN_BLOCK_BYTES: u64 = 512;

/// When an allocation was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Born {
    /// Before the recording.
    Older,
    /// In a module, outside of the backward pass.
    Forward,
    /// In the backward pass.
    Backward,
    /// In an optimizer's step.
    Optimizer,
    /// By the program itself, or nothing tells.
    Other,
}

/// What a site tells about its allocations.
#[derive(Clone, Copy, Debug)]
pub(super) struct SiteEvidence {
    pub(super) born: Born,
    /// The category that was recorded or that the stack names.
    pub(super) known: Option<KnownCategory>,
    /// Whether the stack has a function or a file named after a cache.
    pub(super) names_cache: bool,
    /// Whether FSDP requests the memory: parameters at first, then gathered ones.
    pub(super) is_sharding: bool,
    /// Whether a module is called.
    pub(super) calls_module: bool,
    /// Whether a forward pass is repeated for checkpointed activations.
    pub(super) is_recomputed: bool,
}

/// An allocation, as the rules see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// The first moment at which it exists.
    pub(super) first: u64,
    /// The first moment after the program freed it; `u64::MAX` if it did not.
    pub(super) end: u64,
    /// Requested bytes, rounded up to the allocator's 512. Equal requests may get blocks of
    /// different sizes, so requests are compared.
    pub(super) size: u64,
    pub(super) address: u64,
    pub(super) stream: u64,
    /// Index in [`Evidence::sites`].
    pub(super) site: u32,
    pub(super) born: Born,
}

impl Request {
    /// Returns true if the block is freed by the event after its request.
    pub(super) fn is_momentary(&self) -> bool {
        self.end.saturating_sub(self.first) <= 1
    }
}

/// The evidence about all allocations of a device.
pub(super) struct Evidence {
    /// In the order of their first moments.
    pub(super) requests: Vec<Request>,
    pub(super) sites: Vec<SiteEvidence>,
    /// Whether any stack was recorded.
    pub(super) has_stacks: bool,
    /// The recording's last moment.
    pub(super) end: u64,
}

impl Evidence {
    /// Collects the evidence about a device.
    pub(super) fn new(recording: &Recording, lifetimes: &DeviceLifetimes) -> Self {
        let definitions = recording.definitions();
        let recorded = RecordedStacks::new(definitions);
        let mut facts = FactsCache::default();
        let (mut sites, mut numbers) = (Vec::new(), HashMap::new());
        let first_event = recording.first_event();
        let requests = lifetimes.iter().map(|one| {
            let is_older = !one.start_observed || one.first_moment.saturating_sub(1) < first_event;
            let site = *numbers.entry((one.site, is_older)).or_insert_with(|| {
                let facts = facts.get(definitions, definitions.site(one.site).stack);
                sites.push(site_evidence(definitions, one.site, &facts, (is_older, recorded.has_python())));
                sites.len() as u32 - 1
            });
            Request {
                first: one.first_moment,
                end: one.allocated_until.unwrap_or(u64::MAX),
                size: one.requested.max(1).next_multiple_of(MIN_BLOCK_BYTES),
                address: one.address,
                stream: one.stream.0,
                site,
                born: sites[site as usize].born,
            }
        });
        let requests = requests.collect();
        Self { requests, sites, has_stacks: recorded.has_stacks(), end: recording.end_event() }
    }

    /// Returns what the site of a request tells.
    pub(super) fn site(&self, request: &Request) -> &SiteEvidence {
        &self.sites[request.site as usize]
    }
}

/// Returns what a site tells about its allocations.
fn site_evidence(
    definitions: &Definitions,
    id: SiteId,
    facts: &StackFacts,
    (is_older, has_python): (bool, bool),
) -> SiteEvidence {
    let site = definitions.site(id);
    let has = |mark| facts.marks.contains(mark);
    let born = if is_older { Born::Older } else { born(definitions, site, facts, has_python) };
    let named = match born {
        _ if has(FrameMark::Workspace) => Category::Workspace,
        _ if facts.distributed.is_some() => Category::Communication,
        Born::Optimizer if has(FrameMark::OptimizerState) => Category::OptimizerState,
        Born::Forward | Born::Other | Born::Older if has(FrameMark::Parameter) => Category::Parameter,
        _ if has(FrameMark::DataLoader) => Category::Input,
        _ => Category::Unknown,
    };
    let (category, confidence) = match site.category {
        Category::Unknown => (named, Confidence::Named),
        recorded => (recorded, Confidence::Recorded),
    };
    let known = (category != Category::Unknown).then_some(KnownCategory { category, confidence });
    SiteEvidence {
        born,
        known,
        names_cache: facts.names_cache(),
        is_sharding: facts.distributed == Some(Distributed::Sharding),
        calls_module: has(FrameMark::ModuleCall),
        is_recomputed: has(FrameMark::Checkpoint) && facts.forward_inside,
    }
}

/// Returns when a site's requests are made.
fn born(definitions: &Definitions, site: Site, facts: &StackFacts, has_python: bool) -> Born {
    match named_phase(definitions, site) {
        Some(Phase::Forward) => return Born::Forward,
        Some(Phase::Backward) => return Born::Backward,
        Some(Phase::Optimizer) => return Born::Optimizer,
        Some(Phase::Other) | None => {}
    }
    match facts.engine {
        Some(EnginePhase::Backward) => Born::Backward,
        Some(EnginePhase::Optimizer) if !facts.forward_inside => Born::Optimizer,
        _ if facts.forward_inside => Born::Forward,
        // PyTorch runs the backward pass on threads without Python code.
        _ if has_python && facts.frames == 0 => Born::Backward,
        _ => Born::Other,
    }
}
