//! Reads the Python frames of the current thread from CPython's own memory.
//!
//! The recorder needs the Python call stack of every allocation. It runs inside PyTorch's
//! allocator, on a thread that may or may not hold the GIL, and under the allocator's lock, where a
//! call into Python could deadlock. This module therefore reads CPython's internal structures
//! directly: no GIL, no lock, no allocation and no system call.
//!
//! It supports CPython 3.10 to 3.14 with the GIL, on x86-64 and aarch64 Linux.
//!
//! - `layout.rs` has the offsets of each version. `check_layout.c` checks them against the headers.
//! - `frames.rs` walks the frames, innermost first, and `identity.rs` distinguishes their code
//!   objects. Only these two files are on the recorder's hot path.
//! - `code.rs` reads a code object: file name, function name, line table. It runs once for each
//!   code object.
//! - `line_table.rs` converts an instruction offset to a line number.
//! - `memory.rs` reads memory, either directly or with errors instead of crashes.
//! - `self_check.rs` compares the frames found with those that Python reports, once at start.
//!
//! # Limits
//!
//! - A daemon thread that is still in C++ when the interpreter finalizes keeps a pointer to its
//!   freed thread state. The caller must stop walking when finalization begins (`atexit`).
//! - CPython 3.11.0 (not 3.11.1) clears a returning frame while that frame is still the innermost
//!   one. A destructor that frees GPU memory can run then, after the frame's first local variable
//!   was freed. [`FrameRef::first_local`] is an identity: compare it, do not read through it.

mod code;
#[cfg(test)]
pub(crate) mod fake_interpreter;
mod frames;
mod identity;
mod layout;
mod line_table;
mod memory;
mod self_check;

pub(crate) use code::{CODE_BUFFER_BYTES, read_code};
pub(crate) use frames::{FrameRef, FrameWalker};
#[cfg(test)]
pub(crate) use layout::LAYOUTS;
pub(crate) use layout::{InterpreterBuild, Layout};
pub(crate) use memory::{CheckedMemory, DirectMemory, Memory};
pub(crate) use self_check::{ExpectedFrame, check_frames};
