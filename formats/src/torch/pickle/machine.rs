//! The pickle machine: a stack, a memo, and one instruction after the other. It knows plain data only, never recurses, and turns
//! each dictionary that is an entry of the history into a row as soon as it is filled.

use super::heap::Heap;
use super::opcode as op;
use super::value::{Packed, Value};
use crate::error::ReadError;
use crate::limits::{Limits, OutOfBudget};
use crate::torch::builder::{Builder, EntryDraft, Refusal, Scalar};
use crate::torch::key::Key;

/// Bytes between two reports of progress.
const PROGRESS_BYTES: usize = 4 << 20;

/// Why an instruction failed; the machine knows where.
type Done<T> = Result<T, Failure>;

/// What went wrong in one instruction.
#[derive(Debug)]
pub(super) struct Failure(String);

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self(refusal.to_string())
    }
}

impl From<OutOfBudget> for Failure {
    fn from(error: OutOfBudget) -> Self {
        Self(error.to_string())
    }
}

impl From<&str> for Failure {
    fn from(what: &str) -> Self {
        Self(what.to_owned())
    }
}

/// A pickle being read.
#[derive(Debug)]
pub(super) struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    pub(super) heap: Heap<'a>,
    pub(super) builder: Builder,
    stack: Vec<Value>,
    /// Heights of the stack at the open marks.
    marks: Vec<usize>,
    memo: Vec<Packed>,
    /// Memoized values that do not fit the memo.
    aside: Vec<Value>,
    max_depth: usize,
}

impl<'a> Machine<'a> {
    pub(super) fn new(bytes: &'a [u8], limits: &Limits) -> Self {
        Self {
            bytes,
            at: 0,
            heap: Heap::new(limits.max_depth),
            builder: Builder::new(limits.max_bytes),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
            aside: Vec::new(),
            max_depth: limits.max_depth as usize,
        }
    }

    /// Where the machine stands.
    pub(super) fn offset(&self) -> usize {
        self.at
    }

    /// Runs to the end of the pickle and gives what it left.
    pub(super) fn run(&mut self, progress: &mut dyn FnMut(usize)) -> Result<Value, ReadError> {
        let mut report_at = PROGRESS_BYTES;
        loop {
            let start = self.at;
            if start >= report_at {
                progress(start);
                report_at = start + PROGRESS_BYTES;
            }
            let Some(&opcode) = self.bytes.get(start) else {
                return Err(ReadError::at(start, "the pickle is cut off"));
            };
            self.at = start + 1;
            if opcode == op::STOP {
                let top = self.settled_top();
                return top.map_err(|Failure(what)| ReadError::at(start, what));
            }
            self.step(opcode).map_err(|Failure(what)| ReadError::at(start, what))?;
        }
    }

    #[inline]
    fn step(&mut self, opcode: u8) -> Done<()> {
        match opcode {
            op::BINGET => {
                let place = self.u8()?;
                self.get(u32::from(place))
            }
            op::LONG_BINGET => {
                let place = self.u32()?;
                self.get(place)
            }
            op::MEMOIZE => self.put(self.memo.len()),
            op::LONG1 => {
                let len = self.u8()?;
                self.push_long(usize::from(len))
            }
            op::BININT1 => {
                let number = self.u8()?;
                self.push(Value::Int(i64::from(number)))
            }
            op::BININT2 => {
                let number = u16::from_le_bytes(self.array()?);
                self.push(Value::Int(i64::from(number)))
            }
            op::BININT => {
                let number = i32::from_le_bytes(self.array()?);
                self.push(Value::Int(i64::from(number)))
            }
            op::SHORT_BINUNICODE | op::SHORT_BINSTRING => {
                let len = self.u8()?;
                self.push_text(usize::from(len))
            }
            op::MARK => {
                if self.marks.len() >= self.max_depth {
                    return Err("lists and dictionaries are nested deeper than the limit".into());
                }
                self.marks.push(self.stack.len());
                Ok(())
            }
            op::EMPTY_DICT => self.push(Value::NewDict(None)),
            op::SETITEMS => {
                let mark = self.pop_mark()?;
                self.set_items(mark)
            }
            _ => self.rare_step(opcode),
        }
    }

    fn rare_step(&mut self, opcode: u8) -> Done<()> {
        match opcode {
            op::NONE => self.push(Value::None),
            op::NEWTRUE => self.push(Value::Bool(true)),
            op::NEWFALSE => self.push(Value::Bool(false)),
            op::LONG4 => {
                let len = self.u32()?;
                self.push_long(len as usize)
            }
            op::BINFLOAT => {
                let number = f64::from_be_bytes(self.array()?);
                self.push(Value::Float(number))
            }
            op::BINUNICODE | op::BINSTRING => {
                let len = self.u32()?;
                self.push_text(len as usize)
            }
            op::BINUNICODE8 => {
                let len = self.len64()?;
                self.push_text(len)
            }
            op::SHORT_BINBYTES | op::BINBYTES | op::BINBYTES8 | op::BYTEARRAY8 => {
                let len = match opcode {
                    op::SHORT_BINBYTES => usize::from(self.u8()?),
                    op::BINBYTES => self.u32()? as usize,
                    _ => self.len64()?,
                };
                self.take(len)?;
                self.push(Value::Opaque)
            }
            op::POP => self.discard(),
            op::POP_MARK => {
                let mark = self.pop_mark()?;
                self.stack.truncate(mark);
                Ok(())
            }
            op::DUP => {
                let top = self.settled_top()?;
                self.push(top)
            }
            op::BINPUT => {
                let place = self.u8()?;
                self.put(usize::from(place))
            }
            op::LONG_BINPUT => {
                let place = self.u32()?;
                self.put(place as usize)
            }
            op::PROTO => match self.u8()? {
                2..=5 => Ok(()),
                protocol => Err(Failure(format!("pickle protocol {protocol} is not one of 2 to 5"))),
            },
            op::FRAME => {
                let len = self.len64()?;
                let fits = len <= self.bytes.len() - self.at;
                if fits { Ok(()) } else { Err("the pickle is cut off inside a frame that begins".into()) }
            }
            _ => self.container_step(opcode),
        }
    }

    fn container_step(&mut self, opcode: u8) -> Done<()> {
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
                self.check_room(1)?;
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
            _ => Err(self.refusal(opcode)),
        }
    }

    /// Why an instruction is not followed.
    #[cold]
    fn refusal(&mut self, opcode: u8) -> Failure {
        let Some(what) = op::refused(opcode) else {
            return Failure(format!("0x{opcode:02x} is not an instruction of pickle protocols 2 to 5"));
        };
        let name = match opcode {
            op::GLOBAL | op::INST => {
                let mut lines = self.bytes[self.at..].split(|&byte| byte == b'\n').map(String::from_utf8_lossy);
                Some((lines.next().unwrap_or_default().into_owned(), lines.next().unwrap_or_default().into_owned()))
            }
            op::STACK_GLOBAL => match self.stack[..] {
                [.., Value::Text(module), Value::Text(name)] => {
                    let texts = &self.heap.texts;
                    Some((texts.text(module).to_owned(), texts.text(name).to_owned()))
                }
                _ => None,
            },
            _ => None,
        };
        match name {
            Some((module, name)) => {
                let named: String = format!("{module}.{name}").chars().filter(|c| !c.is_control()).take(100).collect();
                Failure(format!("this pickle is not plain data: it {what}, {named}, and was not followed"))
            }
            None => Failure(format!("this pickle is not plain data: it {what}, and was not followed")),
        }
    }

    // Reading.

    fn take(&mut self, len: usize) -> Done<&'a [u8]> {
        let bytes: &'a [u8] = self.bytes;
        let taken = bytes[self.at..].get(..len).ok_or("the pickle is cut off inside an instruction that begins")?;
        self.at += len;
        Ok(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Done<[u8; N]> {
        match self.bytes[self.at..].first_chunk::<N>() {
            Some(&array) => {
                self.at += N;
                Ok(array)
            }
            None => Err("the pickle is cut off inside an instruction that begins".into()),
        }
    }

    #[inline]
    fn u8(&mut self) -> Done<u8> {
        self.array().map(|[byte]| byte)
    }

    #[inline]
    fn u32(&mut self) -> Done<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn len64(&mut self) -> Done<usize> {
        let len = u64::from_le_bytes(self.array()?);
        usize::try_from(len).map_err(|_| "the pickle is cut off inside an instruction that begins".into())
    }

    /// A little-endian integer of any length in two's complement.
    #[inline]
    fn push_long(&mut self, len: usize) -> Done<()> {
        let bytes = self.take(len)?;
        let is_negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
        let fill = if is_negative { 0xff } else { 0 };
        // What stands above the eighth byte may only repeat the sign.
        let (low, high) = bytes.split_at(bytes.len().min(8));
        let mut filled = [fill; 8];
        filled[..low.len()].copy_from_slice(low);
        let number = u64::from_le_bytes(filled);
        let value = if high.iter().any(|&byte| byte != fill) {
            Value::Opaque
        } else if is_negative == (number.cast_signed() < 0) {
            Value::Int(number.cast_signed())
        } else if is_negative {
            Value::Opaque
        } else {
            Value::Unsigned(number)
        };
        self.push(value)
    }

    fn push_text(&mut self, len: usize) -> Done<()> {
        let bytes = self.take(len)?;
        let id = self.heap.texts.intern(bytes, &mut self.builder.budget)?;
        self.push(Value::Text(id))
    }

    // The stack.

    #[inline]
    fn push(&mut self, value: Value) -> Done<()> {
        Ok(self.builder.budget.push(&mut self.stack, value)?)
    }

    fn check_room(&mut self, values: usize) -> Done<()> {
        Ok(self.builder.budget.take(values * size_of::<Value>())?)
    }

    /// The lowest height of the stack that the values above the last mark leave.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    /// The height of the stack without the top `count` values, all of which stand above the last mark.
    fn below_top(&self, count: usize) -> Done<usize> {
        let height = self.stack.len().checked_sub(count).filter(|&height| height >= self.floor());
        height.ok_or_else(|| "an instruction wants more values than there are".into())
    }

    fn pop(&mut self) -> Done<Value> {
        let height = self.below_top(1)?;
        let value = self.stack[height];
        self.stack.truncate(height);
        Ok(value)
    }

    /// Python's POP also takes a mark where one is on top.
    fn discard(&mut self) -> Done<()> {
        if self.marks.last() == Some(&self.stack.len()) {
            self.marks.pop();
            return Ok(());
        }
        self.pop().map(|_| ())
    }

    #[inline]
    fn pop_mark(&mut self) -> Done<usize> {
        self.marks.pop().ok_or_else(|| "an instruction wants a mark and there is none".into())
    }

    // The memo.

    fn get(&mut self, place: u32) -> Done<()> {
        let packed = self.memo.get(place as usize).copied().unwrap_or(Packed::EMPTY);
        let value = match packed.unpack() {
            Ok(value) => value,
            Err(Some(place)) => self.aside[place as usize],
            Err(None) => return Err(Failure(format!("memo place {place} is used before anything was put there"))),
        };
        self.push(value)
    }

    fn put(&mut self, place: usize) -> Done<()> {
        let height = self.below_top(1)?;
        // Python counts places up from 0, one for each instruction that fills one.
        let place32 = u32::try_from(place).ok().filter(|_| place < self.at);
        let Some(place32) = place32 else { return Err("a memo place has too high a number".into()) };
        if let Value::NewDict(None) = self.stack[height] {
            self.stack[height] = Value::NewDict(Some(place32));
        }
        let value = self.stack[height];
        let packed = match Packed::pack(value) {
            Some(packed) => packed,
            None => {
                let aside = Packed::aside(self.aside.len() as u32);
                self.builder.budget.push(&mut self.aside, value)?;
                aside
            }
        };
        while self.memo.len() < place {
            self.builder.budget.push(&mut self.memo, Packed::EMPTY)?;
        }
        match self.memo.get_mut(place) {
            // Other references to the new dictionary find it through this place.
            Some(old) if matches!(old.unpack(), Ok(Value::NewDict(_))) => {
                return Err("a memo place is filled a second time".into());
            }
            Some(old) => *old = packed,
            None => self.builder.budget.push(&mut self.memo, packed)?,
        }
        Ok(())
    }

    /// What a value has become: a new dictionary that the memo knows may have been filled through another reference to it.
    #[inline]
    fn settled(&self, value: Value) -> Value {
        let Value::NewDict(Some(place)) = value else { return value };
        self.memo.get(place as usize).and_then(|packed| packed.unpack().ok()).unwrap_or(value)
    }

    fn settled_top(&mut self) -> Done<Value> {
        let height = self.below_top(1)?;
        self.settle(height, height + 1)?;
        Ok(self.stack[height])
    }

    /// Gives every new dictionary from height `from` to `to` of the stack a place in the heap, as it is about to be referred to.
    #[inline]
    fn settle(&mut self, from: usize, to: usize) -> Done<()> {
        for height in from..to {
            if let Value::NewDict(_) = self.stack[height] {
                let mut value = self.settled(self.stack[height]);
                if let Value::NewDict(place) = value {
                    value = Value::Dict(self.heap.new_dict(&mut self.builder.budget)?);
                    self.remember(place, value);
                }
                self.stack[height] = value;
            }
        }
        Ok(())
    }

    /// Lets the memo know what a new dictionary has become.
    fn remember(&mut self, place: Option<u32>, value: Value) {
        if let Some(place) = place
            && let Some(old) = self.memo.get_mut(place as usize)
            && let Some(packed) = Packed::pack(value)
        {
            *old = packed;
        }
    }

    // Containers.

    fn make_list(&mut self, mark: usize) -> Done<()> {
        self.settle(mark, self.stack.len())?;
        let list = self.heap.new_list(&self.stack[mark..], &mut self.builder.budget)?;
        self.stack.truncate(mark);
        self.push(list)
    }

    /// Appends what stands above `mark` to the list just below it.
    fn append(&mut self, mark: usize) -> Done<()> {
        self.settle(mark, self.stack.len())?;
        match self.container(mark)? {
            Value::List(list) => self.heap.append(list, &self.stack[mark..], &mut self.builder.budget)?,
            _ => return Err("something is appended to what is not a list".into()),
        }
        self.stack.truncate(mark);
        Ok(())
    }

    /// The value just below `mark`, which the values above it are to go into.
    fn container(&self, mark: usize) -> Done<Value> {
        match mark.checked_sub(1).filter(|&height| height >= self.floor()) {
            Some(height) => Ok(self.settled(self.stack[height])),
            None => Err("an instruction wants more values than there are".into()),
        }
    }

    /// Puts the keys and values that stand above `mark` into the dictionary just below it.
    fn set_items(&mut self, mark: usize) -> Done<()> {
        if !(self.stack.len() - mark).is_multiple_of(2) {
            return Err("a key of a dictionary has no value".into());
        }
        // First the values: one of them may be the dictionary itself, which then has its place already.
        self.settle(mark, self.stack.len())?;
        let container = self.container(mark)?;
        let filled = match container {
            Value::NewDict(place) => {
                let value = self.fill_new_dict(mark)?;
                self.remember(place, value);
                value
            }
            Value::Dict(dict) => {
                let pairs = pairs(&self.stack[mark..]);
                self.heap.set(dict, pairs, &mut self.builder.budget)?;
                container
            }
            Value::Entry(number) => {
                let draft = self.builder.draft_of(number).ok_or("an entry has no row")?;
                let draft = self.fill_entry(draft, mark)?;
                self.builder.replace_entry(number, &draft)?;
                container
            }
            // Newer versions may add keys to a frame that are not read.
            Value::Frame(_) => container,
            _ => return Err("a key is set in what is not a dictionary".into()),
        };
        self.stack.truncate(mark);
        self.stack[mark - 1] = filled;
        Ok(())
    }

    /// What a new dictionary with the keys and values above `mark` is: an entry, a frame, or any dictionary.
    fn fill_new_dict(&mut self, mark: usize) -> Done<Value> {
        let texts = &self.heap.texts;
        let has_action = pairs(&self.stack[mark..]).any(|(key, value)| {
            matches!((key, value), (Value::Text(key), Value::Text(_)) if texts.key(key) == Some(Key::Action))
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

    fn fill_entry(&mut self, mut draft: EntryDraft, mark: usize) -> Done<EntryDraft> {
        for (key, value) in pairs(&self.stack[mark..]) {
            let Value::Text(key) = key else { continue };
            match self.heap.texts.key(key) {
                None => {}
                Some(Key::Frames) => draft.stack = self.heap.stack(value, &mut self.builder)?,
                Some(key) => self.builder.entry_field(&mut draft, key, self.heap.scalar(value))?,
            }
        }
        Ok(draft)
    }
}

/// The keys and values of a stretch of the stack.
fn pairs(values: &[Value]) -> impl Iterator<Item = (Value, Value)> + Clone + '_ {
    values.chunks_exact(2).map(|pair| (pair[0], pair[1]))
}

impl Heap<'_> {
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
}
