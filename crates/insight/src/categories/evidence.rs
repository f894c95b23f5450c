//! The evidence about a device's allocations: lifetimes, sizes, and the facts of their stacks.

use std::collections::HashMap;

use vramscope_pool::MIN_BLOCK_BYTES;
use vramscope_trace::{
    Allocation, Category, Definitions, DeviceLifetimes, NOT_IN_SOURCE_SCOPE, Recording, Site, SiteId,
};

use crate::frames::{Distributed, FactsCache, FrameMark, RecordedStacks, StackFacts};
use crate::group::{Confidence, KnownCategory, Phase, SiteRequest, phase};

/// The part of a step in which an allocation was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestPhase {
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
    pub(super) phase: RequestPhase,
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
    /// Whether only totals of the source show the memory: what it is for is unknown.
    pub(super) is_unknown: bool,
}

/// An allocation, as the rules see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestEvidence {
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
    pub(super) phase: RequestPhase,
}

impl RequestEvidence {
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

    /// Returns true if any stack was recorded.
    pub(super) fn has_stacks(&self) -> bool {
        self.recorded.has_stacks()
    }

    /// Returns the index of what an allocation's site tells.
    fn number(&mut self, recording: &Recording, one: &Allocation) -> u32 {
        self.number_of_site(recording.definitions(), (one.site, is_older(recording, one)))
    }

    /// Returns the index of what a site tells about its allocations; the second value tells whether
    /// they are older than the recording.
    fn number_of_site(&mut self, definitions: &Definitions, (site, is_older): (SiteId, bool)) -> u32 {
        let (facts, evidence, has_python) = (&mut self.facts, &mut self.evidence, self.recorded.has_python());
        *self.numbers.entry((site, is_older)).or_insert_with(|| {
            let facts = facts.get(definitions, definitions.site(site).stack);
            evidence.push(site_evidence(definitions, site, &facts, (is_older, has_python)));
            evidence.len() as u32 - 1
        })
    }

    /// Returns the category that a request at a site has in all likelihood, as far as the stack
    /// tells. The second value tells whether it is older than the recording.
    pub(super) fn expected(&mut self, definitions: &Definitions, site: (SiteId, bool)) -> Option<KnownCategory> {
        let number = self.number_of_site(definitions, site);
        let SiteEvidence { known, phase, calls_module, .. } = self.evidence[number as usize];
        let category = match phase {
            RequestPhase::Forward if calls_module => Category::Activation,
            RequestPhase::Backward | RequestPhase::Optimizer if site.0 != SiteId(0) => Category::Temporary,
            _ => return known,
        };
        known.or(Some(KnownCategory { category, confidence: Confidence::Likely }))
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
    pub(super) requests: Vec<RequestEvidence>,
    pub(super) sites: &'a [SiteEvidence],
    /// Whether any stack was recorded.
    pub(super) has_stacks: bool,
    /// The first and the last moment of the lifetimes.
    pub(super) range: (u64, u64),
}

impl<'a> Evidence<'a> {
    /// Collects the evidence about a device, whose lifetimes are known in a range of moments.
    pub(super) fn new(
        recording: &Recording,
        lifetimes: &DeviceLifetimes,
        range: (u64, u64),
        sites: &'a mut Sites,
    ) -> Self {
        let requests = lifetimes.iter().map(|one| {
            let site = sites.number(recording, &one);
            let rounded = one.requested.max(1).checked_next_multiple_of(MIN_BLOCK_BYTES);
            RequestEvidence {
                first: one.first_moment,
                end: one.allocated_until.unwrap_or(u64::MAX),
                size: rounded.unwrap_or(one.requested),
                address: one.address,
                stream: one.stream.0,
                site,
                phase: sites.evidence[site as usize].phase,
            }
        });
        let requests = requests.collect();
        Self { requests, sites: &sites.evidence, has_stacks: sites.recorded.has_stacks(), range }
    }

    /// Returns the moment after a share of the recording, in tenths.
    pub(super) fn moment_after(&self, tenths: u64) -> u64 {
        let (begin, end) = self.range;
        begin.saturating_add(end.saturating_sub(begin) / 10 * tenths)
    }

    /// Returns what the site of a request tells.
    pub(super) fn site(&self, request: &RequestEvidence) -> &SiteEvidence {
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
    let phase = if is_older { RequestPhase::Older } else { request_phase(definitions, site, facts, has_python) };
    let named = match phase {
        _ if has(FrameMark::Workspace) => Category::Workspace,
        _ if facts.distributed.is_some() => Category::Communication,
        RequestPhase::Optimizer | RequestPhase::Older if has(FrameMark::OptimizerState) => Category::OptimizerState,
        RequestPhase::Forward | RequestPhase::Other | RequestPhase::Older if has(FrameMark::Parameter) => {
            Category::Parameter
        }
        _ if has(FrameMark::DataLoader) => Category::Input,
        _ => Category::Unknown,
    };
    let (category, confidence) = match site.category {
        Category::Unknown => (named, Confidence::Named),
        recorded => (recorded, Confidence::Recorded),
    };
    let known = (category != Category::Unknown).then_some(KnownCategory { category, confidence });
    SiteEvidence {
        phase,
        known,
        names_cache: facts.names_cache(),
        is_sharding: facts.distributed == Some(Distributed::Sharding),
        calls_module: has(FrameMark::ModuleCall),
        is_recomputed: has(FrameMark::Checkpoint) && facts.forward_inside,
        is_unknown: definitions.string(site.scope) == NOT_IN_SOURCE_SCOPE,
    }
}

/// Returns true if an allocation is older than the recording, or was made where events are missing.
pub(super) fn is_older(recording: &Recording, one: &Allocation) -> bool {
    !one.start_observed || one.first_moment.saturating_sub(1) < recording.first_event()
}

/// Returns the part of a step in which a site's requests are made.
fn request_phase(definitions: &Definitions, site: Site, facts: &StackFacts, has_python: bool) -> RequestPhase {
    let lacks_python = facts.frames == 0 && has_python;
    match phase(definitions, SiteRequest { site, facts, lacks_python }) {
        Some(Phase::Forward) => RequestPhase::Forward,
        Some(Phase::Backward) => RequestPhase::Backward,
        Some(Phase::Optimizer) => RequestPhase::Optimizer,
        Some(Phase::Other) | None => RequestPhase::Other,
    }
}
