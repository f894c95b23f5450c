//! Tests of the `vramscope` binary and of live recordings, in one executable, side by side.

mod live;
mod snapshots;
mod verified;
