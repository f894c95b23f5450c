//! The table of `torch.cuda.memory_summary()`, computed from a recording at any moment.
//!
//! Current values follow from the memory state. Peaks and sums need every event from the first
//! allocation on, so they are unknown if the history is incomplete. They cover the whole recording
//! up to the moment: a recording does not show when the program reset its peaks.

mod free_tracker;
mod scan;
mod summary;
mod totals;

pub use scan::MemorySummaryScan;
pub use summary::{MemorySummary, SummaryRow, SummaryUnit, SummaryValues};
