//! Statements on archives with known answers, and on damaged ones.
#![forbid(unsafe_code)]

mod attacks;
mod documented;
mod harness;
mod output;
#[path = "../../examples/fleet_queries/statements.rs"]
mod statements;
