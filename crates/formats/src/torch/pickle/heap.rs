//! Texts, lists and dictionaries that a pickle has made, by number. Containers hold numbers of others, so nothing here recurses,
//! whatever refers to whatever.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use vramscope_trace::{FrameId, StackId, StringId};

use super::value::{DictId, ListId, TextId, Value};
use crate::limits::{Budget, OutOfBudget};
use crate::torch::builder::{Builder, says_nothing};
use crate::torch::key::Key;
use crate::torch::scalar::{Refusal, Scalar};
use crate::torch::snapshot::Action;

/// A text as it stands in the pickle.
#[derive(Debug)]
struct Text<'a> {
    text: Cow<'a, str>,
    key: Option<Key>,
    /// What it means as the name of an action; none where it is of no known one.
    action: Option<Action>,
    /// Its number in the recording, once something needed it.
    string: Option<StringId>,
}

/// How many texts are looked up without hashing.
const RECENT: usize = 64;
/// A rough price of a text: its row and its place in the table.
const TEXT_BYTES: usize = 96;

/// The texts, each once: the same words get the same number.
#[derive(Debug)]
pub(super) struct Texts<'a> {
    list: Vec<Text<'a>>,
    numbers: HashMap<&'a [u8], u32>,
    /// Short texts met of late, by their bytes: the same `'N/A'` comes millions of times.
    recent: Box<[(u64, u32); RECENT]>,
}

/// A text of up to 7 bytes as a number, its length on top.
fn short_code(bytes: &[u8]) -> Option<u64> {
    if bytes.len() > 7 {
        return None;
    }
    let code = bytes.iter().fold(0u64, |code, &byte| code << 8 | u64::from(byte));
    Some(code | (bytes.len() as u64 + 1) << 56)
}

impl<'a> Texts<'a> {
    pub(super) fn new() -> Self {
        Self { list: Vec::new(), numbers: HashMap::new(), recent: Box::new([(0, 0); RECENT]) }
    }

    pub(super) fn intern(&mut self, bytes: &'a [u8], budget: &mut Budget) -> Result<TextId, OutOfBudget> {
        let Some(code) = short_code(bytes) else { return self.intern_slowly(bytes, budget) };
        let place = (code.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize;
        if self.recent[place].0 == code {
            return Ok(TextId(self.recent[place].1));
        }
        let id = self.intern_slowly(bytes, budget)?;
        self.recent[place] = (code, id.0);
        Ok(id)
    }

    fn intern_slowly(&mut self, bytes: &'a [u8], budget: &mut Budget) -> Result<TextId, OutOfBudget> {
        if let Some(&number) = self.numbers.get(bytes) {
            return Ok(TextId(number));
        }
        let number = u32::try_from(self.list.len()).map_err(|_| OutOfBudget)?;
        // Python may write half of a surrogate pair, which is no text elsewhere.
        let text = String::from_utf8_lossy(bytes);
        budget.take(TEXT_BYTES + if matches!(text, Cow::Owned(_)) { text.len() } else { 0 })?;
        let action = Some(Action::of(&text)).filter(|&action| action != Action::Other);
        self.list.push(Text { key: Key::of(&text), action, text, string: None });
        self.numbers.insert(bytes, number);
        Ok(TextId(number))
    }

    fn entry(&self, TextId(id): TextId) -> &Text<'a> {
        &self.list[id as usize]
    }

    pub(super) fn text(&self, id: TextId) -> &str {
        &self.entry(id).text
    }

    pub(super) fn key(&self, id: TextId) -> Option<Key> {
        self.entry(id).key
    }

    pub(super) fn action(&self, id: TextId) -> Option<Action> {
        self.entry(id).action
    }

    /// The number of words, which may say that there is nothing to say.
    pub(super) fn words(&mut self, id: TextId, builder: &mut Builder) -> Result<StringId, OutOfBudget> {
        if says_nothing(self.text(id)) { Ok(StringId(0)) } else { self.string(id, builder) }
    }

    fn string(&mut self, id: TextId, builder: &mut Builder) -> Result<StringId, OutOfBudget> {
        let text = &mut self.list[id.0 as usize];
        match text.string {
            Some(string) => Ok(string),
            None => Ok(*text.string.insert(builder.string(&text.text)?)),
        }
    }
}

/// No frame has more keys than this, so that looking for those of one takes bounded time.
const MAX_FRAME_KEYS: usize = 16;

/// What a list holds.
#[derive(Debug)]
enum Content {
    Values(Vec<Value>),
    /// Only entries of the history, as ranges of their numbers: a history of millions takes one range.
    Entries(Vec<Range<u32>>),
    /// Only frames, and already turned into a call stack.
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

/// Everything that a pickle has made.
#[derive(Debug)]
pub(super) struct Heap<'a> {
    pub(super) texts: Texts<'a>,
    lists: Vec<List>,
    dicts: Vec<Dict>,
    max_depth: u32,
}

impl<'a> Heap<'a> {
    pub(super) fn new(max_depth: u32) -> Self {
        Self { texts: Texts::new(), lists: Vec::new(), dicts: Vec::new(), max_depth }
    }

    pub(super) fn new_list(&mut self, items: &[Value], budget: &mut Budget) -> Result<Value, Refusal> {
        let id = ListId(u32::try_from(self.lists.len()).map_err(|_| OutOfBudget)?);
        budget.push(&mut self.lists, List { content: Content::Values(Vec::new()), depth: 0 })?;
        self.append(id, items, budget)?;
        Ok(Value::List(id))
    }

    pub(super) fn new_dict(&mut self, budget: &mut Budget) -> Result<DictId, OutOfBudget> {
        let id = DictId(u32::try_from(self.dicts.len()).map_err(|_| OutOfBudget)?);
        budget.push(&mut self.dicts, Dict::default())?;
        Ok(id)
    }

    /// How many containers stand one inside the other in a value, as far as they were filled when it was put in its place.
    fn depth(&self, value: Value) -> u32 {
        match value {
            Value::List(ListId(id)) => self.lists[id as usize].depth,
            Value::Dict(DictId(id)) => self.dicts[id as usize].depth,
            _ => 0,
        }
    }

    fn depth_around(&self, values: impl Iterator<Item = Value>) -> Result<u32, Refusal> {
        let depth = values.map(|value| self.depth(value) + 1).max().unwrap_or(0);
        if depth > self.max_depth {
            return Err(Refusal::Wrong("lists and dictionaries are nested deeper than the limit"));
        }
        Ok(depth)
    }

    pub(super) fn append(&mut self, ListId(id): ListId, items: &[Value], budget: &mut Budget) -> Result<(), Refusal> {
        let depth = self.depth_around(items.iter().copied())?;
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
                        _ => return Err(Refusal::Wrong("a list holds entries of the history and other things")),
                    }
                }
                Ok(())
            }
            Content::Values(values) => {
                budget.take(size_of_val(items))?;
                values.extend_from_slice(items);
                Ok(())
            }
            Content::Stack(_) => Err(Refusal::Wrong("a list of frames is added to after it was used")),
        }
    }

    pub(super) fn set(
        &mut self,
        DictId(id): DictId,
        pairs: impl Iterator<Item = (Value, Value)> + Clone,
        budget: &mut Budget,
    ) -> Result<(), Refusal> {
        let depth = self.depth_around(pairs.clone().map(|(_, value)| value))?;
        let dict = &mut self.dicts[id as usize];
        dict.depth = dict.depth.max(depth);
        let before = dict.pairs.len();
        dict.pairs.extend(pairs);
        budget.take((dict.pairs.len() - before) * size_of::<(Value, Value)>())?;
        Ok(())
    }

    pub(super) fn pairs(&self, DictId(id): DictId) -> &[(Value, Value)] {
        &self.dicts[id as usize].pairs
    }

    /// The values of a list; none where it is something that was recognized when it was filled.
    pub(super) fn values(&self, ListId(id): ListId) -> &[Value] {
        match &self.lists[id as usize].content {
            Content::Values(values) => values,
            _ => &[],
        }
    }

    /// One value of a list, by place. A list that is walked may turn into a call stack on the way, where it holds itself.
    pub(super) fn value_at(&self, list: ListId, at: usize) -> Result<Value, Refusal> {
        self.values(list).get(at).copied().ok_or(Refusal::Wrong("a list is a list of frames and something else, too"))
    }

    /// The entries that a list holds; `None` where it holds other things.
    pub(super) fn entries(&self, ListId(id): ListId) -> Option<&[Range<u32>]> {
        match &self.lists[id as usize].content {
            Content::Entries(ranges) => Some(ranges),
            Content::Values(values) if values.is_empty() => Some(&[]),
            _ => None,
        }
    }

    /// A value as the snapshot's rows take it.
    #[inline]
    pub(super) fn scalar(&self, value: Value) -> Scalar<'_> {
        match value {
            Value::None => Scalar::Nothing,
            Value::Bool(value) => Scalar::Bool(value),
            Value::Int(number) => Scalar::Int(number),
            Value::Unsigned(number) => Scalar::Unsigned(number),
            Value::Float(number) => Scalar::Float(number),
            Value::Text(text) => Scalar::Text(self.texts.text(text)),
            Value::Pair(first, second) => Scalar::Pair(u64::from(first), u64::from(second)),
            Value::List(list) => match *self.values(list) {
                [first, second] => match (self.scalar_number(first), self.scalar_number(second)) {
                    (Some(first), Some(second)) => Scalar::Pair(first, second),
                    _ => Scalar::Other,
                },
                _ => Scalar::Other,
            },
            _ => Scalar::Other,
        }
    }

    fn scalar_number(&self, value: Value) -> Option<u64> {
        match value {
            Value::Int(number) => u64::try_from(number).ok(),
            Value::Unsigned(number) => Some(number),
            _ => None,
        }
    }

    /// The frame that a dictionary's pairs describe, if they do.
    pub(super) fn frame(
        &mut self,
        pairs: impl Iterator<Item = (Value, Value)>,
        builder: &mut Builder,
    ) -> Result<Option<FrameId>, Refusal> {
        let (mut function, mut file, mut line) = (None, None, None);
        for (key, value) in pairs {
            let Value::Text(key) = key else { continue };
            match (self.texts.key(key), value) {
                (Some(Key::Name), Value::Text(text)) => function = Some(text),
                (Some(Key::Filename), Value::Text(text)) => file = Some(text),
                (Some(Key::Line), Value::Int(number)) => line = Some(u32::try_from(number).unwrap_or(0)),
                _ => {}
            }
        }
        let (Some(function), Some(file), Some(line)) = (function, file, line) else { return Ok(None) };
        let function = self.texts.string(function, builder)?;
        let file =
            if is_unknown_file(self.texts.text(file)) { StringId(0) } else { self.texts.string(file, builder)? };
        Ok(Some(builder.frame(function, file, line)?))
    }

    /// The frame that a dictionary describes that got its keys one by one, and so was not recognized when it was filled.
    fn late_frame(&mut self, dict: DictId, builder: &mut Builder) -> Result<Option<FrameId>, Refusal> {
        let mut pairs = [(Value::None, Value::None); MAX_FRAME_KEYS];
        let known = self.pairs(dict);
        let Some(room) = pairs.get_mut(..known.len()) else { return Ok(None) };
        room.copy_from_slice(known);
        self.frame(pairs.into_iter(), builder)
    }

    /// The call stack that a value names: a list of frames, innermost first. A list is turned into a stack once, however often it is
    /// used. What is not a frame in it is left out.
    pub(super) fn stack(&mut self, value: Value, builder: &mut Builder) -> Result<StackId, Refusal> {
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
                Value::Dict(dict) => self.late_frame(dict, builder)?,
                _ => None,
            });
        }
        let stack = builder.stack(&frames)?;
        self.lists[id as usize].content = Content::Stack(stack);
        Ok(stack)
    }
}

/// C++ frames often come without a file.
pub(crate) fn is_unknown_file(file: &str) -> bool {
    file.is_empty() || file == "??"
}
