//! Comparisons of a number with one or two limits.

/// A condition on a number: a limit, a single value, or a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Greater than the value.
    Above(u64),
    /// The value or greater.
    AtLeast(u64),
    /// Less than the value.
    Below(u64),
    /// The value or less.
    AtMost(u64),
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
            Self::Above(limit) => value > limit,
            Self::AtLeast(limit) => value >= limit,
            Self::Below(limit) => value < limit,
            Self::AtMost(limit) => value <= limit,
            Self::Equal(wanted) => value == wanted,
            Self::Between(lowest, highest) => lowest <= value && value <= highest,
        }
    }

    /// Returns the condition in words, for example `more than 100 MiB`; `show` formats a value.
    #[must_use]
    pub fn describe(self, show: impl Fn(u64) -> String) -> String {
        match self {
            Self::Above(limit) => format!("more than {}", show(limit)),
            Self::AtLeast(limit) => format!("at least {}", show(limit)),
            Self::Below(limit) => format!("less than {}", show(limit)),
            Self::AtMost(limit) => format!("at most {}", show(limit)),
            Self::Equal(wanted) => format!("exactly {}", show(wanted)),
            Self::Between(lowest, highest) => format!("{} to {}", show(lowest), show(highest)),
        }
    }
}
