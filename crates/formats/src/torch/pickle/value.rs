//! What stands on the pickle machine's stack and in its memo: numbers of things that the heap holds, never the things themselves.

use vramscope_trace::FrameId;

/// A value, 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// An integer above `i64::MAX`.
    Unsigned(u64),
    Float(f64),
    Text(TextId),
    /// A tuple of two small whole numbers: every entry of newer versions has one.
    Pair(u32, u32),
    /// A dictionary that nothing was put into yet, and the place of the memo that knows it. Most become a [`Value::Entry`] at once
    /// and never take room of their own.
    NewDict(Option<u32>),
    Dict(DictId),
    /// A list or a tuple.
    List(ListId),
    /// A dictionary that is an entry of the history, by number.
    Entry(u32),
    /// A dictionary that is a stack frame.
    Frame(FrameId),
    /// Something whose content does not matter: bytes, a set, an integer of more than 64 bits.
    Opaque,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextId(pub(super) u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DictId(pub(super) u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListId(pub(super) u32);

/// What is memoized, in 8 bytes: there are two places for every entry of a history. Scalars are never memoized by Python; those that
/// are go to a list on the side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packed(u64);

const KIND_BITS: u32 = 4;

impl Packed {
    /// A place that nothing was put into.
    pub(super) const EMPTY: Self = Self(0);

    const fn new(kind: u64, payload: u64) -> Self {
        Self(payload << KIND_BITS | kind)
    }

    /// `None` where the value does not fit.
    pub(super) fn pack(value: Value) -> Option<Self> {
        Some(match value {
            Value::None => Self::new(1, 0),
            Value::Bool(value) => Self::new(2, u64::from(value)),
            Value::Text(TextId(id)) => Self::new(3, u64::from(id)),
            Value::NewDict(None) => Self::new(4, 0),
            Value::NewDict(Some(place)) => Self::new(5, u64::from(place)),
            Value::Dict(DictId(id)) => Self::new(6, u64::from(id)),
            Value::List(ListId(id)) => Self::new(7, u64::from(id)),
            Value::Entry(number) => Self::new(8, u64::from(number)),
            Value::Frame(FrameId(id)) => Self::new(9, u64::from(id)),
            Value::Opaque => Self::new(10, 0),
            Value::Int(_) | Value::Unsigned(_) | Value::Float(_) | Value::Pair(..) => return None,
        })
    }

    /// Stands for the value at `place` of the list on the side.
    pub(super) fn aside(place: u32) -> Self {
        Self::new(11, u64::from(place))
    }

    /// The value; `Err` with its place on the side where it stands there, or `None` where nothing was put.
    pub(super) fn unpack(self) -> Result<Value, Option<u32>> {
        let payload = (self.0 >> KIND_BITS) as u32;
        Ok(match self.0 & ((1 << KIND_BITS) - 1) {
            1 => Value::None,
            2 => Value::Bool(payload != 0),
            3 => Value::Text(TextId(payload)),
            4 => Value::NewDict(None),
            5 => Value::NewDict(Some(payload)),
            6 => Value::Dict(DictId(payload)),
            7 => Value::List(ListId(payload)),
            8 => Value::Entry(payload),
            9 => Value::Frame(FrameId(payload)),
            10 => Value::Opaque,
            11 => return Err(Some(payload)),
            _ => return Err(None),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_small_and_survive_packing() {
        assert_eq!(size_of::<Value>(), 16);
        for value in [
            Value::None,
            Value::Bool(true),
            Value::Text(TextId(u32::MAX)),
            Value::NewDict(None),
            Value::NewDict(Some(0)),
            Value::Dict(DictId(7)),
            Value::List(ListId(8)),
            Value::Entry(u32::MAX),
            Value::Frame(FrameId(9)),
            Value::Opaque,
        ] {
            assert_eq!(Packed::pack(value).map(Packed::unpack), Some(Ok(value)));
        }
        assert_eq!(Packed::pack(Value::Int(3)), None);
        assert_eq!(Packed::aside(5).unpack(), Err(Some(5)));
        assert_eq!(Packed::EMPTY.unpack(), Err(None));
    }
}
