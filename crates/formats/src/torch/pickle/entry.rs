//! Entries of the history at speed. Nearly all of a pickle is millions of dictionaries of the same few keys, written with the same few
//! instructions; those are followed here from the first to the last without the stack. What is written in any other way is left to
//! the [machine](super::machine), which begins with the dictionary anew.

use vramscope_trace::MempoolId;

use super::input::Done;
use super::machine::Machine;
use super::opcode as op;
use super::value::Value;
use crate::torch::builder::EntryDraft;
use crate::torch::key::Key;
use crate::torch::scalar::Refusal;
use crate::torch::snapshot::NO_TIME;

/// Values that an entry adds to the memo: itself, and texts and pairs of numbers. PyTorch's entries have three at most.
const MAX_FRESH: usize = 5;

/// What the instructions of an entry are about to add to the memo.
struct Fresh {
    values: [Value; MAX_FRESH],
    len: usize,
}

impl Fresh {
    fn push(&mut self, value: Value) -> Option<()> {
        *self.values.get_mut(self.len)? = value;
        self.len += 1;
        Some(())
    }
}

impl Machine<'_> {
    /// Follows the instructions that fill the dictionary just begun, if it is an entry as PyTorch's are. Otherwise nothing has happened.
    pub(super) fn entry(&mut self) -> Done<bool> {
        let start = self.input.at();
        let mut draft = EntryDraft::default();
        let mut fresh = Fresh { values: [Value::None; MAX_FRESH], len: 0 };
        let Some(frames) = self.follow(&mut draft, &mut fresh) else {
            self.input.go_back(start);
            return Ok(false);
        };
        draft.stack = self.heap.stack(frames, &mut self.builder)?;
        self.builder.snapshot.has_times |= draft.time_us != NO_TIME;
        let entry = Value::Entry(self.builder.push_entry(&draft)?);
        for value in fresh.values.into_iter().take(fresh.len) {
            let value = if value == Value::NewDict(None) { entry } else { value };
            // Each instruction that fills a place is a byte of the input, so that there are no more of them.
            let place = u32::try_from(self.memo.len()).map_err(|_| Refusal::OutOfBudget)?;
            self.memo.put(place, value, &mut self.builder.budget)?;
        }
        self.push(entry)?;
        Ok(true)
    }

    /// Reads up to the end of the dictionary and gives its call stack; `None` where it is not written as it is expected here.
    fn follow(&mut self, draft: &mut EntryDraft, fresh: &mut Fresh) -> Option<Value> {
        self.memoize(Value::NewDict(None), fresh)?;
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
            let value = self.value(fresh)?;
            match self.heap.texts.key(key) {
                None => {}
                Some(Key::Frames) => frames = value,
                Some(key) => {
                    has_action |= key == Key::Action;
                    self.set_field(draft, key, value)?;
                }
            }
        }
    }

    /// The value that the next instructions make.
    #[inline]
    fn value(&mut self, fresh: &mut Fresh) -> Option<Value> {
        match self.input.u8().ok()? {
            op::BINGET => {
                let place = self.input.u8().ok()?;
                self.known(u32::from(place))
            }
            op::LONG_BINGET => {
                let place = self.input.u32().ok()?;
                self.known(place)
            }
            op::SHORT_BINUNICODE => {
                let len = self.input.u8().ok()?;
                self.text(usize::from(len), fresh)
            }
            op::BINUNICODE => {
                let len = self.input.u32().ok()?;
                self.text(len as usize, fresh)
            }
            opcode => {
                let first = self.number(opcode)?;
                // The next key, which is a reference, or the second half of a pair.
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
                self.memoize(pair, fresh)
            }
        }
    }

    fn text(&mut self, len: usize, fresh: &mut Fresh) -> Option<Value> {
        let bytes = self.input.take(len).ok()?;
        let text = Value::Text(self.heap.texts.intern(bytes, &mut self.builder.budget).ok()?);
        self.memoize(text, fresh)
    }

    /// What the memo knows, but for a dictionary that is not filled yet.
    fn known(&self, place: u32) -> Option<Value> {
        self.memo.get(place).filter(|value| !matches!(value, Value::NewDict(_)))
    }

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

    /// The value, which is also put into the memo where that is the next instruction. Python fills places one after the other.
    #[inline]
    fn memoize(&mut self, value: Value, fresh: &mut Fresh) -> Option<Value> {
        let place = match *self.input.rest() {
            [op::MEMOIZE, ..] => {
                self.input.take(1).ok()?;
                return fresh.push(value).map(|()| value);
            }
            [op::BINPUT, place, ..] => {
                self.input.take(2).ok()?;
                usize::from(place)
            }
            [op::LONG_BINPUT, a, b, c, d, ..] => {
                self.input.take(5).ok()?;
                u32::from_le_bytes([a, b, c, d]) as usize
            }
            _ => return Some(value),
        };
        if place != self.memo.len() + fresh.len {
            return None;
        }
        fresh.push(value).map(|()| value)
    }

    /// Takes a field as [`Builder::entry_field`](crate::torch::builder::Builder::entry_field) does, where nothing is special about it.
    /// Nothing else may come of it: the dictionary may still turn out to be no entry.
    #[inline]
    fn set_field(&mut self, draft: &mut EntryDraft, key: Key, value: Value) -> Option<()> {
        match (key, value) {
            (Key::Addr | Key::DeviceFree, Value::Int(number)) => draft.address = number.cast_unsigned(),
            (Key::Size, Value::Int(number @ 0..)) => draft.size = number.cast_unsigned(),
            (Key::TimeUs, Value::Int(number)) => draft.time_us = number,
            (Key::Stream, Value::Int(number)) => draft.context.stream = number.cast_unsigned(),
            (Key::PoolId, Value::Pair(first, second)) => {
                draft.context.owner = Some(MempoolId(first.into(), second.into()));
            }
            (Key::UserMetadata, Value::Text(text)) => {
                draft.context.scope = self.heap.texts.words(text, &mut self.builder).ok()?;
            }
            (Key::CompileContext, Value::Text(text)) => {
                draft.context.compiled = self.heap.texts.words(text, &mut self.builder).ok()?;
            }
            (Key::Action, Value::Text(text)) => draft.action = self.heap.texts.action(text)?,
            _ => return None,
        }
        Some(())
    }
}
