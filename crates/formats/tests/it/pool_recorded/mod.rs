//! Recorded histories, run through the pool again.

mod fixtures;
mod hostile;
#[cfg(feature = "export")]
mod no_split;
mod reconstruct;
mod simulate;
mod verify;
