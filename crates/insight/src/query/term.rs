//! One term of a query.

use std::ops::Range;

use super::condition::Condition;

/// One term of a query: a condition that an item must meet, or must not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// Where the term is in the query's text, in bytes.
    pub range: Range<usize>,
    /// Whether the condition must not be met (`-` before the term).
    pub is_negated: bool,
    /// The condition.
    pub condition: Condition,
}

impl Term {
    /// Returns the term in words, for example `not: size more than 1 MiB`.
    #[must_use]
    pub fn describe(&self) -> String {
        let condition = self.condition.describe();
        if self.is_negated { format!("not: {condition}") } else { condition }
    }
}
