//! Tests of the crate from outside that run on the host, in one executable: they share helpers and
//! run side by side.
#![cfg(not(target_arch = "wasm32"))]

#[path = "../checksums/mod.rs"]
mod checksums;
#[path = "../samples/mod.rs"]
mod samples;

mod bands;
mod commands;
mod excerpts;
mod files;
mod golden;
mod golden_file;
mod golden_pictures;
mod heatmap;
mod lanes;
mod layout;
mod live_recording;
mod model;
mod partial_loading;
mod report;
mod saving;
mod still;
mod timeline;
mod timeline_flags;
mod timeline_input;
mod timeline_speed;
mod view_history;
mod view_pictures;
mod views_allocations;
mod views_compare;
mod views_details;
mod views_flame;
mod views_fragmentation;
mod views_heatmap;
mod views_holders;
mod views_leaks;
mod views_lists;
mod views_training;
mod views_what_if;
