//! Shows a recording: a timeline, a heatmap of the segments, and details, in a browser or as a
//! picture.
//!
//! Data flows one way: input → [`model`] (moment, range, selection) → [`scene`] (positions and
//! texts) → pixels in a [`bitmap`]. All of it runs natively too, where golden pictures test it.
//! Only the `web` module, compiled for wasm, uses a browser.
//!
//! The crate does not compute memory states: [`MemoryState`](vramscope_trace::MemoryState) in
//! `trace` does.
//!
//! - [`model::Model`] receives bytes, clicks and keys as method calls and reports changes.
//! - [`scene::Scene`] computes layout and texts from the model; [`scene::Layers`] draws it.
//! - [`timeline`] uses plotters with the crate's own backend; [`heatmap::Layout`] finds the row and
//!   the block under a pixel.
//! - [`model::Model::needed_fetches`] returns the parts of a large file to load next; the caller
//!   passes them to [`supply`](model::Model::supply).
//! - [`connection::Connection`] is the state machine of the live connection.
//! - [`open::RecordingLoader`] reads a recording while its bytes arrive; a worker of the page
//!   converts other formats (crate `vramscope-importer`).
//! - [`jobs`] defines the computations over a whole recording that another worker runs (crate
//!   `vramscope-analyzer`).
//! - `report` draws a whole recording on one page, as SVG or PNG (not in wasm).
#![forbid(unsafe_code)]

pub mod app;
pub mod bands;
pub mod commands;
pub mod comparison;
pub mod connection;
pub mod details;
pub mod draw;
pub mod editor_link;
pub mod jobs;
pub mod lateness;
pub mod link;
pub mod model;
pub mod open;
pub mod page_texts;
mod pane_link;
pub mod pane_sizes;
pub mod playback;
pub mod protocol;
#[cfg(not(target_arch = "wasm32"))]
pub mod report;
pub mod saved_picture;
pub mod scene;
pub mod segment_map;
mod span;
pub mod timeline;
pub mod ui;
pub mod units;
pub mod view;
pub mod views;
pub mod virtual_scroll;
#[cfg(target_arch = "wasm32")]
pub mod web;
