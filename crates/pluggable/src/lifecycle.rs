//! Detects exit and fork of the process.
//!
//! The recording ends in an `atexit` handler instead of a destructor of the library: handlers run
//! while all threads still run and without a lock of the dynamic loader, so they can wait for the
//! recorder's thread. The library is linked to stay loaded (`build.rs`), so `dlclose` never runs
//! the handler.
//!
//! A forked child has only the forking thread, and locks in any state. CUDA does not work in it,
//! and the recording's file belongs to the parent. So a flag makes every function of the library do
//! nothing in a child.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::log;

type Handler = extern "C" fn();

// SAFETY: Both are declared as in POSIX and C; `None` is a null pointer.
unsafe extern "C" {
    fn pthread_atfork(prepare: Option<Handler>, parent: Option<Handler>, child: Option<Handler>) -> c_int;
    fn atexit(handler: Handler) -> c_int;
}

static FORKED: AtomicBool = AtomicBool::new(false);
static EXITING: AtomicBool = AtomicBool::new(false);

/// Returns true in a forked child of the process that called [`install_handlers`].
pub(crate) fn is_forked_child() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Marks the process as exiting.
pub(crate) fn set_exiting() {
    EXITING.store(true, Ordering::Relaxed);
}

/// Returns true while the process exits. CUDA may be shut down by then, so errors of freeing memory
/// mean nothing.
pub(crate) fn is_exiting() -> bool {
    EXITING.load(Ordering::Relaxed)
}

extern "C" fn set_forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Starts to detect forks, and registers `at_exit` for the exit of the process and of its forked
/// children.
pub(crate) fn install_handlers(at_exit: Handler) {
    // SAFETY: The handlers are functions of this library, which is never unloaded. `set_forked`
    // only stores to an atomic, as a handler in the child of a process with several threads must.
    // Without memory for a handler both calls fail and change nothing.
    let (fork_result, exit_result) = unsafe { (pthread_atfork(None, None, Some(set_forked)), atexit(at_exit)) };
    if fork_result != 0 || exit_result != 0 {
        log::print("cannot register a handler for the end of the process; the recording may lack its last 20 ms");
    }
}
