//! The viewer: a recording's memory on a screen, in the browser and outside.
//!
//! One path runs through it: input → [`model`] (what is looked at) → scene ([`timeline`], [`heatmap`], [`details`]) → pixels
//! ([`frame`]) or text. Everything on that path runs natively too, where golden pictures test it; only the `web` module, which exists
//! in wasm alone, knows that there is a page.
//!
//! It is not where memory states are computed: those are the `trace` crate's, and what is on the screen at a moment is its
//! [`MemoryState`](vramscope_trace::MemoryState) there.
//!
//! - [`model::Model`] takes bytes, clicks and keys as method calls and says what must be drawn anew.
//! - [`timeline::draw`] and [`heatmap::draw`] paint on a [`frame::Frame`]; `timeline` uses plotters, with a backend of our own.
//! - [`heatmap::Layout`] says which row is where, and what is under a pixel.
//! - [`model::Model::wants`] says which bytes of a large recording are wanted; whoever has them calls [`supply`](model::Model::supply).
//! - [`following::Following`] knows how far a live recording has come, and what to ask the server for.
//! - [`open::Opening`] recognizes what a file is while its bytes come.
#![forbid(unsafe_code)]

mod axis;
mod backend;
pub mod bands;
pub mod details;
pub mod following;
pub mod frame;
pub mod heatmap;
pub mod lateness;
pub mod link;
pub mod marks;
pub mod model;
pub mod open;
pub mod playback;
#[cfg(not(target_arch = "wasm32"))]
pub mod report;
mod span;
mod surface;
pub mod text;
pub mod theme;
pub mod timeline;
pub mod units;
#[cfg(target_arch = "wasm32")]
pub mod web;
