//! The long history of a run in an object store: S3, Google Cloud Storage, Azure or files.
//!
//! A broker keeps hours at most. An [`ArchiveWriter`] stores the recordings of a run's processes,
//! and one-second roll-ups of their summaries, for as long as the store keeps them. A
//! [`RunArchiver`] reads events and summaries from the broker and passes them to the writer. An
//! [`ArchiveReader`] opens any part without the others. `docs/archive.md` describes the objects.
//!
//! Objects never change once they are written, except for the manifest, which is written after the
//! objects that it lists and replaced as a whole. A reader therefore never sees a partial object.
//!
//! `layout` has the names of objects, `manifest` the list of them with its checks, `store` the
//! requests to the object store. `recording_parts` divides the recording of a process into
//! parts, `rollups` combines summaries and `parquet_table` writes them; `uploads` and
//! `manifest_sync` store both. `run_archiver` reads a run from the broker: descriptions of its
//! processes into `descriptions`, events into `event_archive`, summaries into `summary_archive`.

mod address;
mod byte_budget;
mod descriptions;
mod error;
mod event_archive;
mod layout;
mod manifest;
mod manifest_sync;
mod parquet_table;
mod reader;
mod recording_parts;
mod rollup_reader;
mod rollups;
mod run_archiver;
mod spool;
mod store;
mod summary_archive;
mod table_parts;
#[cfg(test)]
mod tests;
mod uploads;
mod writer;

pub use address::ArchiveAddress;
pub use error::ArchiveError;
pub use layout::Table;
pub use manifest::{ObjectEntry, RankEntry, RecordingPartEntry, TablePartEntry};
pub use parquet_table::ColumnKind;
pub use reader::{ArchiveReader, ArchivedPart, file_name};
pub use rollup_reader::Rollup;
pub use run_archiver::RunArchiver;
pub use writer::{ArchiveOptions, ArchiveSummary, ArchiveWriter, ProcessArchive};
