//! Real histories, run through the pool again.

#![allow(missing_docs)]

mod files;
mod hostile;
mod readings;
mod simulate;
mod verify;
