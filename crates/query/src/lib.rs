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
#![forbid(unsafe_code)]

#[cfg(feature = "datafusion")]
mod archived_table;
#[cfg(feature = "datafusion")]
mod checked_source;
#[cfg(feature = "datafusion")]
mod error;
#[cfg(feature = "datafusion")]
mod object_reader;
#[cfg(feature = "datafusion")]
mod output;
#[cfg(feature = "datafusion")]
mod ranks;
#[cfg(feature = "datafusion")]
mod session;
#[cfg(feature = "datafusion")]
mod untrusted;

#[cfg(feature = "datafusion")]
pub use error::SqlError;
#[cfg(feature = "datafusion")]
pub use output::OutputFormat;
#[cfg(feature = "datafusion")]
pub use session::{MAX_STATEMENT_BYTES, QuerySession, QuerySummary};
