//! The strings, lists and dictionaries of a pickle, referred to by number. Containers hold numbers
//! of other containers, so that no operation recurses, even for circular references.

use std::collections::HashMap;
use std::ops::Range;

use vramscope_trace::{FrameId, StackId, StringId};

use super::value::{DictId, ListId, StringRef, Value};
use crate::limits::{LimitExceeded, MemoryBudget};
use crate::torch::builder::{Builder, is_empty_text, is_unknown_file};
use crate::torch::key::SnapshotKey;
use crate::torch::scalar::{FieldError, FieldResult, Scalar};
use crate::torch::snapshot::TraceAction;

/// The meaning of a string of the pickle, as a key and as an action.
#[derive(Clone, Copy, Debug)]
struct TextMeaning {
    /// Its meaning as a dictionary key; `None` if the import does not use this key.
    key: Option<SnapshotKey>,
    /// Its meaning as the name of an action; `None` if the action is unknown.
    action: Option<TraceAction>,
    /// True if it stands for a text that is missing.
    is_empty: bool,
}

/// Number of recently used strings of up to 7 bytes that are found without the hash table.
const RECENT_STRINGS: usize = 64;
/// Estimated memory for one string of a pickle, in bytes: its rows and its share of the hash table.
const STRING_BYTES: usize = 128;

/// The distinct strings of a pickle, by index ([`StringRef`]).
#[derive(Debug)]
pub(super) struct Strings {
    texts: Vec<Box<str>>,
    /// The meaning of each string.
    meanings: Vec<TextMeaning>,
    /// The number of each string in the recording, once it is used there.
    string_ids: Vec<Option<StringId>>,
    /// The index of each string by its bytes, which may be invalid Unicode.
    numbers: HashMap<Box<[u8]>, u32>,
    /// Cache of short strings: the bytes as a number, and the string's index. `'N/A'` occurs
    /// millions of times.
    recent: Box<[(u64, u32); RECENT_STRINGS]>,
}

/// Encodes a string of up to 7 bytes as a unique number that is not 0: its bytes, and its length
/// plus 1 in the highest byte. `None` for longer strings.
#[inline]
fn short_code(bytes: &[u8]) -> Option<u64> {
    if bytes.len() > 7 {
        return None;
    }
    let code = bytes.iter().fold(0u64, |code, &byte| code << 8 | u64::from(byte));
    Some(code | (bytes.len() as u64 + 1) << 56)
}

impl Strings {
    pub(super) fn new() -> Self {
        Self {
            texts: Vec::new(),
            meanings: Vec::new(),
            string_ids: Vec::new(),
            numbers: HashMap::new(),
            recent: Box::new([(0, 0); RECENT_STRINGS]),
        }
    }

    /// Returns the reference of a string that equals `bytes`, and adds the string if it is new.
    #[inline]
    pub(super) fn intern(&mut self, bytes: &[u8], budget: &mut MemoryBudget) -> Result<StringRef, LimitExceeded> {
        let Some(code) = short_code(bytes) else { return self.intern_by_hash(bytes, budget) };
        let slot = (code.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize;
        if self.recent[slot].0 == code {
            return Ok(StringRef(self.recent[slot].1));
        }
        let id = self.intern_by_hash(bytes, budget)?;
        self.recent[slot] = (code, id.0);
        Ok(id)
    }

    /// Returns the reference of a string that equals `bytes`, from the hash table of all strings,
    /// and adds the string if it is new.
    fn intern_by_hash(&mut self, bytes: &[u8], budget: &mut MemoryBudget) -> Result<StringRef, LimitExceeded> {
        if let Some(&number) = self.numbers.get(bytes) {
            return Ok(StringRef(number));
        }
        let number = u32::try_from(self.texts.len()).map_err(|_| LimitExceeded)?;
        // Python may write unpaired surrogates, which are not valid Unicode.
        let text = String::from_utf8_lossy(bytes);
        budget.spend(STRING_BYTES.saturating_add(bytes.len()).saturating_add(text.len()))?;
        let action = Some(TraceAction::from_name(&text)).filter(|&action| action != TraceAction::Other);
        self.meanings.push(TextMeaning { key: SnapshotKey::from_name(&text), action, is_empty: is_empty_text(&text) });
        self.string_ids.push(None);
        self.texts.push(text.into());
        self.numbers.insert(bytes.into(), number);
        Ok(StringRef(number))
    }

    /// Returns the text of a string of the pickle; invalid Unicode is replaced.
    pub(super) fn text(&self, StringRef(id): StringRef) -> &str {
        &self.texts[id as usize]
    }

    /// Returns the dictionary key that the string names; `None` if the import does not use this
    /// key.
    #[inline]
    pub(super) fn key(&self, StringRef(id): StringRef) -> Option<SnapshotKey> {
        self.meanings[id as usize].key
    }

    /// Returns the action of a history entry that the string names; `None` if the action is
    /// unknown.
    #[inline]
    pub(super) fn action(&self, StringRef(id): StringRef) -> Option<TraceAction> {
        self.meanings[id as usize].action
    }

    /// Returns the number of the string in the recording, and adds it there if it is new; 0 if it
    /// is empty or `N/A`.
    #[inline]
    pub(super) fn optional_string(&mut self, id: StringRef, builder: &mut Builder) -> Result<StringId, LimitExceeded> {
        if self.meanings[id.0 as usize].is_empty { Ok(StringId(0)) } else { self.string(id, builder) }
    }

    /// Returns the number of the string in the recording, and adds it there if it is new. The
    /// number differs from `id`, the string's index in the pickle.
    fn string(&mut self, id: StringRef, builder: &mut Builder) -> Result<StringId, LimitExceeded> {
        let string_id = &mut self.string_ids[id.0 as usize];
        match string_id {
            Some(string) => Ok(*string),
            None => Ok(*string_id.insert(builder.string(&self.texts[id.0 as usize])?)),
        }
    }
}

/// Maximum number of keys of a call frame's dictionary; a dictionary with more is not taken for a
/// frame. Bounds the search for the known keys.
const MAX_FRAME_KEYS: usize = 16;

/// The items of a list: any values, or in compact form only history entries or only call frames.
#[derive(Debug)]
enum ListContent {
    Values(Vec<Value>),
    /// Only history entries, as ranges of their numbers: a history of millions of entries is one
    /// range.
    Entries(Vec<Range<u32>>),
    /// Only frames, already converted to a call stack.
    Stack(StackId),
}

/// A list or tuple of a pickle. `depth` is its nesting depth when its items were added: 1 more than
/// that of the deepest item.
#[derive(Debug)]
struct List {
    content: ListContent,
    depth: u32,
}

/// A dictionary of a pickle: keys and values in the order of insertion; the last value of a key
/// counts. `depth` is its nesting depth when the values were added.
#[derive(Debug, Default)]
struct Dict {
    pairs: Vec<(Value, Value)>,
    depth: u32,
}

/// The strings, lists and dictionaries that a pickle has created, each referred to by its index.
#[derive(Debug)]
pub(super) struct Heap {
    pub(super) strings: Strings,
    lists: Vec<List>,
    dicts: Vec<Dict>,
    max_depth: u32,
    /// Number of key-value pairs of dictionaries that may still be read as rows.
    row_pairs_left: usize,
}

impl Heap {
    /// Creates an empty heap that refuses containers nested deeper than `max_depth`.
    pub(super) fn new(max_depth: u32) -> Self {
        Self { strings: Strings::new(), lists: Vec::new(), dicts: Vec::new(), max_depth, row_pairs_left: 0 }
    }

    /// Creates a list with these items; fails if it is nested deeper than the limit or memory is
    /// short.
    pub(super) fn new_list(&mut self, items: &[Value], budget: &mut MemoryBudget) -> FieldResult<Value> {
        let id = ListId(u32::try_from(self.lists.len()).map_err(|_| LimitExceeded)?);
        budget.push(&mut self.lists, List { content: ListContent::Values(Vec::new()), depth: 0 })?;
        self.append(id, items, budget)?;
        Ok(Value::List(id))
    }

    /// Creates an empty dictionary and returns its index; fails if memory is short.
    pub(super) fn new_dict(&mut self, budget: &mut MemoryBudget) -> Result<DictId, LimitExceeded> {
        let id = DictId(u32::try_from(self.dicts.len()).map_err(|_| LimitExceeded)?);
        budget.push(&mut self.dicts, Dict::default())?;
        Ok(id)
    }

    /// Returns the nesting depth of a list or dictionary when its items were added: 1 more than the
    /// deepest item's, 0 if empty. Returns 0 for other values.
    fn depth(&self, value: Value) -> u32 {
        match value {
            Value::List(ListId(id)) => self.lists[id as usize].depth,
            Value::Dict(DictId(id)) => self.dicts[id as usize].depth,
            _ => 0,
        }
    }

    /// Returns the nesting depth of a container with these values; fails above the limit of the
    /// heap.
    fn depth_of_container(&self, values: impl Iterator<Item = Value>) -> FieldResult<u32> {
        let depth = values.map(|value| self.depth(value) + 1).max().unwrap_or(0);
        if depth > self.max_depth {
            return Err(FieldError::Invalid("lists and dictionaries are nested deeper than the limit"));
        }
        Ok(depth)
    }

    /// Appends items to a list. A list that begins with history entries accepts only entries; fails
    /// for other items, and if nesting or memory exceed their limits.
    pub(super) fn append(&mut self, ListId(id): ListId, items: &[Value], budget: &mut MemoryBudget) -> FieldResult {
        let depth = self.depth_of_container(items.iter().copied())?;
        let list = &mut self.lists[id as usize];
        list.depth = list.depth.max(depth);
        let is_empty = matches!(&list.content, ListContent::Values(values) if values.is_empty());
        if is_empty && let Some(Value::Entry(_)) = items.first() {
            list.content = ListContent::Entries(Vec::new());
        }
        match &mut list.content {
            ListContent::Entries(ranges) => {
                for &item in items {
                    match (item, ranges.last_mut()) {
                        (Value::Entry(number), Some(last)) if last.end == number => last.end = number + 1,
                        (Value::Entry(number), _) => budget.push(ranges, number..number + 1)?,
                        _ => return Err(FieldError::Invalid("a list contains history entries and other values")),
                    }
                }
                Ok(())
            }
            ListContent::Values(values) => {
                budget.spend(size_of_val(items))?;
                values.extend_from_slice(items);
                Ok(())
            }
            ListContent::Stack(_) => Err(FieldError::Invalid("a list of frames is extended after it was used")),
        }
    }

    /// Appends keys and values to a dictionary. If a key occurs twice, its last value counts.
    pub(super) fn set(
        &mut self,
        DictId(id): DictId,
        pairs: impl Iterator<Item = (Value, Value)> + Clone,
        budget: &mut MemoryBudget,
    ) -> FieldResult {
        let depth = self.depth_of_container(pairs.clone().map(|(_, value)| value))?;
        let dict = &mut self.dicts[id as usize];
        dict.depth = dict.depth.max(depth);
        let before = dict.pairs.len();
        dict.pairs.extend(pairs);
        budget.spend((dict.pairs.len() - before) * size_of::<(Value, Value)>())?;
        Ok(())
    }

    /// Returns the keys and values of a dictionary in the order of insertion; a key may occur
    /// twice.
    pub(super) fn pairs(&self, DictId(id): DictId) -> &[(Value, Value)] {
        &self.dicts[id as usize].pairs
    }

    /// Allows [`charge_row`](Self::charge_row) as many pairs as the pickle has bytes. That suffices
    /// for every pickle in which each row has a dictionary of its own: a row is read at most twice,
    /// and each of its pairs takes at least two bytes.
    pub(super) fn allow_row_pairs(&mut self, pickle_bytes: usize) {
        self.row_pairs_left = pickle_bytes;
    }

    /// Returns the number of pairs of a dictionary that is about to be read as a row of the
    /// snapshot. Fails if more pairs were read than [`allow_row_pairs`](Self::allow_row_pairs)
    /// allows, because a small pickle can refer to one large dictionary many times.
    pub(super) fn charge_row(&mut self, dict: DictId) -> FieldResult<usize> {
        let pairs = self.pairs(dict).len();
        let left = self.row_pairs_left.checked_sub(pairs);
        self.row_pairs_left = left.ok_or(FieldError::Invalid("a dictionary of the snapshot is used too many times"))?;
        Ok(pairs)
    }

    /// Returns the items of a list; an empty slice if they are history entries or were converted to
    /// a call stack.
    pub(super) fn values(&self, ListId(id): ListId) -> &[Value] {
        match &self.lists[id as usize].content {
            ListContent::Values(values) => values,
            _ => &[],
        }
    }

    /// Returns the item of a list at index `at`; fails if the list was converted to a call stack
    /// since its length was read, as may happen if it contains itself.
    pub(super) fn value_at(&self, list: ListId, at: usize) -> FieldResult<Value> {
        self.values(list)
            .get(at)
            .copied()
            .ok_or(FieldError::Invalid("a list is used as a list of frames and as something else"))
    }

    /// Returns the items of a list that has only history entries, as ranges of indices in the
    /// snapshot's entries; `None` if it has other items.
    pub(super) fn entries(&self, ListId(id): ListId) -> Option<&[Range<u32>]> {
        match &self.lists[id as usize].content {
            ListContent::Entries(ranges) => Some(ranges),
            ListContent::Values(values) if values.is_empty() => Some(&[]),
            _ => None,
        }
    }

    /// Converts a value of the pickle to a [`Scalar`]. A list of two non-negative integers becomes
    /// a pair, any other container [`Scalar::Other`].
    #[inline]
    pub(super) fn scalar(&self, value: Value) -> Scalar<'_> {
        match value {
            Value::None => Scalar::Null,
            Value::Bool(value) => Scalar::Bool(value),
            Value::Int(number) => Scalar::Int(number),
            Value::Unsigned(number) => Scalar::Unsigned(number),
            Value::Float(number) => Scalar::Float(number),
            Value::Text(text) => Scalar::Text(self.strings.text(text), None),
            Value::Pair(first, second) => Scalar::Pair(u64::from(first), u64::from(second)),
            Value::List(list) => match *self.values(list) {
                [first, second] => match (self.integer(first), self.integer(second)) {
                    (Some(first), Some(second)) => Scalar::Pair(first, second),
                    _ => Scalar::Other,
                },
                _ => Scalar::Other,
            },
            _ => Scalar::Other,
        }
    }

    /// Converts the value of `key` in a row to a [`Scalar`], as [`scalar`](Self::scalar) does. A
    /// text that the row keeps gets its number in the recording, which is found without hashing the
    /// text again: many rows may refer to one long text.
    #[inline]
    pub(super) fn field_scalar(
        &mut self,
        key: SnapshotKey,
        value: Value,
        builder: &mut Builder,
    ) -> FieldResult<Scalar<'_>> {
        let Value::Text(text) = value else { return Ok(self.scalar(value)) };
        let number = match key {
            SnapshotKey::UserMetadata | SnapshotKey::CompileContext => {
                Some(self.strings.optional_string(text, builder)?)
            }
            SnapshotKey::Name => Some(self.strings.string(text, builder)?),
            SnapshotKey::Action if self.strings.action(text).is_none() => Some(self.strings.string(text, builder)?),
            _ => None,
        };
        Ok(Scalar::Text(self.strings.text(text), number))
    }

    /// Returns the value if it is a non-negative integer; `None` for other values.
    fn integer(&self, value: Value) -> Option<u64> {
        match value {
            Value::Int(number) => u64::try_from(number).ok(),
            Value::Unsigned(number) => Some(number),
            _ => None,
        }
    }

    /// Interns the call frame that a dictionary's keys and values describe; `None` if its function,
    /// file or line is missing.
    pub(super) fn frame(
        &mut self,
        pairs: impl Iterator<Item = (Value, Value)>,
        builder: &mut Builder,
    ) -> FieldResult<Option<FrameId>> {
        let (mut function, mut file, mut line) = (None, None, None);
        for (key, value) in pairs {
            let Value::Text(key) = key else { continue };
            match (self.strings.key(key), value) {
                (Some(SnapshotKey::Name), Value::Text(text)) => function = Some(text),
                (Some(SnapshotKey::Filename), Value::Text(text)) => file = Some(text),
                (Some(SnapshotKey::Line), Value::Int(number)) => line = Some(u32::try_from(number).unwrap_or(0)),
                _ => {}
            }
        }
        let (Some(function), Some(file), Some(line)) = (function, file, line) else { return Ok(None) };
        let function = self.strings.string(function, builder)?;
        let file =
            if is_unknown_file(self.strings.text(file)) { StringId(0) } else { self.strings.string(file, builder)? };
        Ok(Some(builder.frame(function, file, line)?))
    }

    /// Interns the call frame in a dictionary that received its keys one by one, so that the pickle
    /// machine did not take it for a frame; `None` if it is not a frame.
    fn unrecognized_frame(&mut self, dict: DictId, builder: &mut Builder) -> FieldResult<Option<FrameId>> {
        let mut pairs = [(Value::None, Value::None); MAX_FRAME_KEYS];
        let known = self.pairs(dict);
        let Some(used) = pairs.get_mut(..known.len()) else { return Ok(None) };
        used.copy_from_slice(known);
        self.frame(pairs.into_iter(), builder)
    }

    /// Returns the call stack for a list of frames, innermost first; stack 0 if `value` is not a
    /// list of frames. Items that are not frames are ignored. A list is converted only once.
    pub(super) fn stack(&mut self, value: Value, builder: &mut Builder) -> FieldResult<StackId> {
        let Value::List(ListId(id)) = value else { return Ok(StackId(0)) };
        let content = &mut self.lists[id as usize].content;
        let values = match content {
            ListContent::Stack(stack) => return Ok(*stack),
            ListContent::Entries(_) => return Ok(StackId(0)),
            ListContent::Values(values) => std::mem::take(values),
        };
        builder.budget.give_back(size_of_val(values.as_slice()));
        let mut frames = Vec::with_capacity(values.len());
        for value in values {
            frames.extend(match value {
                Value::Frame(frame) => Some(frame),
                Value::Dict(dict) => self.unrecognized_frame(dict, builder)?,
                _ => None,
            });
        }
        let stack = builder.stack(&frames)?;
        self.lists[id as usize].content = ListContent::Stack(stack);
        Ok(stack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Many rows may refer to one long text, so its number must be available without hashing the
    /// text.
    #[test]
    fn texts_that_rows_keep_have_a_number() {
        let mut builder = Builder::new(1 << 20);
        let mut heap = Heap::new(100);
        let mut check = |key, text: &str, expected: Option<&str>| {
            let id = heap.strings.intern(text.as_bytes(), &mut builder.budget).expect("the budget suffices");
            let scalar = heap.field_scalar(key, Value::Text(id), &mut builder).expect("the budget suffices");
            let expected = expected.map(|text| builder.string(text).expect("the budget suffices"));
            assert_eq!(scalar, Scalar::Text(text, expected), "{key:?}: {text}");
        };
        for key in [SnapshotKey::UserMetadata, SnapshotKey::CompileContext] {
            check(key, "layer 1", Some("layer 1"));
            check(key, "N/A", Some(""));
        }
        check(SnapshotKey::Name, "step", Some("step"));
        check(SnapshotKey::Action, "user_defined", Some("user_defined"));
        check(SnapshotKey::Action, "alloc", None);
        check(SnapshotKey::State, "inactive", None);
    }

    #[test]
    fn rows_may_have_as_many_pairs_as_the_pickle_has_bytes() {
        let mut budget = MemoryBudget::new(1 << 20);
        let mut heap = Heap::new(100);
        let dict = heap.new_dict(&mut budget).expect("the budget suffices");
        let pairs = [(Value::None, Value::None); 10];
        heap.set(dict, pairs.into_iter(), &mut budget).expect("the budget suffices");
        heap.allow_row_pairs(25);
        assert_eq!([(); 3].map(|()| heap.charge_row(dict).ok()), [Some(10), Some(10), None]);
    }
}
