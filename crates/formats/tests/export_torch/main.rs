//! Recordings as PyTorch snapshots, and recordings without their names.
#![forbid(unsafe_code)]
#![cfg(feature = "export")]

mod common;
mod live;
mod redacted;
mod round_trip;
