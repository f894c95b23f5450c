//! Autopsy: why each request failed with out of memory, and what would have prevented it.
//!
//! [`Autopsy::new`] finds the cause of every failure from the memory state just before it, the
//! lifetimes of all allocations and the steps of training. `docs/autopsy.md` lists the causes.
//!
//! The causes are tried in this order; the first that applies is reported:
//!
//! 1. what no program can change: a request larger than everything, memory outside the pool;
//! 2. free memory that the allocator did not use, although it is large enough: pending frees,
//!    cached segments that were not released, private pools, other streams;
//! 3. growth from step to step;
//! 4. fragmentation;
//! 5. what filled the memory: parameters, optimizer state, one temporary, activations.
//!
//! [`RemedySearch`] lists changes that may have prevented a failure, and checks each by simulating
//! the recorded program with it.

mod analysis;
mod candidate;
mod cause;
mod check;
mod contents;
mod defects;
mod free_memory;
mod out_of_memory;
mod remedies;
mod summary;

pub use analysis::{Autopsy, MAX_FAILURES};
pub use candidate::{Candidate, Remedy, RemedyKind};
pub use cause::OomCause;
pub use check::RemedySearch;
pub use contents::Holder;
pub(crate) use contents::Lines;
pub use defects::{Defect, defects};
pub use free_memory::FreeMemory;
pub use out_of_memory::OutOfMemory;
