//! Answers computed from a recording: who holds memory, what a peak consists of, what leaks, why a
//! request failed.
//!
//! Each analysis is a function of a recording, a memory state or the lifetimes of all allocations.
//! The page, the commands and the exports call the same functions. Nothing here reads a clock or a
//! file, or starts a thread: work over a whole recording is divided into steps, so that the caller
//! can draw, report progress or stop between two of them.
//!
//! Moments are event numbers: moment n is the state after the first n events.
//!
//! - [`history`]: the lifetimes and times of all events, built in steps and extended as a live
//!   recording grows.
//! - [`group`], [`frames`]: how allocations are grouped (by site, function, file, line, module,
//!   category, operation, stream, pool, size) and how call stacks are shown.
//! - [`sites`], [`flame`], [`tables`]: who holds memory, as a list, as a flame graph and as a
//!   table with peaks and sums over the recording.
//! - [`composition`]: live bytes by group over time.
//! - [`bands`], [`address_map`]: every allocation as a band over time, stacked or by address.
//! - [`spans`], [`steps`], [`idle_time`]: named intervals, the steps of a training run, and long
//!   intervals without events.
//! - [`peak`], [`leaks`], [`temporaries`]: the composition of a peak, allocations that are never
//!   freed, and allocations that are freed at once.
//! - [`difference`]: what two moments, of one recording or of two, hold differently, by group;
//!   [`comparison`]: by call stack, with figures of both recordings; [`conditions`]: limits on
//!   these figures; [`matching`]: which sites of two recordings match.
//! - [`incremental`]: analyses in parts, for a caller that draws frames.
//! - [`failures`], [`placement`], [`pools`], [`memory_summary`]: out-of-memory errors, where a
//!   request would fit, free memory by pool, and the table of all counters.
//! - [`autopsy`]: why each request failed with out of memory.
//! - [`diagnosis`]: the memory problems of a recording, with evidence and remedies.
//! - [`verdict`]: what to say first about a recording; [`evidence`]: what a recording lacks.
//! - [`advice`]: which allocator settings a program needs, and the smallest GPU that it fits on,
//!   from simulated runs; [`what_if`]: the requests to simulate.
//! - [`packing`]: an offline placement of all lifetimes: the memory that an allocator that knows
//!   all requests in advance could reserve.
//! - [`fleet`]: many ranks of a run at once, from summaries, and which of them differ.
//! - [`query`], [`events`], [`allocations`]: the search language, and lists of events and
//!   allocations filtered and sorted by it.
#![forbid(unsafe_code)]

pub mod address_map;
pub mod advice;
pub mod allocations;
pub mod autopsy;
pub mod bands;
pub mod categories;
mod comparator;
pub mod comparison;
pub mod composition;
pub mod conditions;
pub mod diagnosis;
pub mod difference;
pub mod events;
pub mod evidence;
pub mod failures;
pub mod flame;
pub mod fleet;
pub mod frames;
pub mod group;
pub mod history;
pub mod idle_time;
pub mod incremental;
pub mod leaks;
pub mod matching;
pub mod memory_summary;
pub mod packing;
pub mod peak;
pub mod placement;
pub mod pools;
pub mod query;
pub mod sites;
pub mod small_map;
pub mod spans;
pub mod steps;
pub mod tables;
pub mod temporaries;
pub mod verdict;
pub mod what_if;
