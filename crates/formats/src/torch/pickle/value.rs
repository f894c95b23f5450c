//! The values on the pickle machine's stack and in its memo: numbers of objects in the heap, never
//! the objects themselves.

use vramscope_trace::FrameId;

/// A value on the pickle machine's stack, in 16 bytes. Containers and strings are numbers of
/// objects in the heap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// An integer above `i64::MAX`.
    Unsigned(u64),
    Float(f64),
    Text(StringRef),
    /// A tuple of two small non-negative integers, which every entry of newer versions has.
    Pair(u32, u32),
    /// An empty dictionary, and its memo slot if it has one. Most become a [`Value::Entry`]
    /// directly and never need memory of their own.
    NewDict(Option<u32>),
    Dict(DictId),
    /// A list or a tuple.
    List(ListId),
    /// A dictionary that is a history entry, by number.
    Entry(u32),
    /// A dictionary that is a stack frame.
    Frame(FrameId),
    /// A value whose content does not matter: bytes, a set, an integer of more than 64 bits.
    Opaque,
}

/// The index of a string in the pickle's [`Strings`](super::heap::Strings).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StringRef(pub(super) u32);

/// The index of a dictionary in the pickle's [`Heap`](super::heap::Heap).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DictId(pub(super) u32);

/// The index of a list or tuple in the pickle's [`Heap`](super::heap::Heap).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListId(pub(super) u32);

/// A value of the pickle's memo in 8 bytes instead of 16. Numbers and pairs do not fit and are kept
/// in a list of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PackedValue(u64);

/// Number of low bits of a [`PackedValue`] that hold the kind of value.
const KIND_BITS: u32 = 4;

impl PackedValue {
    /// A memo slot without a value.
    pub(super) const EMPTY: Self = Self(0);

    /// Combines a kind (1 to 11) with its payload, at most 60 bits.
    const fn new(kind: u64, payload: u64) -> Self {
        Self(payload << KIND_BITS | kind)
    }

    /// Packs a value into 8 bytes; `None` for a number or a pair, which do not fit.
    pub(super) fn pack(value: Value) -> Option<Self> {
        Some(match value {
            Value::None => Self::new(1, 0),
            Value::Bool(value) => Self::new(2, u64::from(value)),
            Value::Text(StringRef(id)) => Self::new(3, u64::from(id)),
            Value::NewDict(None) => Self::new(4, 0),
            Value::NewDict(Some(slot)) => Self::new(5, u64::from(slot)),
            Value::Dict(DictId(id)) => Self::new(6, u64::from(id)),
            Value::List(ListId(id)) => Self::new(7, u64::from(id)),
            Value::Entry(number) => Self::new(8, u64::from(number)),
            Value::Frame(FrameId(id)) => Self::new(9, u64::from(id)),
            Value::Opaque => Self::new(10, 0),
            Value::Int(_) | Value::Unsigned(_) | Value::Float(_) | Value::Pair(..) => return None,
        })
    }

    /// Creates a reference to the value at `index` of the list of values that do not fit in 8
    /// bytes.
    pub(super) fn overflow(index: u32) -> Self {
        Self::new(11, u64::from(index))
    }

    /// Returns the value. The error is the index in the list of values that do not fit in 8 bytes
    /// if the value is there, or `None` if the slot is empty.
    pub(super) fn unpack(self) -> Result<Value, Option<u32>> {
        let payload = (self.0 >> KIND_BITS) as u32;
        Ok(match self.0 & ((1 << KIND_BITS) - 1) {
            1 => Value::None,
            2 => Value::Bool(payload != 0),
            3 => Value::Text(StringRef(payload)),
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
    fn values_are_small_and_can_be_packed() {
        assert_eq!(size_of::<Value>(), 16);
        for value in [
            Value::None,
            Value::Bool(true),
            Value::Text(StringRef(u32::MAX)),
            Value::NewDict(None),
            Value::NewDict(Some(0)),
            Value::Dict(DictId(7)),
            Value::List(ListId(8)),
            Value::Entry(u32::MAX),
            Value::Frame(FrameId(9)),
            Value::Opaque,
        ] {
            assert_eq!(PackedValue::pack(value).map(PackedValue::unpack), Some(Ok(value)));
        }
        assert_eq!(PackedValue::pack(Value::Int(3)), None);
        assert_eq!(PackedValue::overflow(5).unpack(), Err(Some(5)));
        assert_eq!(PackedValue::EMPTY.unpack(), Err(None));
    }
}
