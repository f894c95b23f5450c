//! The analyses of a recording with their results as JSON, for the commands and `mcp`.
//!
//! The results of `diff` are in [`diff`](crate::diff).

pub(crate) mod advise;
pub(crate) mod autopsy;
pub(crate) mod diagnose;
pub(crate) mod info;
pub(crate) mod table;
