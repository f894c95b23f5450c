//! Archives in memory, in a folder and in a store that fails, written and read again.

pub(super) mod harness;
mod recordings;
mod stores;
mod tables;
