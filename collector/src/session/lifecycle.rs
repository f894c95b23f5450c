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

use super::stderr_log;

/// A function that the C library calls at a fork or at exit.
pub type Handler = extern "C" fn();

// SAFETY: Both are declared as in POSIX and C; `None` is a null pointer.
unsafe extern "C" {
    /// Registers functions to call at each fork: before it, then in the parent, and in the child.
    /// Returns 0 or an error code.
    fn pthread_atfork(prepare: Option<Handler>, parent: Option<Handler>, child: Option<Handler>) -> c_int;
    /// Registers a function to call when the process exits. Returns 0 if it was registered.
    fn atexit(handler: Handler) -> c_int;
}

/// True in a forked child of the process that called [`install_handlers`]; false in that process.
static FORKED: AtomicBool = AtomicBool::new(false);
/// True once the process has begun to exit, false before.
static EXITING: AtomicBool = AtomicBool::new(false);

/// Returns true in a forked child of the process that called [`install_handlers`], where CUDA does
/// not work; false in that process.
pub fn is_forked_child() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Marks the process as exiting; [`is_exiting`] returns true from now on.
pub fn set_exiting() {
    EXITING.store(true, Ordering::Relaxed);
}

/// Returns true once the process has begun to exit, false before. CUDA may then be shut down, so
/// errors of freeing memory mean nothing.
pub fn is_exiting() -> bool {
    EXITING.load(Ordering::Relaxed)
}

/// Marks this process as a forked child. Runs in the child, after each fork.
extern "C" fn set_forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Starts to detect forks, and registers `at_exit` to run when the process, or a forked child,
/// exits.
pub fn install_handlers(at_exit: Handler) {
    // SAFETY: The handlers are functions of this library, which is never unloaded. `set_forked`
    // only stores to an atomic, as a handler in the child of a process with several threads must.
    // Without memory for a handler both calls fail and change nothing.
    let (fork_result, exit_result) = unsafe { (pthread_atfork(None, None, Some(set_forked)), atexit(at_exit)) };
    if fork_result != 0 || exit_result != 0 {
        stderr_log::print(
            "cannot register a handler for the end of the process; the recording may lack its last 20 ms",
        );
    }
}
