//! The steps of a device, the memory of each, and groups compared by step.

use std::sync::Arc;

use vramscope_insight::group::{GroupBy, Grouping, MergedSites};
use vramscope_insight::steps::{GroupsByStep, GrowingGroups, SpanName, Step, StepTable, Steps, find_steps, span_names};
use vramscope_trace::{DeviceId, DeviceLifetimes};

use super::DeviceHistory;
use crate::views::small_map::SmallMap;

/// Number of allocations that a comparison of steps visits in one frame, about.
const ALLOCATIONS_PER_FRAME: usize = 100_000;
/// Maximum number of comparisons of chosen steps that are kept.
const KEPT_COMPARISONS: usize = 4;
/// While a recording grows, steps are found again once it has grown by its size divided by this.
const GROWTH_DIVISOR: u64 = 16;

/// The inputs of the steps; the steps are found again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StepsKey {
    device: DeviceId,
    generation: u64,
    step_span: Option<String>,
}

/// A comparison of groups by step, and whether all steps have been compared.
#[derive(Clone, Debug)]
struct Comparison {
    groups: GroupsByStep,
    is_complete: bool,
}

impl Comparison {
    /// Creates a comparison that has compared no step.
    fn new(groups: GroupsByStep) -> Self {
        Self { groups, is_complete: false }
    }

    /// Continues for one frame; returns the result once it is complete.
    fn advance(
        &mut self,
        lifetimes: &DeviceLifetimes,
        grouping: &mut Grouping,
        all_steps: usize,
    ) -> Option<&GroupsByStep> {
        let in_step = lifetimes.len() / all_steps.max(1) + 1;
        for _ in 0..(ALLOCATIONS_PER_FRAME / in_step).max(1) {
            if self.is_complete {
                break;
            }
            self.is_complete = self.groups.step(lifetimes, |one| grouping.group_of_allocation(one));
        }
        self.is_complete.then_some(&self.groups)
    }
}

/// The steps of a device, and the results that depend on them.
#[derive(Default)]
pub struct StepAnalysis {
    key: Option<StepsKey>,
    /// The moment up to which steps were found.
    until: u64,
    /// The moment up to which the history was complete at the last update.
    seen_until: u64,
    revision: u64,
    steps: Steps,
    span_names: Vec<SpanName>,
    table: Option<StepTable>,
    is_table_complete: bool,
    growth: SmallMap<GroupBy, Comparison>,
    growing: SmallMap<GroupBy, Arc<GrowingGroups>>,
    compared: Vec<(GroupBy, Vec<Step>, Comparison)>,
}

impl StepAnalysis {
    /// Finds the steps if the history is another one or has grown. Returns true if the steps are
    /// not up to date and should be updated in the next frame.
    ///
    /// Takes about 50 ms for a million allocations if the steps must be found.
    pub fn update(&mut self, source: &DeviceHistory<'_>) -> bool {
        let until = source.history.until();
        let step_span = source.step_span.map(str::to_owned);
        let key = StepsKey { device: source.device, generation: source.history.generation(), step_span };
        let is_same = self.key.as_ref() == Some(&key);
        let is_quiet = std::mem::replace(&mut self.seen_until, until) == until;
        if is_same {
            let grown = until.saturating_sub(self.until);
            if grown == 0 || (!is_quiet && grown <= self.until / GROWTH_DIVISOR) {
                return grown > 0;
            }
        } else if !source.is_complete && !self.is_nearly_read(source) {
            *self = Self { revision: self.revision, seen_until: until, ..Self::default() };
            return false;
        }
        let time_ns = |event| source.history.time_ns(event);
        let DeviceHistory { recording, marks, device, lifetimes, step_span, .. } = *source;
        let steps = find_steps(recording, marks, device, lifetimes, step_span, time_ns);
        *self = Self {
            key: Some(key),
            until,
            seen_until: until,
            revision: self.revision + 1,
            table: Some(StepTable::new(&steps)),
            steps,
            span_names: span_names(recording, marks, device),
            ..Self::default()
        };
        false
    }

    /// Returns true if the history contains nine tenths of the recording's events. That of a live
    /// recording may never be complete.
    fn is_nearly_read(&self, source: &DeviceHistory<'_>) -> bool {
        let first = source.recording.first_event();
        let known = source.recording.end_event().saturating_sub(first);
        source.history.until().saturating_sub(first) >= known - known / 10
    }

    /// Returns true once steps have been searched.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.key.is_some()
    }

    /// Returns a number that increases when the steps are searched again.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the moment up to which steps were searched.
    #[must_use]
    pub fn until(&self) -> u64 {
        self.until
    }

    /// Returns the steps.
    #[must_use]
    pub fn steps(&self) -> &Steps {
        &self.steps
    }

    /// Returns the names of spans that the user may choose as steps.
    #[must_use]
    pub fn span_names(&self) -> &[SpanName] {
        &self.span_names
    }

    /// Returns the memory of each step; `None` until it is computed, in later calls.
    pub fn table(&mut self, lifetimes: &DeviceLifetimes) -> Option<&StepTable> {
        let table = self.table.as_mut()?;
        if !self.is_table_complete {
            self.is_table_complete = table.step(lifetimes);
        }
        self.table.as_ref().filter(|_| self.is_table_complete)
    }

    /// Returns the groups of the steps after the warm-up, for growth; `None` until it is computed,
    /// in later calls. `grouping` must group by `by`.
    pub fn growth(
        &mut self,
        by: GroupBy,
        grouping: &mut Grouping,
        lifetimes: &DeviceLifetimes,
    ) -> Option<&GroupsByStep> {
        let steps = &self.steps;
        let comparison =
            self.growth.get_or_insert_with(by, || Comparison::new(GroupsByStep::new(steps, steps.default_warm_up())));
        comparison.advance(lifetimes, grouping, self.steps.len())
    }

    /// Returns the groups that grow from step to step; `None` until it is computed, in later calls.
    /// Sites that differ only in library frames count as one. `grouping` must group by `by`.
    pub fn growing(
        &mut self,
        by: GroupBy,
        grouping: &mut Grouping,
        source: &DeviceHistory<'_>,
    ) -> Option<Arc<GrowingGroups>> {
        if let Some(known) = self.growing.get(by) {
            return Some(Arc::clone(known));
        }
        let groups = self.growth(by, grouping, source.lifetimes)?;
        let growing = Arc::new(groups.growing(&MergedSites::new(grouping, source.recording.definitions())));
        Some(Arc::clone(self.growing.get_or_insert_with(by, || growing)))
    }

    /// Returns the groups of some of the steps; `None` until it is computed, in later calls.
    /// `grouping` must group by `by`.
    pub fn compare(
        &mut self,
        by: GroupBy,
        steps: &[Step],
        grouping: &mut Grouping,
        lifetimes: &DeviceLifetimes,
    ) -> Option<&GroupsByStep> {
        let known = self.compared.iter().position(|(known_by, known, _)| *known_by == by && known == steps);
        let position = known.unwrap_or_else(|| {
            if self.compared.len() >= KEPT_COMPARISONS {
                self.compared.remove(0);
            }
            let comparison = Comparison::new(GroupsByStep::of(&self.steps, steps.to_vec()));
            self.compared.push((by, steps.to_vec(), comparison));
            self.compared.len() - 1
        });
        self.compared[position].2.advance(lifetimes, grouping, self.steps.len())
    }
}
