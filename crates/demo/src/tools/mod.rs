//! Tools that watch a training run, as tutorials on PyTorch's memory use them.
//!
//! - [`PhaseTable`]: memory before, within and after each phase and layer of a training step.
//! - [`LineTable`]: memory by source line, as `pytorch_memlab` shows it.
//! - [`Profiler`]: memory and time by operation, as `torch.profiler` shows them.
//! - [`print_memory`]: the allocator's counters, a short form of `torch.cuda.memory_summary()`.
//! - [`MemoryLog`]: allocated, reserved and peak bytes at the end of each phase.
//! - [`TensorboardLog`]: an event file for TensorBoard, written while training goes on.
//!
//! A tool watches the thread that creates it until it is dropped. Several tools can watch a thread.
//! Tools never reset the allocator's counters, so they do not affect peaks that the program reads.
//! `docs/tools.md` defines every figure.

mod intervals;
mod line_table;
mod memory_summary;
mod phase_table;
mod profiler;
mod tensorboard;
#[cfg(test)]
mod tests;
mod text_table;
mod timing;

pub use line_table::{LineReport, LineRow, LineTable};
pub use memory_summary::{MemoryLog, MemoryLogEntry, MemorySummary, NowAndPeak, print_memory};
pub use phase_table::{PhaseReport, PhaseRow, PhaseTable};
pub use profiler::{ProfileReport, ProfileRow, Profiler, SortBy};
pub use tensorboard::TensorboardLog;
pub use timing::Timing;
