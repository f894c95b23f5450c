//! The tracker's table of call stacks: gives each call stack a number.
//!
//! A training program repeats few stacks, so nearly every request finds its stack in the table, by
//! a hash of the frames' code objects and instructions. A new stack is written to the ring once. A
//! stack has the Python frames of a thread and, if wanted, the C++ frames that they called.
//!
//! A program that creates many models one after another, or compiles code repeatedly, never stops
//! having new stacks, because each module and code object has its own stacks. So a full table is
//! emptied, and stacks that are still in use are defined again with new numbers.

use vramscope_collector::ring::Producer;

use crate::hash::mix;
use crate::interpreter::{CODE_BUFFER_BYTES, DirectMemory, FrameRef, FrameWalker, read_code};
use crate::modules;
use crate::native::{MAX_NATIVE_FRAMES, NativeWalker};
use crate::record::{self, MAX_FRAMES, MAX_TEXT_BYTES, RING_LEN, TABLES, has_room};

/// Number of slots for stacks. At most three quarters are used; programs have some thousand stacks.
const STACK_SLOTS: usize = 1 << 16;
/// Number of slots for code objects. At most three quarters are used.
const CODE_SLOTS: usize = 1 << 14;
/// Length of the longest definition, in words: a stack whose Python frames all have a module.
const MAX_WORDS: usize = 1 + 2 * (MAX_FRAMES + MAX_NATIVE_FRAMES);
const _: () = assert!(MAX_FRAMES <= CODE_SLOTS / 4 * 3, "the code objects of a stack fit");
const _: () = assert!(2 * MAX_TEXT_BYTES.div_ceil(8) + 1 < MAX_WORDS, "a code object's two texts fit");

/// A hash table with open addressing and a fixed number of slots, which never allocates. A key maps
/// to a number from 1.
struct FixedTable {
    slots: Box<[Slot]>,
    /// Number of times that the table was emptied.
    generation: u32,
    /// Number of slots that are used in the current generation.
    len: usize,
    /// The last assigned number. Numbers are never assigned again, even after the table is emptied.
    last: u32,
}

/// A slot of a [`FixedTable`]: a key, its number, and the generation in which it was stored.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    key: u64,
    /// The key's number; 0 in a slot that was never used.
    number: u32,
    /// The generation in which the key was stored; in an older slot, there is no key.
    generation: u32,
}

impl FixedTable {
    fn new(slots: usize) -> Self {
        Self { slots: vec![Slot::default(); slots].into_boxed_slice(), generation: 0, len: 0, last: 0 }
    }

    /// Returns the number of a key, or the index of the slot in which it can be stored.
    #[inline]
    fn find(&self, key: u64) -> Result<u32, usize> {
        let mask = self.slots.len() - 1;
        let mut index = key as usize & mask;
        loop {
            let slot = self.slots[index];
            if slot.number == 0 || slot.generation != self.generation {
                return Err(index);
            }
            if slot.key == key {
                return Ok(slot.number);
            }
            index = (index + 1) & mask;
        }
    }

    /// Returns true if this many further keys can be stored.
    fn has_room(&self, keys: usize) -> bool {
        self.len + keys <= self.slots.len() / 4 * 3
    }

    /// Removes all keys, in constant time, by beginning a new generation. The generation counter
    /// never wraps in practice, because each generation has ten thousand keys or more.
    fn clear(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.len = 0;
    }

    /// Stores a key in a free slot that [`find`](Self::find) returned, and returns its number.
    fn insert(&mut self, slot: usize, key: u64) -> u32 {
        self.len += 1;
        self.last = self.last.wrapping_add(1).max(1);
        self.slots[slot] = Slot { key, number: self.last, generation: self.generation };
        self.last
    }
}

/// The call stack of a request, by number, and whether its thread runs Python code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CurrentStack {
    /// Number of the stack; 0 for none.
    pub(crate) number: u32,
    /// True if the thread runs Python code.
    pub(crate) has_python: bool,
}

/// The call stacks and code objects of one device's requests, by number.
pub(crate) struct StackTable {
    walker: FrameWalker,
    native: NativeWalker,
    /// Address of the code object of `torch.nn.Module._wrapped_call_impl`, through which modules
    /// are called; 0 if it is unknown.
    module_call: usize,
    stacks: FixedTable,
    codes: FixedTable,
    /// The Python frames of the current stack, innermost first. Their field `first_local` is
    /// replaced by the identity of the module whose method the frame runs; 0 for none.
    frames: Box<[FrameRef; MAX_FRAMES]>,
    /// Texts of the code object that is being defined.
    texts: Box<[u8; CODE_BUFFER_BYTES]>,
    words: Box<[u64; MAX_WORDS]>,
}

impl StackTable {
    /// Creates an empty table. `walker` must have passed its self-check; `module_call` is the
    /// address of the code object of `torch.nn.Module._wrapped_call_impl`, or 0.
    pub(crate) fn new(walker: FrameWalker, module_call: usize) -> Self {
        let no_frame = FrameRef { code: 0, code_identity: 0, instruction_offset: 0, first_local: 0 };
        Self {
            walker,
            native: NativeWalker::new(),
            module_call,
            stacks: FixedTable::new(STACK_SLOTS),
            codes: FixedTable::new(CODE_SLOTS),
            frames: Box::new([no_frame; MAX_FRAMES]),
            texts: Box::new([0; CODE_BUFFER_BYTES]),
            words: Box::new([0; MAX_WORDS]),
        }
    }

    /// Returns this thread's call stack, with C++ frames if `with_native`, and writes its
    /// definition to `ring` if it is new. The number is 0 if the thread has no frames, or there is
    /// no room.
    #[inline]
    pub(crate) fn current(&mut self, with_native: bool, ring: &mut Producer<RING_LEN>) -> CurrentStack {
        let Self { walker, native, module_call, frames, .. } = self;
        let (mut hash, mut count) = (0, 0);
        // SAFETY: The table's creator guarantees that the layout was checked. PyTorch calls the
        // tracker from functions that this thread called, never from a signal handler, and the
        // tracker is off once the interpreter finalizes.
        unsafe {
            walker.walk(|frame| {
                let Some(slot) = frames.get_mut(count) else { return false };
                let module = if frame.code == *module_call { modules::identity(frame.first_local as u64) } else { 0 };
                *slot = FrameRef { first_local: module as usize, ..frame };
                let code = (frame.code as u64).rotate_left(20) ^ frame.code_identity;
                hash = mix(hash, code ^ u64::from(frame.instruction_offset as u32) << 32);
                if module != 0 {
                    hash = mix(hash, module);
                }
                count += 1;
                true
            });
        }
        let has_python = count != 0;
        let native = if with_native { native.walk() } else { &[] };
        hash = native.iter().fold(hash, |hash, &address| mix(hash, address));
        if count + native.len() == 0 {
            return CurrentStack::default();
        }
        let native_count = native.len();
        // The low bits select the slot, so they must depend on all other bits.
        hash ^= hash >> 32;
        let number = match self.stacks.find(hash) {
            Ok(number) => number,
            Err(slot) => self.define(hash, slot, [native_count, count], ring).unwrap_or(0),
        };
        CurrentStack { number, has_python }
    }

    /// Defines a new stack and returns its number. `counts` are the numbers of C++ frames and of
    /// Python frames at the beginning of their buffers. Returns `None` if the ring is full; the
    /// next request tries again.
    #[cold]
    fn define(&mut self, hash: u64, mut slot: usize, counts: [usize; 2], ring: &mut Producer<RING_LEN>) -> Option<u32> {
        let [native_count, count] = counts;
        if !self.stacks.has_room(1) || !self.codes.has_room(count) {
            if !has_room(ring, 1) {
                return None;
            }
            ring.put([u64::from(TABLES)]);
            self.stacks.clear();
            self.codes.clear();
            slot = self.stacks.find(hash).err()?;
        }
        let mut len = 1;
        for &address in self.native.frames(native_count) {
            self.words[len..len + 2].copy_from_slice(&[record::native_frame_word(), address]);
            len += 2;
        }
        for index in 0..count {
            let frame = self.frames[index];
            let (code, line) = self.code(frame, ring)?;
            self.words[len] = record::frame_word(code, line, frame.first_local != 0);
            len += 1;
            if frame.first_local != 0 {
                self.words[len] = frame.first_local as u64;
                len += 1;
            }
        }
        if !has_room(ring, len) {
            return None;
        }
        let number = self.stacks.insert(slot, hash);
        self.words[0] = record::stack_head(len - 1, number);
        ring.put_slice(&self.words[..len]);
        Some(number)
    }

    /// Returns the number of a frame's code object and the frame's line, and defines the code
    /// object if it is new. Returns `None` if the ring is full.
    fn code(&mut self, frame: FrameRef, ring: &mut Producer<RING_LEN>) -> Option<(u32, u32)> {
        let Self { walker, module_call, codes, texts, .. } = self;
        // SAFETY: The frame is one of this thread's, which keeps its code object alive.
        let Ok(facts) = unsafe { read_code(walker, &DirectMemory, frame.code, &mut texts[..]) };
        if frame.code == *module_call && (facts.argument_count == 0 || facts.first_local_is_cell) {
            // `self` is not the first local variable, because this version of PyTorch calls modules
            // in another way. So modules cannot be recognized.
            *module_call = 0;
        }
        let line = facts.line_table.line_number(frame.instruction_offset).unwrap_or(0);
        // The key also depends on file, name and first line, because another code object may now
        // have the address of a freed one.
        let texts = facts.file_name.bytes().chain(facts.name.bytes());
        let key = mix(texts.fold(facts.first_line as u64, |hash, byte| mix(hash, u64::from(byte))), frame.code as u64);
        let slot = match codes.find(key) {
            Ok(number) => return Some((number, line)),
            Err(slot) => slot,
        };
        let (file, name) = (facts.file_name.as_bytes(), facts.name.as_bytes());
        let len = 2 + (file.len() + name.len()).div_ceil(8);
        if !has_room(ring, len) {
            return None;
        }
        // A separate buffer, because `words` contains the frames of the stack that is being
        // defined.
        let mut definition = [0; MAX_WORDS];
        definition[0] = record::code_head(file.len(), name.len());
        definition[1] = frame.code as u64;
        let text = file.iter().chain(name);
        for (index, &byte) in text.enumerate() {
            definition[2 + index / 8] |= u64::from(byte) << (8 * (index % 8));
        }
        ring.put_slice(&definition[..len]);
        Some((codes.insert(slot, key), line))
    }
}

#[cfg(test)]
mod tests {
    use vramscope_collector::ring::ring;

    use super::*;
    use crate::interpreter::LAYOUTS;
    use crate::interpreter::fake_interpreter::FakeInterpreter;

    #[test]
    fn emptied_table_has_new_numbers() {
        let mut table = FixedTable::new(8);
        let insert = |table: &mut FixedTable, key| {
            let slot = table.find(key).expect_err("the key is new");
            table.insert(slot, key)
        };
        // Three keys that belong in one slot.
        assert_eq!([1, 9, 17].map(|key| insert(&mut table, key)), [1, 2, 3]);
        assert_eq!([1, 9, 17, 25].map(|key| table.find(key).ok()), [Some(1), Some(2), Some(3), None]);
        assert!(table.has_room(3) && !table.has_room(4));
        table.clear();
        assert_eq!([1, 9, 17].map(|key| table.find(key).ok()), [None; 3]);
        assert_eq!([17, 1].map(|key| insert(&mut table, key)), [4, 5]);
        assert_eq!([1, 9, 17].map(|key| table.find(key).ok()), [Some(5), None, Some(4)]);
        assert!(table.has_room(4) && !table.has_room(5));
    }

    #[test]
    fn module_at_the_address_of_a_freed_one_has_its_own_stack() {
        for layout in &LAYOUTS {
            let mut interpreter = FakeInterpreter::new(layout);
            let code = interpreter.code("module.py", "_wrapped_call_impl", 1, &[1, 2, 3]);
            // No other test uses these addresses: all tests share the table of modules.
            let module = interpreter.object(16);
            interpreter.push_frame(code, 6, module);
            let (mut ring, _consumer) = ring::<RING_LEN>();
            let mut table = StackTable::new(interpreter.walker(), code);
            let mut number = || table.current(false, &mut ring).number;
            let address = module as u64;
            assert_eq!([number(), number()], [1, 1]);
            assert!(modules::add(address, "Net"));
            assert_eq!([number(), number()], [2, 2], "{layout:?}");
            modules::remove(address);
            assert_eq!(number(), 1, "a module without a name");
            assert!(modules::add(address, "Critic"));
            assert_eq!([number(), number()], [3, 3], "{layout:?}");
            modules::remove(address);
        }
    }

    #[test]
    fn each_code_object_and_instruction_has_its_own_stack() {
        for layout in &LAYOUTS {
            let mut interpreter = FakeInterpreter::new(layout);
            let code = interpreter.code("a.py", "f", 1, &[1, 2, 3]);
            let frame = interpreter.push_frame(code, 6, 0);
            let (mut ring, _consumer) = ring::<RING_LEN>();
            let mut table = StackTable::new(interpreter.walker(), 0);
            let mut number = || table.current(false, &mut ring).number;
            assert_eq!([number(), number()], [1, 1]);
            // Another code object is created at the address of the first one.
            interpreter.write_code(code, "b.py", "f", 1, &[1, 2, 3]);
            assert_eq!([number(), number()], [2, 2], "{layout:?}");
            interpreter.write_instruction(frame, code, 6 + (1 << 20));
            assert_eq!([number(), number()], [3, 3], "{layout:?}");
        }
    }
}
