//! The groupings of a recording by several properties.

use vramscope_trace::Recording;

use super::{GroupBy, Grouping};
use crate::small_map::SmallMap;

/// The groupings of a recording's blocks that were used, by property.
#[derive(Default)]
pub struct Groupings(SmallMap<GroupBy, Grouping>);

impl Groupings {
    /// Returns the grouping of blocks by `by`, updated to all sites of the recording.
    pub fn get(&mut self, by: GroupBy, recording: &Recording) -> &mut Grouping {
        let grouping = self.0.get_or_insert_with(by, || Grouping::new(by, recording.first_event()));
        grouping.set_first_event(recording.first_event());
        grouping.update(recording.definitions());
        grouping
    }

    /// Returns two different groupings that know all sites of the recording; `None` if `one` equals
    /// `other`.
    pub fn pair(&mut self, one: GroupBy, other: GroupBy, recording: &Recording) -> Option<[&mut Grouping; 2]> {
        self.get(one, recording);
        self.get(other, recording);
        self.0.pair_mut(one, other)
    }

    /// Returns a grouping; `None` if it was never used.
    #[must_use]
    pub fn known(&self, by: GroupBy) -> Option<&Grouping> {
        self.0.get(by)
    }
}
