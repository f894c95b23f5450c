//! Throws the C++ exception that reports a failed request.
//!
//! PyTorch does not check the pointer that an allocator returns, so a null pointer would become an
//! illegal memory access in a kernel. But its bindings convert C++ exceptions to Python exceptions.
//! Out of memory is reported by PyTorch's own exception (`c10_error.rs`). Other failures, and all
//! failures with a version of PyTorch whose exception is not known, are reported by a
//! `std::runtime_error`: a function of libstdc++, part of its ABI since GCC 3.4, creates one from a
//! text and throws it.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_void};
use std::ptr::NonNull;

use crate::c10_error::OutOfMemoryType;
use crate::loaded::LoadedLibrary;

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

/// The kind of failure that a C++ exception reports, which decides the exception's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A device has no memory for a request: `c10::OutOfMemoryError`.
    OutOfMemory,
    /// Anything else: `std::runtime_error`.
    Other,
}

/// The type of an exception, with the functions that throw it.
#[derive(Clone, Copy)]
enum ExceptionType {
    OutOfMemory(OutOfMemoryType),
    RuntimeError(ThrowRuntimeError),
}

/// A C++ exception with its message, ready to be thrown. It needs no drop.
#[derive(Clone, Copy)]
pub(crate) struct Exception {
    kind: ExceptionType,
    message: *const c_char,
}

impl Exception {
    /// Creates an exception with `message`; `None` if the process has no libstdc++, because then
    /// nothing could catch it.
    pub(crate) fn new(failure: Failure, message: &str) -> Option<Self> {
        let runtime = LoadedLibrary::find(c"libstdc++.so.6")?;
        let out_of_memory = (failure == Failure::OutOfMemory).then(|| OutOfMemoryType::find(runtime)).flatten();
        let kind = match out_of_memory {
            Some(kind) => ExceptionType::OutOfMemory(kind),
            None => ExceptionType::RuntimeError(throw_function(runtime.symbol(c"_ZSt21__throw_runtime_errorPKc")?)),
        };
        let text = CString::new(message.replace('\0', " ")).expect("every 0 was replaced");
        let store = |stored: &RefCell<CString>| {
            let mut stored = stored.borrow_mut();
            *stored = text;
            stored.as_ptr()
        };
        // Access to the thread-local message fails only while the thread ends.
        let message = MESSAGE.try_with(store).ok()?;
        Some(Self { kind, message })
    }

    /// Throws the C++ exception, so that the caller never continues. All Rust frames up to C++ must
    /// be allowed to unwind, without a `catch_unwind`.
    pub(crate) fn throw(self) -> ! {
        match self.kind {
            // SAFETY: The message ends with a 0 and stays until this thread creates its next
            // exception; the function copies it before it throws.
            ExceptionType::OutOfMemory(kind) => unsafe { kind.throw(self.message) },
            // SAFETY: As above.
            ExceptionType::RuntimeError(throw) => unsafe { throw(self.message) },
        }
    }
}

/// Returns `std::__throw_runtime_error` at its address.
fn throw_function(address: NonNull<c_void>) -> ThrowRuntimeError {
    // SAFETY: The mangled name contains the parameter type, a pointer to characters, and libstdc++
    // declares that the function does not return.
    unsafe { std::mem::transmute::<*mut c_void, ThrowRuntimeError>(address.as_ptr()) }
}
