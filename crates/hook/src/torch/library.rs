//! Finds PyTorch's `libc10_cuda.so` in this process, and symbols in its file.
//!
//! The allocator's class is not exported, but PyTorch's wheels contain the full symbol table of the
//! library. It tells which class the allocator is, and which entry of its virtual function table is
//! the function that attaches a tracker.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Object as _, ObjectSymbol as _, elf};

/// Name of the library that contains the allocator.
const LIBRARY: &str = "libc10_cuda.so";
/// Maximum size of the library's file, in bytes. Those of the supported versions have 0.5 MB.
const MAX_BYTES: u64 = 256 << 20;

/// The mangled name of `c10::cuda::CUDACachingAllocator::allocator`, which every version exports.
const ALLOCATOR: &str = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";
/// The mangled name of the virtual function table of PyTorch's own allocator.
const NATIVE_TABLE: &str = "_ZTVN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE";

/// The library that contains PyTorch's caching allocator, as loaded in this process.
#[derive(Debug)]
pub(crate) struct Library {
    /// Address range at which the library's file is mapped.
    pub(crate) range: Range<usize>,
    /// Address of the variable that points to the current allocator.
    pub(crate) allocator: usize,
    /// Address of the virtual function table of PyTorch's own allocator, if the symbol table has
    /// it.
    pub(crate) native_table: Option<usize>,
    /// Address of the function that attaches a tracker, likewise.
    pub(crate) attach: Option<usize>,
}

impl Library {
    /// Finds the library in this process. `attach_symbol` is the mangled name of the function that
    /// attaches a tracker. Fails with the reason in words.
    pub(crate) fn find(attach_symbol: &str) -> Result<Self, String> {
        let maps =
            fs::read_to_string("/proc/self/maps").map_err(|error| format!("cannot read /proc/self/maps: {error}"))?;
        let (path, range) = mapped_range(&maps, LIBRARY).ok_or_else(|| format!("{LIBRARY} is not loaded"))?;
        let fail = |reason: String| format!("{}: {reason}", path.display());
        let file = File::open(&path).map_err(|error| fail(error.to_string()))?;
        let bytes = file.metadata().map_err(|error| fail(error.to_string()))?.len();
        if bytes > MAX_BYTES {
            return Err(fail(format!("it has {bytes} bytes, which PyTorch's library never has")));
        }
        // SAFETY: The file of a loaded library is not changed while the process runs; installers
        // replace it by another file.
        let data = unsafe { Mmap::map(&file) }.map_err(|error| fail(error.to_string()))?;
        let symbols = Symbols::read(&data, attach_symbol).map_err(fail)?;
        let at = |offset: u64| range.start.wrapping_add(offset as usize);
        let allocator = at(symbols.allocator.ok_or_else(|| fail(format!("it does not export {ALLOCATOR}")))?);
        let (native_table, attach) = (symbols.native_table.map(at), symbols.attach.map(at));
        Ok(Self { range: range.clone(), allocator, native_table, attach })
    }
}

/// Symbols of the library's file, as distances from its first mapped byte.
#[derive(Debug, Default)]
struct Symbols {
    allocator: Option<u64>,
    native_table: Option<u64>,
    attach: Option<u64>,
}

impl Symbols {
    fn read(data: &[u8], attach_symbol: &str) -> Result<Self, String> {
        let invalid = |error: object::Error| format!("it is not a valid library: {error}");
        let elf = ElfFile64::<object::Endianness>::parse(data).map_err(invalid)?;
        let endian = elf.endian();
        let headers = elf.elf_header().program_headers(endian, data).map_err(invalid)?;
        let loaded = headers.iter().filter(|header| header.p_type(endian) == elf::PT_LOAD);
        let first = loaded.map(|header| header.p_vaddr(endian)).min().ok_or("it has no loadable part")?;
        let mut symbols = Self::default();
        for symbol in elf.symbols().chain(elf.dynamic_symbols()).filter(|symbol| symbol.is_definition()) {
            let slot = match symbol.name() {
                Ok(name) if name == ALLOCATOR => &mut symbols.allocator,
                Ok(name) if name == NATIVE_TABLE => &mut symbols.native_table,
                Ok(name) if name == attach_symbol => &mut symbols.attach,
                _ => continue,
            };
            *slot = Some(symbol.address().wrapping_sub(first));
        }
        Ok(symbols)
    }
}

/// Returns the path of the library `name` and the address range of its mappings, from the text of
/// `/proc/self/maps`; `None` if it is not mapped.
fn mapped_range(maps: &str, name: &str) -> Option<(PathBuf, Range<usize>)> {
    let mut found: Option<(&str, Range<usize>)> = None;
    for line in maps.lines() {
        // Address range, permissions, offset, device, inode; the rest is the path.
        let Some((addresses, rest)) = line.split_once(' ') else { continue };
        let Some(start_of_path) = rest.find('/') else { continue };
        let path = &rest[start_of_path..];
        if Path::new(path).file_name().is_none_or(|file| file != name) {
            continue;
        }
        let Some((start, end)) = addresses.split_once('-') else { continue };
        let (Ok(start), Ok(end)) = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16)) else { continue };
        match &mut found {
            Some((known, range)) if *known == path => *range = range.start.min(start)..range.end.max(end),
            Some(_) => {}
            None => found = Some((path, start..end)),
        }
    }
    found.map(|(path, range)| (PathBuf::from(path), range))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_covers_all_mappings_of_the_library() {
        let maps = "\
7f00-7f10 r--p 00000000 08:01 77 /opt/a b/libc10_cuda.so
7f10-7f40 r-xp 00010000 08:01 77 /opt/a b/libc10_cuda.so
7f50-7f60 rw-p 00000000 00:00 0
7f60-7f70 r--p 00000000 08:01 78 /opt/libc10.so
";
        let expected = (PathBuf::from("/opt/a b/libc10_cuda.so"), 0x7f00..0x7f40);
        assert_eq!(mapped_range(maps, LIBRARY), Some(expected));
        assert_eq!(mapped_range(maps, "libtorch.so"), None);
        assert_eq!(mapped_range("garbage\n-\nx-y r /libc10_cuda.so\n", LIBRARY), None);
    }

    #[test]
    fn invalid_file_is_an_error() {
        for data in [&b""[..], b"\x7fELF", &[0; 100]] {
            assert!(Symbols::read(data, "f").is_err());
        }
    }
}
