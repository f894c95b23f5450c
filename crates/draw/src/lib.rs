//! Draws bitmaps, texts and charts, on surfaces of pixels or shapes.
//!
//! A picture is drawn on a [`Surface`](surface::Surface): pixels for a screen or a PNG file
//! ([`canvas::Canvas`]), shapes for an SVG file (`svg::Svg`, not in wasm). Axes and lines are those
//! of plotters, through one [`backend`]; [`text`] sets the bundled font, and [`theme`] has the
//! colors. Equal inputs give equal pixels on every platform.
//!
//! The crate does not know recordings or views; of `trace`, it uses texts of numbers and the
//! categories of blocks, which have colors.
#![forbid(unsafe_code)]

pub mod axis;
pub mod axis_labels;
pub mod backend;
pub mod bitmap;
pub mod canvas;
pub mod chart;
pub mod group_style;
pub mod picture;
#[cfg(not(target_arch = "wasm32"))]
pub mod png;
pub mod surface;
#[cfg(not(target_arch = "wasm32"))]
pub mod svg;
pub mod text;
pub mod theme;
