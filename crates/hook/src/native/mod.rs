//! Reads the C++ frames of the current thread from its stack.
//!
//! The tracker runs under the allocator's lock, where neither `backtrace` nor the C++ runtime's
//! unwinder may be called: both can allocate and take the loader's lock. [`NativeWalker`] unwinds
//! with tables that were prepared before, and reads nothing but the thread's own stack.
//!
//! - `code_map` has the code of all loaded libraries and its unwind tables. The follower renews it
//!   when libraries have been loaded. `sections` reads the tables from the files.
//! - `stack_ranges` has the bounds of each thread's stack. The follower finds the bounds of a
//!   thread's stack after its first request.
//! - `walker` walks the frames, the only part that the tracker calls.
//! - `symbols` finds the name of the function at an address.
//!
//! Only x86-64 is supported; on other processors, stacks have no C++ frames.

mod code_map;
mod sections;
mod stack_ranges;
mod symbols;
mod walker;

pub(crate) use code_map::{enable, refresh};
pub(crate) use stack_ranges::find_requested as find_requested_stacks;
pub(crate) use symbols::Symbols;
pub(crate) use walker::{MAX_NATIVE_FRAMES, NativeWalker};

#[cfg(test)]
mod tests {
    use std::ffi::{c_int, c_uint};

    use vramscope_collector::session::lifecycle::detect_forks;

    use super::code_map::LIBRARIES;
    use super::stack_ranges::{LAST_READ, request};
    use super::{enable, find_requested_stacks};

    // SAFETY: Declared as in POSIX.
    unsafe extern "C" {
        fn fork() -> c_int;
        fn waitpid(process: c_int, status: *mut c_int, options: c_int) -> c_int;
        fn alarm(seconds: c_uint) -> c_uint;
        fn _exit(status: c_int) -> !;
    }

    #[test]
    fn child_waits_for_no_lock_of_its_parent() {
        detect_forks();
        let (libraries, last_read) = (LIBRARIES.lock(), LAST_READ.lock());
        // SAFETY: The child prepares to read C++ frames and ends, at the latest by its alarm; it
        // returns to no code of the test's harness.
        let child = unsafe { fork() };
        if child == 0 {
            // SAFETY: A signal ends the process if it hangs.
            unsafe { alarm(20) };
            enable(None);
            request(1 << 12, 1);
            find_requested_stacks();
            // SAFETY: It ends the process.
            unsafe { _exit(0) }
        }
        let mut status = 0;
        // SAFETY: `status` is a number that the call may write to.
        assert_eq!(unsafe { waitpid(child, &raw mut status, 0) }, child);
        drop((libraries, last_read));
        assert_eq!(status, 0, "the child neither hangs nor fails");
    }
}
