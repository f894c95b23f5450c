//! Tests of the `vramscope` binary and of live recordings, in one executable, side by side.

mod gallery;
mod live;
mod snapshots;
mod verified;
