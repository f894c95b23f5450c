//! Finds the cause of each out-of-memory event, in steps.

use std::collections::BTreeMap;
use std::sync::Arc;

use vramscope_pool::Settings;
use vramscope_trace::{
    ByteSize, DeviceId, DeviceState, EventKind, FormatError, IncidentKind, Recording, Replay, SiteId, StreamId,
};

use super::contents::Lines;
use super::examination::Examination;
use super::out_of_memory::OutOfMemory;
use super::summary::{Facts, summary};
use crate::failures::{FailureCard, Failures, OomCause};
use crate::group::{DeviceCategories, RecordingCategories};
use crate::history::History;
use crate::spans::Marks;
use crate::steps::{Steps, find_steps};

/// Maximum number of different failures to examine: the first ones of a recording.
const MAX_DIFFERENT: usize = 64;
/// Divisor: growth explains a failure if it is at least an eighth of the bytes that were allocated
/// when the request failed.
const MIN_GROWTH_PART: u64 = 8;
/// Divisor: memory that a private pool holds in vain explains a failure if it is at least a quarter
/// of the request.
const MIN_POOL_PART: u64 = 4;
/// Number of out-of-memory events that one step looks at.
const EVENTS_PER_STEP: usize = 1024;

/// Device, site, stream and requested size of a failed request. Failures with equal keys are one
/// failure in the result.
type FailureKey = (DeviceId, SiteId, StreamId, u64);

/// The work of the next step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Look at the incidents from this index on, and group equal failures.
    #[default]
    Group,
    /// Read the memory state at the first failure of the group with this index.
    Read(usize),
    /// Find the steps of training on the device of the failure with this index.
    Steps(usize),
    /// Examine the failure with this index.
    Examine(usize),
    /// Nothing is left.
    Done,
}

/// The out-of-memory events of a recording with their causes, found in steps.
///
/// ```
/// use vramscope_insight::autopsy::Autopsy;
/// use vramscope_insight::history::History;
/// use vramscope_pool::Settings;
/// use vramscope_trace::{FormatError, Recording};
///
/// /// Returns the causes of the failures of a program that could reserve 8 GiB.
/// fn causes(recording: &Recording, history: &History) -> Result<Vec<&'static str>, FormatError> {
///     let settings = Settings { limit_bytes: Some(8 << 30), ..Settings::default() };
///     let mut autopsy = Autopsy::new(settings);
///     while !autopsy.step(recording, history)? {}
///     Ok(autopsy.ooms().iter().map(|oom| oom.cause.id()).collect())
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Autopsy {
    settings: Settings,
    phase: Phase,
    /// Number of the recording's incidents that have been looked at.
    incidents: usize,
    replay: Replay,
    /// For each group of equal failures, the numbers of its out-of-memory events.
    groups: Vec<Vec<u64>>,
    /// The index in `groups` of each key.
    group_of: BTreeMap<FailureKey, usize>,
    omitted: u64,
    failures: Failures,
    cards: Vec<FailureCard>,
    marks: Marks,
    steps: BTreeMap<DeviceId, Steps>,
    categories: Option<Arc<RecordingCategories>>,
    lines: Option<Lines>,
    examination: Option<Examination>,
    ooms: Vec<OutOfMemory>,
}

impl Autopsy {
    /// Creates an autopsy that has found nothing yet. `settings` are the allocator's, with the cap
    /// as `limit_bytes` if it is known.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { failures: Failures::new(settings.clone()), settings, ..Self::default() }
    }

    /// Does a part of the work; returns true once all failures are examined. `history` has all
    /// lifetimes of the recording.
    ///
    /// The longest parts are linear in the number of allocations: about 20 ms for a million, twice
    /// that once for a device without spans, to find its steps, and once 400 ms, to infer
    /// categories.
    ///
    /// # Errors
    /// If a chunk cannot be read. A later call tries again.
    pub fn step(&mut self, recording: &Recording, history: &History) -> Result<bool, FormatError> {
        self.phase = match self.phase {
            Phase::Group => self.group(recording)?,
            Phase::Read(index) => match self.groups.get(index) {
                Some(events) => {
                    let first = events.first().copied().unwrap_or(1);
                    self.failures.read(recording, first.saturating_sub(1))?;
                    Phase::Read(index + 1)
                }
                None => {
                    self.cards = self.failures.cards(recording);
                    self.marks.update(recording);
                    self.lines = Some(Lines::new(recording));
                    if !self.cards.is_empty() {
                        self.categories = Some(history.all_categories(recording));
                    }
                    Phase::Steps(0)
                }
            },
            Phase::Steps(index) => match self.cards.get(index) {
                Some(card) => {
                    let id = card.failure.device;
                    if let Some(lifetimes) = history.lifetimes(id).filter(|_| !self.steps.contains_key(&id)) {
                        let time_ns = |moment| history.time_ns(moment);
                        let steps = find_steps(recording, &self.marks, id, lifetimes, None, time_ns);
                        self.steps.insert(id, steps);
                    }
                    Phase::Examine(index)
                }
                None => Phase::Done,
            },
            Phase::Examine(index) => self.examine(index, recording, history)?,
            Phase::Done => Phase::Done,
        };
        Ok(self.phase == Phase::Done)
    }

    /// Returns the failures examined so far, in the order of their first events. Equal failures are
    /// one entry.
    #[must_use]
    pub fn ooms(&self) -> &[OutOfMemory] {
        &self.ooms
    }

    /// Returns the number of failures that are not examined, because 64 different ones precede
    /// them.
    #[must_use]
    pub fn omitted(&self) -> u64 {
        self.omitted
    }

    /// Returns the allocator's settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Explains the failures of a device from the event `since` on by memory of a site that grew by
    /// some bytes, `during` (such as "from step to step"), where that is a large part of what was
    /// allocated and no rule of the allocator kept free memory from serving the request.
    pub(crate) fn explain_by_growth(
        &mut self,
        device: DeviceId,
        since: u64,
        (site, grown_bytes): (&str, u64),
        during: &str,
    ) {
        use OomCause::{Activations, DeviceFull, Fragmentation, OverCap, Temporary};
        for oom in self.ooms.iter_mut().filter(|oom| oom.failure.device == device) {
            let is_program = matches!(oom.cause, Activations | DeviceFull | Fragmentation | OverCap | Temporary);
            let is_later = oom.failure.event >= since;
            if is_program && is_later && grown_bytes >= oom.failure.usage.allocated_bytes / MIN_GROWTH_PART {
                (oom.cause, oom.site, oom.pytorch_issue) = (OomCause::Leak, site.to_owned(), None);
                let facts = Facts { grown_bytes, during, young_bytes: 0, allocator_summary: "", free_in_pool_bytes: 0 };
                oom.summary = summary(oom, facts);
            }
        }
    }

    /// Explains the failures of a device after the event `since` by `bytes` that a private pool
    /// holds in vain from then on, where they are a large part of the request. `site` requested
    /// them.
    pub(crate) fn explain_by_pool(&mut self, device: DeviceId, since: u64, site: &str, bytes: u64) {
        use OomCause::{DeviceFull, OverCap, PrivatePool, Temporary};
        for oom in self.ooms.iter_mut().filter(|oom| oom.failure.device == device) {
            let is_large = bytes >= oom.failure.rounded_bytes / MIN_POOL_PART;
            if is_large && oom.failure.event > since && matches!(oom.cause, DeviceFull | OverCap | Temporary) {
                oom.cause = PrivatePool;
                oom.summary = format!(
                    "{} at {} failed while {} stay reserved in a private pool that is not used any more (requested \
                     at {site}). {}",
                    ByteSize(oom.failure.rounded_bytes),
                    oom.request_place(),
                    ByteSize(bytes),
                    oom.summary
                );
            }
        }
    }

    /// Explains the failures of a device by memory outside of the pool that grew, as `summary`
    /// says.
    pub(crate) fn explain_by_outside(&mut self, device: DeviceId, summary: &str) {
        use OomCause::{DeviceFull, Outside, Temporary};
        for oom in self.ooms.iter_mut().filter(|oom| oom.failure.device == device) {
            if matches!(oom.cause, DeviceFull | Outside | Temporary) {
                (oom.cause, oom.summary) = (Outside, format!("{} {summary}", oom.summary));
            }
        }
    }

    /// Returns the numbers of all out-of-memory events of a device that are examined.
    pub(super) fn events_of(&self, device: DeviceId) -> impl Iterator<Item = u64> + '_ {
        let groups = self.group_of.iter().filter(move |((of, ..), _)| *of == device);
        groups.flat_map(|(_, &group)| self.groups[group].iter().copied())
    }

    /// Returns the inferred categories of the recording; `None` if no failure needed them.
    pub(crate) fn categories(&self) -> Option<&Arc<RecordingCategories>> {
        self.categories.as_ref()
    }

    /// Returns the lines of the program, numbered as in the failures found, with the categories of
    /// a device.
    pub(super) fn lines(&self, recording: &Recording, device: DeviceId) -> Lines {
        let mut lines = self.lines.clone().unwrap_or_else(|| Lines::new(recording));
        if let Some(categories) = &self.categories {
            lines.set_categories(&DeviceCategories::new(categories, device));
        }
        lines
    }

    /// Groups the next out-of-memory events. Returns the work of the next step.
    fn group(&mut self, recording: &Recording) -> Result<Phase, FormatError> {
        for _ in 0..EVENTS_PER_STEP {
            let Some(incident) = recording.incidents().get(self.incidents) else { return Ok(Phase::Read(0)) };
            if matches!(incident.kind, IncidentKind::OutOfMemory { .. }) {
                let event = self.replay.event(recording, incident.at_event)?;
                if let Some(event) = event
                    && let EventKind::OutOfMemory { requested, stream, site, .. } = event.kind
                {
                    let key = (event.device, site, stream, requested);
                    let is_known = self.group_of.contains_key(&key);
                    if is_known || self.groups.len() < MAX_DIFFERENT {
                        let next = self.groups.len();
                        let group = *self.group_of.entry(key).or_insert(next);
                        if group == next {
                            self.groups.push(Vec::new());
                        }
                        self.groups[group].push(incident.at_event.saturating_add(1));
                    } else {
                        self.omitted += 1;
                    }
                }
            }
            self.incidents += 1;
        }
        Ok(Phase::Group)
    }

    /// Does a part of the examination of the failure with index `index`. Returns the work of the
    /// next step.
    fn examine(&mut self, index: usize, recording: &Recording, history: &History) -> Result<Phase, FormatError> {
        let (Some(card), Some(lines)) = (self.cards.get(index), self.lines.as_mut()) else { return Ok(Phase::Done) };
        let (device, event) = (card.failure.device, card.failure.event);
        let (Some(lifetimes), Some(steps)) = (history.lifetimes(device), self.steps.get(&device)) else {
            return Ok(Phase::Steps(index + 1));
        };
        let definitions = recording.definitions();
        if let Some(categories) = &self.categories {
            lines.set_categories(&DeviceCategories::new(categories, device));
        }
        let examination = self.examination.get_or_insert_with(|| Examination::new(steps, event));
        if !examination.step(lifetimes, definitions, lines) {
            return Ok(Phase::Examine(index));
        }
        let state = self.replay.seek(recording, event.saturating_sub(1))?;
        let empty = DeviceState::default();
        let device_state = state.device(device).unwrap_or(&empty);
        let group = self.groups.iter().find(|events| events.first() == Some(&event));
        let events = group.cloned().unwrap_or_else(|| vec![event]);
        if let Some(examination) = self.examination.take() {
            let oom = examination.finish(card, events, device_state, lifetimes, definitions, lines, &self.settings);
            self.ooms.push(oom);
        }
        Ok(Phase::Steps(index + 1))
    }
}
