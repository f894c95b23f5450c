//! Attaches a tracker to PyTorch's caching allocator.
//!
//! `CUDAAllocator::attachAllocatorTraceTracker` is a virtual function, and its index in the vtable
//! differs between versions. It is called only if the allocator is PyTorch's own and its vtable has
//! the function of that name at the index in the version's layout.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::function::{StdFunction, TrackerFn};
use super::layouts::TorchLayout;
use super::library::Library;

/// Why no tracker was attached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    /// PyTorch's library cannot be read or lacks a symbol.
    #[error("cannot inspect PyTorch's allocator: {0}")]
    Library(String),
    /// CUDA is not initialized in this process.
    #[error("PyTorch has not initialized CUDA yet")]
    NotInitialized,
    /// PyTorch uses another allocator than its caching allocator.
    #[error("PyTorch does not use its own caching allocator (another one is set, such as cudaMallocAsync)")]
    OtherAllocator,
    /// The library is not the one that the layout describes.
    #[error("this build of PyTorch 2.{minor} has an unknown layout ({reason})")]
    UnknownLayout {
        /// Minor version of PyTorch.
        minor: u32,
        /// What differs.
        reason: String,
    },
}

/// Attaches `tracker` to the allocator of this process, for all devices. A tracker cannot be
/// detached.
///
/// # Errors
/// If the allocator is not the one that `layout` describes; nothing is called then.
///
/// # Safety
/// `tracker` may be called from any thread until the process ends.
pub(crate) unsafe fn attach(layout: &TorchLayout, tracker: TrackerFn) -> Result<(), AttachError> {
    let library = Library::find(layout.attach_symbol).map_err(AttachError::Library)?;
    let differs = |reason: &str| AttachError::UnknownLayout { minor: layout.minor, reason: reason.to_owned() };
    let native_table = library.native_table.ok_or_else(|| differs("its symbol table lacks the allocator's class"))?;
    let function = library.attach.ok_or_else(|| differs("its symbol table lacks the function for trackers"))?;
    // SAFETY: The library exports this variable, a `std::atomic<CUDAAllocator*>`.
    let allocator = unsafe { &*ptr::with_exposed_provenance::<AtomicPtr<c_void>>(library.allocator) };
    let allocator = allocator.load(Ordering::Acquire);
    if allocator.is_null() {
        return Err(AttachError::NotInitialized);
    }
    // SAFETY: A C++ object with virtual functions begins with the address of its table.
    let table = unsafe { *allocator.cast::<*const usize>() };
    // A table's symbol begins with two words before the first function.
    if table.addr() != native_table + 2 * size_of::<usize>() {
        return Err(AttachError::OtherAllocator);
    }
    let slot = table.wrapping_add(layout.attach_slot);
    if !library.range.contains(&slot.addr()) {
        return Err(differs("its table of virtual functions is too short"));
    }
    // SAFETY: The address is within the library's mappings, which are readable data here.
    if unsafe { *slot } != function {
        return Err(differs("its table of virtual functions has another function there"));
    }
    // SAFETY: The function's symbol says that it is
    // `NativeCachingAllocator::attachAllocatorTraceTracker(std::function<…>)`. A method gets its
    // object as the first argument, and a `std::function` by reference to the caller's object.
    unsafe {
        let call: unsafe extern "C-unwind" fn(*mut c_void, *mut StdFunction) =
            std::mem::transmute(ptr::with_exposed_provenance::<c_void>(function));
        call(allocator, &mut StdFunction::new(tracker));
    }
    Ok(())
}
