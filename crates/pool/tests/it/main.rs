//! Tests of the crate from outside, in one executable: they share helpers and run side by side.

mod common;

mod conf;
mod errors;
mod invariants;
mod model;
mod private_pools;
mod recorded_conf;
mod scenarios;
