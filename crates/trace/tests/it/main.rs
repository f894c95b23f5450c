//! Tests of the crate from outside, in one executable: they share helpers and run side by side.

mod common;
mod program;

mod columns_between;
mod damaged;
mod golden;
mod growing_lifetimes;
mod hostile;
mod lifetimes;
mod memory_samples;
mod metrics;
mod opening;
mod range_copy;
mod recording;
mod rejected;
mod relabels;
mod trim;
