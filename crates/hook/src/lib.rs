//! Follows PyTorch's own CUDA caching allocator from inside its process.
//!
//! PyTorch calls a *tracker* for each entry that its memory history would hold, also while that
//! history is off. The tracker packs entries into a ring for each device; the *follower*, a thread
//! of its own, derives events from them and passes them to the collector's recorder. PyTorch's
//! allocator is not replaced, and its decisions do not change.
//!
//! The Python package `vramscope` imports this library (feature `python`) and does what only Python
//! can do: it takes snapshots of the allocator's state and names the program's modules. The library
//! of the package also contains `vramscope-pluggable`, the pool that can replace PyTorch's
//! allocator, so that collector and page are in it once.
//!
//! # What the library may do in the watched process
//!
//! The tracker runs under the allocator's lock. It writes to the ring and reads the frames of its
//! own thread; it takes no lock, allocates no memory, makes no system call and never waits. If the
//! follower falls behind, events are counted and left out, and the state is read again afterwards.
//!
//! Before a tracker is attached, the library's version, the allocator's class and the function's
//! name must be those of a known layout (`torch`). A self-test then allocates and frees a tensor of
//! an unusual size and compares what the tracker saw. On any difference the tracker stays inactive.
//!
//! # Reading order
//!
//! - `torch` has the layouts of PyTorch's trace entries, and attaches the tracker.
//! - `tracker` is the tracker: one [ring](vramscope_collector::ring) for each device;
//!   `snapshot_devices` says which device an entry of a snapshot is about. `record` is what the
//!   ring contains, `writer` and `stacks` write it, `reader` and `definitions` read it, with
//!   `numbered`; `hash` is the hash of their tables.
//! - `interpreter` reads the Python frames of a thread without the interpreter's lock, and `native`
//!   its C++ frames without the C++ runtime. `scopes` has the scopes that the program opens.
//! - `follower` is the thread that reads the rings, and `pace` limits what it requests from Python;
//!   `modules` has the identities and names of modules, `regions` the names of `torch.compile`'s
//!   regions, `notes` marks and relabels from Python; `own_events` checks the tracker by the
//!   program's own events; `out_of_memory` explains a failure; `detached_work` is work for which no
//!   caller waits without a limit.
//! - `session` puts recording, follower and page together; `python` has the functions that Python
//!   calls.

// Without the Python module, only the tests use the library.
#![cfg_attr(not(feature = "python"), allow(dead_code, unused_imports))]

// Links the pool's C functions into the library, which exports them. PyTorch loads it by its path
// for `use_pool()`, as it would load `libvramscope_pluggable.so`.
#[cfg(feature = "python")]
use vramscope_pluggable as _;

mod definitions;
mod detached_work;
mod follower;
mod hash;
mod interpreter;
mod loader;
mod modules;
mod native;
mod notes;
mod numbered;
mod out_of_memory;
mod own_events;
mod pace;
mod polling;
#[cfg(feature = "python")]
mod python;
mod reader;
mod record;
mod regions;
mod scopes;
mod session;
mod snapshot_devices;
mod stacks;
#[cfg(test)]
mod tests;
mod thread_table;
mod torch;
mod tracker;
mod workspaces;
mod writer;
