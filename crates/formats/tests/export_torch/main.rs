//! Tests of the exports to PyTorch snapshots, and of redaction.
#![forbid(unsafe_code)]
#![cfg(feature = "export")]

mod common;
mod live;
mod redacted;
mod round_trip;
