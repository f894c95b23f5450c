//! The steps of a device, the memory of each, and groups compared by step.

use std::sync::Arc;

use vramscope_trace::{DeviceId, DeviceLifetimes};

use super::{DeviceHistory, GROWTH_DIVISOR};
use crate::group::{GroupBy, Grouping, MergedSites};
use crate::small_map::SmallMap;
use crate::steps::{GroupsByStep, GrowingGroups, SpanName, Step, StepTable, Steps, find_steps, span_names};

/// Approximate number of allocations that the division of steps into groups visits in one frame.
const ALLOCATIONS_PER_FRAME: usize = 100_000;
/// Maximum number of comparisons of selected steps that are kept.
const KEPT_COMPARISONS: usize = 4;

/// The inputs of the steps; the steps are found again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StepsKey {
    device: DeviceId,
    generation: u64,
    /// The generation of the categories.
    categories: u64,
    step_span: Option<String>,
}

/// The memory of groups in each step, computed in parts, and whether all steps are done.
#[derive(Clone, Debug)]
struct Comparison {
    groups: GroupsByStep,
    is_complete: bool,
}

impl Comparison {
    /// Creates a comparison of which no step is done.
    fn new(groups: GroupsByStep) -> Self {
        Self { groups, is_complete: false }
    }

    /// Continues the comparison by one frame's work. Returns the result once all steps are done;
    /// `None` before. `all_steps` is the number of the device's steps.
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

/// The cached training steps of a device, and results that depend on them, such as the groups that
/// grow.
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
        let key = StepsKey {
            device: source.device,
            generation: source.history.generation(),
            categories: source.history.categories_generation(),
            step_span,
        };
        let is_same = self.key.as_ref() == Some(&key);
        let is_quiet = std::mem::replace(&mut self.seen_until, until) == until;
        if is_same {
            let grown = until.saturating_sub(self.until);
            if grown == 0 || (!is_quiet && grown <= self.until / GROWTH_DIVISOR) {
                return grown > 0;
            }
        } else if !source.is_complete && !source.history.is_nearly_read(source.recording) {
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

    /// Returns true once steps have been searched, whether or not any were found.
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

    /// Returns the training steps that were found; empty before the search.
    #[must_use]
    pub fn steps(&self) -> &Steps {
        &self.steps
    }

    /// Returns the names of spans that the user may choose as steps.
    #[must_use]
    pub fn span_names(&self) -> &[SpanName] {
        &self.span_names
    }

    /// Continues computing the memory of each step. Returns it once it is complete; `None` before.
    pub fn table(&mut self, lifetimes: &DeviceLifetimes) -> Option<&StepTable> {
        let table = self.table.as_mut()?;
        if !self.is_table_complete {
            self.is_table_complete = table.step(lifetimes);
        }
        self.table.as_ref().filter(|_| self.is_table_complete)
    }

    /// Continues computing the memory of groups in each step after the warm-up, from which growth
    /// is found. Returns it once it is complete; `None` before. `grouping` must group by `by`.
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

    /// Continues computing the groups that grow from step to step. Returns them once they are
    /// complete; `None` before. Sites that differ only in library frames count as one. `grouping`
    /// must group by `by`.
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

    /// Continues computing the memory of groups in each of `steps`. Returns it once it is complete;
    /// `None` before. `grouping` must group by `by`.
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
