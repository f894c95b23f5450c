//! Other tools' memory recordings: bytes in, events out; and, with the feature `export`, a recording in, other tools' formats out.
//!
//! This crate opens no file. What it reads comes from strangers: no input makes it panic, recurse, loop without
//! bound, or take more memory than its [`Limits`] say; what is wrong with one is a [`ReadError`] that says where.
//!
//! - [`unpack()`] undoes gzip and zstd; [`sniff()`] says what a file is, by its first bytes.
//! - [`import()`] reads a PyTorch snapshot, `torch.cuda.memory._snapshot()` as a pickle or as JSON, or the CSV log of RMM's
//!   `logging_resource_adaptor`, and gives its events to a [`Sink`](vramscope_trace::Sink).
//!
//! A snapshot says less than a recording: what was requested and not how large the block was, the state at the end and not the one at
//! the beginning. How the rest is found is told in `torch/rebuild`.
//!
//! ```
//! use vramscope_formats::{Limits, import, unpack};
//! use vramscope_trace::Encoder;
//!
//! # fn main() -> Result<(), vramscope_formats::ReadError> {
//! let file = br#"{"device_traces": [[{"action": "segment_alloc", "addr": 4096, "size": 2097152, "stream": 0, "time_us": 5}]]}"#;
//! let limits = Limits::default();
//! let bytes = unpack(file, &limits)?;
//! let (mut encoder, imported) = import(&bytes, "run.json", &limits, &mut |_done, _total| {}, Encoder::new)?;
//! encoder.flush();
//! assert_eq!(imported.events, 1);
//! # Ok(())
//! # }
//! ```
//!
//! Reading order: `import`, then `torch/snapshot` (what a snapshot holds), `torch/pickle` or `torch/json` (how it is read), and
//! `torch/rebuild`; `rmm` stands by itself.
#![forbid(unsafe_code)]

mod error;
#[cfg(feature = "export")]
pub mod export;
mod import;
mod limits;
mod rmm;
mod sniff;
mod torch;
mod unpack;

pub use error::ReadError;
pub use import::{Imported, import};
pub use limits::Limits;
pub use sniff::{Source, sniff};
pub use unpack::{is_packed, unpack};
