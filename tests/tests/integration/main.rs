//! Tests of the `vramscope` binary and of live recordings, in one executable, which compiles faster
//! than one for each file.

mod live;
mod snapshots;
mod verified;
