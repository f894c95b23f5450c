//! Conditions on the difference between two recordings, for continuous integration: `peak_allocated
//! > +2%`.
//!
//! A condition has a metric, a comparator and a limit. The kind of limit decides the compared
//! values:
//!
//! | limit | compared |
//! | --- | --- |
//! | `+2%`, `-5%` | the change of B relative to A |
//! | `+100MiB`, `-3`, `+0.05` | the change: B − A, in bytes, as a count or as a share |
//! | `20GiB`, `0`, `0.3`, `30%` | B itself |
//!
//! [`Condition`] is parsed from text; [`Condition::evaluate`] compares the figures of a device.

mod condition;
mod error;
mod evaluation;
mod metric;

pub use crate::comparator::Comparator;
pub use condition::{Condition, Limit};
pub use error::{ConditionError, ConditionErrorKind};
pub use evaluation::Evaluation;
pub use metric::{Metric, MetricKind, Value};
