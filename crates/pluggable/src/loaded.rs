//! Symbols of libraries that the process has loaded, such as PyTorch's.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;

// SAFETY: Both are declared as in POSIX.
unsafe extern "C" {
    /// Returns a handle of the library with this file name, loading it if necessary; null if it
    /// cannot be loaded, or is not loaded yet and `flags` has [`RTLD_NOLOAD`].
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    /// Returns the address of the function or variable `name` of a loaded library; null if neither
    /// the library nor one that it depends on has this name.
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Flag of `dlopen`: resolves all of the library's functions at once. `dlopen` requires a flag that
/// says when to resolve them.
const RTLD_NOW: c_int = 2;
/// Flag of `dlopen`: returns the library only if it is already loaded (the value on Linux).
const RTLD_NOLOAD: c_int = 4;

/// A library that was loaded before, and stays loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadedLibrary(NonNull<c_void>);

impl LoadedLibrary {
    /// Returns the library with this file name; `None` if it is not loaded. Python loads PyTorch's
    /// libraries with local symbols, so a global lookup does not find their symbols.
    pub(crate) fn find(name: &CStr) -> Option<Self> {
        // SAFETY: The name ends with a 0. The library is already loaded, so none of its code runs;
        // the reference that this adds is never released, so it stays loaded.
        NonNull::new(unsafe { dlopen(name.as_ptr(), RTLD_NOW | RTLD_NOLOAD) }).map(Self)
    }

    /// Returns the address of a function or variable in the global scope: of the program or a
    /// library that it is linked with, such as the C library.
    pub(crate) fn global_symbol(name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: The name ends with a 0. On Linux, null means the global scope.
        NonNull::new(unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) })
    }

    /// Returns the address of a function or variable of the library, or of one that it depends on.
    pub(crate) fn symbol(self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: The library is loaded and the name ends with a 0.
        NonNull::new(unsafe { dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}
