//! Recorded histories, run through the pool again.

mod fixtures;
mod hostile;
mod reconstruct;
mod simulate;
mod verify;
