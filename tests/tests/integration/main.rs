//! Tests of the `vramscope` binary and of live recordings, in one executable: they run side by side.

mod live;
mod snapshots;
mod verified;
