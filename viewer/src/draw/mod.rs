//! Drawing: bitmaps, texts, charts, and surfaces of pixels or shapes.
//!
//! A picture is drawn on a `Surface`: pixels for a screen or a PNG file, shapes for an SVG file.
//! Nothing here knows a recording or a view.

pub(crate) mod axis;
pub(crate) mod backend;
pub mod bitmap;
pub mod canvas;
pub(crate) mod chart;
pub mod group_style;
pub mod picture;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) mod png;
pub(crate) mod surface;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) mod svg;
pub mod text;
pub mod theme;
