//! Reads the C++ frames of the current thread from its stack.
//!
//! The tracker runs under the allocator's lock, where neither `backtrace` nor the C++ runtime's
//! unwinder may be called: both can allocate and take the loader's lock. [`NativeWalker`] unwinds
//! with tables that were prepared before, and reads nothing but the thread's own stack.
//!
//! - `code_map` has the code of all loaded libraries and its unwind tables. The follower renews it
//!   when libraries have been loaded. `sections` reads the tables from the files.
//! - `stack_ranges` has the bounds of each thread's stack. The follower finds those of a thread
//!   after its first request.
//! - `walker` walks the frames, the only part that the tracker calls.
//! - `symbols` gives addresses the names of functions.
//!
//! x86-64 only; elsewhere a stack has no C++ frames.

mod code_map;
mod sections;
mod stack_ranges;
mod symbols;
mod walker;

pub(crate) use code_map::{enable, refresh};
pub(crate) use stack_ranges::find_requested as find_requested_stacks;
pub(crate) use symbols::Symbols;
pub(crate) use walker::{MAX_NATIVE_FRAMES, NativeWalker};
