//! Recorded histories, run through the pool again: to see whether it decides as the recorded allocator did, and what other settings
//! would have come to.
//!
//! A history holds decisions and not the calls that led to them, so the calls are read out of it first. Most follow from one entry. The
//! rest, what leaves no entry of its own, is tried: see `group` for cache emptyings and refusals of the driver, `owners` and `hidden` for
//! private pools. What follows from nothing recorded is taken as an input: when streams were done with a freed block, in what order.
//!
//! Reading order: `history` and `areas` (what was recorded), `script` (the recorded driver, and the comparison), `group`, `owners`, `read`
//! (the search), `evidence` and `hidden` (private pools without names), `verify`; then `log`, `program`, `elsewhere` and `simulate` (the
//! same calls elsewhere), `fragmentation`.

mod areas;
mod elsewhere;
mod evidence;
mod fragmentation;
mod group;
mod hidden;
mod history;
mod log;
mod owners;
mod program;
mod read;
mod script;
mod simulate;
mod tails;
mod verify;

pub use history::History;
pub use simulate::{Figures, Requests};
pub use verify::{Divergence, Verified, verify};
