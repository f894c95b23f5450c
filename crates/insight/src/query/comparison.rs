//! Comparisons of a number with one or two limits.

use crate::comparator::Comparator;

/// A condition on a number: a limit, a single value, or a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Above or below the value, as the comparator says.
    Limit(Comparator, u64),
    /// Exactly the value.
    Equal(u64),
    /// From the first value to the second, both included.
    Between(u64, u64),
}

impl Comparison {
    /// Returns true if `value` meets the condition.
    #[inline]
    #[must_use]
    pub fn contains(self, value: u64) -> bool {
        match self {
            Self::Limit(comparator, limit) => comparator.holds(value, limit),
            Self::Equal(wanted) => value == wanted,
            Self::Between(lowest, highest) => lowest <= value && value <= highest,
        }
    }

    /// Returns the condition in words, for example `more than 100 MiB`; `show` formats a value.
    #[must_use]
    pub fn describe(self, show: impl Fn(u64) -> String) -> String {
        match self {
            Self::Limit(Comparator::Above, limit) => format!("more than {}", show(limit)),
            Self::Limit(Comparator::AtLeast, limit) => format!("at least {}", show(limit)),
            Self::Limit(Comparator::Below, limit) => format!("less than {}", show(limit)),
            Self::Limit(Comparator::AtMost, limit) => format!("at most {}", show(limit)),
            Self::Equal(wanted) => format!("exactly {}", show(wanted)),
            Self::Between(lowest, highest) => format!("{} to {}", show(lowest), show(highest)),
        }
    }
}
