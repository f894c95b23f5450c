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
    /// An empty dictionary, and its memo slot if it has one. Most empty dictionaries are then
    /// filled as a history entry ([`Value::Entry`]) and never need memory in the heap.
    NewDict(Option<u32>),
    Dict(DictId),
    /// A list or a tuple.
    List(ListId),
    /// A dictionary that is a history entry, by its index in the snapshot's entries.
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

/// A value of the pickle's memo in 4 bytes instead of 16. Numbers, pairs and references above
/// [`MAX_PAYLOAD`] do not fit and are kept in a separate list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PackedValue(u32);

/// Number of low bits of a [`PackedValue`] that hold the kind of value.
const KIND_BITS: u32 = 4;
/// The bits of a [`PackedValue`] that hold the kind of value.
const KIND_MASK: u32 = (1 << KIND_BITS) - 1;
/// The kind of a [`PackedValue`] that is a text.
const TEXT: u32 = 3;
/// The kind of a [`PackedValue`] that is a list.
const LIST: u32 = 7;
/// The highest number, such as an index, that a [`PackedValue`] can hold beside its kind.
const MAX_PAYLOAD: u32 = u32::MAX >> KIND_BITS;

impl PackedValue {
    /// The content of a memo slot in which no value was stored.
    pub(super) const EMPTY: Self = Self(0);

    /// Combines a kind (1 to 11) with its payload; `None` if the payload is above [`MAX_PAYLOAD`].
    #[inline]
    const fn new(kind: u32, payload: u32) -> Option<Self> {
        if payload > MAX_PAYLOAD { None } else { Some(Self(payload << KIND_BITS | kind)) }
    }

    /// Packs a value into 4 bytes; `None` if it does not fit: a number, a pair, or a reference
    /// above [`MAX_PAYLOAD`].
    #[inline]
    pub(super) fn pack(value: Value) -> Option<Self> {
        match value {
            Value::None => Self::new(1, 0),
            Value::Bool(value) => Self::new(2, u32::from(value)),
            Value::Text(StringRef(id)) => Self::new(TEXT, id),
            Value::NewDict(None) => Self::new(4, 0),
            Value::NewDict(Some(slot)) => Self::new(5, slot),
            Value::Dict(DictId(id)) => Self::new(6, id),
            Value::List(ListId(id)) => Self::new(LIST, id),
            Value::Entry(number) => Self::new(8, number),
            Value::Frame(FrameId(id)) => Self::new(9, id),
            Value::Opaque => Self::new(10, 0),
            Value::Int(_) | Value::Unsigned(_) | Value::Float(_) | Value::Pair(..) => None,
        }
    }

    /// Creates a reference to the value at `index` of the list of values that do not fit in 4
    /// bytes; `None` if the index is above [`MAX_PAYLOAD`].
    pub(super) fn overflow(index: u32) -> Option<Self> {
        Self::new(11, index)
    }

    /// Returns the text; `None` for any other value, and for a value that does not fit in 4 bytes.
    #[inline]
    pub(super) fn text(self) -> Option<StringRef> {
        (self.0 & KIND_MASK == TEXT).then_some(StringRef(self.0 >> KIND_BITS))
    }

    /// Returns the list; `None` for any other value, and for a value that does not fit in 4 bytes.
    #[inline]
    pub(super) fn list(self) -> Option<ListId> {
        (self.0 & KIND_MASK == LIST).then_some(ListId(self.0 >> KIND_BITS))
    }

    /// Returns the value. If the value does not fit in 4 bytes, the error is its index in the list
    /// of these values; if the slot is empty, the error is `None`.
    #[inline]
    pub(super) fn unpack(self) -> Result<Value, Option<u32>> {
        let payload = self.0 >> KIND_BITS;
        Ok(match self.0 & KIND_MASK {
            1 => Value::None,
            2 => Value::Bool(payload != 0),
            TEXT => Value::Text(StringRef(payload)),
            4 => Value::NewDict(None),
            5 => Value::NewDict(Some(payload)),
            6 => Value::Dict(DictId(payload)),
            LIST => Value::List(ListId(payload)),
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
            Value::Text(StringRef(MAX_PAYLOAD)),
            Value::NewDict(None),
            Value::NewDict(Some(0)),
            Value::Dict(DictId(7)),
            Value::List(ListId(8)),
            Value::Entry(MAX_PAYLOAD),
            Value::Frame(FrameId(9)),
            Value::Opaque,
        ] {
            assert_eq!(PackedValue::pack(value).map(PackedValue::unpack), Some(Ok(value)));
        }
        let packed = |value| PackedValue::pack(value).expect("the value fits");
        assert_eq!(packed(Value::Text(StringRef(5))).text(), Some(StringRef(5)));
        assert_eq!(packed(Value::List(ListId(5))).list(), Some(ListId(5)));
        assert_eq!((packed(Value::Opaque).text(), packed(Value::Opaque).list()), (None, None));
        assert_eq!(PackedValue::pack(Value::Int(3)), None);
        assert_eq!(PackedValue::pack(Value::Entry(MAX_PAYLOAD + 1)), None);
        assert_eq!(PackedValue::overflow(5).map(PackedValue::unpack), Some(Err(Some(5))));
        assert_eq!(PackedValue::EMPTY.unpack(), Err(None));
    }
}
