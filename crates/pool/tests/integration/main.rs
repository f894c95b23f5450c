//! Tests of the crate from outside, in one executable, which compiles faster than one for each file.

mod common;

mod conf;
mod errors;
mod invariants;
mod model;
mod private_pools;
mod scenarios;
