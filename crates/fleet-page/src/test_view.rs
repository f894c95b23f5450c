//! Invented ranks for tests.

use vramscope_insight::fleet::{MarkedMetric, Outlier, ProcessIdentity, RankRow};

/// Returns the row of a rank on a machine with eight ranks.
pub(crate) fn row(rank: u32) -> RankRow {
    RankRow {
        identity: ProcessIdentity(format!("{rank:032x}")),
        rank: Some(rank),
        host: format!("node{}", rank / 8),
        ..RankRow::default()
    }
}

/// Returns rows of ranks from 0 on.
pub(crate) fn rows(count: u32) -> Vec<RankRow> {
    (0..count).map(row).collect()
}

/// Returns an outlier with this distance.
pub(crate) fn outlier(distance: f64) -> Outlier {
    let gib = f64::from(1 << 30);
    Outlier { metric: MarkedMetric::Allocated, value: 14.0 * gib, median: 10.0 * gib, distance }
}
