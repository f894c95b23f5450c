//! Reads the facts of a code object: file name, function name, first line and line table.

use super::frames::FrameWalker;
use super::layout::{BYTES_DATA, LOCAL_KIND_CELL, Layout, OBJECT_SIZE, TEXT_LENGTH, TEXT_STATE};
use super::line_table::LineTable;
use super::memory::Memory;

/// Most bytes of UTF-8 that are read of a file name or a function name.
pub(crate) const MAX_TEXT_BYTES: usize = 1024;

/// Most bytes that are read of a line table. Instructions past the cut have no line number.
pub(crate) const MAX_LINE_TABLE_BYTES: usize = 64 << 10;

/// Size of a buffer for the facts of any code object, in bytes.
pub(crate) const CODE_BUFFER_BYTES: usize = 2 * MAX_TEXT_BYTES + MAX_LINE_TABLE_BYTES;

/// Number of bytes of a string that are read at a time.
const TEXT_CHUNK_BYTES: usize = 256;

/// The facts of a code object, which never change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodeFacts<'b> {
    /// File name (`co_filename`), cut at [`MAX_TEXT_BYTES`].
    pub(crate) file_name: &'b str,
    /// Qualified name (`co_qualname`), cut at [`MAX_TEXT_BYTES`]; in 3.10 the name (`co_name`).
    pub(crate) name: &'b str,
    /// Line of the definition (`co_firstlineno`).
    pub(crate) first_line: i32,
    /// Number of positional parameters (`co_argcount`), `self` included.
    pub(crate) argument_count: i32,
    /// True if the first local variable is stored in a cell, because an inner function uses it.
    pub(crate) first_local_is_cell: bool,
    /// Line numbers of the instructions, cut at [`MAX_LINE_TABLE_BYTES`].
    pub(crate) line_table: LineTable<'b>,
}

/// Reads a code object's facts into `buffer`, without allocating.
///
/// Names and line table are cut at the end of the buffer; a buffer of [`CODE_BUFFER_BYTES`] is
/// always large enough. Unpaired surrogates become U+FFFD.
///
/// # Errors
///
/// A read of `memory` failed.
///
/// # Safety
///
/// With [`DirectMemory`](super::DirectMemory): `code` is the address of a live code object of the
/// walker's interpreter, such as that of a frame of the current thread during
/// [`FrameWalker::walk`].
pub(crate) unsafe fn read_code<'b, M: Memory>(
    walker: &FrameWalker,
    memory: &M,
    code: usize,
    buffer: &'b mut [u8],
) -> Result<CodeFacts<'b>, M::Error> {
    let layout = walker.layout();
    // SAFETY: The caller guarantees a code object with this layout. It never changes and has
    // references to its names and tables, so those are live objects of the expected types.
    unsafe {
        let file_object = memory.read_word(code, layout.code_file_name)?;
        let name_object = memory.read_word(code, layout.code_qualified_name.unwrap_or(layout.code_name))?;
        let table_object = memory.read_word(code, layout.code_line_table)?;
        let first_line = memory.read_int(code, layout.code_first_line)?;
        let (file_name, buffer) = read_text(layout, memory, file_object, buffer)?;
        let (name, buffer) = read_text(layout, memory, name_object, buffer)?;
        let table = read_byte_string(memory, table_object, buffer)?;
        Ok(CodeFacts {
            file_name,
            name,
            first_line,
            argument_count: memory.read_int(code, layout.code_argument_count)?,
            first_local_is_cell: match layout.code_local_kinds {
                Some(offset) => first_local_is_cell(memory, memory.read_word(code, offset)?)?,
                None => false,
            },
            line_table: LineTable::new(layout.line_table_format, first_line, table),
        })
    }
}

/// Returns true if the first byte of `co_localspluskinds` has the bit for a cell.
///
/// # Errors
///
/// A read of `memory` failed.
///
/// # Safety
///
/// With [`DirectMemory`](super::DirectMemory), `kinds` is null or a live `bytes`.
unsafe fn first_local_is_cell<M: Memory>(memory: &M, kinds: usize) -> Result<bool, M::Error> {
    let mut first = [0; 1];
    // SAFETY: The caller guarantees null or a live `bytes`.
    let read = unsafe { read_byte_string(memory, kinds, &mut first)? };
    Ok(read.first().is_some_and(|kind| kind & LOCAL_KIND_CELL != 0))
}

/// Reads a `bytes` object, cut at the buffer's end and at [`MAX_LINE_TABLE_BYTES`]. Null is empty.
///
/// # Errors
///
/// A read of `memory` failed.
///
/// # Safety
///
/// With [`DirectMemory`](super::DirectMemory), `object` is null or a live `bytes`.
unsafe fn read_byte_string<'b, M: Memory>(
    memory: &M,
    object: usize,
    buffer: &'b mut [u8],
) -> Result<&'b [u8], M::Error> {
    if object == 0 {
        return Ok(&[]);
    }
    // SAFETY: The caller guarantees a live `bytes`.
    let length = unsafe { memory.read_word(object, OBJECT_SIZE)? };
    let length = length.min(buffer.len()).min(MAX_LINE_TABLE_BYTES);
    let target = &mut buffer[..length];
    // SAFETY: The object's bytes follow its header; `length` is at most their number.
    unsafe { memory.read_bytes(object.wrapping_add(BYTES_DATA), target)? };
    Ok(target)
}

/// Reads a `str` object as UTF-8, cut at the buffer's end and at [`MAX_TEXT_BYTES`]. Returns the
/// text and the rest of the buffer. Null is empty.
///
/// # Errors
///
/// A read of `memory` failed.
///
/// # Safety
///
/// With [`DirectMemory`](super::DirectMemory), `object` is null or a live `str`.
unsafe fn read_text<'b, M: Memory>(
    layout: &Layout,
    memory: &M,
    object: usize,
    buffer: &'b mut [u8],
) -> Result<(&'b str, &'b mut [u8]), M::Error> {
    let limit = buffer.len().min(MAX_TEXT_BYTES);
    // SAFETY: The caller guarantees null or a live `str`.
    let used = unsafe { decode_text(layout, memory, object, &mut buffer[..limit])? };
    let (text, rest) = buffer.split_at_mut(used);
    Ok((str::from_utf8(text).unwrap_or_default(), rest))
}

/// Writes a `str` object to `target` as UTF-8, as many whole characters as fit. Returns the number
/// of bytes written.
///
/// # Errors
///
/// A read of `memory` failed.
///
/// # Safety
///
/// With [`DirectMemory`](super::DirectMemory), `object` is null or a live `str`.
unsafe fn decode_text<M: Memory>(
    layout: &Layout,
    memory: &M,
    object: usize,
    target: &mut [u8],
) -> Result<usize, M::Error> {
    if object == 0 {
        return Ok(0);
    }
    // SAFETY: The caller guarantees a live `str`.
    let (length, state) =
        unsafe { (memory.read_word(object, TEXT_LENGTH)?, memory.read_int(object, TEXT_STATE)? as u32) };
    let (character_bytes, is_compact, is_ascii) =
        ((state >> 2 & 0b111) as usize, state & 1 << 5 != 0, state & 1 << 6 != 0);
    if !matches!(character_bytes, 1 | 2 | 4) {
        return Ok(0);
    }
    let mut address = match (is_compact, is_ascii) {
        (true, true) => object.wrapping_add(layout.text_ascii_data),
        (true, false) => object.wrapping_add(layout.text_compact_data),
        // SAFETY: A `str` that is not compact has the fields of `PyUnicodeObject`.
        (false, _) => unsafe { memory.read_word(object, layout.text_data_pointer)? },
    };
    if address == 0 {
        return Ok(0);
    }
    // A character takes at least one byte of UTF-8, so no more than this can fit.
    let mut remaining = length.min(target.len()) * character_bytes;
    let mut used = 0;
    let mut chunk = [0; TEXT_CHUNK_BYTES];
    while remaining > 0 {
        let chunk = &mut chunk[..remaining.min(TEXT_CHUNK_BYTES)];
        // SAFETY: The string has `length` characters of `character_bytes` at its data address, and
        // `remaining` counts those that are not read yet.
        unsafe { memory.read_bytes(address, chunk)? };
        for bytes in chunk.chunks_exact(character_bytes) {
            let value = bytes.iter().rev().fold(0_u32, |value, byte| value << 8 | u32::from(*byte));
            let character = char::from_u32(value).unwrap_or(char::REPLACEMENT_CHARACTER);
            if used + character.len_utf8() > target.len() {
                return Ok(used);
            }
            used += character.encode_utf8(&mut target[used..]).len();
        }
        address = address.wrapping_add(chunk.len());
        remaining -= chunk.len();
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::super::fake_interpreter::{FakeInterpreter, TextKind};
    use super::super::layout::LAYOUTS;
    use super::super::memory::DirectMemory;
    use super::*;

    /// Reads a string object with a buffer of a given size.
    fn text_in(layout: &Layout, object: usize, size: usize) -> String {
        let mut buffer = vec![0; size];
        // SAFETY: The object is a string of the fake interpreter with this layout.
        let Ok((text, _)) = unsafe { read_text(layout, &DirectMemory, object, &mut buffer) };
        text.into()
    }

    #[test]
    fn strings_of_every_kind_become_utf8() {
        for layout in &LAYOUTS {
            let mut interpreter = FakeInterpreter::new(layout);
            for (text, kind) in [
                ("train.py", TextKind::Ascii),
                ("", TextKind::Ascii),
                ("été.py", TextKind::Compact(1)),
                ("日本.py", TextKind::Compact(2)),
                ("😀.py", TextKind::Compact(4)),
                ("été.py", TextKind::Pointer(1)),
                ("日本.py", TextKind::Pointer(2)),
                ("😀.py", TextKind::Pointer(4)),
            ] {
                let characters: Vec<_> = text.chars().map(u32::from).collect();
                let object = interpreter.text(&characters, kind);
                assert_eq!(text_in(layout, object, 64), text, "{kind:?}");
            }
        }
    }

    #[test]
    fn long_strings_are_cut_between_characters() {
        let layout = &LAYOUTS[4];
        let mut interpreter = FakeInterpreter::new(layout);
        let long = interpreter.text(&[u32::from('a'); 3000], TextKind::Ascii);
        assert_eq!(text_in(layout, long, CODE_BUFFER_BYTES), "a".repeat(MAX_TEXT_BYTES));
        let wide = interpreter.text(&[u32::from('日'); 3000], TextKind::Compact(2));
        assert_eq!(text_in(layout, wide, CODE_BUFFER_BYTES), "日".repeat(MAX_TEXT_BYTES / 3));
        assert_eq!(text_in(layout, wide, 5), "日");
        assert_eq!(text_in(layout, wide, 0), "");
    }

    #[test]
    fn malformed_strings_are_readable() {
        let layout = &LAYOUTS[2];
        let mut interpreter = FakeInterpreter::new(layout);
        let surrogate = interpreter.text(&[0x78, 0xdc80, 0x79], TextKind::Compact(2));
        assert_eq!(text_in(layout, surrogate, 64), "x\u{fffd}y");
        let beyond = interpreter.text(&[0x11_0000], TextKind::Compact(4));
        assert_eq!(text_in(layout, beyond, 64), "\u{fffd}");
        let unknown_kind = interpreter.text(&[0x78], TextKind::Compact(1));
        interpreter.write_int(unknown_kind, TEXT_STATE, 3 << 2 | 1 << 5);
        assert_eq!(text_in(layout, unknown_kind, 64), "");
        assert_eq!(text_in(layout, 0, 64), "");
    }

    #[test]
    fn code_facts_are_read() {
        for layout in &LAYOUTS {
            let mut interpreter = FakeInterpreter::new(layout);
            let table = vec![0x2a; MAX_LINE_TABLE_BYTES + 9];
            let code = interpreter.code("/srv/train.py", "Model.forward", 42, &table);
            let walker = interpreter.walker();
            let mut buffer = vec![0; CODE_BUFFER_BYTES];
            // SAFETY: `code` is a code object of the fake interpreter.
            let Ok(facts) = unsafe { read_code(&walker, &DirectMemory, code, &mut buffer) };
            assert_eq!((facts.file_name, facts.name), ("/srv/train.py", "Model.forward"));
            assert_eq!((facts.first_line, facts.argument_count), (42, 1));
            assert_eq!(facts.line_table.len(), MAX_LINE_TABLE_BYTES);
            assert!(!facts.first_local_is_cell);
        }
    }

    #[test]
    fn first_local_in_a_cell_is_known() {
        for layout in &LAYOUTS {
            let Some(offset) = layout.code_local_kinds else { continue };
            for (kinds, expected) in [(&[0x60, 0x20][..], true), (&[0x20, 0x60], false), (&[], false)] {
                let mut interpreter = FakeInterpreter::new(layout);
                let code = interpreter.code("a.py", "f", 1, &[]);
                let kinds = interpreter.byte_string(kinds);
                interpreter.write_word(code, offset, kinds);
                let mut buffer = [0; 64];
                // SAFETY: `code` is a code object of the fake interpreter.
                let Ok(facts) = unsafe { read_code(&interpreter.walker(), &DirectMemory, code, &mut buffer) };
                assert_eq!(facts.first_local_is_cell, expected);
            }
        }
    }
}
