//! The tables of `vramscope table`: memory by group with peaks and sums, and memory by span.
//!
//! [`group_table`] has a row for each group: its live bytes at a moment, the peak of its live
//! bytes, and all its allocations. [`span_table`] has a row for each name of a span: the allocated
//! bytes before, within (the peak) and after the span. [`phase_table`] has these figures for the
//! forward pass, the backward pass and the optimizer step, without any spans.
//!
//! Bytes are the sizes of whole blocks, after rounding. A group's live bytes include blocks that
//! are pending free, as in [`sites`](crate::sites); the bytes of spans and phases do not, as in
//! PyTorch's `memory_allocated()`.
//!
//! [`GroupTableScan`] and [`SpanTableScan`] compute them in steps.

mod group_table;
mod span_table;
#[cfg(test)]
mod tests;

pub use group_table::{GroupTable, GroupTableScan, TableRow, group_table};
pub use span_table::{SpanRow, SpanTableScan, phase_table, span_table};
