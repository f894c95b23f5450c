//! The C++ exception that a failed request raises.
//!
//! PyTorch does not look at what an allocator gives it, so a null pointer would become a kernel's illegal access. What it does handle is
//! an exception of C++, which its bindings turn into one of Python. Such an object cannot be made in Rust; but the runtime of C++ has a
//! function, part of its interface since GCC 3.4, that makes a `std::runtime_error` of a text and throws it.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

// SAFETY: As POSIX declares them.
unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

const RTLD_NOW: c_int = 2;
/// Find the library where it is loaded, and do not load it (the value on Linux).
const RTLD_NOLOAD: c_int = 4;

/// `std::__throw_runtime_error(char const*)`.
///
/// # Safety
/// Its argument points at text that ends with a 0.
type Throw = unsafe extern "C-unwind" fn(*const c_char) -> !;

thread_local! {
    /// What the thread's last exception says. Kept here, so that the frames that an exception leaves have nothing to drop.
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// An exception that is ready to be thrown, with nothing in it to drop.
#[derive(Clone, Copy)]
pub(crate) struct Exception {
    throw: Throw,
    message: *const c_char,
}

impl Exception {
    /// One that says `message`; `None` where no runtime of C++ is in the process, so that nobody could catch it.
    pub(crate) fn new(message: &str) -> Option<Self> {
        let throw = thrower()?;
        let text = CString::new(message.replace('\0', " ")).expect("there is no 0 in it any more");
        let keep = |kept: &RefCell<CString>| {
            let mut kept = kept.borrow_mut();
            *kept = text;
            kept.as_ptr()
        };
        // A thread that is at its end keeps nothing any more.
        let message = MESSAGE.try_with(keep).ok()?;
        Some(Self { throw, message })
    }

    /// Throws it. The caller must be a frame that may be unwound, with no `catch_unwind` between it and C++.
    pub(crate) fn throw(self) -> ! {
        // SAFETY: `thrower` says that the function is this one. The message ends with a 0 and is this thread's until its next exception is
        // made; the function copies it before it throws.
        unsafe { (self.throw)(self.message) }
    }
}

/// The function of the runtime of C++ that is in this process, if one is.
fn thrower() -> Option<Throw> {
    // No lock and no `OnceLock`: a forked child comes here too, when another thread of its parent may have been here.
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let mut found = FOUND.load(Ordering::Acquire);
    if found.is_null() {
        // PyTorch's libraries are not among those whose symbols all others see, so their runtime is looked for by its name.
        // SAFETY: Both names end with a 0. The library is loaded already, so that none of its code is run; what is counted here is
        // never given back, so that it stays loaded.
        found = unsafe {
            let runtime = dlopen(c"libstdc++.so.6".as_ptr(), RTLD_NOW | RTLD_NOLOAD);
            if runtime.is_null() {
                return None;
            }
            dlsym(runtime, c"_ZSt21__throw_runtime_errorPKc".as_ptr())
        };
        FOUND.store(found, Ordering::Release);
    }
    // SAFETY: The name of a function in C++ holds its parameters, so what has this name takes a pointer to characters; that it does not
    // return is how libstdc++ declares it. A null pointer is `None`.
    unsafe { std::mem::transmute::<*mut c_void, Option<Throw>>(found) }
}
