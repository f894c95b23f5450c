//! Tests of all analyses against real recordings and against computations from every event.

mod advice;
mod allocations;
mod autopsy;
mod bands;
mod comparison;
mod composition;
mod diagnosis;
mod difference;
mod events;
mod example_recordings;
mod failures;
mod flame;
mod history;
mod leaks;
mod matching;
mod memory_summary;
mod one_line_changed;
mod packing;
mod peak;
mod placement;
mod pools;
mod recordings;
mod sites;
mod steps;
mod tables;
mod verdict;
