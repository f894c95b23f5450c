//! The matching events of a query, stored by groups of events.

use std::collections::BTreeMap;

/// Number of events in a group.
pub(super) const GROUP_EVENTS: u64 = 4096;
/// Maximum number of matching events that are stored one by one. Beyond, only their number in each
/// group of 4,096 events is kept, and a group is searched again when it is read.
const MAX_STORED: usize = 4_000_000;

/// The matches in one group of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GroupMatches {
    /// Each match, as its index in the group.
    Stored(Box<[u16]>),
    /// Only how many there are.
    Counted(u16),
}

impl GroupMatches {
    /// Returns the number of matches.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Stored(matches) => matches.len() as u64,
            Self::Counted(count) => u64::from(*count),
        }
    }
}

/// The matches in all groups that were searched. Group n has the events with the indexes from n ×
/// [`GROUP_EVENTS`] on.
#[derive(Clone, Debug)]
pub(super) struct Matches {
    groups: BTreeMap<u64, GroupMatches>,
    len: u64,
    stored: usize,
    max_stored: usize,
}

impl Default for Matches {
    fn default() -> Self {
        Self { groups: BTreeMap::new(), len: 0, stored: 0, max_stored: MAX_STORED }
    }
}

impl Matches {
    /// Sets the maximum number of matches that are stored one by one.
    #[cfg(test)]
    pub(super) fn with_max_stored(max_stored: usize) -> Self {
        Self { max_stored, ..Self::default() }
    }

    /// Returns the number of matches in all groups.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the matches in a group, or `None` if it was not searched.
    pub(super) fn group(&self, group: u64) -> Option<&GroupMatches> {
        self.groups.get(&group)
    }

    /// Adds the matches of a group, each as its index in the group, in ascending order.
    pub(super) fn insert(&mut self, group: u64, matches: &[u16]) {
        self.remove(group);
        self.len += matches.len() as u64;
        let is_stored = self.stored + matches.len() <= self.max_stored;
        let entry = if is_stored {
            self.stored += matches.len();
            GroupMatches::Stored(matches.into())
        } else {
            GroupMatches::Counted(matches.len().min(usize::from(u16::MAX)) as u16)
        };
        self.groups.insert(group, entry);
    }

    /// Removes the matches of a group, which is then not searched.
    pub(super) fn remove(&mut self, group: u64) {
        if let Some(old) = self.groups.remove(&group) {
            self.len = self.len.saturating_sub(old.len());
            if let GroupMatches::Stored(matches) = old {
                self.stored -= matches.len();
            }
        }
    }

    /// Removes all groups before `group`.
    pub(super) fn remove_before(&mut self, group: u64) {
        while let Some((&first, _)) = self.groups.first_key_value().filter(|&(&first, _)| first < group) {
            self.remove(first);
        }
    }

    /// Returns the last group that was searched.
    pub(super) fn last_group(&self) -> Option<u64> {
        self.groups.last_key_value().map(|(&group, _)| group)
    }

    /// Returns the group with the match at `position` in the list of all matches, and how many
    /// matches are before the group. The cost is linear in the number of groups.
    pub(super) fn group_at(&self, position: u64) -> Option<(u64, u64)> {
        let mut before = 0;
        for (&group, matches) in &self.groups {
            let after = before + matches.len();
            if position < after {
                return Some((group, before));
            }
            before = after;
        }
        None
    }

    /// Returns the number of matches in the groups before `group`. The cost is linear in the number
    /// of groups.
    pub(super) fn count_before(&self, group: u64) -> u64 {
        self.groups.range(..group).map(|(_, matches)| matches.len()).sum()
    }

    /// Returns the next group after `group` that was searched and has matches.
    pub(super) fn group_after(&self, group: u64) -> Option<u64> {
        let mut after = self.groups.range(group.checked_add(1)?..);
        after.find(|(_, matches)| matches.len() > 0).map(|(&group, _)| group)
    }
}
