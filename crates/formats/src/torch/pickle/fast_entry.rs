//! The fast path for history entries. Nearly all of a pickle is millions of dictionaries with the
//! same few keys, written with the same few instructions; these are parsed here without the stack.
//! Anything else goes to the [machine](super::machine), which starts again at the beginning of the
//! dictionary.

use vramscope_trace::MempoolId;

use super::input::StepResult;
use super::machine::Machine;
use super::opcode as op;
use super::value::Value;
use crate::torch::builder::EntryDraft;
use crate::torch::key::Key;
use crate::torch::scalar::FieldError;
use crate::torch::snapshot::NO_TIME;

/// Maximum number of values that one history entry may store in the pickle's memo: the entry,
/// strings and pairs. PyTorch's entries store at most three; an entry with more is not parsed here
/// but executed instruction by instruction.
const MAX_NEW_VALUES: usize = 5;

/// The values that an entry will add to the pickle's memo, kept apart until it is certain that the
/// dictionary is an entry.
struct NewMemoValues {
    values: [Value; MAX_NEW_VALUES],
    len: usize,
}

impl NewMemoValues {
    /// Appends a value; `None`, without effect, if there are already [`MAX_NEW_VALUES`].
    fn push(&mut self, value: Value) -> Option<()> {
        *self.values.get_mut(self.len)? = value;
        self.len += 1;
        Some(())
    }
}

impl Machine<'_> {
    /// Parses the history entry that follows an EMPTY_DICT opcode and adds it to the snapshot.
    /// Returns false, and has no effect, if the entry is not written as PyTorch writes it.
    pub(super) fn try_fast_entry(&mut self) -> StepResult<bool> {
        let entry_start = self.input.offset();
        let mut draft = EntryDraft::default();
        let mut new_values = NewMemoValues { values: [Value::None; MAX_NEW_VALUES], len: 0 };
        let Some(frames) = self.parse_entry(&mut draft, &mut new_values) else {
            self.input.rewind_to(entry_start);
            return Ok(false);
        };
        draft.stack = self.heap.stack(frames, &mut self.builder)?;
        self.builder.snapshot.has_times |= draft.time_us != NO_TIME;
        let entry = Value::Entry(self.builder.push_entry(&draft)?);
        for value in new_values.values.into_iter().take(new_values.len) {
            let value = if value == Value::NewDict(None) { entry } else { value };
            // Each instruction that adds to the memo is a byte of the input, so a `u32` suffices.
            let slot = u32::try_from(self.memo.len()).map_err(|_| FieldError::LimitExceeded)?;
            self.memo.put(slot, value, &mut self.builder.budget)?;
        }
        self.push(entry)?;
        Ok(true)
    }

    /// Parses the keys and values of an entry into `draft` and returns the list of its call frames;
    /// `None` if the entry is not written as PyTorch writes it.
    fn parse_entry(&mut self, draft: &mut EntryDraft, new_values: &mut NewMemoValues) -> Option<Value> {
        self.memoize(Value::NewDict(None), new_values)?;
        if self.marks.len() >= self.max_depth || self.input.u8().ok()? != op::MARK {
            return None;
        }
        let (mut has_action, mut frames) = (false, Value::None);
        loop {
            let key = match self.input.u8().ok()? {
                op::BINGET => u32::from(self.input.u8().ok()?),
                op::LONG_BINGET => self.input.u32().ok()?,
                op::SETITEMS => return has_action.then_some(frames),
                _ => return None,
            };
            let Some(Value::Text(key)) = self.memo.get(key) else { return None };
            let value = self.parse_value(new_values)?;
            match self.heap.strings.key(key) {
                None => {}
                Some(Key::Frames) => frames = value,
                Some(key) => {
                    has_action |= key == Key::Action;
                    self.set_field(draft, key, value)?;
                }
            }
        }
    }

    /// Parses the instructions that produce a value of an entry; `None` if it is not a text, an
    /// integer, a pair or a memo reference.
    #[inline]
    fn parse_value(&mut self, new_values: &mut NewMemoValues) -> Option<Value> {
        match self.input.u8().ok()? {
            op::BINGET => {
                let slot = self.input.u8().ok()?;
                self.memo_value(u32::from(slot))
            }
            op::LONG_BINGET => {
                let slot = self.input.u32().ok()?;
                self.memo_value(slot)
            }
            op::SHORT_BINUNICODE => {
                let len = self.input.u8().ok()?;
                self.text(usize::from(len), new_values)
            }
            op::BINUNICODE => {
                let len = self.input.u32().ok()?;
                self.text(len as usize, new_values)
            }
            opcode => {
                let first = self.number(opcode)?;
                // The next byte is the next key, which is a memo reference, or the second half of a
                // pair.
                let next = *self.input.rest().first()?;
                if !matches!(next, op::BININT1 | op::BININT2 | op::BININT) {
                    return Some(first);
                }
                self.input.u8().ok()?;
                let second = self.number(next)?;
                let (Value::Int(first), Value::Int(second)) = (first, second) else { return None };
                let pair = Value::Pair(u32::try_from(first).ok()?, u32::try_from(second).ok()?);
                if self.input.u8().ok()? != op::TUPLE2 {
                    return None;
                }
                self.memoize(pair, new_values)
            }
        }
    }

    /// Reads a text of `len` bytes, and the next instruction too if it stores the text in the memo.
    /// `None` if the pickle is cut off, memory is short, or the memo slot is not the next new one.
    fn text(&mut self, len: usize, new_values: &mut NewMemoValues) -> Option<Value> {
        let bytes = self.input.take(len).ok()?;
        let text = Value::Text(self.heap.strings.intern(bytes, &mut self.builder.budget).ok()?);
        self.memoize(text, new_values)
    }

    /// Returns the value in a memo slot; `None` if the slot is empty or has a dictionary that is
    /// not filled yet.
    fn memo_value(&self, slot: u32) -> Option<Value> {
        self.memo.get(slot).filter(|value| !matches!(value, Value::NewDict(_)))
    }

    /// Reads the integer that follows `opcode`; `None` if the opcode is not one of an integer or
    /// the pickle ends.
    #[inline]
    fn number(&mut self, opcode: u8) -> Option<Value> {
        let number = match opcode {
            op::LONG1 => {
                let len = self.input.u8().ok()?;
                return self.input.long(usize::from(len)).ok();
            }
            op::BININT1 => i64::from(self.input.u8().ok()?),
            op::BININT2 => i64::from(u16::from_le_bytes(self.input.array().ok()?)),
            op::BININT => i64::from(i32::from_le_bytes(self.input.array().ok()?)),
            _ => return None,
        };
        Some(Value::Int(number))
    }

    /// Returns the value, and adds it to `new_values` if the next instruction stores it in the
    /// memo. `None` if that instruction names a slot other than the next new one, which Python
    /// never writes, or if `new_values` is full.
    #[inline]
    fn memoize(&mut self, value: Value, new_values: &mut NewMemoValues) -> Option<Value> {
        let slot = match *self.input.rest() {
            [op::MEMOIZE, ..] => {
                self.input.take(1).ok()?;
                return new_values.push(value).map(|()| value);
            }
            [op::BINPUT, slot, ..] => {
                self.input.take(2).ok()?;
                usize::from(slot)
            }
            [op::LONG_BINPUT, a, b, c, d, ..] => {
                self.input.take(5).ok()?;
                u32::from_le_bytes([a, b, c, d]) as usize
            }
            _ => return Some(value),
        };
        if slot != self.memo.len() + new_values.len {
            return None;
        }
        new_values.push(value).map(|()| value)
    }

    /// Sets the field of `draft` that `key` names. `None` if the value does not have the type that
    /// PyTorch usually writes;
    /// [`Builder::entry_field`](crate::torch::builder::Builder::entry_field) handles those.
    #[inline]
    fn set_field(&mut self, draft: &mut EntryDraft, key: Key, value: Value) -> Option<()> {
        match (key, value) {
            (Key::Addr | Key::DeviceFree, Value::Int(number)) => draft.address = number.cast_unsigned(),
            (Key::Size, Value::Int(number @ 0..)) => draft.size = number.cast_unsigned(),
            (Key::TimeUs, Value::Int(number)) => draft.time_us = number,
            (Key::Stream, Value::Int(number)) => draft.context.stream = number.cast_unsigned(),
            (Key::PoolId, Value::Pair(first, second)) => {
                draft.context.mempool = Some(MempoolId(first.into(), second.into()));
            }
            (Key::UserMetadata, Value::Text(text)) => {
                draft.context.scope = self.heap.strings.optional_string(text, &mut self.builder).ok()?;
            }
            (Key::CompileContext, Value::Text(text)) => {
                draft.context.compile_context = self.heap.strings.optional_string(text, &mut self.builder).ok()?;
            }
            (Key::Action, Value::Text(text)) => draft.action = self.heap.strings.action(text)?,
            _ => return None,
        }
        Some(())
    }
}
