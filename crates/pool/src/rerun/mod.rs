//! Runs recorded histories through a pool again.
//!
//! [`verify()`] checks that the pool makes the decisions that the recorded allocator made.
//! [`Workload`] has the requests of the recorded program, to be simulated under other settings or
//! with other memory sizes, all at once or in steps ([`Simulation`]).
//!
//! A history contains decisions, not the calls that led to them, so the calls are reconstructed
//! first. Most follow from one entry. Calls that leave no entry of their own are found by trying:
//! see `entry_group` for emptied caches and refusals of the driver, and `private_pool_tracker` and
//! `assumed_private_pools` for private pools. What follows from no entry is taken as an input:
//! when, and in which order, streams finished with freed blocks.
//!
//! Reading order: `entry`, `segment_tracker` and `history` (the recording), `cursor`,
//! `recorded_device` and `describe` (the comparison), `entry_group`, `private_pool_tracker`,
//! `call_log` and `reconstruct` (the search for the calls), `pool_evidence`,
//! `assumed_private_pools` and `start_blocks` (corrections of a history), `verify`; then
//! `requests`, `call_sequence`, `address_replay`, `fragmentation`, `workload`, `simulation`,
//! `repeats`, `continuation` and `edits`.

mod address_replay;
mod assumed_private_pools;
mod call_log;
mod call_sequence;
mod continuation;
mod cursor;
mod describe;
mod editor;
mod edits;
mod entry;
mod entry_group;
mod fragmentation;
mod history;
mod pool_evidence;
mod private_pool_tracker;
mod reconstruct;
mod recorded_device;
mod repeats;
mod requests;
mod search_state;
mod segment_tracker;
mod simulation;
mod start_blocks;
mod verify;
mod workload;

pub use edits::Edits;
pub use history::{History, StartStateError};
pub use requests::{RecordedRequest, RecordedRequests, RequestArena};
pub use simulation::Simulation;
pub use verify::{Divergence, Verification, verify};
pub use workload::{RunSummary, Workload};
