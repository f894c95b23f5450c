//! Throws the C++ exception that reports a failed request.
//!
//! PyTorch does not check the pointer that an allocator returns, so a null pointer would become an
//! illegal memory access in a kernel. It does handle C++ exceptions, which its bindings turn into
//! Python exceptions. Rust cannot create one, but libstdc++ has a function, part of its ABI since
//! GCC 3.4, that creates a `std::runtime_error` from a text and throws it.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

// SAFETY: Both are declared as in POSIX.
unsafe extern "C" {
    /// Returns a handle of the library with this file name, loading it if necessary; null if it
    /// cannot be loaded, or is not loaded yet and `flags` has [`RTLD_NOLOAD`].
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    /// Returns the address of the function or variable `name` of a loaded library; null if the
    /// library has none of this name.
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Flag of `dlopen`: resolves all of the library's functions at once. `dlopen` requires a flag that
/// says when to resolve them.
const RTLD_NOW: c_int = 2;
/// Flag of `dlopen`: returns the library only if it is already loaded (the value on Linux).
const RTLD_NOLOAD: c_int = 4;

/// The signature of `std::__throw_runtime_error(char const*)`, which throws a C++ exception with a
/// copy of the message.
///
/// # Safety
/// The argument points to a string that ends with a 0.
type ThrowRuntimeError = unsafe extern "C-unwind" fn(*const c_char) -> !;

thread_local! {
    /// The message of the thread's last C++ exception. Stored here, so that the frames that an
    /// exception unwinds have nothing to drop.
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// A C++ exception (`std::runtime_error`) with its message, ready to be thrown. It needs no drop.
#[derive(Clone, Copy)]
pub(crate) struct Exception {
    throw: ThrowRuntimeError,
    message: *const c_char,
}

impl Exception {
    /// Creates an exception with `message`; `None` if the process has no libstdc++, because then
    /// nothing could catch it.
    pub(crate) fn new(message: &str) -> Option<Self> {
        let throw = find_throw_function()?;
        let text = CString::new(message.replace('\0', " ")).expect("every 0 was replaced");
        let store = |stored: &RefCell<CString>| {
            let mut stored = stored.borrow_mut();
            *stored = text;
            stored.as_ptr()
        };
        // Fails only while the thread ends.
        let message = MESSAGE.try_with(store).ok()?;
        Some(Self { throw, message })
    }

    /// Throws the C++ exception, so that the caller never continues. All Rust frames up to C++ must
    /// be allowed to unwind, without a `catch_unwind`.
    pub(crate) fn throw(self) -> ! {
        // SAFETY: `find_throw_function` returned the function that `ThrowRuntimeError` describes.
        // The message ends with a 0 and stays until this thread creates its next exception; the
        // function copies it before it throws.
        unsafe { (self.throw)(self.message) }
    }
}

/// Returns `std::__throw_runtime_error` of the libstdc++ in this process; `None` if no libstdc++ is
/// loaded.
fn find_throw_function() -> Option<ThrowRuntimeError> {
    /// The address of `std::__throw_runtime_error`; null until it is found. Not a `OnceLock`: in a
    /// forked child, another thread of the parent may have held its lock.
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut found = FOUND.load(Ordering::Acquire);
    if found.is_null() {
        // Python loads PyTorch with local symbols, so the runtime has to be found by its name.
        // SAFETY: Both names end with a 0. The library is already loaded, so none of its code runs;
        // the reference that this adds is never released, so it stays loaded.
        found = unsafe {
            let runtime = dlopen(c"libstdc++.so.6".as_ptr(), RTLD_NOW | RTLD_NOLOAD);
            if runtime.is_null() {
                return None;
            }
            dlsym(runtime, c"_ZSt21__throw_runtime_errorPKc".as_ptr())
        };
        FOUND.store(found, Ordering::Release);
    }
    // SAFETY: The mangled name contains the parameter type, a pointer to characters, and libstdc++
    // declares that the function does not return. A null pointer becomes `None`.
    unsafe { std::mem::transmute::<*mut c_void, Option<ThrowRuntimeError>>(found) }
}
