//! Writes recordings in other tools' formats, and removes their names.
//!
//! A writer is a function of a [`Recording`](vramscope_trace::Recording), an output and a
//! [`Progress`] callback. It visits the events with [`for_each_event`] and writes as it goes, so
//! its memory is bounded by the memory state at one moment. Names are written as they are; to
//! export a recording without names, pass it through a [`redactor`] first.

mod csv;
mod error;
mod frames;
mod memory_viz;
#[cfg(feature = "parquet")]
mod parquet;
mod perfetto;
mod redact;
mod steps;
mod table;
mod tensorboard;
mod walk;

pub use self::csv::csv;
pub use self::error::{ExportError, Progress};
pub use self::frames::{ResolvedFrame, frames};
pub use self::memory_viz::{memory_viz_json, memory_viz_pickle};
#[cfg(feature = "parquet")]
pub use self::parquet::parquet;
pub use self::perfetto::perfetto;
pub use self::redact::{redact, redactor};
pub use self::tensorboard::{ScalarFile, tensorboard, tensorboard_file_name};
pub use self::walk::for_each_event;
