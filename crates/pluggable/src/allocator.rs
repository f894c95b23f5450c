//! Adds functions that PyTorch's class for pluggable allocators lacks: private pools that the
//! program creates, the memory fraction, and the size of the largest free block, for cuDNN.
//!
//! `CUDAPluggableAllocator` has no setter for `torch.cuda.MemPool`, the memory fraction and
//! `cacheInfo`: its virtual functions for them only throw. [`vramscope_complete_allocator`] gives
//! PyTorch's current allocator, which must be of that class, a copy of its table of virtual
//! functions in which those are replaced.
//!
//! Every assumption about the table is checked. A function is found in it by its address, which
//! PyTorch's library exports under a mangled name that contains its parameters. Only the functions
//! for private pools have no exported names: their number between two named functions must be the
//! number in PyTorch's headers. If any check fails, the allocator is left unchanged.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{self, NonNull};

use vramscope_collector::DevicePool;

use crate::exception::{Exception, Failure};
use crate::loaded::LoadedLibrary;
use crate::process::StatsReset;
use crate::statistics::write_text;
use crate::{CudaProcess, MempoolPair, catch_panic, existing_process, fail, process, try_with_process, with_process};

/// Minor versions of PyTorch 2 whose headers declare the functions in [`POOL_FUNCTIONS`].
const MINORS: std::ops::RangeInclusive<c_int> = 11..=15;
/// Mangled name of the table of virtual functions of
/// `torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator`.
const TABLE: &CStr = c"_ZTVN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE";
/// Mangled name of PyTorch's variable with the current allocator, a `std::atomic<CUDAAllocator*>`.
const CURRENT_ALLOCATOR: &CStr = c"_ZN3c104cuda20CUDACachingAllocator9allocatorE";
/// Number of words in a table of virtual functions before the first function.
const WORDS_BEFORE_FUNCTIONS: usize = 2;
/// Maximum number of words in a table of virtual functions; a larger table counts as damaged.
const MAX_TABLE_WORDS: usize = 512;

/// The replaced functions that are found by their exported, mangled names, each with its
/// replacement.
const NAMED: [(&CStr, *const c_void); 4] = [
    (c"_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator9cacheInfoEaPm", cache_info as _),
    (c"_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator17getMemoryFractionEa", memory_fraction as _),
    (c"_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator14resetPeakStatsEa", reset_peak_stats as _),
    (
        c"_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator21resetAccumulatedStatsEa",
        reset_accumulated_stats as _,
    ),
];

/// Mangled name of the function before those in [`POOL_FUNCTIONS`].
const BEFORE_POOL_FUNCTIONS: &CStr =
    c"_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator11releasePoolEaSt4pairIyyE";
/// Mangled name of the function after those in [`POOL_FUNCTIONS`].
const AFTER_POOL_FUNCTIONS: &CStr =
    c"_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator14shareIpcHandleEPv";

/// Replacements of the functions for private pools, in the order of the table; `None` for a
/// function that is not replaced.
const POOL_FUNCTIONS: [Option<*const c_void>; 5] = [
    Some(pool_use_count as *const c_void),
    Some(create_pool as *const c_void),
    Some(set_use_on_oom as *const c_void),
    Some(set_no_split as *const c_void),
    // `checkPoolLiveAllocations` is not replaced; only PyTorch's graph trees use it.
    None,
];

/// A C++ allocator object; only its address is used.
type Allocator = *mut c_void;

/// `CUDAAllocator::cacheInfo`: returns the size of the largest block that can be allocated, which
/// limits cuDNN's workspaces.
extern "C-unwind" fn cache_info(_: Allocator, device: i8, largest: *mut usize) {
    let result = catch_panic("cacheInfo", 0, || {
        // SAFETY: PyTorch passes a valid variable.
        let guess = unsafe { *largest } as u64;
        existing_process().map_or(guess, |process| process.cache_info(device.into(), guess))
    });
    // SAFETY: As above.
    unsafe { *largest = result as usize };
}

/// `CUDAAllocator::getMemoryFraction`: returns the share of the device's memory that its pool may
/// reserve.
extern "C-unwind" fn memory_fraction(_: Allocator, device: i8) -> f64 {
    catch_panic("getMemoryFraction", 1.0, || process().map_or(1.0, |process| process.memory_fraction(device.into())))
}

/// `CUDAAllocator::resetPeakStats`: sets the device's peaks to the current values.
extern "C-unwind" fn reset_peak_stats(_: Allocator, device: i8) {
    reset_stats(device, StatsReset::Peaks);
}

/// `CUDAAllocator::resetAccumulatedStats`: sets the device's totals to 0.
extern "C-unwind" fn reset_accumulated_stats(_: Allocator, device: i8) {
    reset_stats(device, StatsReset::Accumulated);
}

/// Resets counters of a device; does nothing for an unused device.
fn reset_stats(device: i8, reset: StatsReset) {
    with_process("resetStats", existing_process, |process| process.reset_stats(device.into(), reset));
}

/// `CUDAAllocator::getPoolUseCount`: returns a private pool's number of users.
extern "C-unwind" fn pool_use_count(_: Allocator, device: i8, mempool: MempoolPair) -> c_int {
    let users = || Some(existing_process()?.pool(device.into()).ok()?.pool_users(mempool.into()));
    catch_panic("getPoolUseCount", None, users).map_or(0, |users| users as c_int)
}

/// `CUDAAllocator::createOrIncrefPool`: creates a private pool, or adds a user. `custom` points to
/// a `std::shared_ptr` with the program's own allocator for the pool, null for none.
extern "C-unwind" fn create_pool(_: Allocator, device: i8, mempool: MempoolPair, custom: *const *const c_void) {
    // The exception unwinds this frame, so there is nothing to drop or to catch in it.
    if let Some(exception) = try_create_pool(device, mempool, custom) {
        exception.throw();
    }
}

/// Creates a private pool, or adds a user to it, and returns `None`; if that fails, returns the
/// exception that [`create_pool`] must throw.
#[inline(never)] // As `try_allocate`.
fn try_create_pool(device: i8, mempool: MempoolPair, custom: *const *const c_void) -> Option<Exception> {
    catch_panic("createOrIncrefPool", None, || {
        // SAFETY: PyTorch passes a valid `std::shared_ptr`, whose first word is the pointer.
        let has_own_allocator = !unsafe { *custom }.is_null();
        if has_own_allocator {
            return exception(
                "vramscope: torch.cuda.MemPool cannot have an allocator of its own with vramscope.use_pool(): leave \
                 out its argument",
            );
        }
        let create = |pool: &DevicePool<_>| pool.create_pool(mempool.into()).map_err(|error| error.to_string());
        let result = process()?.pool(device.into()).and_then(create);
        result.err().and_then(|reason| exception(&format!("vramscope: {reason}")))
    })
}

/// Returns an exception with this reason.
fn exception(reason: &str) -> Option<Exception> {
    fail(Failure::Other, reason).err()
}

/// `CUDAAllocator::setUseOnOOM`: sets whether a private pool's free blocks may serve other requests
/// at out of memory.
extern "C-unwind" fn set_use_on_oom(_: Allocator, device: i8, mempool: MempoolPair, use_on_oom: bool) {
    try_with_process("setUseOnOOM", process, |process: &CudaProcess| {
        process.pool(device.into()).map(|pool| pool.set_use_on_oom(mempool.into(), use_on_oom))
    });
}

/// `CUDAAllocator::setNoSplit`: stops splitting blocks of a private pool.
extern "C-unwind" fn set_no_split(_: Allocator, device: i8, mempool: MempoolPair) {
    try_with_process("setNoSplit", process, |process: &CudaProcess| {
        process.pool(device.into()).map(|pool| pool.set_no_split(mempool.into()))
    });
}

/// Returns a copy of the table of virtual functions in `words` with the replaced functions; an
/// error if one is not found.
fn replaced_table(
    words: &[*const c_void],
    minor: c_int,
    address_of: impl Fn(&CStr) -> Option<NonNull<c_void>>,
) -> Result<Vec<*const c_void>, String> {
    let unknown = |what: &str| Err(format!("this PyTorch has an unknown class for pluggable allocators: {what}"));
    let position = |name: &CStr| {
        let address = address_of(name)?.as_ptr().cast_const();
        let mut found = (WORDS_BEFORE_FUNCTIONS..words.len()).filter(|&index| words[index] == address);
        found.next().filter(|_| found.next().is_none())
    };
    let mut table = words.to_vec();
    // Some of these functions do not exist in every version.
    for (name, function) in NAMED.into_iter().filter(|(name, _)| address_of(name).is_some()) {
        let Some(index) = position(name) else {
            return unknown(&format!("it has no {}", name.to_string_lossy()));
        };
        table[index] = function;
    }
    if !MINORS.contains(&minor) {
        return Ok(table);
    }
    match (position(BEFORE_POOL_FUNCTIONS), position(AFTER_POOL_FUNCTIONS)) {
        (Some(before), Some(after)) if after == before + POOL_FUNCTIONS.len() + 1 => {
            for (slot, function) in table[before + 1..after].iter_mut().zip(POOL_FUNCTIONS) {
                *slot = function.unwrap_or(*slot);
            }
            Ok(table)
        }
        _ => unknown("its functions for private pools are in another order"),
    }
}

/// Gives PyTorch's current allocator the functions that its class lacks. Fails with the reason, and
/// then changes nothing.
fn complete(minor: c_int) -> Result<(), String> {
    let missing = |name: &str| format!("{name} is not loaded");
    let c10_cuda = LoadedLibrary::find(c"libc10_cuda.so").ok_or_else(|| missing("libc10_cuda.so"))?;
    let torch_cuda = LoadedLibrary::find(c"libtorch_cuda.so").ok_or_else(|| missing("libtorch_cuda.so"))?;
    let current = c10_cuda.symbol(CURRENT_ALLOCATOR).ok_or("PyTorch's current allocator is not known")?;
    let table = torch_cuda.symbol(TABLE).ok_or("PyTorch has no pluggable allocators")?;
    let size = table_words(table)?;
    // SAFETY: The variable holds a pointer to an allocator, or null.
    let allocator = unsafe { *current.as_ptr().cast::<Allocator>() };
    let first_function = table.as_ptr().cast::<*const c_void>().wrapping_add(WORDS_BEFORE_FUNCTIONS);
    // SAFETY: The first word of an object with virtual functions is the address of the first
    // function in its table.
    if allocator.is_null() || unsafe { *allocator.cast::<*mut *const c_void>() } != first_function {
        return Err("PyTorch's current allocator is not a pluggable one".to_owned());
    }
    // SAFETY: The table has this size, and PyTorch never unloads it.
    let words = unsafe { std::slice::from_raw_parts(table.as_ptr().cast::<*const c_void>(), size) };
    let replaced = replaced_table(words, minor, |name| torch_cuda.symbol(name))?;
    // Never freed: PyTorch calls through it until the process ends.
    let replaced: &'static mut [*const c_void] = Vec::leak(replaced);
    // SAFETY: The object's first word may be written: `change_current_allocator` has just installed
    // it, and nothing calls it before CUDA is initialized. The new table has all functions of the
    // old one, with the parameters that PyTorch passes.
    unsafe { allocator.cast::<*const *const c_void>().write(replaced.as_ptr().add(WORDS_BEFORE_FUNCTIONS)) };
    Ok(())
}

/// An entry of a library's symbol table (`Elf64_Sym`).
#[repr(C)]
struct SymbolEntry {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// The library and symbol that `dladdr1` found for an address (`Dl_info`).
#[repr(C)]
struct AddressInfo {
    file: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    address: *mut c_void,
}

/// `dladdr1` of glibc: finds the symbol at an address; with the flag [`RTLD_DL_SYMENT`], the third
/// argument receives its entry. Returns 0 without a symbol there.
///
/// # Safety
/// The second and the third argument can be written.
type DlAddr1 = unsafe extern "C" fn(*const c_void, *mut AddressInfo, *mut *const SymbolEntry, c_int) -> c_int;

/// Flag of `dladdr1`: return the symbol's entry.
const RTLD_DL_SYMENT: c_int = 1;

/// Returns the number of words of the table of virtual functions at this address.
fn table_words(table: NonNull<c_void>) -> Result<usize, String> {
    let mut info =
        AddressInfo { file: ptr::null(), base: ptr::null_mut(), symbol: ptr::null(), address: ptr::null_mut() };
    let mut entry: *const SymbolEntry = ptr::null();
    // `dladdr1` is looked up at run time, because other C libraries than glibc do not have it.
    let find = LoadedLibrary::global_symbol(c"dladdr1").ok_or("this system has no glibc")?;
    // SAFETY: The symbol is the function that the type describes.
    let find = unsafe { std::mem::transmute::<*mut c_void, DlAddr1>(find.as_ptr()) };
    // SAFETY: Both variables can be written.
    let found = unsafe { find(table.as_ptr(), &raw mut info, &raw mut entry, RTLD_DL_SYMENT) };
    // SAFETY: The entry is in the library, which stays loaded.
    let size = if found == 0 || entry.is_null() { 0 } else { unsafe { (*entry).size } };
    let words = size as usize / size_of::<*const c_void>();
    if info.address != table.as_ptr() || words <= WORDS_BEFORE_FUNCTIONS || words > MAX_TABLE_WORDS {
        return Err("the size of PyTorch's class for pluggable allocators is not known".to_owned());
    }
    Ok(words)
}

/// Adds functions that `CUDAPluggableAllocator` lacks to PyTorch's current allocator, which must be
/// this library: `torch.cuda.MemPool` (from PyTorch 2.11 on), the memory fraction, and the size of
/// the largest free block, which cuDNN's search for algorithms needs. `minor` is the minor version
/// of PyTorch 2. Call it after `change_current_allocator`, before CUDA is used. Returns 0, or 1
/// with the reason in `text`; the allocator is then unchanged.
///
/// # Safety
/// `text` is null or points to `capacity` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vramscope_complete_allocator(minor: c_int, text: *mut c_char, capacity: usize) -> c_int {
    let result = catch_panic("vramscope_complete_allocator", Err("internal error".to_owned()), || complete(minor));
    // SAFETY: The caller guarantees null or `capacity` writable bytes.
    unsafe { write_text(result.as_ref().err().map_or("", String::as_str), text, capacity) };
    c_int::from(result.is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a table with the named functions, `count` functions for private pools, and three
    /// others. The address of a name is used as the address of the function of that name.
    fn table_with(count: usize) -> Vec<*const c_void> {
        let address = |name: &CStr| name.as_ptr().cast();
        let mut words = vec![ptr::null(), address(c"type"), address(c"destructor")];
        words.extend(NAMED.map(|(name, _)| address(name)));
        words.push(address(BEFORE_POOL_FUNCTIONS));
        words.extend((0..count).map(|_| address(c"hidden")));
        words.extend([address(AFTER_POOL_FUNCTIONS), address(c"last")]);
        words
    }

    fn address_of(name: &CStr) -> Option<NonNull<c_void>> {
        NonNull::new(name.as_ptr().cast_mut().cast())
    }

    #[test]
    fn table_copy_has_the_replaced_functions_at_their_positions() {
        let words = table_with(POOL_FUNCTIONS.len());
        let table = replaced_table(&words, 11, address_of).expect("the table is known");
        let changed: Vec<usize> = (0..words.len()).filter(|&index| table[index] != words[index]).collect();
        assert_eq!(changed, [3, 4, 5, 6, 8, 9, 10, 11]);
        assert_eq!(table[3], cache_info as *const c_void);
        assert_eq!(table[9], create_pool as *const c_void);
        // In an older version, the functions for private pools are not known, so they stay.
        let table = replaced_table(&words, 10, address_of).expect("the table is known");
        assert_eq!(table[8..], words[8..]);
    }

    #[test]
    fn unknown_table_is_not_changed() {
        for count in [4, 6] {
            let error = replaced_table(&table_with(count), 11, address_of).expect_err("the order is unknown");
            assert!(error.ends_with("its functions for private pools are in another order"), "{error}");
        }
        let mut twice = table_with(POOL_FUNCTIONS.len());
        twice.push(NAMED[0].0.as_ptr().cast());
        assert!(replaced_table(&twice, 11, address_of).is_err());
        assert!(replaced_table(&table_with(POOL_FUNCTIONS.len()), 11, |_| None).is_err());
    }

    #[test]
    fn without_pytorch_nothing_is_completed() {
        assert_eq!(complete(11), Err("libc10_cuda.so is not loaded".to_owned()));
    }
}
