//! The names of the functions at addresses of code, from the symbol tables of the libraries.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::Arc;

use cpp_demangle::Symbol;

use super::code_map::{CodeKind, LibraryFile, find_library};
use crate::record::MAX_TEXT_BYTES;

/// Prefixes of the mangled names of the allocator's own functions, through which it calls the
/// tracker. They are the innermost frames of every C++ stack and are not shown.
const ALLOCATOR_FUNCTIONS: [&str; 5] = [
    "c10::cuda::CUDACachingAllocator::",
    "c10::CachingDeviceAllocator::",
    "std::_Function_handler<",
    "std::function<",
    "std::__invoke",
];

/// The function at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// The demangled name; if it is unknown, the library's name and the address in the library.
    pub(crate) name: Arc<str>,
    /// True if the function belongs to this library or to the allocator.
    pub(crate) is_allocator: bool,
}

/// A cache of functions by address. The tracker must not use it, because it reads files and
/// allocates memory.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    functions: HashMap<u64, Function>,
    /// The symbol tables of libraries, by the address of their [`LibraryFile`].
    tables: HashMap<usize, SymbolTable>,
}

/// The functions in the symbol table of one library, sorted by address.
#[derive(Debug, Default)]
struct SymbolTable {
    functions: Vec<FunctionSymbol>,
    /// The names, each with a zero byte at its end.
    names: &'static [u8],
}

/// A function in a symbol table: address, size and position of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FunctionSymbol {
    /// Address in the file.
    address: u64,
    /// Bytes of code; 0 if unknown.
    size: u64,
    /// Byte offset of the name in [`SymbolTable::names`].
    name: u32,
}

/// Size of an entry of a 64-bit ELF file's symbol table, in bytes.
const SYMBOL_BYTES: usize = 24;

impl Symbols {
    /// Returns the function whose code contains `address`. A function without a symbol gets a name
    /// with its library and address.
    pub(crate) fn function(&mut self, address: u64) -> Function {
        if let Some(known) = self.functions.get(&address) {
            return known.clone();
        }
        let function = self.find(address);
        self.functions.insert(address, function.clone());
        function
    }

    /// Looks up the function at `address` in the symbol table of its library.
    fn find(&mut self, address: u64) -> Function {
        let Some(library) = find_library(address) else {
            return Function { name: Arc::from("??"), is_allocator: false };
        };
        let offset = address.wrapping_sub(library.base);
        let key = std::ptr::from_ref(library).addr();
        let table = self.tables.entry(key).or_insert_with(|| {
            let [symbols, names] = library.symbols();
            SymbolTable::read(symbols, names)
        });
        let name = table.name(offset).map_or_else(|| unknown_name(library, offset), demangle);
        let is_allocator =
            library.kind == CodeKind::Own || ALLOCATOR_FUNCTIONS.iter().any(|start| name.starts_with(start));
        Function { name: Arc::from(shorten(&name)), is_allocator }
    }
}

impl SymbolTable {
    /// Reads the functions of a symbol table and sorts them by address.
    fn read(symbols: &[u8], names: &'static [u8]) -> Self {
        let (entries, _) = symbols.as_chunks::<SYMBOL_BYTES>();
        let mut functions: Vec<_> = entries.iter().filter_map(FunctionSymbol::read).collect();
        functions.sort_unstable();
        Self { functions, names }
    }

    /// Returns the mangled name of the function that contains `address`, an address in the file;
    /// `None` if no function does.
    fn name(&self, address: u64) -> Option<&'static str> {
        let after = self.functions.partition_point(|function| function.address <= address);
        let function = self.functions.get(after.checked_sub(1)?)?;
        // Functions written in assembler may have no size.
        if function.size != 0 && address - function.address >= function.size {
            return None;
        }
        let name = self.names.get(function.name as usize..)?;
        CStr::from_bytes_until_nul(name).ok()?.to_str().ok()
    }
}

impl FunctionSymbol {
    /// Reads an entry of a symbol table; `None` if it is not that of a function in the file.
    fn read(entry: &[u8; SYMBOL_BYTES]) -> Option<Self> {
        /// Symbol types of functions: `STT_FUNC` and `STT_GNU_IFUNC`.
        const FUNCTIONS: [u8; 2] = [2, 10];
        let name = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
        let number =
            |start: usize| entry[start..start + 8].iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        let (kind, section) = (entry[4] & 0xf, u16::from_le_bytes([entry[6], entry[7]]));
        let is_function = FUNCTIONS.contains(&kind) && section != 0;
        is_function.then(|| Self { address: number(8), size: number(16), name })
    }
}

/// Returns a mangled name as it is written in C++, cut to the maximum length.
fn demangle(name: &str) -> String {
    let demangled = Symbol::new(name).ok().and_then(|symbol| symbol.demangle().ok());
    demangled.unwrap_or_else(|| name.to_owned())
}

/// Returns the name to show for a function without a symbol: the library's name and the offset.
fn unknown_name(library: &LibraryFile, offset: u64) -> String {
    let file = library.path.file_name().unwrap_or_default().to_string_lossy();
    format!("{file}+{offset:#x}")
}

/// Cuts a name to the maximum length of a recorded name.
fn shorten(name: &str) -> &str {
    &name[..name.floor_char_boundary(MAX_TEXT_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::super::code_map::enable;
    use super::*;

    #[test]
    fn functions_of_libraries_have_names() {
        // SAFETY: Declared as in C.
        unsafe extern "C" {
            fn qsort();
        }
        enable(None);
        let mut symbols = Symbols::default();
        let own = symbols.function(shorten as *const () as u64 + 1);
        assert!(own.name.contains("shorten") && own.is_allocator, "{own:?}");
        let other = symbols.function(qsort as *const () as u64);
        assert!(other.name.starts_with("qsort") && !other.is_allocator, "{other:?}");
        assert_eq!(&*symbols.function(1).name, "??");
        assert_eq!(symbols.function(1), symbols.function(1));
    }

    #[test]
    fn names_are_demangled_and_shortened() {
        assert_eq!(demangle("_ZN2at6detail13empty_genericEv"), "at::detail::empty_generic()");
        assert_eq!(demangle("PyObject_Call"), "PyObject_Call");
        assert_eq!(demangle("_ZNot a name"), "_ZNot a name");
        let long = "ä".repeat(MAX_TEXT_BYTES);
        assert_eq!(shorten(&long).len(), MAX_TEXT_BYTES);
    }
}
