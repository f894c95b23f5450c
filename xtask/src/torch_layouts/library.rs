//! Reads symbols and vtables of PyTorch's libraries (ELF, x86-64).

use std::fs::{self, File};
use std::path::Path;

use object::elf::R_X86_64_RELATIVE;
use object::{Object, ObjectSymbol, ReadCache, RelocationFlags};

use crate::shell::Result;

/// The exported variable of libc10_cuda.so that points to the current allocator.
const ALLOCATOR: &str = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";
/// The vtable of `NativeCachingAllocator`, the allocator that PyTorch uses by default.
const VTABLE: &str = "_ZTVN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE";
/// The mangled name of `NativeCachingAllocator::attachAllocatorTraceTracker` up to its parameters,
/// whose types differ between versions.
const ATTACH_PREFIX: &str =
    "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator27attachAllocatorTraceTrackerE";
/// The mangled names of `c10::LogAPIUsage(const std::string&)` in libc10.so, each with true if it
/// is the name under the C++11 ABI of `std::string`.
const LOG_API_USAGE: [(&str, bool); 2] = [
    ("_ZN3c1011LogAPIUsageERKSs", false),
    ("_ZN3c1011LogAPIUsageERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", true),
];
/// Functions of libtorch_cpu.so that the hook calls: `at::sequence_number::peek()` and
/// `torch::autograd::get_current_node()`.
const TORCH_CPU_FUNCTIONS: [&str; 2] = ["_ZN2at15sequence_number4peekEv", "_ZN5torch8autograd16get_current_nodeEv"];
/// Size of a vtable's header before its first slot, in bytes: the offset to the top and the pointer
/// to the type information.
const VTABLE_HEADER_BYTES: u64 = 16;

/// Returns the names that a library exports, in ascending order.
pub(crate) fn exports(path: &Path) -> Result<Vec<String>> {
    let file = File::open(path).map_err(|error| format!("cannot open {}: {error}", path.display()))?;
    // Reads only the parts that are used: libtorch_cpu.so has 400 MB.
    let cache = ReadCache::new(file);
    let library = object::File::parse(&cache).map_err(|error| not_a_library(path, error))?;
    let mut names: Vec<String> = library
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && !symbol.is_local())
        .filter_map(|symbol| symbol.name().ok().map(str::to_owned))
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// Checks that `exports`, the names that libtorch_cpu.so exports, has the functions that the hook
/// calls.
pub(crate) fn check_torch_cpu(exports: &str) -> Result<()> {
    let is_missing = |name: &&&str| !exports.lines().any(|export| export == **name);
    match TORCH_CPU_FUNCTIONS.iter().find(is_missing) {
        None => Ok(()),
        Some(name) => Err(format!("libtorch_cpu.so does not export {name}: find its replacement and adapt the hook")),
    }
}

/// Returns true if libc10.so, at `path`, is built with the C++11 ABI of `std::string`.
pub(crate) fn has_cxx11_abi(path: &Path) -> Result<bool> {
    let exports = exports(path)?;
    let found = LOG_API_USAGE.iter().find(|(name, _)| exports.iter().any(|export| export == name));
    found.map(|(_, is_cxx11)| *is_cxx11).ok_or_else(|| {
        let path = path.display();
        format!("cannot tell the ABI of {path}: it does not export c10::LogAPIUsage: correct LOG_API_USAGE in xtask")
    })
}

/// Returns the mangled name of `NativeCachingAllocator::attachAllocatorTraceTracker`. Fails if
/// libc10_cuda.so, at `path`, does not have this function in `slot` of the allocator's vtable.
pub(crate) fn attach_symbol(path: &Path, slot: u64) -> Result<String> {
    let library_path = path.display();
    let bytes = fs::read(path).map_err(|error| format!("cannot read {library_path}: {error}"))?;
    let library = object::File::parse(&*bytes).map_err(|error| not_a_library(path, error))?;
    let dynamic_symbols = library.dynamic_symbols().filter(|symbol| symbol.is_definition());
    if !dynamic_symbols.into_iter().any(|symbol| symbol.name() == Ok(ALLOCATOR)) {
        return Err(format!("{library_path} does not export {ALLOCATOR}: find its replacement and adapt the hook"));
    }
    let vtable = library.symbols().find(|symbol| symbol.name() == Ok(VTABLE));
    let vtable = vtable
        .ok_or_else(|| format!("{library_path} has no symbol {VTABLE}: correct VTABLE in xtask and in the hook"))?;
    let slot_offset = VTABLE_HEADER_BYTES + slot * 8;
    if slot_offset >= vtable.size() {
        return Err(format!(
            "slot {slot} is outside of the allocator's vtable in {library_path}: the headers do not match it"
        ));
    }
    let address = relocated_pointer(&library, vtable.address() + slot_offset).ok_or_else(|| {
        format!("slot {slot} of the allocator's vtable in {library_path} has no relative relocation: adapt xtask")
    })?;
    let at_address = library.symbols().filter(|symbol| symbol.is_definition() && symbol.address() == address);
    let names: Vec<&str> = at_address.filter_map(|symbol| symbol.name().ok()).collect();
    let found = names.iter().find(|name| name.starts_with(ATTACH_PREFIX));
    found.map(|name| (*name).to_owned()).ok_or_else(|| {
        format!(
            "slot {slot} of the allocator's vtable in {library_path} has {} in place of attachAllocatorTraceTracker: \
             the headers do not match the library",
            names.join(", ")
        )
    })
}

/// Returns the pointer that the dynamic linker stores at `address`, relative to the library's base.
fn relocated_pointer(library: &object::File, address: u64) -> Option<u64> {
    let (_, relocation) = library.dynamic_relocations()?.find(|(offset, _)| *offset == address)?;
    match relocation.flags() {
        RelocationFlags::Elf { r_type: R_X86_64_RELATIVE } => u64::try_from(relocation.addend()).ok(),
        _ => None,
    }
}

/// Returns the message for a file that is not an ELF library.
fn not_a_library(path: &Path, error: object::Error) -> String {
    format!("{} is not a shared library ({error}): delete target/torch-layouts and run again", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_function_of_torch_cpu_is_named() {
        assert_eq!(check_torch_cpu(&TORCH_CPU_FUNCTIONS.join("\n")), Ok(()));
        let error = check_torch_cpu("_ZN2at15sequence_number4peekEv\n_ZN2at15sequence_number4peekEv2");
        assert!(error.is_err_and(|error| error.contains("get_current_node")));
    }
}
