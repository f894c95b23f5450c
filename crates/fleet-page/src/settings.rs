//! The user's settings: colors, groups and order, and their text in the page's address.

use vramscope_insight::fleet::RankRow;

use crate::metric::Metric;

/// Maximum length of an address's fragment, in bytes; longer ones are ignored.
const MAX_FRAGMENT_BYTES: usize = 1024;

/// The property by which ranks are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupBy {
    /// The machine.
    Host,
    /// The pipeline stage.
    Stage,
    /// The tensor rank.
    Tensor,
    /// All ranks are one group.
    None,
}

impl GroupBy {
    /// All properties, in the order of the page's list.
    pub const ALL: [Self; 4] = [Self::Stage, Self::Host, Self::Tensor, Self::None];

    /// Returns the name in links.
    #[must_use]
    pub fn id(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Stage => "stage",
            Self::Tensor => "tensor",
            Self::None => "none",
        }
    }

    /// Returns the default grouping: by pipeline stage if ranks have stages, else by machine.
    #[must_use]
    pub fn default_of(rows: &[RankRow]) -> Self {
        if rows.iter().any(|row| row.pipeline.is_some()) { Self::Stage } else { Self::Host }
    }
}

/// The order of ranks in their group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortBy {
    /// By rank.
    #[default]
    Rank,
    /// By the metric that the colors show, the most first.
    Metric,
}

impl SortBy {
    /// Both orders, in the order of the page's list.
    pub const ALL: [Self; 2] = [Self::Rank, Self::Metric];

    /// Returns the name in links.
    #[must_use]
    pub fn id(self) -> &'static str {
        match self {
            Self::Rank => "rank",
            Self::Metric => "value",
        }
    }
}

/// The user's settings: the metric of the colors, and grouping and order of the ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The metric that colors show.
    pub metric: Metric,
    /// What ranks are grouped by; `None` if the user has not chosen.
    pub group_by: Option<GroupBy>,
    /// The order of ranks in their group.
    pub sort_by: SortBy,
}

impl Settings {
    /// Parses the fragment of the page's address, with or without `#`. Unknown or invalid
    /// parameters are ignored.
    #[must_use]
    pub fn parse(fragment: &str) -> Self {
        let mut settings = Self::default();
        let fragment = if fragment.len() > MAX_FRAGMENT_BYTES { "" } else { fragment };
        for part in fragment.trim_start_matches('#').split('&') {
            match part.split_once('=') {
                Some(("color", id)) => settings.metric = find(Metric::ALL, Metric::id, id).unwrap_or_default(),
                Some(("group", id)) => settings.group_by = find(GroupBy::ALL, GroupBy::id, id),
                Some(("sort", id)) => settings.sort_by = find(SortBy::ALL, SortBy::id, id).unwrap_or_default(),
                _ => {}
            }
        }
        settings
    }

    /// Formats the settings as a fragment of the page's address, without `#`; empty for the
    /// defaults.
    #[must_use]
    pub fn fragment(&self) -> String {
        let metric = (self.metric != Metric::default()).then(|| format!("color={}", self.metric.id()));
        let group_by = self.group_by.map(|group_by| format!("group={}", group_by.id()));
        let sort_by = (self.sort_by != SortBy::default()).then(|| format!("sort={}", self.sort_by.id()));
        [metric, group_by, sort_by].into_iter().flatten().collect::<Vec<_>>().join("&")
    }
}

/// Returns the value among `all` whose name in links (`id`) is `name`, or `None`.
pub(crate) fn find<T: Copy, const N: usize>(all: [T; N], id: impl Fn(T) -> &'static str, name: &str) -> Option<T> {
    all.into_iter().find(|one| id(*one) == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_kept_in_the_address() {
        let check = |fragment: &str, metric: Metric, group_by: Option<GroupBy>, sort_by: SortBy| {
            let settings = Settings { metric, group_by, sort_by };
            assert_eq!(Settings::parse(fragment), settings);
            assert_eq!(Settings::parse(&format!("#{fragment}")).fragment(), fragment);
        };
        check("", Metric::Allocated, None, SortBy::Rank);
        check("color=lag&group=none&sort=value", Metric::Lag, Some(GroupBy::None), SortBy::Metric);
        check("group=host", Metric::Allocated, Some(GroupBy::Host), SortBy::Rank);
        assert_eq!(Settings::parse("color=x&group=&sort&&=&unknown=1"), Settings::default());
        assert_eq!(Settings::parse(&"color=lag&".repeat(1000)), Settings::default());
    }
}
