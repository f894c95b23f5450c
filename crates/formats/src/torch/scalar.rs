//! Values that are no containers, and why one is not taken.

use std::fmt;

use vramscope_trace::MempoolId;

use crate::limits::OutOfBudget;

/// A value that is not a container, whichever way it was written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scalar<'a> {
    Nothing,
    Bool(bool),
    Int(i64),
    /// Above `i64::MAX`.
    Unsigned(u64),
    Float(f64),
    Text(&'a str),
    /// Two whole numbers.
    Pair(u64, u64),
    /// Anything else: bytes, an integer of more than 64 bits, a container.
    Other,
}

impl<'a> Scalar<'a> {
    /// A number that fills 64 bits, which some versions write as signed.
    pub(super) fn bits(self) -> Option<u64> {
        match self {
            Self::Int(number) => Some(number.cast_unsigned()),
            Self::Unsigned(number) => Some(number),
            _ => None,
        }
    }

    pub(crate) fn count(self) -> Option<u64> {
        match self {
            Self::Int(number) => u64::try_from(number).ok(),
            Self::Unsigned(number) => Some(number),
            _ => None,
        }
    }

    pub(super) fn time_us(self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(number),
            Self::Float(number) if number.is_finite() => Some(number as i64),
            _ => None,
        }
    }

    /// A whole number that was written as another kind of number: programs that edit JSON do that.
    pub(super) fn rounded(self) -> Option<u64> {
        match self {
            Self::Float(number) if (0.0..u64::MAX as f64).contains(&number) => Some(number as u64),
            _ => None,
        }
    }

    /// A whole number, also one that was written with a point and nothing behind it.
    pub(super) fn whole(self) -> Option<u64> {
        match self {
            Self::Float(number) if number.fract() == 0.0 => self.rounded(),
            _ => self.count(),
        }
    }

    /// Whether this may stand for a number that means nothing, and not for something else altogether.
    pub(super) fn is_odd_number(self) -> bool {
        !matches!(self, Self::Text(_) | Self::Bool(_) | Self::Pair(..))
    }

    pub(super) fn number(self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(number),
            other => other.count().map(|number| number as f64),
        }
    }

    pub(super) fn text(self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn is_true(self) -> bool {
        matches!(self, Self::Bool(true)) || self.count().is_some_and(|number| number != 0)
    }

    pub(super) fn pool_id(self) -> Option<MempoolId> {
        match self {
            Self::Pair(first, second) => Some(MempoolId(first, second)),
            _ => None,
        }
    }
}

/// Why a field cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    OutOfBudget,
    Wrong(&'static str),
}

impl From<OutOfBudget> for Refusal {
    fn from(_: OutOfBudget) -> Self {
        Self::OutOfBudget
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfBudget => OutOfBudget.fmt(f),
            Self::Wrong(what) => f.write_str(what),
        }
    }
}
