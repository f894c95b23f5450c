//! Reads sections of the files of loaded libraries, for as long as the process runs.
//!
//! Tools that look for a library in `/proc/PID/maps` assume that its first mapping is where it is
//! loaded. So no file is mapped from its beginning: small sections are copied, and each large one
//! is mapped alone.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use memmap2::MmapOptions;
use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSection as _, ReadCache};

use crate::loader::ProgramHeader;

/// Minimum size of a section that is mapped, in bytes: 1 MiB. Smaller sections are copied.
const MIN_MAPPED_BYTES: u64 = 1 << 20;

/// A section of a library's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Section {
    /// Address in the file.
    pub(super) address: u64,
    pub(super) size: u64,
    /// Content of the section; empty if the file has none or it cannot be read.
    pub(super) bytes: &'static [u8],
}

/// Returns the sections of a library's file with these names; a missing section is empty. `None` if
/// the file cannot be read, or if its program headers differ from `loaded`, those of the loaded
/// library: an installer may have replaced the file.
pub(super) fn read_sections<const N: usize>(
    path: &Path,
    loaded: &[ProgramHeader],
    names: [&str; N],
) -> Option<[Section; N]> {
    let file = File::open(path).ok()?;
    let cache = ReadCache::new(&file);
    let elf = ElfFile64::<object::Endianness, _>::parse(&cache).ok()?;
    let endian = elf.endian();
    let read = |header: &object::elf::ProgramHeader64<object::Endianness>| ProgramHeader {
        kind: header.p_type.get(endian).0,
        flags: header.p_flags.get(endian).0,
        offset: header.p_offset.get(endian),
        address: header.p_vaddr.get(endian),
        physical_address: header.p_paddr.get(endian),
        file_bytes: header.p_filesz.get(endian),
        memory_bytes: header.p_memsz.get(endian),
        alignment: header.p_align.get(endian),
    };
    if !elf.elf_program_headers().iter().map(read).eq(loaded.iter().copied()) {
        return None;
    }
    Some(names.map(|name| {
        let Some(section) = elf.section_by_name(name) else { return Section::default() };
        let bytes = section.file_range().and_then(|(offset, len)| read_bytes(&file, offset, len));
        Section { address: section.address(), size: section.size(), bytes: bytes.unwrap_or_default() }
    }))
}

/// Returns `len` bytes at `offset` of a file, copied or mapped; `None` if they cannot be read.
fn read_bytes(file: &File, offset: u64, len: u64) -> Option<&'static [u8]> {
    // A part that begins in the file's first page would be mapped from the file's beginning.
    if len < MIN_MAPPED_BYTES || offset < MIN_MAPPED_BYTES {
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        file.read_exact_at(&mut bytes, offset).ok()?;
        return Some(bytes.leak());
    }
    // SAFETY: The file of a loaded library is not changed while the process runs; installers
    // replace it by another file.
    let map = unsafe { MmapOptions::new().offset(offset).len(usize::try_from(len).ok()?).map(file) }.ok()?;
    Some(&**Box::leak(Box::new(map)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::ops::ControlFlow;

    use super::*;
    use crate::loader::visit_libraries;

    #[test]
    fn sections_are_those_of_the_loaded_file() {
        let mut headers = Vec::new();
        visit_libraries(|library| {
            headers = library.program_headers;
            ControlFlow::Break(())
        });
        let program = Path::new("/proc/self/exe");
        let mappings = || {
            let maps = fs::read_to_string("/proc/self/maps").expect("the mappings can be read");
            let name = fs::read_link(program).expect("the program has a path");
            let from_beginning = |line: &&str| line.contains(" 00000000 ") && line.ends_with(&*name.to_string_lossy());
            maps.lines().filter(from_beginning).count()
        };
        let before = mappings();
        let [text, symbols, missing] =
            read_sections(program, &headers, [".text", ".symtab", ".missing"]).expect("the program was loaded");
        assert!(text.address > 0 && text.size > 0 && text.bytes.len() as u64 == text.size);
        assert!(symbols.bytes.len() % 24 == 0 && !symbols.bytes.is_empty());
        assert_eq!(missing, Section::default());
        assert_eq!(mappings(), before, "no file is mapped from its beginning");
        let first = fs::read(program).expect("the program can be read");
        assert!(first.windows(64).any(|window| window == &text.bytes[..64]));
    }

    #[test]
    fn another_file_is_not_used() {
        assert_eq!(read_sections(Path::new("/proc/self/exe"), &[], [".text"]), None);
        assert_eq!(read_sections(Path::new("/no/such/file"), &[], [".text"]), None);
    }
}
