//! Distinguishes code objects that have one address at different times.

use super::layout::{BYTES_DATA, HASH, Layout, OBJECT_SIZE, TEXT_LENGTH, TEXT_STATE};
use super::memory::Memory;
use crate::hash::mix;

/// Returns a number that distinguishes a code object from those that have its address at other
/// times.
///
/// From CPython 3.12 on, it is the number of the code object, which is never used again; 0 for all
/// code objects once the 32-bit numbers are used up. Earlier versions do not number code objects:
/// there, it depends on the name, the first line, and the length and the last 16 bytes of the file
/// name and of the line table. Reading the whole texts and tables would take several times as long
/// as the walk.
///
/// # Errors
///
/// A read of `memory` failed.
///
/// # Safety
///
/// With [`DirectMemory`](super::DirectMemory): `code` is the address of a live code object with this
/// layout.
#[inline(always)]
pub(super) unsafe fn code_identity<M: Memory>(layout: &Layout, memory: &M, code: usize) -> Result<u64, M::Error> {
    // SAFETY: The caller guarantees a code object with this layout.
    unsafe {
        match layout.code_version {
            Some(offset) => Ok(u64::from(memory.read_int(code, offset)? as u32)),
            None => code_digest(layout, memory, code),
        }
    }
}

/// Returns a hash of a code object's name, first line, file name and line table, of which long ones
/// are read only in part.
///
/// # Errors
///
/// A read of `memory` failed.
///
/// # Safety
///
/// As for [`code_identity`].
#[inline(always)]
unsafe fn code_digest<M: Memory>(layout: &Layout, memory: &M, code: usize) -> Result<u64, M::Error> {
    // SAFETY: The caller guarantees a code object with this layout, which has references to its
    // names and its table, so those are live objects of the expected types. A compact `str` has at
    // least one byte a character behind its header, and headers are longer than two words.
    unsafe {
        let file_name = memory.read_word(code, layout.code_file_name)?;
        let name = memory.read_word(code, layout.code_qualified_name.unwrap_or(layout.code_name))?;
        let line_table = memory.read_word(code, layout.code_line_table)?;
        if file_name == 0 || name == 0 || line_table == 0 {
            return Ok(0);
        }
        let length = memory.read_word(file_name, TEXT_LENGTH)?;
        let is_compact = memory.read_int(file_name, TEXT_STATE)? & 1 << 5 != 0;
        let end = file_name.wrapping_add(layout.text_ascii_data).wrapping_add(if is_compact { length } else { 0 });
        // Names are interned, so they have a hash; file names have one if a dictionary has them.
        let hashes = memory.read_word(file_name, HASH)? ^ memory.read_word(name, HASH)?.rotate_left(21);
        let file = mix(last_two_words(memory, end)?, length as u64);
        let length = memory.read_word(line_table, OBJECT_SIZE)?;
        let lines = last_two_words(memory, line_table.wrapping_add(BYTES_DATA).wrapping_add(length))?;
        let first_line = memory.read_int(code, layout.code_first_line)? as u32;
        Ok(hashes as u64 ^ file ^ mix(lines, (length as u64) << 32 | u64::from(first_line)))
    }
}

/// Returns a hash of the two words before an address.
///
/// # Errors
///
/// A read of `memory` failed.
///
/// # Safety
///
/// With [`DirectMemory`](super::DirectMemory), the words are readable.
#[inline(always)]
unsafe fn last_two_words<M: Memory>(memory: &M, end: usize) -> Result<u64, M::Error> {
    let start = end.wrapping_sub(16);
    // SAFETY: The caller guarantees that the words are readable.
    let words = unsafe { (memory.read_word(start, 0)?, memory.read_word(start, 8)?) };
    Ok(mix(words.0 as u64, words.1 as u64))
}
