//! The libraries that are loaded in this process, as the C library's loader lists them.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs::File;
use std::io;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;

use memmap2::Mmap;

/// glibc's description of a loaded library (`struct dl_phdr_info` in `link.h`).
#[repr(C)]
struct LibraryInfo {
    address: usize,
    name: *const c_char,
    program_headers: *const ProgramHeader,
    program_header_count: u16,
    loaded: u64,
    unloaded: u64,
    /// Number of the library among those with thread-local variables.
    tls_module: usize,
    tls_data: *const c_void,
}

/// A program header of a 64-bit ELF file (`elf.h`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProgramHeader {
    pub(crate) kind: u32,
    pub(crate) flags: u32,
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) physical_address: u64,
    pub(crate) file_bytes: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) alignment: u64,
}

/// `PT_LOAD`: a part of the file that is loaded.
const LOAD: u32 = 1;
/// `PF_X`: the part contains code.
const EXECUTABLE: u32 = 1;

// SAFETY: Declared as in glibc's `link.h`.
unsafe extern "C" {
    fn dl_iterate_phdr(
        callback: unsafe extern "C" fn(*const LibraryInfo, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
}

/// A loaded library, or the program itself.
#[derive(Clone, Debug)]
pub(crate) struct LoadedLibrary {
    /// Path of the file; empty for the program itself.
    pub(crate) path: PathBuf,
    /// Load address: the difference between addresses in memory and in the file.
    pub(crate) base: u64,
    pub(crate) program_headers: Vec<ProgramHeader>,
    /// Number of the library among those with thread-local variables; 0 if it has none.
    pub(crate) tls_module: usize,
    /// Number of times that a library was loaded or unloaded in this process so far.
    pub(crate) changes: u64,
}

impl LoadedLibrary {
    /// Returns the flags and the range of addresses of each part that is loaded.
    fn loaded_parts(&self) -> impl Iterator<Item = (u32, Range<u64>)> {
        self.program_headers.iter().filter(|header| header.kind == LOAD).map(|header| {
            let start = self.base.wrapping_add(header.address);
            (header.flags, start..start.saturating_add(header.memory_bytes))
        })
    }

    /// Returns the ranges of addresses that contain code.
    pub(crate) fn code(&self) -> impl Iterator<Item = Range<u64>> {
        self.loaded_parts().filter(|(flags, _)| flags & EXECUTABLE != 0).map(|(_, range)| range)
    }

    /// Returns the address range from the start of the first loaded part to the end of the last;
    /// `None` if no part is loaded.
    pub(crate) fn range(&self) -> Option<Range<u64>> {
        let start = self.loaded_parts().map(|(_, range)| range.start).min()?;
        let end = self.loaded_parts().map(|(_, range)| range.end).max()?;
        Some(start..end)
    }
}

/// Calls `visit` for each loaded library until it breaks; the program is the first one.
pub(crate) fn visit_libraries(mut visit: impl FnMut(LoadedLibrary) -> ControlFlow<()>) {
    /// The data that `dl_iterate_phdr` passes to its callback.
    struct Visitor<'a>(&'a mut dyn FnMut(LoadedLibrary) -> ControlFlow<()>);

    // SAFETY: Only the C library calls it, with a description and the pointer passed below.
    unsafe extern "C" fn on_library(info: *const LibraryInfo, size: usize, data: *mut c_void) -> c_int {
        if size < size_of::<LibraryInfo>() {
            return 0;
        }
        // SAFETY: The C library passes a description of at least this size, and the pointer that
        // was passed to `dl_iterate_phdr`.
        let (info, visitor) = unsafe { (&*info, &mut *data.cast::<Visitor<'_>>()) };
        let path = match info.name.is_null() {
            true => PathBuf::new(),
            // SAFETY: The name is a string with a zero byte at its end.
            false => PathBuf::from(&*unsafe { CStr::from_ptr(info.name) }.to_string_lossy()),
        };
        let program_headers = match info.program_headers.is_null() {
            true => Vec::new(),
            false => {
                let count = info.program_header_count.into();
                // SAFETY: The library is loaded with this number of program headers.
                unsafe { std::slice::from_raw_parts(info.program_headers, count) }.to_vec()
            }
        };
        let library = LoadedLibrary {
            path,
            base: info.address as u64,
            program_headers,
            tls_module: info.tls_module,
            changes: info.loaded.wrapping_add(info.unloaded),
        };
        c_int::from((visitor.0)(library).is_break())
    }
    let mut visitor = Visitor(&mut visit);
    // SAFETY: The callback receives the address of `visitor`, which outlives the call.
    unsafe { dl_iterate_phdr(on_library, (&raw mut visitor).cast()) };
}

/// Returns the first loaded library for which `matches` is true.
pub(crate) fn find_library(matches: impl Fn(&LoadedLibrary) -> bool) -> Option<LoadedLibrary> {
    let mut found = None;
    visit_libraries(|library| {
        if !matches(&library) {
            return ControlFlow::Continue(());
        }
        found = Some(library);
        ControlFlow::Break(())
    });
    found
}

/// Maps the file of a loaded library.
pub(crate) fn map_file(file: &File) -> io::Result<Mmap> {
    // SAFETY: The file of a loaded library is not changed while the process runs; installers
    // replace it by another file.
    unsafe { Mmap::map(file) }
}

/// Returns a number that changes whenever a library is loaded or unloaded.
pub(crate) fn change_count() -> u64 {
    find_library(|_| true).map_or(0, |program| program.changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_and_libraries_are_listed_with_their_code() {
        let mut libraries = Vec::new();
        visit_libraries(|library| {
            libraries.push(library);
            ControlFlow::Continue(())
        });
        assert!(libraries.len() > 1, "{libraries:?}");
        let here = change_count as *const () as u64;
        assert!(libraries[0].code().any(|range| range.contains(&here)), "the program has this function");
        assert!(libraries.iter().all(|library| library.changes == change_count()));
    }
}
