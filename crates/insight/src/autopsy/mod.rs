//! Autopsy: why each request failed with out of memory, and what would have prevented it.
//!
//! [`Autopsy`] finds the cause of every failure, in steps: from the memory state just before it,
//! the lifetimes of all allocations and the steps of training. [`OomCause`] lists the causes in the
//! order in which they are tried; `docs/autopsy.md` explains them.
//!
//! [`RemedySearch`] lists changes that may have prevented a failure, and checks each by simulating
//! the recorded program with it. Its runs do not depend on each other, so that callers with threads
//! can make several at once.
//!
//! [`defects`] finds defects of PyTorch's allocator that waste memory without a failure.

mod ages;
mod analysis;
mod candidate;
mod checkpointing;
mod contents;
mod defects;
mod examination;
mod out_of_memory;
mod recording_lines;
mod remedies;
mod search;
mod summary;

pub use analysis::Autopsy;
pub use candidate::{Remedy, RemedyKind};
pub(crate) use checkpointing::{ModuleCall, ModuleCalls, checkpointed};
pub(crate) use contents::Growing;
pub use contents::Holder;
pub use defects::{Defect, defects};
pub use out_of_memory::{OutOfMemory, Pin};
pub(crate) use recording_lines::RecordingLines;
pub use search::{Horizon, MAX_SEARCHES, Remedies, RemedyRun, RemedySearch, RunResult};

pub use crate::failures::OomCause;
