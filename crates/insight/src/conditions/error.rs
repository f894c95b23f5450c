//! The error of parsing a condition.

use super::metric::{Metric, MetricKind};

/// Maximum length of the part of a condition that an error message repeats, in characters.
pub(super) const MAX_SHOWN_CHARS: usize = 40;

/// An invalid condition: the mistake, and its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} (at character {position})")]
pub struct ConditionError {
    kind: ConditionErrorKind,
    position: usize,
}

/// The mistake in a condition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConditionErrorKind {
    /// No metric has this name.
    #[error("unknown metric \"{name}\": use one of {}", metric_names())]
    UnknownMetric {
        /// The name as it was written; a long one is shortened.
        name: String,
    },
    /// The comparator is missing or unknown.
    #[error("expected >, >=, < or <= after {}", metric.name())]
    NoComparator {
        /// The metric before it.
        metric: Metric,
    },
    /// The limit is missing, or does not suit the metric.
    #[error("cannot compare {} with \"{text}\": use {}", metric.name(), allowed_limits(*metric))]
    BadLimit {
        /// The metric.
        metric: Metric,
        /// The limit as it was written; a long one is shortened.
        text: String,
    },
}

impl ConditionError {
    /// Creates the error about the part of `condition` that begins at byte `at`.
    pub(super) fn new(condition: &str, at: usize, kind: ConditionErrorKind) -> Self {
        let before = condition.get(..at).unwrap_or(condition);
        Self { kind, position: before.chars().count() + 1 }
    }

    /// Returns the mistake.
    #[must_use]
    pub fn kind(&self) -> &ConditionErrorKind {
        &self.kind
    }

    /// Returns the position of the part that is wrong, in characters from 1.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }
}

/// Returns the names of all metrics.
fn metric_names() -> String {
    Metric::all().map(Metric::name).collect::<Vec<_>>().join(", ")
}

/// Returns examples of limits for a metric.
fn allowed_limits(metric: Metric) -> &'static str {
    match metric.kind() {
        MetricKind::Bytes => "a change such as +2% or +100MiB, or a size such as 20GiB",
        MetricKind::Count => "a change such as +2% or +10, or a whole number",
        MetricKind::Share => "a change such as +2% or +0.05, or a share such as 30% or 0.3",
    }
}
