//! The strings, lists and dictionaries of a pickle, referred to by number. Containers hold numbers
//! of other containers, so that no operation recurses, even for circular references.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use vramscope_trace::{FrameId, StackId, StringId};

use super::value::{DictId, ListId, StringRef, Value};
use crate::limits::{LimitExceeded, MemoryBudget};
use crate::torch::builder::{Builder, is_empty_text, is_unknown_file};
use crate::torch::key::Key;
use crate::torch::scalar::{FieldError, Scalar};
use crate::torch::snapshot::Action;

/// A string of the pickle with its possible meanings, looked up once.
#[derive(Debug)]
struct StringRecord<'a> {
    text: Cow<'a, str>,
    key: Option<Key>,
    /// Its meaning as the name of an action; `None` if the action is unknown.
    action: Option<Action>,
    /// Its number in the recording, once it is used there.
    string: Option<StringId>,
}

/// Number of recently used short strings that are found without the hash table.
const RECENT_STRINGS: usize = 64;
/// Estimated bytes of memory for a string: its row and its share of the hash table.
const STRING_BYTES: usize = 96;

/// The distinct strings of a pickle, by index ([`StringRef`]).
#[derive(Debug)]
pub(super) struct Strings<'a> {
    list: Vec<StringRecord<'a>>,
    numbers: HashMap<&'a [u8], u32>,
    /// Recently used short strings by their bytes: `'N/A'` occurs millions of times.
    recent: Box<[(u64, u32); RECENT_STRINGS]>,
}

/// Encodes a string of up to 7 bytes as a unique number, with its length plus 1 in the highest
/// byte; `None` for longer strings.
fn short_code(bytes: &[u8]) -> Option<u64> {
    if bytes.len() > 7 {
        return None;
    }
    let code = bytes.iter().fold(0u64, |code, &byte| code << 8 | u64::from(byte));
    Some(code | (bytes.len() as u64 + 1) << 56)
}

impl<'a> Strings<'a> {
    pub(super) fn new() -> Self {
        Self { list: Vec::new(), numbers: HashMap::new(), recent: Box::new([(0, 0); RECENT_STRINGS]) }
    }

    /// Returns the reference of a string that equals `bytes`, and adds the string if it is new.
    pub(super) fn intern(&mut self, bytes: &'a [u8], budget: &mut MemoryBudget) -> Result<StringRef, LimitExceeded> {
        let Some(code) = short_code(bytes) else { return self.intern_by_hash(bytes, budget) };
        let slot = (code.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize;
        if self.recent[slot].0 == code {
            return Ok(StringRef(self.recent[slot].1));
        }
        let id = self.intern_by_hash(bytes, budget)?;
        self.recent[slot] = (code, id.0);
        Ok(id)
    }

    /// Does the work of [`intern`](Self::intern) without the table of recent strings.
    fn intern_by_hash(&mut self, bytes: &'a [u8], budget: &mut MemoryBudget) -> Result<StringRef, LimitExceeded> {
        if let Some(&number) = self.numbers.get(bytes) {
            return Ok(StringRef(number));
        }
        let number = u32::try_from(self.list.len()).map_err(|_| LimitExceeded)?;
        // Python may write unpaired surrogates, which are not valid Unicode.
        let text = String::from_utf8_lossy(bytes);
        budget.spend(STRING_BYTES + if matches!(text, Cow::Owned(_)) { text.len() } else { 0 })?;
        let action = Some(Action::from_name(&text)).filter(|&action| action != Action::Other);
        self.list.push(StringRecord { key: Key::from_name(&text), action, text, string: None });
        self.numbers.insert(bytes, number);
        Ok(StringRef(number))
    }

    /// Returns the record of a string: its text and what it means as a key or action.
    fn entry(&self, StringRef(id): StringRef) -> &StringRecord<'a> {
        &self.list[id as usize]
    }

    /// Returns the text; invalid Unicode is replaced.
    pub(super) fn text(&self, id: StringRef) -> &str {
        &self.entry(id).text
    }

    /// Returns the string's meaning as a dictionary key; `None` if the reader does not use the key.
    pub(super) fn key(&self, id: StringRef) -> Option<Key> {
        self.entry(id).key
    }

    /// Returns the string's meaning as the name of an entry's action; `None` if it is unknown.
    pub(super) fn action(&self, id: StringRef) -> Option<Action> {
        self.entry(id).action
    }

    /// Interns the string in the recording and returns its number there; 0 if it is empty or `N/A`.
    pub(super) fn optional_string(&mut self, id: StringRef, builder: &mut Builder) -> Result<StringId, LimitExceeded> {
        if is_empty_text(self.text(id)) { Ok(StringId(0)) } else { self.string(id, builder) }
    }

    /// Interns the string in the recording and returns its number there, which differs from `id`.
    fn string(&mut self, id: StringRef, builder: &mut Builder) -> Result<StringId, LimitExceeded> {
        let text = &mut self.list[id.0 as usize];
        match text.string {
            Some(string) => Ok(string),
            None => Ok(*text.string.insert(builder.string(&text.text)?)),
        }
    }
}

/// Maximum number of keys of a frame's dictionary; one with more is not taken for a frame. Bounds
/// the search for the known keys.
const MAX_FRAME_KEYS: usize = 16;

/// The items of a list, in the most compact form.
#[derive(Debug)]
enum Content {
    Values(Vec<Value>),
    /// Only history entries, as ranges of their numbers: a history of millions of entries is one
    /// range.
    Entries(Vec<Range<u32>>),
    /// Only frames, already converted to a call stack.
    Stack(StackId),
}

/// A list or tuple. `depth` is the nesting depth of its items when they were added.
#[derive(Debug)]
struct List {
    content: Content,
    depth: u32,
}

/// A dictionary as keys and values in the order of insertion. A later value of a key counts.
/// `depth` is the nesting depth of the values when they were added.
#[derive(Debug, Default)]
struct Dict {
    pairs: Vec<(Value, Value)>,
    depth: u32,
}

/// The strings, lists and dictionaries that a pickle has created, by index.
#[derive(Debug)]
pub(super) struct Heap<'a> {
    pub(super) strings: Strings<'a>,
    lists: Vec<List>,
    dicts: Vec<Dict>,
    max_depth: u32,
}

impl<'a> Heap<'a> {
    /// Creates an empty heap that refuses containers nested deeper than `max_depth`.
    pub(super) fn new(max_depth: u32) -> Self {
        Self { strings: Strings::new(), lists: Vec::new(), dicts: Vec::new(), max_depth }
    }

    /// Creates a list with these items; fails if it nests too deep or memory is short.
    pub(super) fn new_list(&mut self, items: &[Value], budget: &mut MemoryBudget) -> Result<Value, FieldError> {
        let id = ListId(u32::try_from(self.lists.len()).map_err(|_| LimitExceeded)?);
        budget.push(&mut self.lists, List { content: Content::Values(Vec::new()), depth: 0 })?;
        self.append(id, items, budget)?;
        Ok(Value::List(id))
    }

    /// Creates an empty dictionary.
    pub(super) fn new_dict(&mut self, budget: &mut MemoryBudget) -> Result<DictId, LimitExceeded> {
        let id = DictId(u32::try_from(self.dicts.len()).map_err(|_| LimitExceeded)?);
        budget.push(&mut self.dicts, Dict::default())?;
        Ok(id)
    }

    /// Returns the nesting depth of a list or dictionary, 0 for other values. Items that are added
    /// later do not change the depth of outer containers.
    fn depth(&self, value: Value) -> u32 {
        match value {
            Value::List(ListId(id)) => self.lists[id as usize].depth,
            Value::Dict(DictId(id)) => self.dicts[id as usize].depth,
            _ => 0,
        }
    }

    /// Returns the nesting depth of a container with these values; fails above the limit.
    fn depth_of_container(&self, values: impl Iterator<Item = Value>) -> Result<u32, FieldError> {
        let depth = values.map(|value| self.depth(value) + 1).max().unwrap_or(0);
        if depth > self.max_depth {
            return Err(FieldError::Invalid("lists and dictionaries are nested deeper than the limit"));
        }
        Ok(depth)
    }

    /// Appends items to a list. A list that begins with history entries stores ranges and accepts
    /// nothing else.
    pub(super) fn append(
        &mut self,
        ListId(id): ListId,
        items: &[Value],
        budget: &mut MemoryBudget,
    ) -> Result<(), FieldError> {
        let depth = self.depth_of_container(items.iter().copied())?;
        let list = &mut self.lists[id as usize];
        list.depth = list.depth.max(depth);
        let is_empty = matches!(&list.content, Content::Values(values) if values.is_empty());
        if is_empty && let Some(Value::Entry(_)) = items.first() {
            list.content = Content::Entries(Vec::new());
        }
        match &mut list.content {
            Content::Entries(ranges) => {
                for &item in items {
                    match (item, ranges.last_mut()) {
                        (Value::Entry(number), Some(last)) if last.end == number => last.end = number + 1,
                        (Value::Entry(number), _) => budget.push(ranges, number..number + 1)?,
                        _ => return Err(FieldError::Invalid("a list contains history entries and other values")),
                    }
                }
                Ok(())
            }
            Content::Values(values) => {
                budget.spend(size_of_val(items))?;
                values.extend_from_slice(items);
                Ok(())
            }
            Content::Stack(_) => Err(FieldError::Invalid("a list of frames is extended after it was used")),
        }
    }

    /// Appends keys and values to a dictionary; equal keys stay, and the last one counts.
    pub(super) fn set(
        &mut self,
        DictId(id): DictId,
        pairs: impl Iterator<Item = (Value, Value)> + Clone,
        budget: &mut MemoryBudget,
    ) -> Result<(), FieldError> {
        let depth = self.depth_of_container(pairs.clone().map(|(_, value)| value))?;
        let dict = &mut self.dicts[id as usize];
        dict.depth = dict.depth.max(depth);
        let before = dict.pairs.len();
        dict.pairs.extend(pairs);
        budget.spend((dict.pairs.len() - before) * size_of::<(Value, Value)>())?;
        Ok(())
    }

    /// Returns the keys and values of a dictionary in the order of insertion.
    pub(super) fn pairs(&self, DictId(id): DictId) -> &[(Value, Value)] {
        &self.dicts[id as usize].pairs
    }

    /// Returns the items of a list; none if they are history entries or were converted to a call
    /// stack.
    pub(super) fn values(&self, ListId(id): ListId) -> &[Value] {
        match &self.lists[id as usize].content {
            Content::Values(values) => values,
            _ => &[],
        }
    }

    /// Returns the value of a list at an index. A list that contains itself may become a call stack
    /// while it is being read.
    pub(super) fn value_at(&self, list: ListId, at: usize) -> Result<Value, FieldError> {
        self.values(list)
            .get(at)
            .copied()
            .ok_or(FieldError::Invalid("a list is used as a list of frames and as something else"))
    }

    /// Returns the history entries of a list, as ranges of indices in the snapshot's entries;
    /// `None` if it has other items.
    pub(super) fn entries(&self, ListId(id): ListId) -> Option<&[Range<u32>]> {
        match &self.lists[id as usize].content {
            Content::Entries(ranges) => Some(ranges),
            Content::Values(values) if values.is_empty() => Some(&[]),
            _ => None,
        }
    }

    /// Converts a value to a [`Scalar`]; a list of two integers becomes a pair, other containers
    /// [`Scalar::Other`].
    #[inline]
    pub(super) fn scalar(&self, value: Value) -> Scalar<'_> {
        match value {
            Value::None => Scalar::Null,
            Value::Bool(value) => Scalar::Bool(value),
            Value::Int(number) => Scalar::Int(number),
            Value::Unsigned(number) => Scalar::Unsigned(number),
            Value::Float(number) => Scalar::Float(number),
            Value::Text(text) => Scalar::Text(self.strings.text(text)),
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

    /// Returns a non-negative integer; `None` for other values.
    fn integer(&self, value: Value) -> Option<u64> {
        match value {
            Value::Int(number) => u64::try_from(number).ok(),
            Value::Unsigned(number) => Some(number),
            _ => None,
        }
    }

    /// Interns the frame that a dictionary's keys and values describe; `None` if its function, file
    /// or line is missing.
    pub(super) fn frame(
        &mut self,
        pairs: impl Iterator<Item = (Value, Value)>,
        builder: &mut Builder,
    ) -> Result<Option<FrameId>, FieldError> {
        let (mut function, mut file, mut line) = (None, None, None);
        for (key, value) in pairs {
            let Value::Text(key) = key else { continue };
            match (self.strings.key(key), value) {
                (Some(Key::Name), Value::Text(text)) => function = Some(text),
                (Some(Key::Filename), Value::Text(text)) => file = Some(text),
                (Some(Key::Line), Value::Int(number)) => line = Some(u32::try_from(number).unwrap_or(0)),
                _ => {}
            }
        }
        let (Some(function), Some(file), Some(line)) = (function, file, line) else { return Ok(None) };
        let function = self.strings.string(function, builder)?;
        let file =
            if is_unknown_file(self.strings.text(file)) { StringId(0) } else { self.strings.string(file, builder)? };
        Ok(Some(builder.frame(function, file, line)?))
    }

    /// Interns the frame that a dictionary describes which received its keys one by one, so that
    /// the machine did not recognize it; `None` if it is not a frame.
    fn unrecognized_frame(&mut self, dict: DictId, builder: &mut Builder) -> Result<Option<FrameId>, FieldError> {
        let mut pairs = [(Value::None, Value::None); MAX_FRAME_KEYS];
        let known = self.pairs(dict);
        let Some(used) = pairs.get_mut(..known.len()) else { return Ok(None) };
        used.copy_from_slice(known);
        self.frame(pairs.into_iter(), builder)
    }

    /// Returns the call stack for a list of frames, innermost first. Values that are not frames are
    /// ignored. A list is converted to a stack once.
    pub(super) fn stack(&mut self, value: Value, builder: &mut Builder) -> Result<StackId, FieldError> {
        let Value::List(ListId(id)) = value else { return Ok(StackId(0)) };
        let content = &mut self.lists[id as usize].content;
        let values = match content {
            Content::Stack(stack) => return Ok(*stack),
            Content::Entries(_) => return Ok(StackId(0)),
            Content::Values(values) => std::mem::take(values),
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
        self.lists[id as usize].content = Content::Stack(stack);
        Ok(stack)
    }
}
