//! Finds PyTorch's `libc10_cuda.so` in this process, and symbols in its file.
//!
//! The allocator's class is not exported, but PyTorch's wheels contain the full symbol table of the
//! library. It tells which class the allocator is, and which entry of its virtual function table is
//! the function that attaches a tracker.

use std::fs::File;
use std::ops::Range;

use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSymbol as _};

use crate::loader::{LoadedLibrary, find_library, map_file};

/// Name of the library that contains the allocator.
const LIBRARY: &str = "libc10_cuda.so";
/// Maximum size of the library's file, in bytes; a larger file is an error. The files of supported
/// versions have 0.5 MB.
const MAX_BYTES: u64 = 256 << 20;

/// The mangled name of `c10::cuda::CUDACachingAllocator::allocator`, which every version exports.
const ALLOCATOR: &str = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";
/// The mangled name of the virtual function table of PyTorch's own allocator.
const NATIVE_TABLE: &str = "_ZTVN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE";

/// The library that contains PyTorch's caching allocator, as loaded in this process.
#[derive(Debug)]
pub(crate) struct Library {
    /// Address range at which the library is loaded.
    pub(crate) range: Range<usize>,
    /// Address of the variable that points to the current allocator.
    pub(crate) allocator: usize,
    /// Address of the virtual function table of PyTorch's own allocator, if the symbol table has
    /// it.
    pub(crate) native_table: Option<usize>,
    /// Address of the function that attaches a tracker, if the symbol table has it.
    pub(crate) attach: Option<usize>,
}

impl Library {
    /// Finds the library in this process. `attach_symbol` is the mangled name of the function that
    /// attaches a tracker. Fails with the reason in words.
    pub(crate) fn find(attach_symbol: &str) -> Result<Self, String> {
        let library = loaded_library(LIBRARY).ok_or_else(|| format!("{LIBRARY} is not loaded"))?;
        let fail = |reason: String| format!("{}: {reason}", library.path.display());
        let range = library.range().ok_or_else(|| fail("it has no loadable part".to_owned()))?;
        let file = File::open(&library.path).map_err(|error| fail(error.to_string()))?;
        let bytes = file.metadata().map_err(|error| fail(error.to_string()))?.len();
        if bytes > MAX_BYTES {
            return Err(fail(format!("it has {bytes} bytes, which PyTorch's library never has")));
        }
        let data = map_file(&file).map_err(|error| fail(error.to_string()))?;
        let symbols = Symbols::read(&data, attach_symbol).map_err(fail)?;
        let at = |address: u64| library.base.wrapping_add(address) as usize;
        let allocator = at(symbols.allocator.ok_or_else(|| fail(format!("it does not export {ALLOCATOR}")))?);
        let (native_table, attach) = (symbols.native_table.map(at), symbols.attach.map(at));
        let range = range.start as usize..range.end as usize;
        Ok(Self { range, allocator, native_table, attach })
    }
}

/// Addresses of symbols in the library's file.
#[derive(Debug, Default)]
struct Symbols {
    allocator: Option<u64>,
    native_table: Option<u64>,
    attach: Option<u64>,
}

impl Symbols {
    /// Finds the symbols in the bytes of the library's file. Fails if the file is invalid.
    fn read(data: &[u8], attach_symbol: &str) -> Result<Self, String> {
        let invalid = |error: object::Error| format!("it is not a valid library: {error}");
        let elf = ElfFile64::<object::Endianness>::parse(data).map_err(invalid)?;
        let mut symbols = Self::default();
        for symbol in elf.symbols().chain(elf.dynamic_symbols()).filter(|symbol| symbol.is_definition()) {
            let slot = match symbol.name() {
                Ok(name) if name == ALLOCATOR => &mut symbols.allocator,
                Ok(name) if name == NATIVE_TABLE => &mut symbols.native_table,
                Ok(name) if name == attach_symbol => &mut symbols.attach,
                _ => continue,
            };
            *slot = Some(symbol.address());
        }
        Ok(symbols)
    }
}

/// Returns the loaded library with a file name; `None` if no such library is loaded.
fn loaded_library(name: &str) -> Option<LoadedLibrary> {
    find_library(|library| library.path.file_name().is_some_and(|file| file == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_by_their_file_name() {
        let library = loaded_library("libc.so.6").expect("the C library is loaded");
        let range = library.range().expect("it has code");
        assert!(range.contains(&(dlsym_address() as u64)));
        assert!(loaded_library("libtorch.so").is_none() && loaded_library("").is_none());
    }

    /// Returns the address of a function of the C library.
    fn dlsym_address() -> usize {
        // SAFETY: Declared as in C.
        unsafe extern "C" {
            fn getpid() -> i32;
        }
        getpid as *const () as usize
    }

    #[test]
    fn invalid_file_is_an_error() {
        for data in [&b""[..], b"\x7fELF", &[0; 100]] {
            assert!(Symbols::read(data, "f").is_err());
        }
    }
}
