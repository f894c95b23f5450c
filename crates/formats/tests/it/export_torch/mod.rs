//! Tests of the exports to PyTorch snapshots, and of redaction.

mod common;
mod live;
mod redacted;
mod round_trip;
