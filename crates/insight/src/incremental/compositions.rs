//! The live bytes of devices by group over time, built in steps.

use vramscope_trace::{AllocationOrigin, AllocationRow, DeviceId, DeviceLifetimes, Recording};

use crate::composition::{CompositionColumn, CompositionSeries, DeviceRows, LayerBytes, RowGroups};
use crate::group::{GroupBy, Grouping};
use crate::history::History;
use crate::small_map::SmallMap;

/// Maximum number of compositions (live bytes by group over time) that are kept, at about 7 MB
/// each.
const MAX_KEPT: usize = 3;

/// The live bytes of a device by group over time.
#[derive(Clone, Debug)]
pub struct Composition {
    grouping: Grouping,
    groups: RowGroups,
    /// The displayed series; `None` until it has been built once.
    shown: Option<CompositionSeries>,
    /// The series that is being built to replace it, with the groups of its allocations.
    next: Option<(RowGroups, CompositionSeries)>,
    /// How often a series was replaced.
    revision: u64,
    /// The history whose rows were read.
    generation: u64,
    /// The moment up to which `shown` is complete.
    until: u64,
    /// When it was last used.
    used: u64,
}

impl Composition {
    /// Creates a composition of which nothing has been built.
    fn new(by: GroupBy, recording: &Recording, history: &History) -> Self {
        Self {
            grouping: Grouping::of(by, recording),
            groups: RowGroups::default(),
            shown: None,
            next: Some((RowGroups::default(), CompositionSeries::new(history.first_event()))),
            revision: 0,
            generation: history.generation(),
            until: 0,
            used: 0,
        }
    }

    /// Continues building the composition with up to `max_changes` allocations and frees. Returns
    /// true if it is complete.
    fn step(&mut self, recording: &Recording, history: &History, device: DeviceId, max_changes: usize) -> bool {
        let Some(lifetimes) = history.lifetimes(device) else { return true };
        if history.generation() != self.generation {
            let (used, revision) = (self.used, self.revision + 1);
            *self = Self { used, revision, ..Self::new(self.grouping.by(), recording, history) };
        }
        let has_new_categories = self.grouping.set_categories(&history.categories(device));
        if self.grouping.update(recording.definitions()) || has_new_categories {
            // Earlier allocations have moved to other groups.
            self.next = Some((RowGroups::default(), CompositionSeries::new(history.first_event())));
        }
        if let Some((mut groups, mut next)) = self.next.take() {
            groups.update(&mut self.grouping, lifetimes);
            if !next.step(&DeviceRows { lifetimes, groups: &groups }, history.until(), max_changes) {
                self.next = Some((groups, next));
                return false;
            }
            (self.groups, self.shown, self.until) = (groups, Some(next), history.until());
            self.revision += 1;
            return true;
        }
        self.groups.update(&mut self.grouping, lifetimes);
        let rows = DeviceRows { lifetimes, groups: &self.groups };
        let Some(shown) = &mut self.shown else { return true };
        if self.until == history.until() {
            return true;
        }
        let is_done = shown.step(&rows, history.until(), max_changes);
        if is_done {
            self.until = history.until();
        }
        if shown.is_outdated() {
            self.next = Some((self.groups.clone(), CompositionSeries::new(history.first_event())));
        }
        is_done && self.next.is_none()
    }

    /// Returns the composition in columns between the moments `edges`, and the groups that have a
    /// layer of their own; `None` until the composition has been built.
    #[must_use]
    pub fn columns(
        &self,
        history: &History,
        device: DeviceId,
        edges: &[u64],
    ) -> Option<(Vec<CompositionColumn>, &[u32])> {
        let shown = self.shown.as_ref().filter(|_| history.generation() == self.generation)?;
        let rows = DeviceRows { lifetimes: history.lifetimes(device)?, groups: &self.groups };
        Some((shown.columns(&rows, edges), shown.groups()))
    }

    /// Returns the live bytes of some allocations, by layer, at each of `moments`, see
    /// [`CompositionSeries::layers_at`]; `None` until the composition has been built.
    #[must_use]
    pub fn layers_at(
        &self,
        history: &History,
        device: DeviceId,
        moments: &[u64],
        mut is_counted: impl FnMut((&DeviceLifetimes, &AllocationOrigin, &AllocationRow)) -> bool,
    ) -> Option<Vec<LayerBytes>> {
        let (series, rows) = self.source(history, device)?;
        let origins: Vec<AllocationOrigin> = rows.lifetimes.origins().collect();
        Some(series.layers_at(&rows, moments, |row| is_counted((rows.lifetimes, &origins[row.origin as usize], row))))
    }

    /// Returns the composition over time, and the allocations from which it was built; `None` until
    /// it has been built.
    #[must_use]
    pub fn source<'a>(
        &'a self,
        history: &'a History,
        device: DeviceId,
    ) -> Option<(&'a CompositionSeries, DeviceRows<'a>)> {
        let shown = self.shown.as_ref().filter(|_| history.generation() == self.generation)?;
        Some((shown, DeviceRows { lifetimes: history.lifetimes(device)?, groups: &self.groups }))
    }

    /// Returns the numbers of the groups that have a layer of their own, by layer; empty until the
    /// composition has been built.
    #[must_use]
    pub fn groups(&self) -> &[u32] {
        self.shown.as_ref().map_or(&[], CompositionSeries::groups)
    }

    /// Returns the grouping by which the composition divides the live bytes.
    pub fn grouping(&mut self) -> &mut Grouping {
        &mut self.grouping
    }

    /// Returns numbers that change with the composition: the moment up to which it is complete, and
    /// how often it was replaced.
    #[must_use]
    pub fn version(&self) -> [u64; 2] {
        [self.until, self.revision]
    }
}

/// The compositions that were used last, by device and grouping.
#[derive(Debug, Default)]
pub struct Compositions {
    all: SmallMap<(DeviceId, GroupBy), Composition>,
    uses: u64,
}

impl Compositions {
    /// Continues building the composition of a device by a grouping, with up to `max_changes`
    /// allocations and frees at about 40 ns each. Returns true if nothing is left to do.
    pub fn step(
        &mut self,
        recording: &Recording,
        history: &History,
        (device, by): (DeviceId, GroupBy),
        max_changes: usize,
    ) -> bool {
        self.uses += 1;
        if self.all.get((device, by)).is_none() && self.all.iter().count() >= MAX_KEPT {
            let oldest = self.all.iter().min_by_key(|(_, one)| one.used).map(|(key, _)| key);
            if let Some(key) = oldest {
                self.all.remove(key);
            }
        }
        let one = self.all.get_or_insert_with((device, by), || Composition::new(by, recording, history));
        one.used = self.uses;
        one.step(recording, history, device, max_changes)
    }

    /// Returns the composition of a device by a grouping, as far as [`step`](Self::step) has built
    /// it; `None` if it has not been begun.
    #[must_use]
    pub fn get(&mut self, device: DeviceId, by: GroupBy) -> Option<&mut Composition> {
        self.all.get_mut((device, by))
    }
}
