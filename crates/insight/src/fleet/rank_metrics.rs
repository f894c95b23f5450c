//! The figures of a rank that other monitoring tools show.

use super::view::RankRow;

/// A figure that each running rank has.
#[derive(Clone, Copy, Debug)]
pub struct RankMetric {
    /// Its name, such as `allocated`.
    pub name: &'static str,
    /// The description of the metric.
    pub help: &'static str,
    /// Its unit in words, as Prometheus writes it, such as `bytes`; empty for a count.
    pub unit: &'static str,
    value: fn(&RankRow) -> Option<f64>,
}

impl RankMetric {
    /// All figures.
    pub const ALL: [Self; 9] = [
        Self::bytes("allocated", "Memory of allocated blocks", |row| Some(row.allocated as f64)),
        Self::bytes("reserved", "Memory of all segments", |row| Some(row.reserved as f64)),
        Self::bytes("peak_allocated", "The most allocated memory of the last two steps, or 3 seconds", |row| {
            Some(row.peak_allocated as f64)
        }),
        Self {
            name: "fragmentation",
            help: "1 - largest free block / free bytes in segments, the highest of the last two steps, or 3 seconds",
            unit: "ratio",
            value: |row| Some(row.fragmentation),
        },
        Self {
            name: "growth",
            help: "Growth of allocated memory over a minute, or longer if steps are long",
            unit: "bytes_per_second",
            value: |row| Some(row.growth),
        },
        Self::count("step", "The step of training", |row| row.step.map(|step| step as f64)),
        Self {
            name: "lag",
            help: "Age of the newest summary",
            unit: "seconds",
            value: |row| Some(row.lag_ns as f64 / 1e9),
        },
        Self::count("lost_summaries", "Summaries that are missing", |row| Some(row.lost_summaries as f64)),
        Self::count(
            "outlier_distance",
            "Distance from the median of ranks like it, in spreads; 0 if not marked",
            |row| Some(row.outlier.map_or(0.0, |outlier| outlier.distance)),
        ),
    ];

    /// Creates a figure in bytes.
    const fn bytes(name: &'static str, help: &'static str, value: fn(&RankRow) -> Option<f64>) -> Self {
        Self { name, help, unit: "bytes", value }
    }

    /// Creates a figure without a unit.
    const fn count(name: &'static str, help: &'static str, value: fn(&RankRow) -> Option<f64>) -> Self {
        Self { name, help, unit: "", value }
    }

    /// Returns the figure of each rank that still runs and has one.
    pub fn values<'a>(&self, ranks: &'a [RankRow]) -> impl Iterator<Item = (&'a RankRow, f64)> + use<'a> {
        let value = self.value;
        ranks.iter().filter(|row| !row.has_ended).filter_map(move |row| Some((row, value(row)?)))
    }
}

impl RankRow {
    /// Returns the labels of the rank's figures: its rank, its machine, and the first digits of its
    /// identity.
    #[must_use]
    pub fn metric_labels(&self) -> [(&'static str, String); 3] {
        let rank = self.rank.map_or_else(|| "none".to_owned(), |rank| rank.to_string());
        let process = self.identity.0.chars().take(8).collect();
        [("rank", rank), ("host", self.host.clone()), ("process", process)]
    }
}
