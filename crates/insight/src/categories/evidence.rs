//! The evidence about a device's allocations: lifetimes, sizes, and the facts of their stacks.

use std::collections::HashMap;

use vramscope_pool::MIN_BLOCK_BYTES;
use vramscope_trace::{Allocation, Category, Definitions, DeviceLifetimes, Recording, Site, SiteId};

use super::known::{Confidence, KnownCategory};
use crate::frames::{Distributed, FactsCache, FrameMark, RecordedStacks, StackFacts};
use crate::group::{Phase, SiteRequest, phase};

/// When an allocation was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Born {
    /// Before the recording, or where events are missing.
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

/// What the sites of a recording tell, for all of its devices.
pub(super) struct Sites {
    recorded: RecordedStacks,
    facts: FactsCache,
    evidence: Vec<SiteEvidence>,
    /// The index in `evidence` of each site, for blocks older than the recording and for others.
    numbers: HashMap<(SiteId, bool), u32>,
}

impl Sites {
    /// Looks at the stacks of a recording.
    pub(super) fn new(definitions: &Definitions) -> Self {
        Self {
            recorded: RecordedStacks::new(definitions),
            facts: FactsCache::default(),
            evidence: Vec::new(),
            numbers: HashMap::new(),
        }
    }

    /// Returns the index of what an allocation's site tells.
    fn number(&mut self, recording: &Recording, one: &Allocation) -> u32 {
        let definitions = recording.definitions();
        let is_older = !one.start_observed || one.first_moment.saturating_sub(1) < recording.first_event();
        let (facts, evidence, has_python) = (&mut self.facts, &mut self.evidence, self.recorded.has_python());
        *self.numbers.entry((one.site, is_older)).or_insert_with(|| {
            let facts = facts.get(definitions, definitions.site(one.site).stack);
            evidence.push(site_evidence(definitions, one.site, &facts, (is_older, has_python)));
            evidence.len() as u32 - 1
        })
    }

    /// Returns the category of an allocation that was recorded or that its stack names.
    pub(super) fn known(&mut self, recording: &Recording, one: &Allocation) -> Option<KnownCategory> {
        let number = self.number(recording, one);
        self.evidence[number as usize].known
    }
}

/// The evidence about all allocations of a device.
pub(super) struct Evidence<'a> {
    /// In the order of their first moments.
    pub(super) requests: Vec<Request>,
    pub(super) sites: &'a [SiteEvidence],
    /// Whether any stack was recorded.
    pub(super) has_stacks: bool,
    /// The recording's first and last moment.
    pub(super) range: (u64, u64),
}

impl<'a> Evidence<'a> {
    /// Collects the evidence about a device.
    pub(super) fn new(recording: &Recording, lifetimes: &DeviceLifetimes, sites: &'a mut Sites) -> Self {
        let requests = lifetimes.iter().map(|one| {
            let site = sites.number(recording, &one);
            let rounded = one.requested.max(1).checked_next_multiple_of(MIN_BLOCK_BYTES);
            Request {
                first: one.first_moment,
                end: one.allocated_until.unwrap_or(u64::MAX),
                size: rounded.unwrap_or(one.requested),
                address: one.address,
                stream: one.stream.0,
                site,
                born: sites.evidence[site as usize].born,
            }
        });
        let requests = requests.collect();
        let range = (recording.first_event(), recording.end_event());
        Self { requests, sites: &sites.evidence, has_stacks: sites.recorded.has_stacks(), range }
    }

    /// Returns the moment after a share of the recording, in tenths.
    pub(super) fn moment_after(&self, tenths: u64) -> u64 {
        let (begin, end) = self.range;
        begin.saturating_add(end.saturating_sub(begin) / 10 * tenths)
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
        Born::Optimizer | Born::Older if has(FrameMark::OptimizerState) => Category::OptimizerState,
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
    let lacks_python = facts.frames == 0 && has_python;
    match phase(definitions, SiteRequest { site, facts, lacks_python }) {
        Some(Phase::Forward) => Born::Forward,
        Some(Phase::Backward) => Born::Backward,
        Some(Phase::Optimizer) => Born::Optimizer,
        Some(Phase::Other) | None => Born::Other,
    }
}
