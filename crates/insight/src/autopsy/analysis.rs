//! Finds the cause of each out-of-memory event.

use std::collections::BTreeMap;

use vramscope_pool::Settings;
use vramscope_trace::{Block, Category, DeviceId, DeviceState, EventKind, FormatError, Recording, Replay, SiteId};

use super::cause::OomCause;
use super::contents::{Ages, Lines, state_like_bytes};
use super::free_memory::FreeMemory;
use super::out_of_memory::OutOfMemory;
use super::summary::summary;
use crate::advice::{CARDS, CONTEXT_BYTES};
use crate::failures::{Failure, Failures, ReservedCap};
use crate::history::History;
use crate::placement::placement;
use crate::spans::Marks;
use crate::steps::{Steps, find_steps};

/// The most failures of a recording that are examined; the first ones.
pub const MAX_FAILURES: usize = 256;
/// Number of events before a failure in which a completed free counts as just before it.
const JUST_BEFORE: u64 = 64;

/// A request that is larger than everything reserved by this factor can be refused by any cap that
/// is near what was reserved.
const TOO_LARGE_FACTOR: u64 = 8;

/// The out-of-memory events of a recording with their causes.
#[derive(Clone, Debug, Default)]
pub struct Autopsy {
    /// The events in order, at most [`MAX_FAILURES`].
    pub ooms: Vec<OutOfMemory>,
    /// Number of further events that are not examined.
    pub omitted: u64,
}

impl Autopsy {
    /// Examines the failures of a recording. `history` has all its lifetimes; `settings` are the
    /// allocator's, with the cap as `limit_bytes` if it is known.
    ///
    /// The cost of each failure is linear in the number of events before it.
    ///
    /// # Errors
    /// If a chunk cannot be read.
    pub fn new(recording: &Recording, history: &History, settings: &Settings) -> Result<Self, FormatError> {
        let mut failures = Failures::new(settings.clone());
        failures.step(recording, MAX_FAILURES)?;
        let is_oom =
            |kind: &vramscope_trace::IncidentKind| matches!(kind, vramscope_trace::IncidentKind::OutOfMemory { .. });
        let all = recording.incidents().iter().filter(|incident| is_oom(&incident.kind)).count();
        let cards = failures.cards(recording);
        let mut marks = Marks::default();
        marks.update(recording);
        let mut examiner = Examiner {
            recording,
            history,
            settings,
            marks,
            replay: Replay::new(),
            lines: Lines::new(recording),
            steps: BTreeMap::new(),
            most_obtainable: BTreeMap::new(),
        };
        let mut ooms = Vec::new();
        for card in cards {
            ooms.extend(examiner.examine(card.failure, card.cap)?);
        }
        Ok(Self { omitted: all.saturating_sub(ooms.len()) as u64, ooms })
    }
}

/// What the examination of several failures shares.
struct Examiner<'r> {
    recording: &'r Recording,
    history: &'r History,
    settings: &'r Settings,
    marks: Marks,
    replay: Replay,
    lines: Lines<'r>,
    steps: BTreeMap<DeviceId, Steps>,
    /// The most bytes that the pool could obtain at an earlier failure without a cap.
    most_obtainable: BTreeMap<DeviceId, u64>,
}

impl Examiner<'_> {
    /// Examines one failure; `None` if the state before it has no such device.
    fn examine(&mut self, failure: Failure, cap: ReservedCap) -> Result<Option<OutOfMemory>, FormatError> {
        let id = failure.device;
        let (event, need) = (failure.event, failure.rounded_bytes);
        let freed_before = self.freed_just_before(&failure)?;
        let mut replay = std::mem::take(&mut self.replay);
        let state = replay.seek(self.recording, event.saturating_sub(1))?;
        let empty = DeviceState::default();
        let device = state.device(id).unwrap_or(&empty);
        let free = FreeMemory::read(device, failure.pool, failure.stream);
        let pinning = placement(device, &failure.request(), self.settings).ok().and_then(|found| found.blocking);
        let holders = self.lines.holders(device.blocks());
        let request_line = self.lines.name_of_request(&failure);
        let mut oom = OutOfMemory {
            outside_bytes: None,
            total_bytes: 0,
            free,
            pinning,
            cause: OomCause::DeviceFull,
            summary: String::new(),
            site: request_line.clone(),
            request_line,
            growing: Vec::new(),
            holders,
            step_began: 0,
            failure,
            cap,
        };
        self.measure_outside(&mut oom);
        let mut growth = None;
        if let Some(lifetimes) = self.history.lifetimes(id) {
            if !self.steps.contains_key(&id) {
                let time_ns = |moment| self.history.time_ns(moment);
                let steps = find_steps(self.recording, &self.marks, id, lifetimes, None, time_ns);
                self.steps.insert(id, steps);
            }
            let ages = Ages::new(lifetimes, event);
            oom.step_began = ages.step_began;
            growth = self.steps.get(&id).and_then(|steps| self.lines.growth(lifetimes, steps, event));
            let state_bytes = state_like_bytes(lifetimes, event, need);
            oom.cause = self.cause(&oom, freed_before, growth.as_ref().map_or(0, |one| one.bytes), &ages, state_bytes);
        }
        let lines = &mut self.lines;
        let call = match (oom.cause, &growth) {
            (OomCause::Leak, Some(growth)) => {
                let grown: Vec<&Block> =
                    device.blocks().filter(|block| growth.contains(lines.group_of(block))).collect();
                lines.common_call(grown.into_iter().map(|block| (block.site, block.size)))
            }
            (OomCause::Activations | OomCause::Outside, _) => {
                let request = (oom.failure.site, oom.failure.rounded_bytes);
                let young = device.blocks().filter(|block| block.since_event >= oom.step_began);
                lines.common_call(young.map(|block| (block.site, block.size)).chain([request]))
            }
            _ => None,
        };
        if let Some(call) = call {
            oom.site = call;
        }
        if let (OomCause::Leak, Some(growth)) = (oom.cause, &growth) {
            oom.growing = growth.lines().map(|line| lines.name(line)).collect();
        }
        oom.summary = summary(&oom, growth.map_or(0, |one| one.bytes));
        self.replay = replay;
        Ok(Some(oom))
    }

    /// Returns true if a free was completed just before the failure, with no request in between.
    fn freed_just_before(&mut self, failure: &Failure) -> Result<bool, FormatError> {
        let index = failure.event.saturating_sub(1);
        for before in (index.saturating_sub(JUST_BEFORE)..index).rev() {
            match self.replay.event(self.recording, before)? {
                Some(event) if event.device != failure.device => {}
                Some(event) => match event.kind {
                    EventKind::FreeCompleted { .. } => return Ok(true),
                    EventKind::BlockAllocated { .. } => return Ok(false),
                    _ => {}
                },
                None => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Finds the size of the device and what others hold of it.
    fn measure_outside(&mut self, oom: &mut OutOfMemory) {
        let id = oom.failure.device;
        let held = oom.failure.usage.reserved_bytes.saturating_add(oom.failure.device_free_bytes);
        let recorded = self.recording.info().devices.iter().find(|info| info.device == id.0);
        let recorded = recorded.map_or(0, |info| info.total_bytes);
        let card = CARDS.iter().find(|card| card.total_bytes >= held).map_or(0, |card| card.total_bytes);
        let earlier = self.most_obtainable.entry(id).or_default();
        *earlier = (*earlier).max(held);
        oom.total_bytes = if recorded > 0 { recorded } else { card.max(*earlier) };
        oom.outside_bytes = (oom.total_bytes > 0).then(|| oom.total_bytes.saturating_sub(held));
    }

    /// Finds the cause; see the module for the order.
    fn cause(
        &self,
        oom: &OutOfMemory,
        freed_before: bool,
        grown_bytes: u64,
        ages: &Ages,
        state_bytes: u64,
    ) -> OomCause {
        let (free, need) = (&oom.free, oom.failure.rounded_bytes);
        let obtainable = oom.obtainable_bytes();
        let active = oom.active_bytes();
        let outside = oom.outside_bytes.unwrap_or(0);
        if need > obtainable && (oom.is_capped() || need > oom.total_bytes) {
            return OomCause::NeverFits;
        }
        // The cap may be anything up to what was refused, but freeing all the rest hardly helps.
        if oom.is_capped() && need / TOO_LARGE_FACTOR >= oom.failure.usage.reserved_bytes.max(1) {
            return OomCause::NeverFits;
        }
        if !oom.is_capped() && outside > CONTEXT_BYTES && outside > oom.total_bytes / 4 {
            return OomCause::Outside;
        }
        if free.releasable_bytes >= need && oom.failure.released == 0 {
            return OomCause::PoolWithoutRelease;
        }
        if (free.own_largest_bytes >= need && freed_before) || free.with_pending_largest_bytes >= need {
            return OomCause::PendingFrees;
        }
        if free.other_stream_largest_bytes >= need {
            return OomCause::OtherStream;
        }
        if free.private_bytes >= need && free.private_bytes >= free.own_bytes {
            return OomCause::PrivatePool;
        }
        if grown_bytes > 0 && grown_bytes >= active / 5 {
            return OomCause::Leak;
        }
        let reserved = oom.failure.usage.reserved_bytes;
        if free.own_bytes >= need && free.own_bytes >= reserved / 8 {
            return OomCause::Fragmentation;
        }
        self.contents_cause(oom, ages, state_bytes, active, obtainable)
    }

    /// Finds the cause from what filled the memory.
    fn contents_cause(
        &self,
        oom: &OutOfMemory,
        ages: &Ages,
        state_bytes: u64,
        active: u64,
        obtainable: u64,
    ) -> OomCause {
        let need = oom.failure.rounded_bytes;
        let site: SiteId = oom.failure.site;
        let requested = self.lines.category(site);
        let parameters = oom.category_bytes(Category::Parameter);
        let state = oom.category_bytes(Category::OptimizerState);
        let is_state = requested == Category::OptimizerState || state > active / 2;
        if is_state || state_bytes > active / 8 {
            return OomCause::OptimizerState;
        }
        if ages.freed_bytes <= ages.allocated_bytes / 20 || (parameters > active / 5 * 4 && parameters > 0) {
            return OomCause::Parameters;
        }
        if need >= obtainable / 4 {
            return OomCause::Temporary;
        }
        let activations = oom.category_bytes(Category::Activation);
        if ages.young_bytes >= active / 4 || activations > active / 3 {
            return OomCause::Activations;
        }
        if oom.is_capped() { OomCause::OverCap } else { OomCause::DeviceFull }
    }
}
