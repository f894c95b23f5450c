//! Tests of the crate from outside that run on the host, in one executable: they share helpers and
//! run side by side.
#![cfg(not(target_arch = "wasm32"))]

#[path = "../samples/mod.rs"]
mod samples;

mod bands;
mod golden;
mod layout;
mod live_recording;
mod model;
mod partial_loading;
mod report;
