//! Metrics: how well memory is used, at one moment ([`Metrics`]) and over time ([`MetricsSeries`]).

mod codec;
mod groups;
mod metric_values;
mod series;

pub(crate) use codec::{put_metrics, read_metrics};
pub use groups::metrics_by_group;
pub use metric_values::{Metrics, peak_utilization, unusable_share};
pub use series::{Churn, MetricsSample, MetricsSeries};
