//! Tests of the `vramscope` binary and of live recordings.

mod gallery;
mod live;
mod snapshots;
mod verified;
