//! Groups and sorts the ranks.

use std::collections::BTreeMap;

use vramscope_insight::fleet::RankRow;

use crate::metric::Metric;
use crate::settings::{GroupBy, SortBy};

/// Ranks that are shown together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The group's name; empty if there is only one.
    pub title: String,
    /// Indexes of the ranks' rows, in the order of their cells.
    pub rows: Vec<usize>,
}

/// What a group is sorted and named by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Number(u32),
    Name(String),
    /// Ranks without the number come last.
    Unknown,
}

/// Returns the groups of ranks, in order: by number, or by the least rank of a machine.
#[must_use]
pub fn arrange(rows: &[RankRow], group_by: GroupBy, sort_by: SortBy, metric: Metric) -> Vec<Group> {
    let key = |row: &RankRow| match group_by {
        GroupBy::Host => Key::Name(row.host.clone()),
        GroupBy::Stage => row.pipeline.map_or(Key::Unknown, Key::Number),
        GroupBy::Tensor => row.tensor.map_or(Key::Unknown, Key::Number),
        GroupBy::None => Key::Unknown,
    };
    let mut by_key: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
    for (index, row) in rows.iter().enumerate() {
        by_key.entry(key(row)).or_default().push(index);
    }
    let title = |key: Key| match (key, group_by) {
        (_, GroupBy::None) => String::new(),
        (Key::Number(number), GroupBy::Stage) => format!("stage {number}"),
        (Key::Number(number), _) => format!("tensor rank {number}"),
        (Key::Name(name), _) => name,
        (Key::Unknown, _) => "others".to_owned(),
    };
    let mut groups: Vec<Group> = by_key.into_iter().map(|(key, rows)| Group { title: title(key), rows }).collect();
    if group_by == GroupBy::Host {
        // Rows are in order of rank, so that node10 comes after node9.
        groups.sort_by_key(|group| group.rows.first().copied());
    }
    if sort_by == SortBy::Metric {
        let value = |index: &usize| metric.value(&rows[*index]).unwrap_or(f64::NEG_INFINITY);
        for group in &mut groups {
            group.rows.sort_by(|a, b| value(b).total_cmp(&value(a)));
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_view::rows;

    #[test]
    fn ranks_are_grouped_and_sorted() {
        let mut rows = rows(8);
        for (index, row) in rows.iter_mut().enumerate() {
            row.host = format!("node{}", 9 + index / 4);
            (row.pipeline, row.tensor) = (Some(index as u32 / 4), Some(index as u32 % 2));
            row.reserved = (index as u64 * 3) % 8;
        }
        rows[7].pipeline = None;
        let check = |group_by: GroupBy, sort_by: SortBy, expected: &[(&str, &[usize])]| {
            let groups = arrange(&rows, group_by, sort_by, Metric::Reserved);
            let groups: Vec<_> = groups.iter().map(|group| (group.title.as_str(), group.rows.as_slice())).collect();
            assert_eq!(groups, expected);
        };
        check(GroupBy::None, SortBy::Rank, &[("", &[0, 1, 2, 3, 4, 5, 6, 7])]);
        check(GroupBy::Host, SortBy::Rank, &[("node9", &[0, 1, 2, 3]), ("node10", &[4, 5, 6, 7])]);
        check(GroupBy::Stage, SortBy::Rank, &[("stage 0", &[0, 1, 2, 3]), ("stage 1", &[4, 5, 6]), ("others", &[7])]);
        check(GroupBy::Tensor, SortBy::Metric, &[("tensor rank 0", &[2, 4, 6, 0]), ("tensor rank 1", &[5, 7, 1, 3])]);
        assert_eq!(arrange(&[], GroupBy::Host, SortBy::Rank, Metric::Lag), []);
    }
}
