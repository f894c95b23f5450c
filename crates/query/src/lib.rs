//! SQL over the tables of an archived run.
//!
//! A `QuerySession` runs statements on the tables `rollups`, `sites` and `ranks` of one archive,
//! with [DataFusion](https://datafusion.apache.org), and writes their rows as a table, JSON or
//! CSV. Statements only read, and only objects that the archive's manifest lists; `docs/query.md`
//! has examples and the limits.
//!
//! This crate does not open archives (`vramscope-fleet` does).
//!
//! # Modules
//!
//! - `session` runs statements; `output` writes rows.
//! - `archived_table` is a table of Parquet files, `ranks` the table of processes.
//! - `object_reader` reads ranges of objects for DataFusion. `untrusted` checks the sizes in a
//!   Parquet file before the parquet crate allocates them.
//! - `checked_source` turns panics of the parquet crate into errors, and names the object in each.
//!
//! Everything needs the feature `datafusion`, because DataFusion takes minutes to compile.
#![cfg(feature = "datafusion")]
#![forbid(unsafe_code)]

mod archived_table;
mod checked_source;
mod error;
mod object_reader;
mod output;
mod ranks;
mod session;
mod untrusted;

pub use error::SqlError;
pub use output::OutputFormat;
pub use session::{MAX_STATEMENT_BYTES, QuerySession, QuerySummary};
