//! "What fits": where the allocator would place a request at a moment, or what blocks it.
//!
//! The answer comes from the allocator itself: a [`Pool`](vramscope_pool::Pool) is restored from
//! the memory state and serves the request, with its rules for rounding, best fit, splitting, new
//! segments, caps and retries.

mod blocking;
mod dry_run;
mod outcome;
mod request;
mod unusable;

pub use blocking::{BlockingBlock, BlockingRegion};
pub use dry_run::PlacementError;
pub use outcome::{Placement, PlacementOutcome, placement};
pub use request::{PlacementRequest, default_stream, recorded_settings, recording_notes};
pub use unusable::{UnusableFree, UnusableReason};
