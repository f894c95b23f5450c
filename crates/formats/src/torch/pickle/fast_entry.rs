//! The fast path for history entries. Nearly all of a pickle is millions of dictionaries that share
//! a few keys and a few instructions; this module parses them without the stack. If a dictionary is
//! not such an entry, the [machine](super::machine) executes it instruction by instruction from its
//! beginning.

use vramscope_trace::MempoolId;

use super::heap::Strings;
use super::input::{StepResult, long};
use super::machine::Machine;
use super::memo::Memo;
use super::opcode as op;
use super::value::{ListId, StringRef, Value};
use crate::limits::LimitExceeded;
use crate::torch::builder::{Builder, EntryDraft};
use crate::torch::key::SnapshotKey;
use crate::torch::snapshot::NO_TIME;

/// Maximum number of values that one history entry may store in the pickle's memo: the entry,
/// strings and pairs. PyTorch's entries store at most three; an entry with more is not parsed here
/// but executed instruction by instruction.
const MAX_NEW_VALUES: usize = 5;

/// A value that a history entry will add to the pickle's memo: the entry, a text or a pair.
#[derive(Clone, Copy)]
enum NewValue {
    /// The entry itself.
    Entry,
    Text(StringRef),
    Pair(u32, u32),
}

/// The values that an entry will add to the pickle's memo, kept apart until it is certain that the
/// dictionary is an entry.
struct NewMemoValues {
    values: [NewValue; MAX_NEW_VALUES],
    len: usize,
}

impl NewMemoValues {
    /// Appends a value; `None`, without effect, if there are already [`MAX_NEW_VALUES`].
    #[inline]
    fn push(&mut self, value: NewValue) -> Option<()> {
        *self.values.get_mut(self.len)? = value;
        self.len += 1;
        Some(())
    }
}

impl Machine {
    /// Parses the history entry that follows an EMPTY_DICT opcode and adds it to the snapshot.
    /// Returns false, and has no effect, if the entry is not written as PyTorch writes it.
    pub(super) fn try_fast_entry(&mut self) -> StepResult<bool> {
        if self.marks.len() >= self.max_depth {
            return Ok(false);
        }
        let mut draft = EntryDraft::default();
        let rest = self.input.rest();
        let mut parser = EntryParser {
            rest,
            memo: &self.memo,
            strings: &mut self.heap.strings,
            builder: &mut self.builder,
            new_values: NewMemoValues { values: [NewValue::Entry; MAX_NEW_VALUES], len: 0 },
        };
        let Some(frames) = parser.parse(&mut draft) else { return Ok(false) };
        let EntryParser { rest: after, new_values, .. } = parser;
        let len = rest.len() - after.len();
        self.input.skip(len);
        if let Some(frames) = frames {
            draft.stack = self.heap.stack(Value::List(frames), &mut self.builder)?;
        }
        self.builder.snapshot.has_times |= draft.time_us != NO_TIME;
        let number = self.builder.push_entry(&draft)?;
        // Each instruction that adds to the memo is a byte of the input, so a `u32` suffices.
        if u32::try_from(self.memo.len() + MAX_NEW_VALUES).is_err() {
            return Err(LimitExceeded.into());
        }
        for &value in new_values.values.iter().take(new_values.len) {
            let value = match value {
                NewValue::Entry => Value::Entry(number),
                NewValue::Text(text) => Value::Text(text),
                NewValue::Pair(first, second) => Value::Pair(first, second),
            };
            self.memo.push(value, &mut self.builder.budget)?;
        }
        self.push(Value::Entry(number))?;
        Ok(true)
    }
}

/// Parses one history entry of a pickle, without effect on the pickle machine.
struct EntryParser<'a> {
    /// The bytes that are not parsed yet.
    rest: &'a [u8],
    memo: &'a Memo,
    strings: &'a mut Strings,
    builder: &'a mut Builder,
    new_values: NewMemoValues,
}

impl<'a> EntryParser<'a> {
    /// Removes and returns the next `len` bytes of the pickle; `None` if fewer are left.
    #[inline]
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    /// Removes and returns the next `N` bytes of the pickle; `None` if fewer are left.
    #[inline]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*array)
    }

    /// Removes and returns the next byte of the pickle; `None` at the end.
    #[inline]
    fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    /// Parses the keys and values of an entry into `draft` and returns the list of its call frames,
    /// if it has one. `None` if the entry is not written as PyTorch writes it.
    ///
    /// Each value is parsed as the type that PyTorch writes for its key, without a [`Value`]:
    /// passing `Value`s through memory took half of the time.
    #[inline]
    fn parse(&mut self, draft: &mut EntryDraft) -> Option<Option<ListId>> {
        self.memoize(NewValue::Entry)?;
        if self.u8()? != op::MARK {
            return None;
        }
        let (mut has_action, mut frames) = (false, None);
        loop {
            let key = match self.u8()? {
                op::BINGET => u32::from(self.u8()?),
                op::LONG_BINGET => u32::from_le_bytes(self.array()?),
                op::SETITEMS => return has_action.then_some(frames),
                _ => return None,
            };
            let key = self.memo.text(key)?;
            let Some(key) = self.strings.key(key) else {
                self.skip_value()?;
                continue;
            };
            match key {
                SnapshotKey::Action => {
                    let text = self.text()?;
                    draft.action = self.strings.action(text)?;
                    has_action = true;
                }
                SnapshotKey::Addr | SnapshotKey::DeviceFree => draft.address = self.integer()?.cast_unsigned(),
                SnapshotKey::Size => draft.size = u64::try_from(self.integer()?).ok()?,
                SnapshotKey::TimeUs => draft.time_us = self.integer()?,
                SnapshotKey::Stream => draft.context.stream = self.integer()?.cast_unsigned(),
                SnapshotKey::PoolId => {
                    let (first, second) = self.pair()?;
                    draft.context.mempool = Some(MempoolId(first.into(), second.into()));
                }
                SnapshotKey::UserMetadata => {
                    let text = self.text()?;
                    draft.context.scope = self.strings.optional_string(text, self.builder).ok()?;
                }
                SnapshotKey::CompileContext => {
                    let text = self.text()?;
                    draft.context.compile_context = self.strings.optional_string(text, self.builder).ok()?;
                }
                SnapshotKey::Frames => frames = Some(self.list()?),
                _ => return None,
            }
        }
    }

    /// Parses the value of a key that the import does not use; `None` if it is not a text, an
    /// integer or a memo reference.
    fn skip_value(&mut self) -> Option<()> {
        match *self.rest.first()? {
            op::BINGET | op::LONG_BINGET => {
                let slot = self.memo_reference()?;
                self.memo.get(slot).filter(|value| !matches!(value, Value::NewDict(_))).map(|_| ())
            }
            op::SHORT_BINUNICODE | op::BINUNICODE => self.text().map(|_| ()),
            _ => {
                self.integer()?;
                // The next byte is the next key, which is a memo reference, or the second half of a
                // pair. An entry with an unused pair is left to the machine.
                let is_pair = matches!(*self.rest.first()?, op::BININT1 | op::BININT2 | op::BININT);
                if is_pair { None } else { Some(()) }
            }
        }
    }

    /// Parses a memo reference and returns the slot; `None` if the next instruction is any other.
    #[inline]
    fn memo_reference(&mut self) -> Option<u32> {
        match self.u8()? {
            op::BINGET => self.u8().map(u32::from),
            op::LONG_BINGET => self.array().map(u32::from_le_bytes),
            _ => None,
        }
    }

    /// Parses a memo reference to a list; `None` if the next value of the pickle is anything else.
    #[inline]
    fn list(&mut self) -> Option<ListId> {
        let slot = self.memo_reference()?;
        self.memo.list(slot)
    }

    /// Parses a text or a memo reference to one; `None` if the next value is anything else, the
    /// pickle is cut off or memory is short.
    #[inline]
    fn text(&mut self) -> Option<StringRef> {
        let len = match *self.rest.first()? {
            op::SHORT_BINUNICODE => {
                let [_, len] = self.array()?;
                usize::from(len)
            }
            op::BINUNICODE => {
                let [_, a, b, c, d] = self.array()?;
                u32::from_le_bytes([a, b, c, d]) as usize
            }
            _ => {
                let slot = self.memo_reference()?;
                return self.memo.text(slot);
            }
        };
        let bytes = self.take(len)?;
        let text = self.strings.intern(bytes, &mut self.builder.budget).ok()?;
        self.memoize(NewValue::Text(text))?;
        Some(text)
    }

    /// Parses a pair of integers below 2³² or a memo reference to one; `None` if the next value is
    /// anything else.
    fn pair(&mut self) -> Option<(u32, u32)> {
        if let op::BINGET | op::LONG_BINGET = *self.rest.first()? {
            let slot = self.memo_reference()?;
            let Some(Value::Pair(first, second)) = self.memo.get(slot) else { return None };
            return Some((first, second));
        }
        let first = u32::try_from(self.integer()?).ok()?;
        let second = u32::try_from(self.integer()?).ok()?;
        if self.u8()? != op::TUPLE2 {
            return None;
        }
        self.memoize(NewValue::Pair(first, second))?;
        Some((first, second))
    }

    /// Parses an integer of up to 64 bits; `None` if the next value of the pickle is anything else.
    #[inline]
    fn integer(&mut self) -> Option<i64> {
        Some(match self.u8()? {
            op::LONG1 => {
                let len = usize::from(self.u8()?);
                if let 1..8 = len
                    && let Some(&filled) = self.rest.first_chunk::<8>()
                {
                    // The common case: read 8 bytes and shift out the bytes after the integer,
                    // which avoids a copy of variable length.
                    self.rest = &self.rest[len..];
                    let unused = 64 - 8 * len;
                    i64::from_le_bytes(filled) << unused >> unused
                } else {
                    let Value::Int(number) = long(self.take(len)?) else { return None };
                    number
                }
            }
            op::BININT1 => i64::from(self.u8()?),
            op::BININT2 => i64::from(u16::from_le_bytes(self.array()?)),
            op::BININT => i64::from(i32::from_le_bytes(self.array()?)),
            _ => return None,
        })
    }

    /// Adds a value to `new_values` if the next instruction stores it in the memo. `None` if that
    /// instruction names a slot other than the next new one, which Python never writes, or if
    /// `new_values` is full.
    #[inline]
    fn memoize(&mut self, value: NewValue) -> Option<()> {
        let slot = match *self.rest {
            [op::MEMOIZE, ref rest @ ..] => {
                self.rest = rest;
                return self.new_values.push(value);
            }
            [op::BINPUT, slot, ref rest @ ..] => {
                self.rest = rest;
                usize::from(slot)
            }
            [op::LONG_BINPUT, a, b, c, d, ref rest @ ..] => {
                self.rest = rest;
                u32::from_le_bytes([a, b, c, d]) as usize
            }
            _ => return Some(()),
        };
        if slot != self.memo.len() + self.new_values.len {
            return None;
        }
        self.new_values.push(value)
    }
}
