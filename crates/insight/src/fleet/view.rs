//! The displayed figures of the ranks of a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::clock_offset::OffsetEstimate;
use super::outliers::{self, Outlier};

/// The identity of a process: 32 hexadecimal digits, the last eight of which are its rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity(pub String);

/// Whether a server reads the events of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventsState {
    /// It does not: the process sends none, or the server has not asked for them.
    #[default]
    Closed,
    /// It does, because this or another server asks for them.
    Open,
    /// It does, because the process sends all its events.
    Always,
}

/// The displayed figures of a rank; sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankRow {
    /// Its identity.
    pub identity: ProcessIdentity,
    /// Its rank; `None` if it has none.
    pub rank: Option<u32>,
    /// The name of its machine.
    pub host: String,
    /// Its pipeline stage (`pp`).
    pub pipeline: Option<u32>,
    /// Its tensor rank (`tp`).
    pub tensor: Option<u32>,
    /// Allocated bytes now.
    pub allocated: u64,
    /// Reserved bytes now.
    pub reserved: u64,
    /// Peak of the allocated bytes in the last two steps, at least 3 seconds and at most 2 minutes.
    pub peak_allocated: u64,
    /// The highest fragmentation in the window, from 0 to 1.
    pub fragmentation: f64,
    /// Growth of the allocated bytes, in bytes a second, over one minute, or over four times the
    /// period of `peak_allocated` if that is longer.
    pub growth: f64,
    /// The step that it is in.
    pub step: Option<u64>,
    /// The name of its last mark.
    pub mark: String,
    /// The site that holds most, and its bytes.
    pub largest_site: Option<(String, u64)>,
    /// Requests that failed with out of memory.
    pub ooms: u32,
    /// Time since its newest summary was made, or stored at the broker if its clock's offset is
    /// unknown; in nanoseconds.
    pub lag_ns: u64,
    /// Summaries that arrived.
    pub summaries: u64,
    /// Summaries that are missing.
    pub lost_summaries: u64,
    /// Offset of its machine's clock; `None` if it is unknown.
    pub clock: Option<OffsetEstimate>,
    /// True once its recording is complete.
    pub has_ended: bool,
    /// Its difference from comparable ranks; `None` if it is not marked.
    pub outlier: Option<Outlier>,
    /// Whether the server reads its events.
    pub events: EventsState,
    /// The number of its first device in the server's recording; `None` until the server has events
    /// of it.
    pub device: Option<u16>,
}

/// The memory of one pipeline stage; sizes in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageRow {
    /// The stage's number.
    pub pipeline: u32,
    /// Number of its ranks.
    pub ranks: u32,
    /// The median of its ranks' peaks of allocated bytes.
    pub median_allocated: u64,
    /// The median divided by the mean of all stages' medians: 1.25 is a quarter more than average.
    pub imbalance: f64,
}

/// All ranks of a run at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FleetView {
    /// The moment, in nanoseconds since 1970 by the broker's clock.
    pub time_unix_ns: u64,
    /// The ranks, in order of their numbers.
    pub ranks: Vec<RankRow>,
    /// The pipeline stages, in order; empty without a mesh that has the dimension `pp`.
    pub stages: Vec<StageRow>,
}

impl FleetView {
    /// Returns the ranks that differ from comparable ranks, the most different first.
    #[must_use]
    pub fn outliers(&self) -> Vec<&RankRow> {
        let mut outliers: Vec<&RankRow> = self.ranks.iter().filter(|row| row.outlier.is_some()).collect();
        let distance = |row: &RankRow| row.outlier.map_or(0.0, |outlier| outlier.distance.abs());
        outliers.sort_by(|a, b| distance(b).total_cmp(&distance(a)));
        outliers
    }
}

/// Returns the pipeline stages of the ranks that still run.
pub(super) fn stages(ranks: &[RankRow]) -> Vec<StageRow> {
    let mut allocated: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for row in ranks.iter().filter(|row| !row.has_ended) {
        if let Some(pipeline) = row.pipeline {
            allocated.entry(pipeline).or_default().push(row.peak_allocated as f64);
        }
    }
    let medians: Vec<(u32, usize, f64)> = allocated
        .into_iter()
        .map(|(pipeline, mut values)| (pipeline, values.len(), outliers::median(&mut values).unwrap_or(0.0)))
        .collect();
    let mean = medians.iter().map(|(.., median)| median).sum::<f64>() / medians.len().max(1) as f64;
    let row = |(pipeline, count, median): (u32, usize, f64)| StageRow {
        pipeline,
        ranks: count as u32,
        median_allocated: median as u64,
        imbalance: if mean > 0.0 { median / mean } else { 1.0 },
    };
    medians.into_iter().map(row).collect()
}
