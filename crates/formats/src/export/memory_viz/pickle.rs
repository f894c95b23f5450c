//! Writes a snapshot as a pickle, in a single pass.
//!
//! Protocol 2 is read by every Python 3 and every version of the memory_viz page. Repeated strings,
//! frames, stacks and pool ids are written once and then referred to, as Python does for identical
//! objects.

use std::collections::HashMap;
use std::hash::Hash;
use std::io::{self, Write};

use vramscope_trace::{Definitions, Frame, StackId, StringId};

use super::snapshot_writer::{SnapshotWriter, limited_frames};
use crate::torch::pickle::opcode::{
    APPENDS, BINFLOAT, BINGET, BININT, BININT1, BININT2, BINPUT, BINUNICODE, EMPTY_DICT, EMPTY_LIST, LONG_BINGET,
    LONG_BINPUT, LONG1, MARK, NEWFALSE, NEWTRUE, NONE, PROTO, SETITEMS, STOP, TUPLE2,
};

/// Maximum number of list items that one APPENDS opcode adds, as in Python's pickles. A reader
/// keeps the items on its stack until that opcode.
const ITEMS_PER_APPEND: u32 = 1000;
/// Number of memo slots reserved for the strings of the snapshot format, which are used most: a
/// reference to a slot below 256 takes two bytes instead of five.
const RESERVED_SLOTS: u32 = 128;

/// A list or dictionary that was begun and has not ended yet.
#[derive(Clone, Copy)]
enum OpenContainer {
    Dict,
    /// The number of items since the last append.
    List(u32),
}

/// The memo slots of the values written so far. A value with a slot is written once and then
/// referred to by the slot's number.
#[derive(Default)]
struct Memo {
    constants: HashMap<&'static str, u32>,
    strings: HashMap<StringId, u32>,
    frames: HashMap<Frame, u32>,
    stacks: HashMap<StackId, u32>,
    pairs: HashMap<(u64, u64), u32>,
    /// The next free slot above the slots reserved for the format's own strings.
    next: u32,
}

/// Writes a PyTorch snapshot as a pickle of protocol 2.
pub(super) struct PickleWriter<W> {
    out: W,
    open: Vec<OpenContainer>,
    memo: Memo,
}

impl<W: Write> PickleWriter<W> {
    pub(super) fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&[PROTO, 2])?;
        let memo = Memo { next: RESERVED_SLOTS, ..Memo::default() };
        Ok(Self { out, open: Vec::new(), memo })
    }

    /// Writes the opcodes that a list needs before its next item; nothing inside a dictionary. Must
    /// be called before each value.
    fn before_value(&mut self) -> io::Result<()> {
        if let Some(OpenContainer::List(items)) = self.open.last_mut() {
            if *items == ITEMS_PER_APPEND {
                *items = 0;
                self.out.write_all(&[APPENDS])?;
            }
            if *items == 0 {
                self.out.write_all(&[MARK])?;
            }
            *items += 1;
        }
        Ok(())
    }

    /// Writes a pickle opcode and the bytes of its argument.
    fn write_with_argument(&mut self, opcode: u8, argument: &[u8]) -> io::Result<()> {
        self.out.write_all(&[opcode])?;
        self.out.write_all(argument)
    }

    /// Writes a reference to the value that the pickle stored in memo slot `slot`.
    fn get(&mut self, slot: u32) -> io::Result<()> {
        match u8::try_from(slot) {
            Ok(slot) => self.out.write_all(&[BINGET, slot]),
            Err(_) => self.write_with_argument(LONG_BINGET, &slot.to_le_bytes()),
        }
    }

    /// Stores the value that was just written in memo slot `slot`.
    fn put(&mut self, slot: u32) -> io::Result<()> {
        match u8::try_from(slot) {
            Ok(slot) => self.out.write_all(&[BINPUT, slot]),
            Err(_) => self.write_with_argument(LONG_BINPUT, &slot.to_le_bytes()),
        }
    }

    /// Writes a memo reference if the value that `key` identifies was written before. Otherwise
    /// calls `write`, which writes the value, and adds it to the memo. `known` selects the memo's
    /// table of keys of type `K`.
    fn write_once<K: Hash + Eq + Copy>(
        &mut self,
        key: K,
        known: fn(&mut Memo) -> &mut HashMap<K, u32>,
        write: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        if let Some(&slot) = known(&mut self.memo).get(&key) {
            return self.get(slot);
        }
        write(self)?;
        let slot = self.memo.next;
        // After 2^32 values the memo is full, and other values are written in full each time.
        let Some(next) = slot.checked_add(1) else { return Ok(()) };
        self.memo.next = next;
        known(&mut self.memo).insert(key, slot);
        self.put(slot)
    }

    /// Writes a string to the pickle without storing it in the memo. Fails for 4 GiB or more.
    fn write_text(&mut self, text: &str) -> io::Result<()> {
        let too_long = |_| io::Error::new(io::ErrorKind::InvalidInput, "a string of more than 4 GiB cannot be pickled");
        let len = u32::try_from(text.len()).map_err(too_long)?;
        self.write_with_argument(BINUNICODE, &len.to_le_bytes())?;
        self.out.write_all(text.as_bytes())
    }

    /// Writes a string of the snapshot format; from the second time on only a memo reference. The
    /// strings after the first [`RESERVED_SLOTS`] are written in full each time.
    fn write_constant(&mut self, text: &'static str) -> io::Result<()> {
        if let Some(&slot) = self.memo.constants.get(text) {
            return self.get(slot);
        }
        self.write_text(text)?;
        let slot = u32::try_from(self.memo.constants.len()).unwrap_or(RESERVED_SLOTS);
        if slot >= RESERVED_SLOTS {
            return Ok(());
        }
        self.memo.constants.insert(text, slot);
        self.put(slot)
    }

    /// Writes an integer with the shortest opcode that can hold it.
    fn write_integer(&mut self, value: i128) -> io::Result<()> {
        if let Ok(byte) = u8::try_from(value) {
            return self.out.write_all(&[BININT1, byte]);
        }
        if let Ok(short) = u16::try_from(value) {
            return self.write_with_argument(BININT2, &short.to_le_bytes());
        }
        if let Ok(int) = i32::try_from(value) {
            return self.write_with_argument(BININT, &int.to_le_bytes());
        }
        // Two's complement, in the smallest number of bytes that keeps the sign.
        let bytes = value.to_le_bytes();
        let is_spare = |index: &usize| value >> (8 * index - 1) == if value < 0 { -1 } else { 0 };
        let len = (1..bytes.len()).find(is_spare).unwrap_or(bytes.len());
        self.out.write_all(&[LONG1, len as u8])?;
        self.out.write_all(&bytes[..len])
    }
}

impl<W: Write> SnapshotWriter for PickleWriter<W> {
    fn begin_dict(&mut self) -> io::Result<()> {
        self.before_value()?;
        self.open.push(OpenContainer::Dict);
        self.out.write_all(&[EMPTY_DICT, MARK])
    }

    fn key(&mut self, name: &'static str) -> io::Result<()> {
        self.write_constant(name)
    }

    fn dynamic_key(&mut self, name: &str) -> io::Result<()> {
        self.write_text(name)
    }

    fn end_dict(&mut self) -> io::Result<()> {
        self.open.pop();
        self.out.write_all(&[SETITEMS])
    }

    fn begin_list(&mut self) -> io::Result<()> {
        self.before_value()?;
        self.open.push(OpenContainer::List(0));
        self.out.write_all(&[EMPTY_LIST])
    }

    fn end_list(&mut self) -> io::Result<()> {
        match self.open.pop() {
            Some(OpenContainer::List(items)) if items > 0 => self.out.write_all(&[APPENDS]),
            _ => Ok(()),
        }
    }

    fn number(&mut self, value: i128) -> io::Result<()> {
        self.before_value()?;
        self.write_integer(value)
    }

    fn float(&mut self, value: f64) -> io::Result<()> {
        self.before_value()?;
        self.write_with_argument(BINFLOAT, &value.to_be_bytes())
    }

    fn null(&mut self) -> io::Result<()> {
        self.before_value()?;
        self.out.write_all(&[NONE])
    }

    fn boolean(&mut self, value: bool) -> io::Result<()> {
        self.before_value()?;
        self.out.write_all(&[if value { NEWTRUE } else { NEWFALSE }])
    }

    fn pair(&mut self, first: u64, second: u64) -> io::Result<()> {
        self.before_value()?;
        self.write_once(
            (first, second),
            |memo| &mut memo.pairs,
            |this| {
                this.write_integer(first.into())?;
                this.write_integer(second.into())?;
                this.out.write_all(&[TUPLE2])
            },
        )
    }

    fn constant(&mut self, text: &'static str) -> io::Result<()> {
        self.before_value()?;
        self.write_constant(text)
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        self.before_value()?;
        self.write_text(text)
    }

    fn string(&mut self, definitions: &Definitions, id: StringId) -> io::Result<()> {
        self.before_value()?;
        self.write_once(id, |memo| &mut memo.strings, |this| this.write_text(definitions.string(id)))
    }

    fn frames(&mut self, definitions: &Definitions, id: StackId) -> io::Result<()> {
        self.before_value()?;
        self.write_once(
            id,
            |memo| &mut memo.stacks,
            |this| {
                // The list is the value for which `before_value` was called above.
                this.open.push(OpenContainer::List(0));
                this.out.write_all(&[EMPTY_LIST])?;
                for frame in limited_frames(definitions, id) {
                    this.before_value()?;
                    this.open.push(OpenContainer::Dict);
                    this.write_once(frame, |memo| &mut memo.frames, |this| this.frame(definitions, frame))?;
                    this.open.pop();
                }
                this.end_list()
            },
        )
    }

    fn finish(&mut self) -> io::Result<()> {
        self.out.write_all(&[STOP])?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the pickle to which `write` has written.
    fn pickled(write: impl FnOnce(&mut PickleWriter<&mut Vec<u8>>) -> io::Result<()>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut pickle = PickleWriter::new(&mut bytes).expect("memory can be written");
        write(&mut pickle).and_then(|()| pickle.finish()).expect("memory can be written");
        bytes
    }

    /// Checks that an integer is written as `bytes`, which Python's `pickle.dumps(value, 2)`
    /// contains.
    fn check(value: i128, bytes: &[u8]) {
        let expected = [&[PROTO, 2], bytes, &[STOP]].concat();
        assert_eq!(pickled(|pickle| pickle.number(value)), expected, "{value}");
    }

    #[test]
    fn numbers_are_encoded_as_python_does() {
        check(0, b"K\x00");
        check(255, b"K\xff");
        check(256, b"M\x00\x01");
        check(65_535, b"M\xff\xff");
        check(65_536, b"J\x00\x00\x01\x00");
        check(-1, b"J\xff\xff\xff\xff");
        check(i32::MIN.into(), b"J\x00\x00\x00\x80");
        check(1 << 31, b"\x8a\x05\x00\x00\x00\x80\x00");
        check(-(1 << 31) - 1, b"\x8a\x05\xff\xff\xff\x7f\xff");
        check(1 << 39, b"\x8a\x06\x00\x00\x00\x00\x80\x00");
        check((1 << 39) - 1, b"\x8a\x05\xff\xff\xff\xff\x7f");
        check(i64::MIN.into(), b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80");
        check(u64::MAX.into(), b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00");
    }

    #[test]
    fn lists_are_appended_in_batches_of_a_thousand() {
        let list = |items: u32| {
            pickled(|pickle| {
                pickle.begin_list()?;
                (0..items).try_for_each(|_| pickle.number(7))?;
                pickle.end_list()
            })
        };
        let item = [BININT1, 7];
        let part = |items: u32| [&[MARK][..], &item.repeat(items as usize), &[APPENDS]].concat();
        let whole = |parts: &[Vec<u8>]| [&[PROTO, 2, EMPTY_LIST][..], &parts.concat(), &[STOP]].concat();
        assert_eq!(list(0), whole(&[]));
        assert_eq!(list(1000), whole(&[part(1000)]));
        assert_eq!(list(2001), whole(&[part(1000), part(1000), part(1)]));
    }

    #[test]
    fn repeated_values_are_written_once() {
        let written = pickled(|pickle| {
            pickle.begin_list()?;
            for _ in 0..3 {
                pickle.constant("alloc")?;
                pickle.pair(0, 3)?;
            }
            pickle.end_list()
        });
        let expected = b"\x80\x02](X\x05\x00\x00\x00allocq\x00K\x00K\x03\x86q\x80h\x00h\x80h\x00h\x80e.";
        assert_eq!(written, expected);
    }
}
