//! The opcodes of pickle protocols 2 to 5.

/// Pickle opcode: sets a mark at the current height of the stack.
pub(crate) const MARK: u8 = b'(';
/// Pickle opcode: ends the pickle, whose value is on top of the stack.
pub(crate) const STOP: u8 = b'.';
/// Pickle opcode: drops the top value, or the last mark if no value is above it.
pub(crate) const POP: u8 = b'0';
/// Pickle opcode: drops the last mark and all values above it.
pub(crate) const POP_MARK: u8 = b'1';
/// Pickle opcode: pushes the top value again.
pub(crate) const DUP: u8 = b'2';
/// Pickle opcode: pushes the signed integer in the next 4 bytes.
pub(crate) const BININT: u8 = b'J';
/// Pickle opcode: pushes the unsigned integer in the next byte.
pub(crate) const BININT1: u8 = b'K';
/// Pickle opcode: pushes the unsigned integer in the next 2 bytes.
pub(crate) const BININT2: u8 = b'M';
/// Pickle opcode: pushes `None`.
pub(crate) const NONE: u8 = b'N';
/// Pickle opcode: pushes the float in the next 8 bytes, in big-endian order.
pub(crate) const BINFLOAT: u8 = b'G';
/// Pickle opcode: pushes a `str` of Python 2; its length precedes it in 4 bytes.
pub(crate) const BINSTRING: u8 = b'T';
/// Pickle opcode: pushes a `str` of Python 2; its length precedes it in 1 byte.
pub(crate) const SHORT_BINSTRING: u8 = b'U';
/// Pickle opcode: pushes a UTF-8 string; its length in bytes precedes it in 4 bytes.
pub(crate) const BINUNICODE: u8 = b'X';
/// Pickle opcode: pushes bytes; their number precedes them in 4 bytes.
pub(crate) const BINBYTES: u8 = b'B';
/// Pickle opcode: pushes bytes; their number precedes them in 1 byte.
pub(crate) const SHORT_BINBYTES: u8 = b'C';
/// Pickle opcode: removes the top value and appends it to the list below.
pub(crate) const APPEND: u8 = b'a';
/// Pickle opcode: removes the values above the last mark and appends them to the list below it.
pub(crate) const APPENDS: u8 = b'e';
/// Pickle opcode: replaces the values above the last mark by a list of them.
pub(crate) const LIST: u8 = b'l';
/// Pickle opcode: pushes an empty list.
pub(crate) const EMPTY_LIST: u8 = b']';
/// Pickle opcode: replaces the keys and values above the last mark by a dictionary.
pub(crate) const DICT: u8 = b'd';
/// Pickle opcode: pushes an empty dictionary.
pub(crate) const EMPTY_DICT: u8 = b'}';
/// Pickle opcode: removes the top key and value and adds them to the dictionary below.
pub(crate) const SETITEM: u8 = b's';
/// Pickle opcode: removes the keys and values above the last mark and adds them to the dictionary
/// below it.
pub(crate) const SETITEMS: u8 = b'u';
/// Pickle opcode: replaces the values above the last mark by a tuple of them.
pub(crate) const TUPLE: u8 = b't';
/// Pickle opcode: pushes an empty tuple.
pub(crate) const EMPTY_TUPLE: u8 = b')';
/// Pickle opcode: pushes the value of the memo slot whose number is the next byte.
pub(crate) const BINGET: u8 = b'h';
/// Pickle opcode: pushes the value of the memo slot whose number is in the next 4 bytes.
pub(crate) const LONG_BINGET: u8 = b'j';
/// Pickle opcode: stores the top value in the memo slot whose number is the next byte.
pub(crate) const BINPUT: u8 = b'q';
/// Pickle opcode: stores the top value in the memo slot whose number is in the next 4 bytes.
pub(crate) const LONG_BINPUT: u8 = b'r';
/// Pickle opcode: begins a pickle; the next byte is the protocol's version.
pub(crate) const PROTO: u8 = 0x80;
/// Pickle opcode: replaces the top value by a tuple of one item.
pub(crate) const TUPLE1: u8 = 0x85;
/// Pickle opcode: replaces the top two values by a tuple.
pub(crate) const TUPLE2: u8 = 0x86;
/// Pickle opcode: replaces the top three values by a tuple.
pub(crate) const TUPLE3: u8 = 0x87;
/// Pickle opcode: pushes `True`.
pub(crate) const NEWTRUE: u8 = 0x88;
/// Pickle opcode: pushes `False`.
pub(crate) const NEWFALSE: u8 = 0x89;
/// Pickle opcode: pushes a signed integer of any length; its number of bytes precedes it in 1 byte.
pub(crate) const LONG1: u8 = 0x8a;
/// Pickle opcode: pushes a signed integer of any length; its number of bytes precedes it in 4
/// bytes.
pub(crate) const LONG4: u8 = 0x8b;
/// Pickle opcode: pushes a UTF-8 string; its length in bytes precedes it in 1 byte.
pub(crate) const SHORT_BINUNICODE: u8 = 0x8c;
/// Pickle opcode: pushes a UTF-8 string; its length in bytes precedes it in 8 bytes.
pub(crate) const BINUNICODE8: u8 = 0x8d;
/// Pickle opcode: pushes bytes; their number precedes them in 8 bytes.
pub(crate) const BINBYTES8: u8 = 0x8e;
/// Pickle opcode: pushes an empty set.
pub(crate) const EMPTY_SET: u8 = 0x8f;
/// Pickle opcode: removes the values above the last mark and adds them to the set below it.
pub(crate) const ADDITEMS: u8 = 0x90;
/// Pickle opcode: replaces the values above the last mark by a frozen set.
pub(crate) const FROZENSET: u8 = 0x91;
/// Pickle opcode: stores the top value in the memo slot after the last one.
pub(crate) const MEMOIZE: u8 = 0x94;
/// Pickle opcode: begins a part of the pickle that may be read at once; its length is in the next 8
/// bytes.
pub(crate) const FRAME: u8 = 0x95;
/// Pickle opcode: pushes a byte array; its length precedes it in 8 bytes.
pub(crate) const BYTEARRAY8: u8 = 0x96;

// Refused: these name a class, call a function, or refer to external objects.

/// Refused pickle opcode: pushes the class or function with the module and name that follow.
pub(crate) const GLOBAL: u8 = b'c';
/// Refused pickle opcode: creates an object of the class with the module and name that follow.
pub(crate) const INST: u8 = b'i';
/// Refused pickle opcode: creates an object of the class at the last mark.
pub(crate) const OBJ: u8 = b'o';
/// Refused pickle opcode: pushes an external object by the id that follows.
pub(crate) const PERSID: u8 = b'P';
/// Refused pickle opcode: pushes an external object by the id on top of the stack.
pub(crate) const BINPERSID: u8 = b'Q';
/// Refused pickle opcode: calls the function on the stack with a tuple of arguments.
pub(crate) const REDUCE: u8 = b'R';
/// Refused pickle opcode: sets the state of the object on the stack.
pub(crate) const BUILD: u8 = b'b';
/// Refused pickle opcode: creates an object with the `__new__` of a class.
pub(crate) const NEWOBJ: u8 = 0x81;
/// Refused pickle opcode: pushes the registered class whose number is the next byte.
pub(crate) const EXT1: u8 = 0x82;
/// Refused pickle opcode: pushes the registered class whose number is in the next 2 bytes.
pub(crate) const EXT2: u8 = 0x83;
/// Refused pickle opcode: pushes the registered class whose number is in the next 4 bytes.
pub(crate) const EXT4: u8 = 0x84;
/// Refused pickle opcode: creates an object with the `__new__` of a class and keyword arguments.
pub(crate) const NEWOBJ_EX: u8 = 0x92;
/// Refused pickle opcode: pushes the class or function whose module and name are on the stack.
pub(crate) const STACK_GLOBAL: u8 = 0x93;
/// Refused pickle opcode: pushes the next buffer that is stored outside of the pickle.
pub(crate) const NEXT_BUFFER: u8 = 0x97;
/// Refused pickle opcode: makes the buffer on top of the stack read-only.
pub(crate) const READONLY_BUFFER: u8 = 0x98;

/// Returns the effect of a refused pickle opcode, as the end of a sentence that begins with "it";
/// `None` for an unknown opcode.
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
