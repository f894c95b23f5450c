//! The pickle machine: a stack, a memo, and a loop over the instructions. It supports plain data
//! only, never recurses, and converts each dictionary that is an entry of the history to a row as
//! soon as it is filled.

use super::heap::Heap;
use super::input::{Input, StepError, StepResult};
use super::memo::Memo;
use super::opcode as op;
use super::value::Value;
use crate::error::ReadError;
use crate::limits::Limits;
use crate::torch::builder::{Builder, EntryDraft};
use crate::torch::key::SnapshotKey;

/// Number of unread bytes that must have arrived before an instruction is executed, unless the
/// pickle ends before. No instruction or history entry is longer, except with long texts.
const LOOKAHEAD_BYTES: usize = 16 << 10;

/// The pickle machine: executes the instructions of a pickle and adds its history entries to a
/// snapshot. Supports plain data only.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) input: Input,
    pub(super) heap: Heap,
    pub(super) builder: Builder,
    pub(super) stack: Vec<Value>,
    /// Heights of the stack at the open marks.
    pub(super) marks: Vec<usize>,
    pub(super) memo: Memo,
    pub(super) max_depth: usize,
    /// Where the pickle's last frame ends, in bytes from the start; a shorter pickle is cut off.
    frames_end: u64,
    /// The value on top of the stack at the STOP instruction, and the offset after it.
    result: Option<(Value, usize)>,
}

impl Machine {
    /// Starts at the first instruction of a pickle.
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            input: Input::default(),
            heap: Heap::new(limits.max_depth),
            builder: Builder::new(limits.max_bytes),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Memo::default(),
            max_depth: limits.max_depth as usize,
            frames_end: 0,
            result: None,
        }
    }

    /// Executes the instructions that have arrived completely.
    pub(super) fn run(&mut self) -> Result<(), ReadError> {
        self.execute(false)
    }

    /// Executes the rest of the instructions, after the last byte of the pickle has arrived.
    /// Returns the value on top of the stack at the STOP instruction, and the offset after it.
    pub(super) fn finish(&mut self) -> Result<(Value, usize), ReadError> {
        self.execute(true)?;
        let len = self.input.len();
        self.result.filter(|_| self.frames_end <= len as u64).ok_or_else(|| ReadError::truncated(len))
    }

    /// Executes instructions up to the STOP instruction or to the end of the bytes that have
    /// arrived. `is_complete` is true once all bytes have arrived; before, an instruction that is
    /// incomplete is left for the next call.
    fn execute(&mut self, is_complete: bool) -> Result<(), ReadError> {
        let lookahead = if is_complete { 1 } else { LOOKAHEAD_BYTES };
        while self.result.is_none() && self.input.rest().len() >= lookahead {
            let start = self.input.offset();
            match self.next_step() {
                Ok(()) => {}
                // A long text has not arrived completely. Executing the instruction again is safe:
                // an instruction reads all its bytes before it has an effect.
                Err(error) if !is_complete && error.is_truncated() => {
                    self.input.rewind_to(start);
                    return Ok(());
                }
                Err(error) => return Err(error.at(start, self.input.len())),
            }
        }
        if self.result.is_some() {
            // Whatever follows the pickle is ignored.
            self.input.skip(self.input.rest().len());
        }
        Ok(())
    }

    /// Reads and executes the next instruction of the pickle.
    #[inline]
    fn next_step(&mut self) -> StepResult<()> {
        let opcode = self.input.u8()?;
        if opcode == op::STOP {
            self.result = Some((self.materialized_top()?, self.input.offset()));
            return Ok(());
        }
        self.step(opcode)
    }

    /// Executes the instruction with this opcode, which was already read.
    #[inline]
    fn step(&mut self, opcode: u8) -> StepResult<()> {
        match opcode {
            op::BINGET => {
                let slot = self.input.u8()?;
                self.get(u32::from(slot))
            }
            op::LONG_BINGET => {
                let slot = self.input.u32()?;
                self.get(slot)
            }
            op::MEMOIZE => self.put(self.memo.len()),
            op::LONG1 => {
                let len = self.input.u8()?;
                self.push_long(usize::from(len))
            }
            op::BININT1 => {
                let number = self.input.u8()?;
                self.push(Value::Int(i64::from(number)))
            }
            op::BININT2 => {
                let number = u16::from_le_bytes(self.input.array()?);
                self.push(Value::Int(i64::from(number)))
            }
            op::BININT => {
                let number = i32::from_le_bytes(self.input.array()?);
                self.push(Value::Int(i64::from(number)))
            }
            op::SHORT_BINUNICODE | op::SHORT_BINSTRING => {
                let len = self.input.u8()?;
                self.push_text(usize::from(len))
            }
            op::MARK => {
                if self.marks.len() >= self.max_depth {
                    return Err("lists and dictionaries are nested deeper than the limit".into());
                }
                self.marks.push(self.stack.len());
                Ok(())
            }
            op::EMPTY_DICT => match self.try_fast_entry()? {
                true => Ok(()),
                false => self.push(Value::NewDict(None)),
            },
            op::SETITEMS => {
                let mark = self.pop_mark()?;
                self.set_items(mark)
            }
            _ => self.uncommon_step(opcode),
        }
    }

    /// Executes an instruction other than the few that make up most of a snapshot; fails for an
    /// opcode that is unknown or would run code.
    fn uncommon_step(&mut self, opcode: u8) -> StepResult<()> {
        match opcode {
            op::NONE => self.push(Value::None),
            op::NEWTRUE => self.push(Value::Bool(true)),
            op::NEWFALSE => self.push(Value::Bool(false)),
            op::LONG4 => {
                let len = self.input.u32()?;
                self.push_long(len as usize)
            }
            op::BINFLOAT => {
                let number = f64::from_be_bytes(self.input.array()?);
                self.push(Value::Float(number))
            }
            op::BINUNICODE | op::BINSTRING => {
                let len = self.input.u32()?;
                self.push_text(len as usize)
            }
            op::BINUNICODE8 => {
                let len = self.input.len64()?;
                self.push_text(len)
            }
            op::SHORT_BINBYTES | op::BINBYTES | op::BINBYTES8 | op::BYTEARRAY8 => {
                let len = match opcode {
                    op::SHORT_BINBYTES => usize::from(self.input.u8()?),
                    op::BINBYTES => self.input.u32()? as usize,
                    _ => self.input.len64()?,
                };
                self.input.take(len)?;
                self.push(Value::Opaque)
            }
            op::POP => self.discard(),
            op::POP_MARK => {
                let mark = self.pop_mark()?;
                self.stack.truncate(mark);
                Ok(())
            }
            op::DUP => {
                let top = self.materialized_top()?;
                self.push(top)
            }
            op::BINPUT => {
                let slot = self.input.u8()?;
                self.put(usize::from(slot))
            }
            op::LONG_BINPUT => {
                let slot = self.input.u32()?;
                self.put(slot as usize)
            }
            op::PROTO => match self.input.u8()? {
                2..=5 => Ok(()),
                protocol => {
                    Err(StepError::from(format!("unsupported pickle protocol {protocol}; 2 to 5 are supported")))
                }
            },
            op::FRAME => {
                let len = u64::from_le_bytes(self.input.array()?);
                self.frames_end = self.frames_end.max(len.saturating_add(self.input.offset() as u64));
                Ok(())
            }
            _ => self.container_step(opcode),
        }
    }

    /// Executes an instruction that creates or fills a list, tuple, dictionary or set; fails for
    /// any other.
    fn container_step(&mut self, opcode: u8) -> StepResult<()> {
        match opcode {
            op::EMPTY_LIST | op::EMPTY_TUPLE => {
                let mark = self.stack.len();
                self.make_list(mark)
            }
            op::LIST | op::TUPLE => {
                let mark = self.pop_mark()?;
                self.make_list(mark)
            }
            op::TUPLE1 => {
                let mark = self.below_top(1)?;
                self.make_list(mark)
            }
            op::TUPLE2 => {
                let mark = self.below_top(2)?;
                if let [Value::Int(first), Value::Int(second)] = self.stack[mark..]
                    && let (Ok(first), Ok(second)) = (u32::try_from(first), u32::try_from(second))
                {
                    self.stack.truncate(mark);
                    return self.push(Value::Pair(first, second));
                }
                self.make_list(mark)
            }
            op::TUPLE3 => {
                let mark = self.below_top(3)?;
                self.make_list(mark)
            }
            op::APPEND => {
                let mark = self.below_top(1)?;
                self.append(mark)
            }
            op::APPENDS => {
                let mark = self.pop_mark()?;
                self.append(mark)
            }
            op::DICT => {
                let mark = self.pop_mark()?;
                self.spend_values(1)?;
                self.stack.insert(mark, Value::NewDict(None));
                self.set_items(mark + 1)
            }
            op::SETITEM => {
                let mark = self.below_top(2)?;
                self.set_items(mark)
            }
            op::EMPTY_SET => self.push(Value::Opaque),
            op::ADDITEMS => {
                let mark = self.pop_mark()?;
                self.stack.truncate(mark);
                self.below_top(1).map(|_| ())
            }
            op::FROZENSET => {
                let mark = self.pop_mark()?;
                self.stack.truncate(mark);
                self.push(Value::Opaque)
            }
            _ => Err(self.unsupported(opcode)),
        }
    }

    /// Reads a text of `len` bytes and pushes it on the stack.
    fn push_text(&mut self, len: usize) -> StepResult<()> {
        let bytes = self.input.take(len)?;
        let id = self.heap.strings.intern(bytes, &mut self.builder.budget)?;
        self.push(Value::Text(id))
    }

    /// Reads an integer of `len` bytes and pushes it on the stack.
    fn push_long(&mut self, len: usize) -> StepResult<()> {
        let number = self.input.long(len)?;
        self.push(number)
    }

    // Stack operations.

    /// Pushes a value on the stack; fails if memory is short.
    #[inline]
    pub(super) fn push(&mut self, value: Value) -> StepResult<()> {
        Ok(self.builder.budget.push(&mut self.stack, value)?)
    }

    /// Subtracts the memory of `values` values on the stack from the budget; fails if memory is
    /// short.
    fn spend_values(&mut self, values: usize) -> StepResult<()> {
        Ok(self.builder.budget.spend(values * size_of::<Value>())?)
    }

    /// Returns the stack's height at the last MARK instruction that is still open, 0 if no mark is
    /// open. Instructions must not use values below this height.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    /// Returns the stack's height without its top `count` values; fails if fewer are above the last
    /// mark.
    fn below_top(&self, count: usize) -> StepResult<usize> {
        let height = self.stack.len().checked_sub(count).filter(|&height| height >= self.floor());
        height.ok_or_else(|| "an instruction needs more values than the stack has".into())
    }

    /// Removes and returns the top value of the stack; fails if no value is above the last mark.
    fn pop(&mut self) -> StepResult<Value> {
        let height = self.below_top(1)?;
        let value = self.stack[height];
        self.stack.truncate(height);
        Ok(value)
    }

    /// Executes the POP instruction: drops the top value, or the last mark if no value is above it.
    fn discard(&mut self) -> StepResult<()> {
        if self.marks.last() == Some(&self.stack.len()) {
            self.marks.pop();
            return Ok(());
        }
        self.pop().map(|_| ())
    }

    /// Removes the last mark and returns the height of the stack when it was set; the values above
    /// it stay.
    #[inline]
    fn pop_mark(&mut self) -> StepResult<usize> {
        self.marks.pop().ok_or_else(|| "an instruction needs a mark, but none is open".into())
    }

    // Memo operations.

    /// Pushes the value of a memo slot on the stack; fails if the slot is empty.
    #[inline]
    fn get(&mut self, slot: u32) -> StepResult<()> {
        match self.memo.get(slot) {
            Some(value) => self.push(value),
            None => Err(StepError::from(format!("memo slot {slot} is read before it is set"))),
        }
    }

    /// Stores the top value of the stack in a memo slot; the value stays on the stack.
    fn put(&mut self, slot: usize) -> StepResult<()> {
        let height = self.below_top(1)?;
        // Python numbers slots consecutively from 0, so a slot's number is below the offset.
        let slot = u32::try_from(slot).ok().filter(|_| slot < self.input.offset());
        let Some(slot) = slot else { return Err("a memo slot has a number that is too high".into()) };
        if let Value::NewDict(None) = self.stack[height] {
            self.stack[height] = Value::NewDict(Some(slot));
        }
        Ok(self.memo.put(slot, self.stack[height], &mut self.builder.budget)?)
    }

    /// Returns the top value of the stack. An empty dictionary that has no memory of its own yet is
    /// first created in the heap.
    fn materialized_top(&mut self) -> StepResult<Value> {
        let height = self.below_top(1)?;
        self.materialize(height, height + 1)?;
        Ok(self.stack[height])
    }

    /// Creates in the heap the dictionaries between the stack heights `from` and `to` (exclusive)
    /// that have no memory of their own yet, because a container is about to refer to them.
    #[inline]
    fn materialize(&mut self, from: usize, to: usize) -> StepResult<()> {
        for height in from..to {
            if let Value::NewDict(_) = self.stack[height] {
                let mut value = self.memo.current(self.stack[height]);
                if let Value::NewDict(slot) = value {
                    value = Value::Dict(self.heap.new_dict(&mut self.builder.budget)?);
                    self.memo.remember(slot, value, &mut self.builder.budget)?;
                }
                self.stack[height] = value;
            }
        }
        Ok(())
    }

    // Container operations.

    /// Replaces the values from stack height `mark` up by one list that contains them.
    fn make_list(&mut self, mark: usize) -> StepResult<()> {
        self.materialize(mark, self.stack.len())?;
        let list = self.heap.new_list(&self.stack[mark..], &mut self.builder.budget)?;
        self.stack.truncate(mark);
        self.push(list)
    }

    /// Removes the values from stack height `mark` up and appends them to the list directly below.
    fn append(&mut self, mark: usize) -> StepResult<()> {
        self.materialize(mark, self.stack.len())?;
        match self.container(mark)? {
            Value::List(list) => self.heap.append(list, &self.stack[mark..], &mut self.builder.budget)?,
            _ => return Err("an instruction appends to a value that is not a list".into()),
        }
        self.stack.truncate(mark);
        Ok(())
    }

    /// Returns the value directly below stack height `mark`, a container to which the values above
    /// are added. Fails if the last mark is above that value.
    fn container(&self, mark: usize) -> StepResult<Value> {
        match mark.checked_sub(1).filter(|&height| height >= self.floor()) {
            Some(height) => Ok(self.memo.current(self.stack[height])),
            None => Err("an instruction needs more values than the stack has".into()),
        }
    }

    /// Removes the keys and values from stack height `mark` up and adds them to the dictionary
    /// below.
    fn set_items(&mut self, mark: usize) -> StepResult<()> {
        if !(self.stack.len() - mark).is_multiple_of(2) {
            return Err("a dictionary key has no value".into());
        }
        // Materialize the values first: one of them may be the dictionary itself, which is then in
        // the heap already.
        self.materialize(mark, self.stack.len())?;
        let container = self.container(mark)?;
        let filled = match container {
            Value::NewDict(slot) => {
                let value = self.fill_new_dict(mark)?;
                self.memo.remember(slot, value, &mut self.builder.budget)?;
                value
            }
            Value::Dict(dict) => {
                let pairs = pairs(&self.stack[mark..]);
                self.heap.set(dict, pairs, &mut self.builder.budget)?;
                container
            }
            Value::Entry(number) => {
                let draft = self.builder.draft_of(number).ok_or("an entry does not exist")?;
                let draft = self.fill_entry(draft, mark)?;
                self.builder.replace_entry(number, &draft)?;
                container
            }
            // Newer versions may add keys to a frame, which are ignored.
            Value::Frame(_) => container,
            _ => return Err("an instruction sets a key of a value that is not a dictionary".into()),
        };
        self.stack.truncate(mark);
        self.stack[mark - 1] = filled;
        Ok(())
    }

    /// Fills an empty dictionary with the keys and values from stack height `mark` up. Returns a
    /// history entry, a call frame, or another dictionary.
    fn fill_new_dict(&mut self, mark: usize) -> StepResult<Value> {
        let strings = &self.heap.strings;
        let has_action = pairs(&self.stack[mark..]).any(|(key, value)| {
            matches!((key, value), (Value::Text(key), Value::Text(_)) if strings.key(key) == Some(SnapshotKey::Action))
        });
        if has_action {
            let draft = self.fill_entry(EntryDraft::default(), mark)?;
            return Ok(Value::Entry(self.builder.push_entry(&draft)?));
        }
        if let Some(frame) = self.heap.frame(pairs(&self.stack[mark..]), &mut self.builder)? {
            return Ok(Value::Frame(frame));
        }
        let dict = self.heap.new_dict(&mut self.builder.budget)?;
        self.heap.set(dict, pairs(&self.stack[mark..]), &mut self.builder.budget)?;
        Ok(Value::Dict(dict))
    }

    /// Sets fields of `draft` from the keys and values from stack height `mark` up, and returns it.
    fn fill_entry(&mut self, mut draft: EntryDraft, mark: usize) -> StepResult<EntryDraft> {
        for (key, value) in pairs(&self.stack[mark..]) {
            let Value::Text(key) = key else { continue };
            match self.heap.strings.key(key) {
                None => {}
                Some(SnapshotKey::Frames) => draft.stack = self.heap.stack(value, &mut self.builder)?,
                Some(key) => {
                    let value = self.heap.field_scalar(key, value, &mut self.builder)?;
                    self.builder.entry_field(&mut draft, key, value)?;
                }
            }
        }
        Ok(draft)
    }
}

/// Returns the values in pairs: a key, and the value that follows it.
fn pairs(values: &[Value]) -> impl Iterator<Item = (Value, Value)> + Clone + '_ {
    values.chunks_exact(2).map(|pair| (pair[0], pair[1]))
}
