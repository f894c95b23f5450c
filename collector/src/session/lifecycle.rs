//! Detects exit and fork of the process.
//!
//! The recording ends in an `atexit` handler instead of a destructor of the library: handlers run
//! while all threads still run and without a lock of the dynamic loader, so they can wait for the
//! recorder's thread. The library is linked to stay loaded (`build.rs`), so `dlclose` never runs
//! the handler.
//!
//! A forked child has only the forking thread, and its parent's locks may be held by threads that
//! do not exist in the child. So each process has a number, its [`generation`], and a child neither
//! locks nor drops objects that its parent created; they stay in memory. [`ProcessLocal`] and
//! [`ProcessMutex`] have the default value in each child; an [`InheritedValue`] has the value of
//! the parent.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// Number of forks between the process that called [`detect_forks`] and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// True once the process has begun to exit, false before.
static EXITING: AtomicBool = AtomicBool::new(false);

/// Returns the number of forks between the process that called [`detect_forks`] and this one: 0 in
/// that process, 1 in its forked children, 2 in theirs.
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Returns true in a forked child of the process that called [`detect_forks`]; false in that
/// process.
#[inline]
pub fn is_forked_child() -> bool {
    generation() != 0
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

/// Counts a fork. Runs in the child, after each fork.
extern "C" fn count_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Starts to detect forks; a second call has no effect. A library calls it when it is loaded:
/// before any of its threads can hold a lock.
pub extern "C" fn detect_forks() {
    /// True once the handler is registered, also by a parent: children inherit it.
    static HAS_HANDLER: AtomicBool = AtomicBool::new(false);
    if HAS_HANDLER.swap(true, Ordering::Relaxed) {
        return;
    }
    // SAFETY: The handler is a function of this library, which is never unloaded. It only changes
    // an atomic, as a handler in the child of a process with several threads must. Without memory
    // for the handler the call fails and changes nothing.
    if unsafe { pthread_atfork(None, None, Some(count_fork)) } != 0 {
        stderr_log::print("cannot register a handler for forks; do not use the GPU in forked processes");
    }
}

/// Registers `at_exit` to run when the process, or a forked child, exits.
pub fn call_at_exit(at_exit: Handler) {
    // SAFETY: The handler is a function of this library, which is never unloaded. Without memory
    // for it the call fails and changes nothing.
    if unsafe { atexit(at_exit) } != 0 {
        stderr_log::print(
            "cannot register a handler for the end of the process; the recording may lack its last 20 ms",
        );
    }
}

/// A claim by one process on a resource that its forked children cannot use, such as CUDA.
#[derive(Debug, Default)]
pub struct ProcessClaim {
    /// One more than the generation of the process; 0 for none.
    owner: AtomicU32,
}

impl ProcessClaim {
    /// Creates a claim that no process has made.
    #[must_use]
    pub const fn new() -> Self {
        Self { owner: AtomicU32::new(0) }
    }

    /// Returns true if a parent of this process had made the claim before the fork.
    #[inline]
    pub fn is_of_parent(&self) -> bool {
        self.owner.load(Ordering::Relaxed) != 0 && !self.is_own()
    }

    /// Returns true if this process has made the claim.
    #[inline]
    pub fn is_own(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == generation() + 1
    }

    /// Makes the claim. Returns false if a parent of this process had made it before the fork.
    #[inline]
    pub fn claim(&self) -> bool {
        self.is_own() || self.owner.compare_exchange(0, generation() + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            // Another thread of this process was faster.
            || self.is_own()
    }
}

/// A value in a static variable for each process: a forked child starts with the default value,
/// whatever the threads of its parent were doing.
#[derive(Debug, Default)]
pub struct ProcessLocal<T: 'static> {
    /// The value of this process, or, until this process uses the variable, that of a parent; null
    /// if no process has used it. A parent's value is never freed: it may have been in use at the
    /// fork.
    newest: AtomicPtr<ProcessValue<T>>,
}

/// The value of a [`ProcessLocal`] in the process with this generation.
#[derive(Debug)]
struct ProcessValue<T> {
    generation: u32,
    value: T,
}

impl<T: Default + Send + Sync> ProcessLocal<T> {
    /// Creates a variable with the default value in each process.
    #[must_use]
    pub const fn new() -> Self {
        Self { newest: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns this process's value.
    #[inline]
    pub fn get(&self) -> &T {
        let newest = self.newest.load(Ordering::Acquire);
        // SAFETY: The pointer is null or came from `Box::into_raw` in `create` and is never freed.
        match unsafe { newest.as_ref() } {
            Some(known) if known.generation == generation() => &known.value,
            _ => self.create(newest),
        }
    }

    /// Creates this process's value after `newest`, unless another thread just did, and returns it.
    #[cold]
    fn create(&self, newest: *mut ProcessValue<T>) -> &T {
        let new = Box::into_raw(Box::new(ProcessValue { generation: generation(), value: T::default() }));
        let exchanged = self.newest.compare_exchange(newest, new, Ordering::AcqRel, Ordering::Acquire);
        let own = exchanged.map_or_else(
            |own| {
                // SAFETY: The pointer is that of the box, which no other thread has seen.
                drop(unsafe { Box::from_raw(new) });
                own
            },
            |_| new,
        );
        // SAFETY: The pointer is that of the box above, or of another thread's, which replaced
        // `newest` in this process: the value of this process is replaced in children only.
        unsafe { &(*own).value }
    }
}

/// A mutex in a static variable, with a value for each process: a forked child starts with the
/// default value and an unlocked mutex, whatever the threads of its parent were doing.
#[derive(Debug, Default)]
pub struct ProcessMutex<T: 'static>(ProcessLocal<Mutex<T>>);

impl<T: Default + Send> ProcessMutex<T> {
    /// Creates a mutex with the default value in each process.
    #[must_use]
    pub const fn new() -> Self {
        Self(ProcessLocal::new())
    }

    /// Locks this process's value, even if a thread panicked while it held the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.get().lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A value in a static variable that forked children inherit: each has the value that its parent
/// had at the fork, whatever the parent's threads were doing.
#[derive(Debug, Default)]
pub struct InheritedValue<T: 'static> {
    /// Null for the default value. Freed only by `update` under its lock.
    current: AtomicPtr<T>,
    lock: ProcessMutex<()>,
}

impl<T: Clone + Default + Send> InheritedValue<T> {
    /// Creates a variable with the default value.
    #[must_use]
    pub const fn new() -> Self {
        Self { current: AtomicPtr::new(ptr::null_mut()), lock: ProcessMutex::new() }
    }

    /// Returns the value.
    pub fn get(&self) -> T {
        let _lock = self.lock.lock();
        self.read()
    }

    /// Changes the value. `change` must not use the variable.
    pub fn update(&self, change: impl FnOnce(&mut T)) {
        let _lock = self.lock.lock();
        let mut value = self.read();
        change(&mut value);
        // A child that is forked at any time finds the old or the new value.
        let old = self.current.swap(Box::into_raw(Box::new(value)), Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: The pointer came from `Box::into_raw` in an earlier call, and other threads
            // of this process read it only under the lock.
            drop(unsafe { Box::from_raw(old) });
        }
    }

    /// Returns the value; the caller holds the lock.
    fn read(&self) -> T {
        // SAFETY: The pointer is null or came from `Box::into_raw` in `update`, which frees it only
        // after it has been replaced.
        unsafe { self.current.load(Ordering::Acquire).as_ref() }.cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::time::{Duration, Instant};

    use super::*;

    // SAFETY: Declared as in POSIX.
    unsafe extern "C" {
        fn fork() -> c_int;
        fn waitpid(process: c_int, status: *mut c_int, options: c_int) -> c_int;
        fn kill(process: c_int, signal: c_int) -> c_int;
        fn _exit(status: c_int) -> !;
    }

    /// `WNOHANG`: `waitpid` does not wait.
    const NO_WAIT: c_int = 1;
    /// `SIGKILL`.
    const KILL: c_int = 9;

    /// Runs `check` in a forked child, and returns the status from `waitpid`: 0 if `check` returned
    /// true. A child that hangs is killed.
    fn run_in_child(check: impl FnOnce() -> bool) -> c_int {
        // SAFETY: The child calls `check` and ends; it returns to no code of the test's harness.
        let child = unsafe { fork() };
        assert!(child >= 0, "the process can fork");
        if child == 0 {
            let is_right = check();
            // SAFETY: It ends the process.
            unsafe { _exit(c_int::from(!is_right)) }
        }
        let (mut status, deadline) = (0, Instant::now() + Duration::from_secs(120));
        // SAFETY: `status` is a number that the call may write to.
        while unsafe { waitpid(child, &raw mut status, NO_WAIT) } == 0 {
            if Instant::now() > deadline {
                // SAFETY: The process is a child that has not been waited for.
                unsafe { kill(child, KILL) };
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        status
    }

    /// Forks while another thread holds the lock guard that `hold` returns, and asserts that
    /// `check` returns true in the child.
    fn check_fork_while_held<G>(hold: impl FnOnce() -> G + Send, check: impl FnOnce() -> bool) {
        std::thread::scope(|scope| {
            let (is_held, wait_until_held) = sync_channel(0);
            let (may_end, wait_for_end) = sync_channel::<()>(0);
            scope.spawn(move || {
                let _guard = hold();
                is_held.send(()).expect("the test waits");
                wait_for_end.recv().expect_err("the test sends nothing");
            });
            wait_until_held.recv().expect("the thread runs");
            let status = run_in_child(check);
            drop(may_end);
            assert_eq!(status, 0, "the child neither hangs nor fails");
        });
    }

    /// All checks are in one test, because forks change the generation of the whole process.
    #[test]
    fn child_uses_no_lock_of_its_parent() {
        static NUMBERS: ProcessMutex<Vec<u32>> = ProcessMutex::new();
        static INHERITED: InheritedValue<Vec<u32>> = InheritedValue::new();
        // The second call must not count each fork twice.
        detect_forks();
        detect_forks();
        assert!(!is_forked_child());
        let (claimed, unclaimed) = (ProcessClaim::new(), ProcessClaim::new());
        assert!(!claimed.is_own() && claimed.claim() && claimed.claim() && claimed.is_own());
        let claims = || {
            let is_refused = claimed.is_of_parent() && !claimed.is_own() && !claimed.claim();
            is_refused && !unclaimed.is_of_parent() && unclaimed.claim() && unclaimed.is_own()
        };
        assert_eq!(run_in_child(claims), 0);
        assert!(!unclaimed.is_own() && !unclaimed.is_of_parent() && !claimed.is_of_parent());
        NUMBERS.lock().push(1);
        let in_grandchild = || is_forked_child() && generation() == 2 && NUMBERS.lock().is_empty();
        check_fork_while_held(
            || NUMBERS.lock(),
            || {
                let is_empty = NUMBERS.lock().is_empty();
                NUMBERS.lock().push(2);
                generation() == 1 && is_empty && *NUMBERS.lock() == [2] && run_in_child(in_grandchild) == 0
            },
        );
        assert_eq!((generation(), NUMBERS.lock().as_slice()), (0, &[1][..]));
        INHERITED.update(|numbers| numbers.push(1));
        let inherits = || {
            let before = INHERITED.get();
            INHERITED.update(|numbers| numbers.push(2));
            before == [1] && INHERITED.get() == [1, 2] && run_in_child(|| INHERITED.get() == [1, 2]) == 0
        };
        check_fork_while_held(|| INHERITED.lock.lock(), inherits);
        assert_eq!(INHERITED.get(), [1]);
        check_fork_while_held(
            || std::io::stderr().lock(),
            || {
                stderr_log::print("a line of a forked child");
                true
            },
        );
    }
}
