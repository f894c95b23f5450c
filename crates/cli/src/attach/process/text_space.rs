//! Finds unused bytes for a text in a process, without allocating memory there.
//!
//! The variables of a loaded file end within a page of memory. The rest of the page is mapped, zero
//! and unused. The text is written there, and stays until a later command overwrites it. Only files
//! that are never unloaded are used: the interpreter and the C library.

use super::image::{PAGE_BYTES, is_python_file, loaded_files};
use super::stop::{Attempt, StopError};
use super::target::{Mapping, TargetProcess};
use crate::error::CommandError;

/// Bytes between the end of a file's variables and the first text, and alignment of the first text.
const MARGIN_BYTES: u64 = 16;
/// Distance between texts, in bytes.
pub(super) const SLOT_BYTES: usize = 512;
/// Number of first bytes that all texts have in common.
const COMMON_BYTES: usize = 16;

/// Names of the C library's files that no program unloads.
const C_LIBRARIES: [&str; 3] = ["libc.so.6", "libm.so.6", "libpthread.so.0"];

/// Returns the address and the number of the bytes to which `text` can be written, at least one
/// more than its length. The bytes may have the text of an earlier command. `queued` are the
/// addresses of texts that the process still has to run. The process must be stopped.
pub(super) fn find_space(
    process: &TargetProcess,
    mappings: &[Mapping],
    text: &str,
    queued: &[u64],
) -> Attempt<(u64, usize)> {
    let files = loaded_files(mappings, |name| is_python_file(name) || C_LIBRARIES.contains(&name));
    for end in files.iter().filter_map(|file| file.end_of_variables()) {
        let page_end = end.next_multiple_of(PAGE_BYTES);
        if is_unused(mappings, end, page_end) {
            let bytes = process.read(end, (page_end - end) as usize)?;
            if let Some((offset, len)) = find_slot(&bytes, end, text, queued) {
                return Ok((end + offset as u64, len));
            }
        }
    }
    let message = format!(
        "process {} has no unused memory for the {} bytes that start the recording: \
         start the program with vramscope run",
        process.pid(),
        text.len()
    );
    // A slot of a queued text becomes free after the text has run.
    Err(if queued.is_empty() { CommandError::new(message).into() } else { StopError::Busy(message) })
}

/// Returns the offset in `bytes` of a slot for `text`, and its length; `bytes` are at `address`. A
/// slot can be used if it is zero, or if it has a text of an earlier command that is not queued.
fn find_slot(bytes: &[u8], address: u64, text: &str, queued: &[u64]) -> Option<(usize, usize)> {
    let start = (address.next_multiple_of(MARGIN_BYTES) + MARGIN_BYTES - address) as usize;
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    if !bytes.get(..start).is_some_and(is_zero) {
        return None;
    }
    let prefix = &text.as_bytes()[..text.len().min(COMMON_BYTES)];
    let is_usable = |slot: &[u8]| {
        let used = slot.iter().position(|byte| *byte == 0).unwrap_or(slot.len());
        is_zero(&slot[used..]) && (used == 0 || slot.starts_with(prefix))
    };
    let slots: Vec<&[u8]> = bytes[start..].chunks(SLOT_BYTES).collect();
    // Other bytes than texts have an unknown owner, which may also use the zeros around them.
    if !slots.iter().all(|slot| is_usable(slot)) {
        return None;
    }
    let mut offsets = slots.iter().enumerate().map(|(index, slot)| (start + index * SLOT_BYTES, slot.len()));
    offsets.find(|(offset, len)| text.len() < *len && !queued.contains(&(address + *offset as u64)))
}

/// Returns true if the range is mapped writable, and the heap does not begin at its end. Linux
/// starts the heap of an executable there if addresses are not randomized, and older kernels
/// before it.
fn is_unused(mappings: &[Mapping], start: u64, end: u64) -> bool {
    let contains = |mapping: &&Mapping| mapping.start <= start && end <= mapping.end;
    let is_heap = |mapping: &Mapping| mapping.path.as_os_str() == "[heap]";
    let Some(mapping) = mappings.iter().find(contains) else { return false };
    let touches_heap = mappings.iter().any(|other| is_heap(other) && (other.start..=other.end).contains(&end));
    start < end && mapping.is_writable && !is_heap(mapping) && !touches_heap
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "try:exec(\"import _thread\")";

    #[test]
    fn texts_go_to_unused_slots_only() {
        let address = 0x7008;
        let check = |bytes: &[u8], queued: &[u64], expected| {
            let found = find_slot(bytes, address, TEXT, queued);
            assert_eq!(found.map(|(offset, _)| offset), expected, "{queued:x?}");
        };
        let zero = [0; 1400];
        check(&zero, &[], Some(24));
        check(&zero[..24 + TEXT.len() + 1], &[], Some(24));
        check(&zero[..24 + TEXT.len()], &[], None);
        check(&zero[..10], &[], None);
        let mut with_text = zero;
        with_text[24..24 + TEXT.len()].copy_from_slice(TEXT.as_bytes());
        check(&with_text, &[], Some(24));
        check(&with_text, &[0x7020], Some(24 + 512));
        check(&with_text, &[0x7020, 0x7220], Some(24 + 1024));
        check(&with_text, &[0x7020, 0x7220, 0x7420], None);
        for index in [3, 30, 800, 1399] {
            let mut with_other = zero;
            with_other[index] = 1;
            check(&with_other, &[], None);
        }
    }

    #[test]
    fn range_before_the_heap_is_not_used() {
        let mapping = |start, end, is_writable, path: &str| Mapping {
            start,
            end,
            is_writable,
            is_executable: false,
            offset: 0,
            path: path.into(),
        };
        let check = |mappings: &[Mapping], expected| assert_eq!(is_unused(mappings, 0x1800, 0x2000), expected);
        check(&[mapping(0x1000, 0x2000, true, "/usr/bin/python3.12")], true);
        check(&[mapping(0x1000, 0x2000, false, "/usr/bin/python3.12")], false);
        check(&[mapping(0x1000, 0x2000, true, ""), mapping(0x2000, 0x9000, true, "[heap]")], false);
        check(&[mapping(0x1000, 0x2000, true, ""), mapping(0x8000, 0x9000, true, "[heap]")], true);
        check(&[mapping(0x1000, 0x9000, true, "[heap]")], false);
        check(&[], false);
    }
}
