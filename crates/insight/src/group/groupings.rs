//! The groupings of a recording by several properties.

use vramscope_trace::Recording;

use super::{DeviceCategories, GroupBy, Grouping};
use crate::small_map::SmallMap;

/// The groupings of a recording's blocks that were used, by property.
#[derive(Default)]
pub struct Groupings {
    all: SmallMap<GroupBy, Grouping>,
    categories: DeviceCategories,
}

impl Groupings {
    /// Sets the inferred categories of a device, whose blocks are grouped from now on.
    pub fn set_categories(&mut self, categories: &DeviceCategories) {
        if !self.categories.is_same(categories) {
            self.categories = categories.clone();
        }
    }

    /// Returns the grouping of blocks by `by`, updated to all sites of the recording, with the
    /// categories set last.
    pub fn get(&mut self, by: GroupBy, recording: &Recording) -> &mut Grouping {
        let grouping = self.all.get_or_insert_with(by, || Grouping::new(by, recording.first_event()));
        grouping.set_first_event(recording.first_event());
        grouping.update(recording.definitions());
        grouping.set_categories(&self.categories);
        grouping
    }

    /// Returns two different groupings that know all sites of the recording; `None` if `one` equals
    /// `other`.
    pub fn pair(&mut self, one: GroupBy, other: GroupBy, recording: &Recording) -> Option<[&mut Grouping; 2]> {
        self.get(one, recording);
        self.get(other, recording);
        self.all.pair_mut(one, other)
    }

    /// Returns a grouping; `None` if it was never used.
    #[must_use]
    pub fn known(&self, by: GroupBy) -> Option<&Grouping> {
        self.all.get(by)
    }
}
