//! Recorded histories, run through the pool again.

#![allow(missing_docs)]

mod fixtures;
mod hostile;
mod reconstruct;
mod simulate;
mod verify;
