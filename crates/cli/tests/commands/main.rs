//! The real binary, run as a person or a script runs it.
#![forbid(unsafe_code)]

mod breaks;
mod diff;
mod export;
mod files;
mod gathered;
mod live;
mod pictures;
mod program;
mod proxy;
mod refusals;
mod served;
mod verify;
