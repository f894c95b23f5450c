//! The pickle machine: a stack, a memo, and one instruction after the other. It knows plain data only, never recurses, and turns
//! each dictionary that is an entry of the history into a row as soon as it is filled.

use super::heap::Heap;
use super::input::{Done, Failure, Input};
use super::memo::Memo;
use super::opcode as op;
use super::value::Value;
use crate::error::ReadError;
use crate::limits::Limits;
use crate::torch::builder::{Builder, EntryDraft};
use crate::torch::key::Key;

/// Bytes between two reports of progress.
const PROGRESS_BYTES: usize = 4 << 20;

/// How much of a class's name is repeated.
const MAX_NAME_LEN: usize = 100;

/// A pickle being read.
#[derive(Debug)]
pub(super) struct Machine<'a> {
    pub(super) input: Input<'a>,
    pub(super) heap: Heap<'a>,
    pub(super) builder: Builder,
    stack: Vec<Value>,
    /// Heights of the stack at the open marks.
    pub(super) marks: Vec<usize>,
    pub(super) memo: Memo,
    pub(super) max_depth: usize,
}

impl<'a> Machine<'a> {
    pub(super) fn new(bytes: &'a [u8], limits: &Limits) -> Self {
        Self {
            input: Input::new(bytes),
            heap: Heap::new(limits.max_depth),
            builder: Builder::new(limits.max_bytes),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Memo::default(),
            max_depth: limits.max_depth as usize,
        }
    }

    /// Where the machine stands.
    pub(super) fn offset(&self) -> usize {
        self.input.at()
    }

    /// Runs to the end of the pickle and gives what it left.
    pub(super) fn run(&mut self, progress: &mut dyn FnMut(usize)) -> Result<Value, ReadError> {
        let mut report_at = PROGRESS_BYTES;
        loop {
            let start = self.input.at();
            if start >= report_at {
                progress(start);
                report_at = start + PROGRESS_BYTES;
            }
            let Ok(opcode) = self.input.u8() else {
                return Err(ReadError::at(start, "the pickle is cut off"));
            };
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
                let place = self.input.u8()?;
                self.get(u32::from(place))
            }
            op::LONG_BINGET => {
                let place = self.input.u32()?;
                self.get(place)
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
            op::EMPTY_DICT => match self.entry()? {
                true => Ok(()),
                false => self.push(Value::NewDict(None)),
            },
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
                let top = self.settled_top()?;
                self.push(top)
            }
            op::BINPUT => {
                let place = self.input.u8()?;
                self.put(usize::from(place))
            }
            op::LONG_BINPUT => {
                let place = self.input.u32()?;
                self.put(place as usize)
            }
            op::PROTO => match self.input.u8()? {
                2..=5 => Ok(()),
                protocol => Err(Failure::from(format!("pickle protocol {protocol} is not one of 2 to 5"))),
            },
            op::FRAME => {
                let len = self.input.len64()?;
                let fits = len <= self.input.rest().len();
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
            return Failure::from(format!("0x{opcode:02x} is not an instruction of pickle protocols 2 to 5"));
        };
        let names = match opcode {
            op::GLOBAL | op::INST => {
                let rest = self.input.rest();
                let rest = String::from_utf8_lossy(&rest[..rest.len().min(2 * MAX_NAME_LEN)]).into_owned();
                Some(rest.split('\n').take(2).map(shown_name).collect::<Vec<_>>())
            }
            op::STACK_GLOBAL => match self.stack[..] {
                [.., Value::Text(module), Value::Text(name)] => {
                    Some([module, name].map(|text| shown_name(self.heap.texts.text(text))).to_vec())
                }
                _ => None,
            },
            _ => None,
        };
        let name = names.map_or_else(String::new, |names| format!(" {},", names.join(".")));
        Failure::from(format!("this pickle is not plain data: it {what},{name} and was not followed"))
    }

    fn push_text(&mut self, len: usize) -> Done<()> {
        let bytes = self.input.take(len)?;
        let id = self.heap.texts.intern(bytes, &mut self.builder.budget)?;
        self.push(Value::Text(id))
    }

    fn push_long(&mut self, len: usize) -> Done<()> {
        let number = self.input.long(len)?;
        self.push(number)
    }

    // The stack.

    #[inline]
    pub(super) fn push(&mut self, value: Value) -> Done<()> {
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

    #[inline]
    fn get(&mut self, place: u32) -> Done<()> {
        match self.memo.get(place) {
            Some(value) => self.push(value),
            None => Err(Failure::from(format!("memo place {place} is used before anything was put there"))),
        }
    }

    fn put(&mut self, place: usize) -> Done<()> {
        let height = self.below_top(1)?;
        // Python counts places up from 0, one for each instruction that fills one.
        let place = u32::try_from(place).ok().filter(|_| place < self.input.at());
        let Some(place) = place else { return Err("a memo place has too high a number".into()) };
        if let Value::NewDict(None) = self.stack[height] {
            self.stack[height] = Value::NewDict(Some(place));
        }
        Ok(self.memo.put(place, self.stack[height], &mut self.builder.budget)?)
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
                let mut value = self.memo.settled(self.stack[height]);
                if let Value::NewDict(place) = value {
                    value = Value::Dict(self.heap.new_dict(&mut self.builder.budget)?);
                    self.memo.remember(place, value);
                }
                self.stack[height] = value;
            }
        }
        Ok(())
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
            Some(height) => Ok(self.memo.settled(self.stack[height])),
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
                self.memo.remember(place, value);
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

/// A name out of a pickle as it may stand in a message.
fn shown_name(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(MAX_NAME_LEN).collect()
}

/// The keys and values of a stretch of the stack.
fn pairs(values: &[Value]) -> impl Iterator<Item = (Value, Value)> + Clone + '_ {
    values.chunks_exact(2).map(|pair| (pair[0], pair[1]))
}
