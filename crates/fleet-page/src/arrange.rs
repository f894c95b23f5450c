//! Groups and sorts the ranks of a training run.

use std::collections::BTreeMap;

use vramscope_insight::fleet::RankRow;

use crate::metric::Metric;
use crate::settings::{GroupBy, SortBy};

/// A group of ranks whose cells are shown together under one title.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The group's name; empty if there is only one.
    pub title: String,
    /// Indexes of the ranks' rows, in the order of their cells.
    pub rows: Vec<usize>,
}

/// The key of a group, which determines its order and title.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum GroupKey {
    Number(u32),
    Name(String),
    /// Ranks without the number come last.
    Unknown,
}

/// Groups the ranks by `group_by` and sorts each group by `sort_by`, for which `metric` is the
/// metric of the colors. Groups are in order of their number; groups of machines are in order of
/// their lowest rank.
#[must_use]
pub fn arrange(rows: &[RankRow], group_by: GroupBy, sort_by: SortBy, metric: Metric) -> Vec<Group> {
    let key = |row: &RankRow| match group_by {
        GroupBy::Host => GroupKey::Name(row.host.clone()),
        GroupBy::Stage => row.pipeline.map_or(GroupKey::Unknown, GroupKey::Number),
        GroupBy::Tensor => row.tensor.map_or(GroupKey::Unknown, GroupKey::Number),
        GroupBy::None => GroupKey::Unknown,
    };
    let mut by_key: BTreeMap<GroupKey, Vec<usize>> = BTreeMap::new();
    for (index, row) in rows.iter().enumerate() {
        by_key.entry(key(row)).or_default().push(index);
    }
    let title = |key: GroupKey| match (key, group_by) {
        (_, GroupBy::None) => String::new(),
        (GroupKey::Number(number), GroupBy::Stage) => format!("stage {number}"),
        (GroupKey::Number(number), _) => format!("tensor rank {number}"),
        (GroupKey::Name(name), _) => name,
        (GroupKey::Unknown, _) => "others".to_owned(),
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
