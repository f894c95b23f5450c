//! Shows a recording: a timeline, one or two views, and details, in a browser or as a picture.
//!
//! Data flows one way: a click or key becomes a [`command::Command`], which changes the [`model`]
//! (moment, range, selection) or the options of one [`view`]; every frame, the shown views draw
//! what has changed. All of it runs natively too, where golden pictures test it. Only the `web`
//! module, compiled for wasm, uses a browser.
//!
//! The crate does not compute memory states: [`MemoryState`](vramscope_trace::MemoryState) in
//! `trace` does.
//!
//! - [`app::Session`] runs commands, and schedules background work, views and frames.
//! - [`view::View`] is the interface of a view; [`views`] has one folder for each view, and
//!   `REGISTRY` there lists them.
//! - [`model::Model`] stores the recording, the moment and the selection, and reports changes.
//! - [`device_map`] computes and draws the memory of a device, for the view and for comparisons.
//! - `fragmentation_chart` draws fragmentation over time, for the view and for reports.
//! - [`timeline`] computes and draws the counters over time; axes are drawn by plotters (crate
//!   `vramscope-draw`).
//! - [`model::Model::needed_fetches`] returns the parts of a large file to load next; the caller
//!   passes them to [`supply`](model::Model::supply).
//! - [`connection::Connection`] is the state machine of the live connection.
//! - [`open::RecordingLoader`] reads a recording while its bytes arrive; a worker of the page
//!   converts other formats (crate `vramscope-importer`).
//! - [`jobs`] defines the computations over a whole recording that another worker runs (crate
//!   `vramscope-analyzer`).
#![forbid(unsafe_code)]

#[cfg(all(test, not(target_arch = "wasm32")))]
extern crate self as vramscope_viewer;

pub mod app;
pub mod bands;
pub mod command;
pub mod comparison;
pub mod connection;
pub mod details;
pub mod device_map;
pub mod editor_link;
pub mod fragmentation_chart;
pub mod jobs;
pub mod key_bindings;
pub mod lateness;
pub mod later;
pub mod link;
pub mod linked_memory;
pub mod model;
mod named;
pub mod open;
pub mod page_texts;
mod pane_link;
pub mod pane_sizes;
pub mod playback;
pub mod protocol;
mod row_order;
pub mod saved_picture;
pub mod span;
#[cfg(all(test, not(target_arch = "wasm32")))]
mod testing;
pub mod timeline;
pub mod ui;
pub mod units;
pub mod view;
pub mod views;
pub mod virtual_scroll;
#[cfg(target_arch = "wasm32")]
pub mod web;
