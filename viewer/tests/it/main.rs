//! Tests of the crate from outside that run on the host, in one executable: they share helpers and
//! run side by side.
#![cfg(not(target_arch = "wasm32"))]

#[path = "../checksums/mod.rs"]
mod checksums;
#[path = "../../src/testing/mod.rs"]
mod testing;

mod bands;
mod commands;
mod device_map;
mod device_map_hits;
mod excerpts;
mod golden;
mod golden_pictures;
mod lanes;
mod linked;
mod live_recording;
mod model;
mod owners;
mod partial_loading;
mod saving;
mod several_views;
mod timeline;
mod timeline_flags;
mod timeline_input;
mod timeline_speed;
mod view_history;
mod views_details;

// The checksums of pictures use the samples at one path in every test program.
use testing::samples;
