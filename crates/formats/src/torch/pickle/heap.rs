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

/// A string of the pickle.
#[derive(Debug)]
struct StringRecord<'a> {
    text: Cow<'a, str>,
    key: Option<Key>,
    /// Its meaning as the name of an action; `None` if the action is unknown.
    action: Option<Action>,
    /// Its number in the recording, once it is used there.
    string: Option<StringId>,
}

/// Number of strings in the lookup table without hashing.
const RECENT_STRINGS: usize = 64;
/// Estimated bytes of a string: its row and its share of the hash table.
const STRING_BYTES: usize = 96;

/// The strings of a pickle; equal strings have the same number.
#[derive(Debug)]
pub(super) struct Strings<'a> {
    list: Vec<StringRecord<'a>>,
    numbers: HashMap<&'a [u8], u32>,
    /// Recently used short strings by their bytes: `'N/A'` occurs millions of times.
    recent: Box<[(u64, u32); RECENT_STRINGS]>,
}

/// Encodes a string of up to 7 bytes as a number, with its length in the high bits.
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

    fn entry(&self, StringRef(id): StringRef) -> &StringRecord<'a> {
        &self.list[id as usize]
    }

    pub(super) fn text(&self, id: StringRef) -> &str {
        &self.entry(id).text
    }

    pub(super) fn key(&self, id: StringRef) -> Option<Key> {
        self.entry(id).key
    }

    pub(super) fn action(&self, id: StringRef) -> Option<Action> {
        self.entry(id).action
    }

    /// Interns the string in the recording; 0 if it is an empty text.
    pub(super) fn optional_string(&mut self, id: StringRef, builder: &mut Builder) -> Result<StringId, LimitExceeded> {
        if is_empty_text(self.text(id)) { Ok(StringId(0)) } else { self.string(id, builder) }
    }

    fn string(&mut self, id: StringRef, builder: &mut Builder) -> Result<StringId, LimitExceeded> {
        let text = &mut self.list[id.0 as usize];
        match text.string {
            Some(string) => Ok(string),
            None => Ok(*text.string.insert(builder.string(&text.text)?)),
        }
    }
}

/// Maximum number of keys of a frame. Bounds the search for the known ones.
const MAX_FRAME_KEYS: usize = 16;

/// The contents of a list.
#[derive(Debug)]
enum Content {
    Values(Vec<Value>),
    /// Only history entries, as ranges of their numbers: a history of millions of entries is one
    /// range.
    Entries(Vec<Range<u32>>),
    /// Only frames, already converted to a call stack.
    Stack(StackId),
}

#[derive(Debug)]
struct List {
    content: Content,
    depth: u32,
}

#[derive(Debug, Default)]
struct Dict {
    pairs: Vec<(Value, Value)>,
    depth: u32,
}

/// All values that a pickle has created.
#[derive(Debug)]
pub(super) struct Heap<'a> {
    pub(super) strings: Strings<'a>,
    lists: Vec<List>,
    dicts: Vec<Dict>,
    max_depth: u32,
}

impl<'a> Heap<'a> {
    pub(super) fn new(max_depth: u32) -> Self {
        Self { strings: Strings::new(), lists: Vec::new(), dicts: Vec::new(), max_depth }
    }

    pub(super) fn new_list(&mut self, items: &[Value], budget: &mut MemoryBudget) -> Result<Value, FieldError> {
        let id = ListId(u32::try_from(self.lists.len()).map_err(|_| LimitExceeded)?);
        budget.push(&mut self.lists, List { content: Content::Values(Vec::new()), depth: 0 })?;
        self.append(id, items, budget)?;
        Ok(Value::List(id))
    }

    pub(super) fn new_dict(&mut self, budget: &mut MemoryBudget) -> Result<DictId, LimitExceeded> {
        let id = DictId(u32::try_from(self.dicts.len()).map_err(|_| LimitExceeded)?);
        budget.push(&mut self.dicts, Dict::default())?;
        Ok(id)
    }

    /// Returns the nesting depth of a value when it was last added to a container.
    fn depth(&self, value: Value) -> u32 {
        match value {
            Value::List(ListId(id)) => self.lists[id as usize].depth,
            Value::Dict(DictId(id)) => self.dicts[id as usize].depth,
            _ => 0,
        }
    }

    fn depth_of_container(&self, values: impl Iterator<Item = Value>) -> Result<u32, FieldError> {
        let depth = values.map(|value| self.depth(value) + 1).max().unwrap_or(0);
        if depth > self.max_depth {
            return Err(FieldError::Invalid("lists and dictionaries are nested deeper than the limit"));
        }
        Ok(depth)
    }

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

    pub(super) fn pairs(&self, DictId(id): DictId) -> &[(Value, Value)] {
        &self.dicts[id as usize].pairs
    }

    /// Returns the values of a list; empty if it holds entries or is a call stack.
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

    /// Returns the entries that a list holds; `None` if it holds other values.
    pub(super) fn entries(&self, ListId(id): ListId) -> Option<&[Range<u32>]> {
        match &self.lists[id as usize].content {
            Content::Entries(ranges) => Some(ranges),
            Content::Values(values) if values.is_empty() => Some(&[]),
            _ => None,
        }
    }

    /// Converts a value to the scalar that the snapshot builder takes.
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

    fn integer(&self, value: Value) -> Option<u64> {
        match value {
            Value::Int(number) => u64::try_from(number).ok(),
            Value::Unsigned(number) => Some(number),
            _ => None,
        }
    }

    /// Returns the frame that a dictionary's pairs describe, if they do.
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

    /// Returns the frame of a dictionary that received its keys one by one, which the machine does
    /// not recognize.
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
