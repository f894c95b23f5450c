//! The signs of comparisons in queries and conditions.

/// How a value is compared with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparator {
    /// `>`
    Above,
    /// `>=`
    AtLeast,
    /// `<`
    Below,
    /// `<=`
    AtMost,
}

/// The comparators by their signs; the longer signs come first, so that `>` does not hide `>=`. Of
/// a comparator's signs, the first is used in conditions and JSON.
const SIGNS: [(&str, Comparator); 6] = [
    (">=", Comparator::AtLeast),
    ("<=", Comparator::AtMost),
    ("≥", Comparator::AtLeast),
    ("≤", Comparator::AtMost),
    (">", Comparator::Above),
    ("<", Comparator::Below),
];

impl Comparator {
    /// Returns the comparator that `text` begins with, and the text after it; `None` without one.
    pub(crate) fn split(text: &str) -> Option<(Self, &str)> {
        SIGNS.into_iter().find_map(|(sign, comparator)| Some((comparator, text.strip_prefix(sign)?)))
    }

    /// Returns the sign in conditions and JSON.
    #[must_use]
    pub fn sign(self) -> &'static str {
        SIGNS.into_iter().find(|(_, comparator)| *comparator == self).expect("every comparator has a sign").0
    }

    /// Returns true if `value` compares with `limit` in this way.
    #[inline]
    pub(crate) fn holds<T: PartialOrd>(self, value: T, limit: T) -> bool {
        match self {
            Self::Above => value > limit,
            Self::AtLeast => value >= limit,
            Self::Below => value < limit,
            Self::AtMost => value <= limit,
        }
    }
}
