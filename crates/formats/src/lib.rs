//! Readers and writers of other tools' GPU memory recordings.
//!
//! Readers turn a PyTorch snapshot, a trace of its profiler or an RMM log into events. With the
//! feature `export`, writers turn a recording into other tools' formats.
//!
//! This crate opens no files. Its input is untrusted: no input makes a reader panic, recurse or
//! loop without bound, or take more memory than its [`Limits`] allow. Invalid input is a
//! [`ReadError`] with the position of the problem.
//!
//! - [`unpack()`] decompresses gzip and zstd, and extracts the recording from an HTML page or a ZIP
//!   archive.
//! - [`sniff()`] recognizes a format by its first bytes; [`unsupported_file()`] says what any other
//!   file is.
//! - [`import()`] reads a PyTorch snapshot (`torch.cuda.memory._snapshot()` as a pickle or as
//!   JSON), a trace or a memory timeline of `torch.profiler`, or the CSV log of RMM's
//!   `logging_resource_adaptor`, and passes its events to a [`Sink`](vramscope_trace::Sink).
//! - [`Importer`] does all three for a file whose bytes arrive in pieces.
//! - [`BufferTable`] reads and writes MiniMalloc's tables of buffers to place.
//! - [`LiveSnapshot`] and [`LiveDevice`] derive events from PyTorch's trace entries while the
//!   program runs.
//!
//! A snapshot contains less than a recording: requested sizes but not block sizes, and the state
//! at the end but not the one at the beginning. `torch/rebuild` describes how both are derived.
//!
//! ```
//! use vramscope_formats::{Limits, ignore_progress, import, unpack};
//! use vramscope_trace::Encoder;
//!
//! # fn main() -> Result<(), vramscope_formats::ReadError> {
//! let file = br#"{"device_traces": [[
//!     {"action": "segment_alloc", "addr": 4096, "size": 2097152, "stream": 0, "time_us": 5}]]}"#;
//! let limits = Limits::default();
//! let bytes = unpack(file, &limits)?;
//! let progress = &mut ignore_progress;
//! let (mut encoder, summary) = import(&bytes, "run.json", &limits, progress, Encoder::new)?;
//! encoder.flush();
//! assert_eq!(summary.events, 1);
//! # Ok(())
//! # }
//! ```
//!
//! Reading order: `import`, `torch/snapshot` (the rows of a snapshot), `torch/pickle` or
//! `torch/json` (how they are read), `torch/rebuild`. `kineto`, `timeline` and `rmm` are
//! independent of `torch`.
#![forbid(unsafe_code)]

mod buffers;
mod contained;
mod conversion;
mod decompress;
mod error;
#[cfg(feature = "export")]
pub mod export;
mod html;
mod import;
mod importer;
mod kineto;
mod limits;
mod progress;
mod rmm;
mod sniff;
mod summary;
mod timeline;
mod torch;
mod unpack;
mod unsupported;

pub use buffers::{BufferRow, BufferTable};
pub use contained::is_archive;
pub use error::ReadError;
pub use html::recording_in_html;
pub use import::import;
pub use importer::{ImportedFile, Importer};
pub use limits::Limits;
pub use progress::{ImportPhase, ImportProgress, ignore_progress};
pub use sniff::{InputFormat, sniff};
pub use summary::ImportSummary;
pub use torch::live::{LiveDevice, LiveEntry, LiveSnapshot};
pub use torch::snapshot::TraceAction;
pub use unpack::{is_packed, unpack};
pub use unsupported::unsupported_file;
