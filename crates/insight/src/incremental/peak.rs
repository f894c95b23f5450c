//! The composition of a device's peak, and the next highest moments.

use std::collections::HashMap;

use vramscope_trace::{Allocation, DeviceId, DeviceLifetimes, Peak};

use super::{DeviceHistory, StepAnalysis};
use crate::group::{GroupBy, Grouping};
use crate::peak::{PeakComposition, PeakGroup, Plateau, PlateauSearch, Plateaus, explain_peak};
use crate::sites::{GroupRow, groups_at};
use crate::small_map::SmallMap;

/// The inputs of the explanation of a peak, which is computed again when they change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PeakKey {
    device: DeviceId,
    peak: Peak,
    /// The revision of the steps, which changes with the history.
    revision: u64,
}

/// The composition of the peak by group.
#[derive(Clone, Debug)]
pub struct PeakGroups {
    /// The peak's moment and sums.
    pub composition: PeakComposition,
    /// Live blocks by group, most bytes first, with the part that was live before the first step.
    pub rows: Vec<(GroupRow, PeakGroup)>,
}

/// The peak and the next highest plateaus, with the allocations that reach them.
#[derive(Clone, Copy, Debug)]
pub struct NextPeaks {
    /// The peak and the next highest moments.
    pub plateaus: Plateaus,
    /// The allocation that reaches the peak; `None` if it is older than the recording.
    pub request: Option<Allocation>,
    /// The allocation that reaches [`Plateaus::next_of_other_site`].
    pub other_request: Option<Allocation>,
}

/// The cached explanation of a device's peak: its composition by group, and the next highest
/// plateaus.
#[derive(Default)]
pub struct PeakAnalysis {
    key: Option<PeakKey>,
    groups: SmallMap<GroupBy, PeakGroups>,
    search: Option<PlateauSearch>,
    next: Option<NextPeaks>,
}

impl PeakAnalysis {
    /// Discards all results if the peak, the device or the steps have changed.
    pub fn update(&mut self, source: &DeviceHistory<'_>, peak: Peak, steps: &StepAnalysis) {
        let key = PeakKey { device: source.device, peak, revision: steps.revision() };
        if self.key != Some(key) {
            *self = Self { key: Some(key), ..Self::default() };
        }
    }

    /// Returns the composition of the peak by group; `grouping` must group by `by`. Computed once,
    /// at a cost linear in the number of live allocations.
    pub fn groups(
        &mut self,
        source: &DeviceHistory<'_>,
        peak: Peak,
        steps: &StepAnalysis,
        by: GroupBy,
        grouping: &mut Grouping,
    ) -> &PeakGroups {
        self.groups.get_or_insert_with(by, || {
            let whole = (source.recording.first_event(), steps.until());
            let group_of = |one: &_| grouping.group_of_allocation(one);
            let composition = explain_peak(source.lifetimes, peak, whole, steps.steps(), group_of);
            let parts: HashMap<u32, PeakGroup> = composition.groups.iter().map(|one| (one.group, *one)).collect();
            let part = |row: &GroupRow| parts.get(&row.group).copied().unwrap_or_default();
            let rows = groups_at(source.lifetimes, peak.event, source.recording.definitions(), grouping);
            let with_part = |row: GroupRow| {
                let part = part(&row);
                (row, part)
            };
            PeakGroups { composition, rows: rows.into_iter().map(with_part).collect() }
        })
    }

    /// Returns the next highest plateaus, which dips of at least `dip_bytes` separate from the
    /// peak; `None` until later calls have found them.
    pub fn next(&mut self, source: &DeviceHistory<'_>, steps: &StepAnalysis, dip_bytes: u64) -> Option<NextPeaks> {
        if self.next.is_none() {
            let request = |plateau: Option<Plateau>| allocation_at(source.lifetimes, plateau?.event);
            let new = || {
                let known = self.key.map(|PeakKey { peak: Peak { event, bytes }, .. }| {
                    let site = allocation_at(source.lifetimes, event).map(|one| one.site);
                    Plateau { event, bytes, site }
                });
                PlateauSearch::new(source.recording.first_event(), steps.until(), dip_bytes, known)
            };
            let found = self.search.get_or_insert_with(new).step(source.lifetimes);
            self.next = found.map(|plateaus| NextPeaks {
                plateaus,
                request: request(plateaus.peak),
                other_request: request(plateaus.next_of_other_site),
            });
        }
        self.next
    }
}

/// Returns the allocation that event number `event` made; `None` if it made none.
fn allocation_at(lifetimes: &DeviceLifetimes, event: u64) -> Option<Allocation> {
    lifetimes.live_at(event).find(|one| one.start_observed && one.first_moment == event)
}
