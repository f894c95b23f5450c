//! The ends that a process can come to: an exit, and a fork, after which the child is another one.
//!
//! At exit the recording is ended by a handler of `atexit`, and not by a destructor of the library: handlers run while every thread
//! still does and with no lock of the loader held, so that the recorder's thread can be waited for. The library is linked so that it
//! is never unloaded (`build.rs`), so the handler cannot run in the middle of a `dlclose` either.
//!
//! A forked child has this thread and none of the others, and locks as they were. The driver's state is of no use in it, and the
//! recording's file is the parent's. So in a child nothing of this library is touched, by way of one flag.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

type Handler = extern "C" fn();

// SAFETY: Both are declared as POSIX and C declare them; a handler that is none is a null pointer.
unsafe extern "C" {
    fn pthread_atfork(prepare: Option<Handler>, parent: Option<Handler>, child: Option<Handler>) -> c_int;
    fn atexit(handler: Handler) -> c_int;
}

static FORKED: AtomicBool = AtomicBool::new(false);
static EXITING: AtomicBool = AtomicBool::new(false);

/// Whether this process is a child of the one that [`watch`] was called in.
pub(crate) fn is_forked_child() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Notes that the process is exiting.
pub(crate) fn set_exiting() {
    EXITING.store(true, Ordering::Relaxed);
}

/// Whether the process is exiting. The driver may be gone then, and what is freed last is freed in vain.
pub(crate) fn is_exiting() -> bool {
    EXITING.load(Ordering::Relaxed)
}

extern "C" fn in_the_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// From now on notes forks, and has `at_exit` called when the process exits; in a forked child it is called too.
pub(crate) fn watch(at_exit: Handler) {
    // SAFETY: The handlers are functions of this library, which is never unloaded. `in_the_child` only stores to an atomic, as a
    // handler in the child of a process with several threads must. Without room for a handler both calls fail and change nothing.
    let (forks, exits) = unsafe { (pthread_atfork(None, None, Some(in_the_child)), atexit(at_exit)) };
    if forks != 0 || exits != 0 {
        crate::console::tell("the C library has no room for another handler; a recording may lack its last 20 ms");
    }
}
