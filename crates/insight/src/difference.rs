//! The difference between two moments by group: new, gone, grown and shrunk groups, exact to the
//! byte, and the figures of both moments.
//!
//! The moments may be of one recording or of two, on one device or on two. Group numbers are only
//! valid within one recording, so groups are matched by name: `train.py:47` in one recording is
//! `train.py:47` in the other. Between two runs lines move and files are renamed; [`MatchingNames`]
//! knows from the call stacks which group of one recording is which of the other.
//! [`comparison`](crate::comparison) compares recordings by whole call stack.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use vramscope_pool::Settings;
use vramscope_trace::sort::sort_by;
use vramscope_trace::{
    AllocationOrigin, ByteSize, Counters, Definitions, DeviceState, FreeSpace, PoolKey, SiteId, StreamId,
};

use crate::group::{GroupBy, Grouping};
use crate::matching::MatchedSites;
use crate::pools::{FreeMemory, free_memory};
use crate::sites::GroupRow;

/// Maximum number of groups that [`largest_changes`] names.
const NAMED_GROUPS: usize = 3;

/// How the live bytes of a group differ between two moments, A and B.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DifferenceKind {
    /// It has live blocks only at B.
    New,
    /// It has live blocks only at A.
    Gone,
    /// It has more live bytes at B.
    Grown,
    /// It has fewer live bytes at B.
    Shrunk,
    /// Its live bytes at A and B are equal.
    #[default]
    Same,
}

impl DifferenceKind {
    /// Returns the name in tables and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Gone => "gone",
            Self::Grown => "grown",
            Self::Shrunk => "shrunk",
            Self::Same => "same",
        }
    }
}

/// Names of groups that differ between two recordings, A and B, because lines have moved or files
/// or functions were renamed, see [`MatchedSites`].
///
/// The default is for two moments of one recording: all names stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatchingNames(HashMap<Arc<str>, Arc<str>>);

impl MatchingNames {
    /// Matches the groups of two recordings by their matched sites. Both groupings must know all
    /// sites.
    ///
    /// If sites of a group of A are in several groups of B, the group has the name that most of
    /// them have. The cost is linear in the definitions of both recordings.
    #[must_use]
    pub fn new(sites: &MatchedSites, a: (&Definitions, &mut Grouping), b: (&Definitions, &mut Grouping)) -> Self {
        let has_lines = matches!(
            a.1.by(),
            GroupBy::Site | GroupBy::Stack | GroupBy::Function | GroupBy::Line | GroupBy::File | GroupBy::Operation
        );
        if !has_lines || a.1.by() != b.1.by() {
            return Self::default();
        }
        let numbers = sites.numbers();
        let mut names_in_b: HashMap<SiteId, Arc<str>> = HashMap::new();
        for (site, number) in (0..).map(SiteId).zip(&numbers.b) {
            names_in_b.entry(*number).or_insert_with(|| name_of(site, b.0, b.1));
        }
        let mut votes: HashMap<Arc<str>, BTreeMap<Arc<str>, u64>> = HashMap::new();
        for (site, number) in (0..).map(SiteId).zip(&numbers.a) {
            if let Some(name) = names_in_b.get(number) {
                *votes.entry(name_of(site, a.0, a.1)).or_default().entry(name.clone()).or_default() += 1;
            }
        }
        let renamed = votes.into_iter().filter_map(|(name, votes)| {
            // Of names with equally many votes, take the unchanged one, then the first in the
            // alphabet.
            let (new, _) = votes.into_iter().rev().max_by_key(|(new, count)| (*count, *new == name))?;
            (new != name).then_some((name, new))
        });
        Self(renamed.collect())
    }

    /// Returns the name in B of A's group called `name`.
    #[must_use]
    pub fn name_in_b<'a>(&'a self, name: &'a Arc<str>) -> &'a Arc<str> {
        self.0.get(name).unwrap_or(name)
    }
}

/// Returns the name of the group of a site's blocks that are not older than the recording.
fn name_of(site: SiteId, definitions: &Definitions, grouping: &mut Grouping) -> Arc<str> {
    let origin = AllocationOrigin { site, stream: StreamId(0), pool: PoolKey::default() };
    let group = grouping.group_of_origin(&origin, 0, false);
    grouping.cached_name(definitions, group)
}

/// The live blocks of the groups of one name at two moments, A and B.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DifferenceRow {
    /// Name of the first of the groups at A; without one, their name at B.
    pub name: Arc<str>,
    /// The groups' name at B, if it is another.
    pub name_at_b: Option<Arc<str>>,
    /// Number of the first of the groups at A, see [`Grouping`]; `None` if A lacks the group.
    pub a_group: Option<u32>,
    /// Number of the first of the groups at B, in the grouping of B's recording.
    pub b_group: Option<u32>,
    /// Bytes of the live blocks at A, including blocks that are pending free.
    pub a_bytes: u64,
    /// Number of the live blocks at A.
    pub a_blocks: u64,
    /// Bytes of the live blocks at B, including blocks that are pending free.
    pub b_bytes: u64,
    /// Number of the live blocks at B.
    pub b_blocks: u64,
    /// `b_bytes` − `a_bytes`.
    pub change_bytes: i128,
    /// How they differ.
    pub kind: DifferenceKind,
}

impl DifferenceRow {
    /// Sets `change_bytes` and `kind` from the bytes and blocks.
    fn finish(&mut self) {
        self.change_bytes = i128::from(self.b_bytes) - i128::from(self.a_bytes);
        self.kind = match self.change_bytes {
            _ if self.a_blocks == 0 && self.b_blocks > 0 => DifferenceKind::New,
            _ if self.b_blocks == 0 && self.a_blocks > 0 => DifferenceKind::Gone,
            0 => DifferenceKind::Same,
            change if change > 0 => DifferenceKind::Grown,
            _ => DifferenceKind::Shrunk,
        };
    }
}

/// Returns the difference between the live groups of two moments, each as
/// [`live_groups`](crate::sites::live_groups) or [`groups_at`](crate::sites::groups_at) returns
/// them: one row for each name, the largest change first, then the largest group. `names` tells
/// what groups of A are called in B's recording.
///
/// The changes add up to active bytes at B − active bytes at A.
#[must_use]
pub fn differences(a: &[GroupRow], b: &[GroupRow], names: &MatchingNames) -> Vec<DifferenceRow> {
    let mut rows: Vec<DifferenceRow> = Vec::new();
    let mut indexes: HashMap<Arc<str>, usize> = HashMap::new();
    let mut index_of = |rows: &mut Vec<DifferenceRow>, name: &Arc<str>| {
        *indexes.entry(name.clone()).or_insert_with(|| {
            rows.push(DifferenceRow { name: name.clone(), ..DifferenceRow::default() });
            rows.len() - 1
        })
    };
    for group in a {
        let name = names.name_in_b(&group.name);
        let index = index_of(&mut rows, name);
        let row = &mut rows[index];
        if row.a_group.is_none() {
            row.a_group = Some(group.group);
            if group.name != *name {
                row.name_at_b = Some(std::mem::replace(&mut row.name, group.name.clone()));
            }
        }
        row.a_bytes = row.a_bytes.saturating_add(group.bytes);
        row.a_blocks = row.a_blocks.saturating_add(group.blocks);
    }
    for group in b {
        let index = index_of(&mut rows, &group.name);
        let row = &mut rows[index];
        row.b_group.get_or_insert(group.group);
        row.b_bytes = row.b_bytes.saturating_add(group.bytes);
        row.b_blocks = row.b_blocks.saturating_add(group.blocks);
    }
    rows.iter_mut().for_each(DifferenceRow::finish);
    sort_by(&mut rows, |one, other| {
        let rank = |row: &DifferenceRow| Reverse((row.change_bytes.unsigned_abs(), row.a_bytes.max(row.b_bytes)));
        rank(one).cmp(&rank(other)).then_with(|| one.name.cmp(&other.name))
    });
    rows
}

/// The memory of a device at one moment, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MomentFigures {
    /// Allocated, active, reserved and requested bytes.
    pub counters: Counters,
    /// The free blocks in segments.
    pub free: FreeSpace,
    /// Free bytes that are stuck beside live blocks, see [`pools`](crate::pools).
    pub stuck_bytes: u64,
    /// Number of segments.
    pub segments: u64,
    /// Number of expandable segments.
    pub expandable_segments: u64,
    /// Number of live blocks.
    pub blocks: u64,
}

impl MomentFigures {
    /// Returns the figures of a memory state; `settings` are the allocator's, for the page size of
    /// expandable segments. The cost is linear in the number of segments and blocks.
    #[must_use]
    pub fn of(device: &DeviceState, settings: &Settings) -> Self {
        let FreeMemory { space: free, stuck_bytes } = free_memory(device, settings);
        let expandable = device.segments().filter(|segment| segment.expandable).count();
        Self {
            counters: device.counters(),
            free,
            stuck_bytes,
            segments: device.segments().len() as u64,
            expandable_segments: expandable as u64,
            blocks: device.blocks().len() as u64,
        }
    }

    /// Returns the free bytes that `empty_cache` returns to the driver.
    #[must_use]
    pub fn releasable_bytes(&self) -> u64 {
        self.free.total.saturating_sub(self.stuck_bytes)
    }

    /// Returns the bytes of the blocks that are pending free.
    #[must_use]
    pub fn pending_bytes(&self) -> u64 {
        self.counters.active.saturating_sub(self.counters.allocated)
    }
}

/// Returns a change of a number of bytes with its sign: `+1.00 GiB`, `−512 B`; `±0 B` without one.
#[must_use]
pub fn change_text(change_bytes: i128) -> String {
    let sign = match change_bytes {
        0 => '±',
        change if change < 0 => '−',
        _ => '+',
    };
    format!("{sign}{}", ByteSize(u64::try_from(change_bytes.unsigned_abs()).unwrap_or(u64::MAX)))
}

/// Returns the groups with the largest changes as text: `train.py:47 +1.00 GiB, train.py:52 −20
/// MiB`. `rows` are in the order of [`differences`]; the text is empty if nothing has changed.
#[must_use]
pub fn largest_changes(rows: &[DifferenceRow]) -> String {
    let changed = rows.iter().filter(|row| row.change_bytes != 0);
    let named = changed.clone().take(NAMED_GROUPS);
    let mut text =
        named.map(|row| format!("{} {}", row.name, change_text(row.change_bytes))).collect::<Vec<_>>().join(", ");
    if changed.count() > NAMED_GROUPS {
        text.push_str(", …");
    }
    text
}

#[cfg(test)]
mod tests {
    use vramscope_trace::Lifetimes;

    use super::*;
    use crate::frames::test_definitions::TestSites;

    /// Returns groups with these names, bytes and numbers of blocks.
    fn groups(of: &[(&str, u64, u64)]) -> Vec<GroupRow> {
        let row = |(group, &(name, bytes, blocks)): (u32, &(&str, u64, u64))| GroupRow {
            group,
            name: name.into(),
            categories: Vec::new(),
            bytes,
            pending_bytes: 0,
            requested_bytes: bytes,
            blocks,
            share: 0.0,
        };
        (0..).zip(of).map(row).collect()
    }

    #[test]
    fn groups_of_equal_names_are_matched() {
        let a = groups(&[("gone", 10, 1), ("same", 7, 1), ("shrunk", 300, 3), ("grown", 5, 1), ("grown", 6, 1)]);
        let b = groups(&[("grown", 50, 2), ("shrunk", 100, 1), ("new", 40, 4), ("same", 7, 7)]);
        let rows = differences(&a, &b, &MatchingNames::default());
        let shown: Vec<_> = rows.iter().map(|row| (&*row.name, row.change_bytes, row.kind.name())).collect();
        assert_eq!(
            shown,
            [
                ("shrunk", -200, "shrunk"),
                ("new", 40, "new"),
                ("grown", 39, "grown"),
                ("gone", -10, "gone"),
                ("same", 0, "same"),
            ]
        );
        let grown = &rows[2];
        assert_eq!((grown.a_bytes, grown.a_blocks, grown.b_bytes, grown.b_blocks), (11, 2, 50, 2));
        assert_eq!((grown.a_group, grown.b_group), (Some(3), Some(0)));
        assert_eq!((rows[1].a_group, rows[3].b_group), (None, None));
        assert_eq!(largest_changes(&rows), "shrunk −200 B, new +40 B, grown +39 B, …");
        assert_eq!(largest_changes(&rows[4..]), "");
        assert!(differences(&[], &[], &MatchingNames::default()).is_empty());
    }

    #[test]
    fn renamed_files_and_moved_lines_are_matched() {
        let [mut a, mut b] = [TestSites::default(), TestSites::default()];
        let site = |sites: &mut TestSites, file: &str, line: u32, function: &str| {
            sites.stack(&[(file, 3, "main"), (file, line, function)])
        };
        for (line, function) in [(7, "moved"), (9, "kept"), (12, "removed")] {
            site(&mut a, "/old/train.py", line, function);
        }
        for (line, function) in [(8, "moved"), (9, "kept"), (20, "added")] {
            site(&mut b, "/new/run.py", line, function);
        }
        let mut by_line = [&a, &b].map(|sites| {
            let mut grouping = Grouping::new(GroupBy::Line, 0);
            grouping.update(sites.definitions());
            grouping
        });
        let [in_a, in_b] = &mut by_line;
        let none = Lifetimes::default();
        let sites = MatchedSites::new((a.definitions(), &none), (b.definitions(), &none));
        let names = MatchingNames::new(&sites, (a.definitions(), in_a), (b.definitions(), in_b));
        let rows_a = groups(&[("train.py:7", 1, 1), ("train.py:9", 2, 1), ("train.py:12", 3, 1)]);
        let rows_b = groups(&[("run.py:8", 5, 1), ("run.py:9", 2, 1), ("run.py:20", 4, 1)]);
        let rows = differences(&rows_a, &rows_b, &names);
        let shown: Vec<_> = rows.iter().map(|row| (&*row.name, row.name_at_b.as_deref(), row.kind.name())).collect();
        assert_eq!(
            shown,
            [
                ("train.py:7", Some("run.py:8"), "grown"),
                ("run.py:20", None, "new"),
                ("train.py:12", None, "gone"),
                ("train.py:9", Some("run.py:9"), "same"),
            ]
        );
    }

    #[test]
    fn largest_sizes_do_not_overflow() {
        let rows = differences(&groups(&[("x", u64::MAX, 1), ("x", 1, 1)]), &[], &MatchingNames::default());
        assert_eq!(rows[0].change_bytes, -i128::from(u64::MAX));
        assert_eq!(change_text(rows[0].change_bytes), "−16 EiB");
        assert_eq!((change_text(0), change_text(1 << 30)), ("±0 B".to_owned(), "+1 GiB".to_owned()));
    }
}
