//! Records: what the tracker writes into a device's ring, and what the follower reads from it.
//!
//! ```text
//! event    head | address | size | time           head: kind (8 bits) | sequence (24) | stack (32)
//! setting  head | stream | private pool (2 words)
//! scope    head                                   head: kind (8) | 24 bits | scope (32)
//! node     head                                   head: kind (8) | 24 bits | sequence (32)
//! code     head | address | text, 8 bytes a word  head: kind (8) | file bytes (16) | name bytes (16)
//! stack    head | one or two words a frame        head: kind (8) | words (24) | stack (32)
//! lost     head | number of events
//! tables   head
//! ```
//!
//! An event's `sequence` is the low part of the sequence number of an autograd operation, counted
//! from 1: of the last forward operation if the thread runs Python code, else of the operation
//! whose backward pass the thread runs; 0 without an operation. If a thread runs Python code in the
//! backward pass of an operation, a node record with the operation's number precedes the event. An
//! event's stream and private pool are those of the last setting record, and its scope is that of
//! the last scope record. A Python frame's first word
//! has the code's number (32 bits), a flag that a second word follows (1) and the line (31); the
//! second word is the identity of the module whose method the frame runs (`modules`). A C++ frame
//! has the code number 0, and its address as the second word. Numbers of stacks and codes are
//! defined before their first use; stack 0 means no stack. After a record `tables`, no stack that
//! was defined before it is used.
//!
//! Times are those of PyTorch's entry: the processor's time-stamp counter.

use vramscope_collector::ring::Producer;

/// Length of a device's ring in words (64 bits): 8 MiB, room for 262,144 events. At a million
/// events a second it holds a quarter of a second, more than the follower's thread ever waits for a
/// processor on a busy machine.
pub(crate) const RING_LEN: usize = 1 << 20;

/// Number of kinds that are reserved for events: a record's kind below this is a value of PyTorch's
/// `TraceEntry::Action`.
pub(crate) const EVENT_KINDS: u8 = 16;
/// Address in the event of a snapshot that this library takes. The event of a snapshot that the
/// program takes has address 0.
pub(crate) const OWN_SNAPSHOT: u64 = 1;

/// Kind of a record with the stream and the private pool of the events after it.
pub(crate) const SETTING: u8 = 16;
/// Kind of a record that defines a code object: its file and its function's name.
pub(crate) const CODE: u8 = 17;
/// Kind of a record that defines a stack.
pub(crate) const STACK: u8 = 18;

/// Kind of a record with the number of events that have been lost so far: the events after it
/// follow a loss.
pub(crate) const LOST: u8 = 19;

/// Kind of a record with the scope of the requests after it.
pub(crate) const SCOPE: u8 = 20;

/// Kind of a record with the operation to whose backward pass the next event belongs, although its
/// thread runs Python code.
pub(crate) const NODE: u8 = 21;

/// Kind of a record after which the events use only stacks that are defined after it.
pub(crate) const TABLES: u8 = 22;

/// Flag in a frame's first word: the identity of a module follows.
const HAS_MODULE: u64 = 1 << 31;

/// Maximum number of Python frames of a stack; the outermost ones beyond it are left out.
pub(crate) const MAX_FRAMES: usize = 128;
/// Maximum length of a file's path and of a function's name, in bytes each; the rest is cut off.
pub(crate) const MAX_TEXT_BYTES: usize = 1024;

/// Number of low bits of a sequence number that are recorded. A training step has some thousand
/// operations.
pub(crate) const SEQUENCE_BITS: u32 = 24;

/// Returns the first word of an event's record.
#[inline]
pub(crate) fn event_head(action: u8, sequence: u64, stack: u32) -> u64 {
    u64::from(action) | (sequence & ((1 << SEQUENCE_BITS) - 1)) << 8 | u64::from(stack) << 32
}

/// Returns the low bits of the sequence number in the first word of an event's record.
pub(crate) fn sequence(head: u64) -> u32 {
    (head >> 8) as u32 & ((1 << SEQUENCE_BITS) - 1)
}

/// Returns the only word of a record with the scope of later requests.
pub(crate) fn scope_head(scope: u32) -> u64 {
    u64::from(SCOPE) | u64::from(scope) << 32
}

/// Returns the only word of a record with the operation to whose backward pass the next event
/// belongs.
pub(crate) fn node_head(sequence: u64) -> u64 {
    u64::from(NODE) | (sequence & ((1 << SEQUENCE_BITS) - 1)) << 32
}

/// Returns the first word of a stack's definition, whose frames take `words` words.
pub(crate) fn stack_head(words: usize, stack: u32) -> u64 {
    u64::from(STACK) | (words as u64) << 8 | u64::from(stack) << 32
}

/// Returns the first word of a code object's definition.
pub(crate) fn code_head(file_bytes: usize, name_bytes: usize) -> u64 {
    u64::from(CODE) | (file_bytes as u64) << 8 | (name_bytes as u64) << 24
}

/// Returns the kind of the record that begins with `head`.
pub(crate) fn kind(head: u64) -> u8 {
    head as u8
}

/// Returns the 32-bit number in a record's first word: an event's stack, the stack that the record
/// defines, the scope that it sets, or the sequence number of its node.
pub(crate) fn number(head: u64) -> u32 {
    (head >> 32) as u32
}

/// Returns the number of words that the frames of a stack's definition take.
pub(crate) fn stack_words(head: u64) -> usize {
    (head >> 8 & 0xff_ffff) as usize
}

/// Returns the lengths of the texts of a code object's definition in bytes: file, name.
pub(crate) fn code_text_lengths(head: u64) -> [usize; 2] {
    [(head >> 8 & 0xffff) as usize, (head >> 24 & 0xffff) as usize]
}

/// Returns the first word of a Python frame in a stack's definition.
pub(crate) fn frame_word(code: u32, line: u32, has_module: bool) -> u64 {
    let flag = if has_module { HAS_MODULE } else { 0 };
    u64::from(code) << 32 | flag | u64::from(line) & (HAS_MODULE - 1)
}

/// Returns the first word of a C++ frame in a stack's definition; the second is its address.
pub(crate) fn native_frame_word() -> u64 {
    frame_word(0, 0, true)
}

/// The decoded first word of a frame: the code object's number (0 for a C++ frame), the line (0 if
/// unknown), and whether a second word, the identity of a module, follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameWord {
    pub(crate) code: u32,
    pub(crate) line: u32,
    pub(crate) has_module: bool,
}

impl From<u64> for FrameWord {
    fn from(word: u64) -> Self {
        let line = (word & (HAS_MODULE - 1)) as u32;
        Self { code: (word >> 32) as u32, line, has_module: word & HAS_MODULE != 0 }
    }
}

/// Returns true if `words` words fit into the ring, after reading how much room the follower has
/// released if necessary.
#[inline]
pub(crate) fn has_room(ring: &mut Producer<RING_LEN>, words: usize) -> bool {
    ring.has_room(words) || ring.refresh(words, u64::MAX)
}
