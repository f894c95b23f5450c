//! The examination of one failure.

use std::collections::{BTreeMap, BTreeSet};

use vramscope_pool::Settings;
use vramscope_trace::{Allocation, Block, Category, Definitions, DeviceLifetimes, DeviceState, MempoolId, Segment};

use super::ages::{Ages, state_like_bytes};
use super::contents::{Growing, Lines, common_call, compared_steps};
use super::out_of_memory::{OutOfMemory, Pin};
use super::summary::{Facts, summary};
use crate::failures::{FailureCard, OomCause};
use crate::placement::placement;
use crate::steps::{AllocatedCurve, GroupsByStep, Steps};

/// The issue of pytorch/pytorch about pools that do not release free segments while in use.
const RELEASE_ISSUE: u32 = 159_674;
/// Maximum number of listed blocks that pin segments.
const MAX_PINS: usize = 8;
/// Divisor: if at least an eighth of the reserved memory is free in the request's pool and stream,
/// the cause is fragmentation, whatever the step's contents are.
const FRAGMENTED_PART: u64 = 8;
/// Maximum number of steps before a failure whose first moments are kept.
const MAX_STEP_STARTS: usize = 64;

/// The findings about one failure, completed step by step.
#[derive(Clone, Debug)]
pub(super) struct Examination {
    event: u64,
    step_starts: Vec<u64>,
    is_continued: bool,
    /// The comparison of the steps before the failure, until it is complete.
    compared: Option<GroupsByStep>,
    /// Whether `compared` has all steps.
    is_compared: bool,
    /// The search for the moment of least memory, without steps.
    curve: AllocatedCurve,
    /// The least allocated bytes found by `curve`, and their moment; the begin of the failed step
    /// if there are steps.
    least: (u64, u64),
}

impl Examination {
    /// Creates the examination of the failure with event number `event`; `steps` are the device's
    /// training steps.
    pub(super) fn new(steps: &Steps, event: u64) -> Self {
        let before: Vec<_> = steps.as_slice().iter().filter(|step| step.to_event < event).collect();
        let last = before.last().map(|step| step.to_event);
        let from = before.len().saturating_sub(MAX_STEP_STARTS);
        let step_starts: Vec<u64> = before[from..].iter().map(|step| step.from_event).chain(last).collect();
        let moment = event.saturating_sub(1);
        // Without steps, the moment of least memory in the second half of the events counts as the
        // begin of the failed step.
        let curve = AllocatedCurve::new(moment / 2, if step_starts.is_empty() { moment } else { 0 });
        Self {
            event,
            is_continued: steps.as_slice().iter().any(|step| step.from_event >= event),
            compared: compared_steps(steps, event),
            is_compared: false,
            curve,
            least: (u64::MAX, step_starts.last().copied().unwrap_or(0)),
            step_starts,
        }
    }

    /// Does a part of the work; returns true once [`finish`](Self::finish) can be called.
    pub(super) fn step(&mut self, lifetimes: &DeviceLifetimes, definitions: &Definitions, lines: &mut Lines) -> bool {
        if let Some(compared) = self.compared.as_mut().filter(|_| !self.is_compared) {
            self.is_compared = compared.step(lifetimes, |one| lines.of_allocation(definitions, one));
            return false;
        }
        if !self.curve.is_finished() {
            let least = &mut self.least;
            self.curve.advance(lifetimes, &mut |point| {
                if point.allocated_bytes <= least.0 {
                    *least = (point.allocated_bytes, point.event);
                }
            });
            return false;
        }
        true
    }

    /// Finds the cause. `events` are the numbers of equal failures, `device` is the memory before
    /// the first failure.
    #[expect(clippy::too_many_arguments, reason = "each is another source of facts")]
    pub(super) fn finish(
        self,
        card: &FailureCard,
        events: Vec<u64>,
        device: &DeviceState,
        lifetimes: &DeviceLifetimes,
        definitions: &Definitions,
        lines: &mut Lines,
        settings: &Settings,
    ) -> OutOfMemory {
        let failure = &card.failure;
        let growing = self.compared.as_ref().and_then(|compared| lines.growing(definitions, compared));
        let pinning = placement(device, &failure.request(), settings).ok().and_then(|found| found.blocking);
        let pins = pinning.iter().flat_map(|region| &region.blocks).filter_map(|pin| device.block_at(pin.address));
        let mut pins: Vec<&Block> = pins.collect();
        pins.sort_by_key(|block| (std::cmp::Reverse(block.size), block.address));
        pins.truncate(MAX_PINS);
        let pin = |block: &Block| {
            let line = lines.of_block(definitions, block);
            let site = lines.name_of_request(definitions, line, block.site);
            Pin { address: block.address, bytes: block.size, site }
        };
        let pins = pins.into_iter().map(pin).collect();
        let holders = lines.holders(definitions, device.blocks());
        let line = lines.of_request(definitions, failure);
        let request = lines.name_of_request(definitions, line, failure.site);
        let mut oom = OutOfMemory {
            failure: failure.clone(),
            events,
            cap: card.cap,
            device: card.device,
            pinning,
            pins,
            cause: card.cause,
            pytorch_issue: card.pytorch_issue,
            summary: String::new(),
            site: request.clone(),
            request_line: Some(request).filter(|_| !lines.is_unnamed(line)),
            holders,
            step_began: self.least.1,
            step_starts: self.step_starts,
            is_continued: self.is_continued,
            growing: BTreeSet::new(),
        };
        let ages = Ages::new(lifetimes, self.event, oom.step_began);
        let mut facts = Facts {
            grown_bytes: growing.as_ref().map_or(0, |one| one.bytes),
            during: "from step to step",
            young_bytes: ages.young_bytes,
            allocator_summary: &card.summary,
            free_in_pool_bytes: 0,
        };
        oom.cause = refined_cause(&oom, &ages, facts.grown_bytes, lines, lifetimes);
        let is_of_pools = matches!(
            oom.cause,
            OomCause::Temporary
                | OomCause::OverCap
                | OomCause::DeviceFull
                | OomCause::PrivatePool
                | OomCause::Fragmentation
        );
        let in_pool = own_pool_segments(&oom, device, lifetimes).filter(|_| is_of_pools);
        if let Some(bytes) = in_pool.filter(|bytes| *bytes >= oom.failure.rounded_bytes) {
            (oom.cause, oom.pytorch_issue) = (OomCause::PoolWithoutRelease, Some(RELEASE_ISSUE));
            facts.free_in_pool_bytes = bytes;
        }
        let call = match (oom.cause, growing) {
            (OomCause::Leak, Some(growing)) => {
                let call = grown_call(&growing, device, oom.step_began, definitions, lines);
                oom.growing = growing.lines;
                call
            }
            (OomCause::Activations | OomCause::Outside, _) => {
                let request = (failure.site, failure.rounded_bytes);
                let young = device.blocks().filter(|block| block.since_event >= oom.step_began);
                common_call(definitions, young.map(|block| (block.site, block.size)).chain([request]))
            }
            _ => None,
        };
        if let Some(call) = call {
            oom.site = call;
        }
        oom.summary = summary(&oom, facts);
        oom
    }
}

/// Returns the call that requested the memory that grew in earlier steps, or without stacks the
/// line that holds most of it.
fn grown_call(
    growing: &Growing,
    device: &DeviceState,
    step_began: u64,
    definitions: &Definitions,
    lines: &mut Lines,
) -> Option<String> {
    let mut grown: Vec<(&Block, u32)> = Vec::new();
    for block in device.blocks().filter(|block| block.since_event < step_began) {
        let line = lines.of_block(definitions, block);
        if growing.lines.contains(&line) {
            grown.push((block, line));
        }
    }
    let call = common_call(definitions, grown.iter().map(|(block, _)| (block.site, block.size)));
    call.or_else(|| {
        let mut bytes: BTreeMap<u32, u64> = BTreeMap::new();
        for (block, line) in grown {
            let sum = bytes.entry(line).or_default();
            *sum = sum.saturating_add(block.size);
        }
        bytes.into_iter().max_by_key(|&(_, bytes)| bytes).map(|(line, _)| lines.name(line))
    })
}

/// Returns the bytes of whole free segments, each too small for the failed request, in the private
/// pool that served the last request of its call stack and stream, and so this one; `None` if that
/// came from the default pool, or without stacks. Recordings do not contain the pool of a failed
/// request.
fn own_pool_segments(oom: &OutOfMemory, device: &DeviceState, lifetimes: &DeviceLifetimes) -> Option<u64> {
    oom.request_line.as_ref()?;
    let failed = &oom.failure;
    let is_earlier =
        |one: &Allocation| one.site == failed.site && one.stream == failed.stream && one.first_moment < failed.event;
    let last = lifetimes.iter().filter(is_earlier).last()?;
    let owner = Some(last.pool.owner).filter(|owner| *owner != MempoolId::default())?;
    let is_own = |segment: &&Segment| (segment.pool.owner, segment.stream) == (owner, failed.stream);
    let segments = device.segments().filter(is_own).filter(|one| !one.expandable && one.size < failed.rounded_bytes);
    let is_free = |segment: &&Segment| device.extents(segment).all(|extent| extent.block.is_none());
    Some(segments.filter(is_free).fold(0, |sum, segment| sum.saturating_add(segment.size)))
}

/// Finds the cause, in the allocator or in the program's use of memory.
fn refined_cause(
    oom: &OutOfMemory,
    ages: &Ages,
    grown_bytes: u64,
    lines: &Lines,
    lifetimes: &DeviceLifetimes,
) -> OomCause {
    let (need, active) = (oom.failure.rounded_bytes, oom.active_bytes());
    let is_limit = matches!(oom.cause, OomCause::OverCap | OomCause::DeviceFull);
    if !is_limit && oom.cause != OomCause::Fragmentation {
        return oom.cause;
    }
    if grown_bytes > 0 && grown_bytes >= active / 5 {
        return OomCause::Leak;
    }
    if !is_limit && oom.failure.own_free_bytes >= oom.failure.usage.reserved_bytes / FRAGMENTED_PART {
        return oom.cause;
    }
    let parameters = oom.category_bytes(Category::Parameter);
    let state = oom.category_bytes(Category::OptimizerState);
    let obtainable = oom.obtainable_bytes();
    let is_state = lines.category_of_site(oom.failure.site) == Category::OptimizerState || state > obtainable / 2;
    if is_state || state_like_bytes(lifetimes, oom.failure.event, need) > active / 8 {
        return OomCause::OptimizerState;
    }
    // One large request beside little live memory does not mean that the parameters are too large.
    let is_filled = ages.freed_bytes <= ages.allocated_bytes / 20 && active >= need / 2;
    if is_filled || parameters > obtainable / 5 * 4 {
        return OomCause::Parameters;
    }
    if need >= obtainable / 4 {
        return OomCause::Temporary;
    }
    let activations = oom.category_bytes(Category::Activation);
    let is_young = ages.young_bytes >= active / 4 && (activations > 0 || !lines.has_stacks());
    if is_young || activations > active / 3 {
        return OomCause::Activations;
    }
    oom.cause
}
