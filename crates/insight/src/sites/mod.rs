//! Memory by group: live bytes, and the allocations of a range.
//!
//! [`live_groups`] reads a memory state, [`groups_at`] the lifetimes of all allocations; both
//! return equal rows for the same moment. Rows at the peak are the result of [`groups_at`] at the
//! peak's moment. [`RangeGroups`] sums up the allocations made between two moments, in steps;
//! [`GroupPeaks`] finds the peak of each group's live bytes between them. If one line holds nearly
//! everything, [`LineCallers`] finds who calls it.
//!
//! A row's `bytes` are live bytes (active: allocated or pending free), so that the rows add up to
//! the device's active bytes and, without `pending_bytes`, to its allocated bytes.

mod callers;
mod live;
mod range;

pub use callers::{Caller, LineCallers, is_dominant};
pub use live::{GroupRow, common_category, groups_at, groups_of, groups_of_allocations, live_groups};
pub use range::{GroupPeak, GroupPeaks, RangeGroups, RangeRow, group_peaks, groups_in_range};
