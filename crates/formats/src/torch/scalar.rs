//! Scalar values of a snapshot, and the error for a value of the wrong kind.

use vramscope_trace::{MempoolId, StringId};

use crate::limits::LimitExceeded;
use crate::progress::Cancelled;

/// A value of a PyTorch snapshot that is not a list or dictionary. Pickle and JSON readers produce
/// equal values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scalar<'a> {
    Null,
    Bool(bool),
    Int(i64),
    /// An integer above `i64::MAX`.
    Unsigned(u64),
    Float(f64),
    /// A text, and its number in the recording if that is known.
    Text(&'a str, Option<StringId>),
    /// Two non-negative integers, such as the id of a private pool.
    Pair(u64, u64),
    /// Anything else: bytes, an integer of more than 64 bits, a container.
    Other,
}

impl<'a> Scalar<'a> {
    /// Returns a 64-bit pattern such as an address; a negative integer, as some versions write, is
    /// taken as two's complement. `None` if the value is not an integer.
    pub(super) fn as_bits(self) -> Option<u64> {
        match self {
            Self::Int(number) => Some(number.cast_unsigned()),
            Self::Unsigned(number) => Some(number),
            _ => None,
        }
    }

    /// Returns the value if it is a non-negative integer; `None` for any other value, even a float
    /// such as 2.0.
    pub(crate) fn as_u64(self) -> Option<u64> {
        match self {
            Self::Int(number) => u64::try_from(number).ok(),
            Self::Unsigned(number) => Some(number),
            _ => None,
        }
    }

    /// Returns a time in microseconds since 1970, from an integer or from a float, whose fraction
    /// is dropped; `None` for other values.
    pub(super) fn as_time_us(self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(number),
            Self::Float(number) if number.is_finite() => Some(number as i64),
            _ => None,
        }
    }

    /// Returns a non-negative float without its fraction; `None` for any other value, even an
    /// integer. Programs that edit JSON turn integers into floats.
    pub(super) fn rounded_down(self) -> Option<u64> {
        match self {
            Self::Float(number) if (0.0..u64::MAX as f64).contains(&number) => Some(number as u64),
            _ => None,
        }
    }

    /// Returns a non-negative integer, even if it was written as a float such as 2.0; `None` for
    /// other values.
    pub(super) fn as_whole_number(self) -> Option<u64> {
        match self {
            Self::Float(number) if number.fract() == 0.0 => self.rounded_down(),
            _ => self.as_u64(),
        }
    }

    /// Returns true if this value, found in place of a number, is ignored and counted as invalid,
    /// such as null or a negative integer. False for a text, boolean or pair, which end the import.
    pub(super) fn is_invalid_number(self) -> bool {
        !matches!(self, Self::Text(..) | Self::Bool(_) | Self::Pair(..))
    }

    /// Returns the value of a float or a non-negative integer; `None` for other values.
    pub(super) fn as_f64(self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(number),
            other => other.as_u64().map(|number| number as f64),
        }
    }

    /// Returns the text of a text value; `None` for other values.
    pub(super) fn as_str(self) -> Option<&'a str> {
        match self {
            Self::Text(text, _) => Some(text),
            _ => None,
        }
    }

    /// Returns true for `true` and for positive integers; false for every other value.
    pub(super) fn is_true(self) -> bool {
        matches!(self, Self::Bool(true)) || self.as_u64().is_some_and(|number| number != 0)
    }

    /// Returns the id of a private pool, which is written as a pair of integers; `None` for other
    /// values.
    pub(super) fn as_pool_id(self) -> Option<MempoolId> {
        match self {
            Self::Pair(first, second) => Some(MempoolId(first, second)),
            _ => None,
        }
    }
}

/// The error for a value of a snapshot that ends the import: memory is short, the value is one that
/// PyTorch never writes there, or the caller stops the import.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FieldError {
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
    #[error(transparent)]
    LimitExceeded(#[from] LimitExceeded),
    #[error("{0}")]
    Invalid(&'static str),
}

/// The result of reading a value of a snapshot; an error ends the import.
pub(crate) type FieldResult<T = ()> = Result<T, FieldError>;
