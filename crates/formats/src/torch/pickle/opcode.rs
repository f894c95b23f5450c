//! The opcodes of pickle protocols 2 to 5.

/// Sets a mark at the current height of the stack.
pub(super) const MARK: u8 = b'(';
/// Ends the pickle; its value is on top of the stack.
pub(super) const STOP: u8 = b'.';
/// Drops the top value, or the mark on top.
pub(super) const POP: u8 = b'0';
/// Drops the last mark and everything above it.
pub(super) const POP_MARK: u8 = b'1';
/// Pushes the top value again.
pub(super) const DUP: u8 = b'2';
/// Pushes a signed integer of 4 bytes.
pub(super) const BININT: u8 = b'J';
/// Pushes an unsigned integer of 1 byte.
pub(super) const BININT1: u8 = b'K';
/// Pushes an unsigned integer of 2 bytes.
pub(super) const BININT2: u8 = b'M';
/// Pushes `None`.
pub(super) const NONE: u8 = b'N';
/// Pushes a float, 8 bytes in big-endian order.
pub(super) const BINFLOAT: u8 = b'G';
/// Pushes Python 2's `str`, after a length of 4 bytes.
pub(super) const BINSTRING: u8 = b'T';
/// Pushes Python 2's `str`, after a length of 1 byte.
pub(super) const SHORT_BINSTRING: u8 = b'U';
/// Pushes a UTF-8 string, after a length of 4 bytes.
pub(super) const BINUNICODE: u8 = b'X';
/// Pushes bytes, after a length of 4 bytes.
pub(super) const BINBYTES: u8 = b'B';
/// Pushes bytes, after a length of 1 byte.
pub(super) const SHORT_BINBYTES: u8 = b'C';
/// Appends the top value to the list below it.
pub(super) const APPEND: u8 = b'a';
/// Appends the values above the last mark to the list below it.
pub(super) const APPENDS: u8 = b'e';
/// Replaces the values above the last mark by a list of them.
pub(super) const LIST: u8 = b'l';
/// Pushes an empty list.
pub(super) const EMPTY_LIST: u8 = b']';
/// Replaces the keys and values above the last mark by a dictionary.
pub(super) const DICT: u8 = b'd';
/// Pushes an empty dictionary.
pub(super) const EMPTY_DICT: u8 = b'}';
/// Adds the top key and value to the dictionary below them.
pub(super) const SETITEM: u8 = b's';
/// Adds the keys and values above the last mark to the dictionary below it.
pub(super) const SETITEMS: u8 = b'u';
/// Replaces the values above the last mark by a tuple of them.
pub(super) const TUPLE: u8 = b't';
/// Pushes an empty tuple.
pub(super) const EMPTY_TUPLE: u8 = b')';
/// Pushes the value of a memo slot with a number of 1 byte.
pub(super) const BINGET: u8 = b'h';
/// Pushes the value of a memo slot with a number of 4 bytes.
pub(super) const LONG_BINGET: u8 = b'j';
/// Stores the top value in a memo slot with a number of 1 byte.
pub(super) const BINPUT: u8 = b'q';
/// Stores the top value in a memo slot with a number of 4 bytes.
pub(super) const LONG_BINPUT: u8 = b'r';
/// Begins a pickle; the protocol number of 1 byte follows.
pub(super) const PROTO: u8 = 0x80;
/// Replaces the top value by a tuple of it.
pub(super) const TUPLE1: u8 = 0x85;
/// Replaces the top two values by a tuple.
pub(super) const TUPLE2: u8 = 0x86;
/// Replaces the top three values by a tuple.
pub(super) const TUPLE3: u8 = 0x87;
/// Pushes `True`.
pub(super) const NEWTRUE: u8 = 0x88;
/// Pushes `False`.
pub(super) const NEWFALSE: u8 = 0x89;
/// Pushes a signed integer of any length, after a length of 1 byte.
pub(super) const LONG1: u8 = 0x8a;
/// Pushes a signed integer of any length, after a length of 4 bytes.
pub(super) const LONG4: u8 = 0x8b;
/// Pushes a UTF-8 string, after a length of 1 byte.
pub(super) const SHORT_BINUNICODE: u8 = 0x8c;
/// Pushes a UTF-8 string, after a length of 8 bytes.
pub(super) const BINUNICODE8: u8 = 0x8d;
/// Pushes bytes, after a length of 8 bytes.
pub(super) const BINBYTES8: u8 = 0x8e;
/// Pushes an empty set.
pub(super) const EMPTY_SET: u8 = 0x8f;
/// Adds the values above the last mark to the set below it.
pub(super) const ADDITEMS: u8 = 0x90;
/// Replaces the values above the last mark by a frozen set.
pub(super) const FROZENSET: u8 = 0x91;
/// Stores the top value in the next memo slot.
pub(super) const MEMOIZE: u8 = 0x94;
/// Begins a frame of the pickle; its length of 8 bytes follows.
pub(super) const FRAME: u8 = 0x95;
/// Pushes a byte array, after a length of 8 bytes.
pub(super) const BYTEARRAY8: u8 = 0x96;

// Not supported: these name a class, call a function, or refer to external objects.
/// Pushes the class or function with the module and name that follow.
pub(super) const GLOBAL: u8 = b'c';
/// Creates an object of the class with the module and name that follow.
pub(super) const INST: u8 = b'i';
/// Creates an object of the class at the last mark.
pub(super) const OBJ: u8 = b'o';
/// Pushes an external object by the id that follows.
pub(super) const PERSID: u8 = b'P';
/// Pushes an external object by the id on the stack.
pub(super) const BINPERSID: u8 = b'Q';
/// Calls a function with a tuple of arguments.
pub(super) const REDUCE: u8 = b'R';
/// Sets the state of an object.
pub(super) const BUILD: u8 = b'b';
/// Calls a class's `__new__`.
pub(super) const NEWOBJ: u8 = 0x81;
/// Pushes a registered class by its number of 1 byte.
pub(super) const EXT1: u8 = 0x82;
/// Pushes a registered class by its number of 2 bytes.
pub(super) const EXT2: u8 = 0x83;
/// Pushes a registered class by its number of 4 bytes.
pub(super) const EXT4: u8 = 0x84;
/// Calls a class's `__new__` with keyword arguments.
pub(super) const NEWOBJ_EX: u8 = 0x92;
/// Pushes the class or function whose module and name are on the stack.
pub(super) const STACK_GLOBAL: u8 = 0x93;
/// Pushes the next buffer that is stored outside of the pickle.
pub(super) const NEXT_BUFFER: u8 = 0x97;
/// Makes the buffer on top of the stack read-only.
pub(super) const READONLY_BUFFER: u8 = 0x98;

/// Returns what an unsupported instruction would do, as the end of a sentence that begins with
/// "it"; `None` for an unknown opcode.
pub(super) fn unsupported_action(opcode: u8) -> Option<&'static str> {
    Some(match opcode {
        GLOBAL | STACK_GLOBAL | INST => "names a class",
        OBJ | NEWOBJ | NEWOBJ_EX => "makes an object of a class",
        REDUCE => "calls a function",
        BUILD => "sets the state of an object",
        PERSID | BINPERSID => "refers to an external object",
        EXT1 | EXT2 | EXT4 => "names a registered class",
        NEXT_BUFFER | READONLY_BUFFER => "refers to an external buffer",
        _ => return None,
    })
}
