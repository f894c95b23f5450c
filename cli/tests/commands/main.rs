//! The real binary, run as a person or a script runs it.
#![forbid(unsafe_code)]

mod diff;
mod export;
mod files;
mod live;
mod pictures;
mod program;
mod refusals;
mod verify;
