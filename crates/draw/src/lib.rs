//! Draws bitmaps, texts and charts, on surfaces of pixels or shapes.
//!
//! A picture is drawn on a [`Surface`]: pixels for a screen or a PNG file ([`Canvas`]), shapes for
//! an SVG file (`Svg`, not in wasm). Plotters draws the axes and lines of a [`Chart`] through one
//! backend; a [`Typesetter`] sets the bundled font, and a [`Theme`] has the colors.
//! Equal inputs give equal pixels on every platform.
//!
//! The crate does not know recordings or views; of `trace`, it uses texts of numbers and the
//! categories of blocks, which have colors.
#![forbid(unsafe_code)]

mod axis;
pub mod axis_labels;
mod backend;
mod bitmap;
mod canvas;
mod chart;
mod group_style;
pub mod picture;
#[cfg(not(target_arch = "wasm32"))]
pub mod png;
mod surface;
#[cfg(not(target_arch = "wasm32"))]
mod svg;
pub mod text;
mod theme;

pub use axis::Axis;
pub use bitmap::{Bitmap, Color, Rect, opaque};
pub use canvas::Canvas;
pub use chart::{Chart, LineStyle, draw_ticks};
pub use group_style::GroupStyle;
pub use picture::MomentAxis;
pub use surface::Surface;
#[cfg(not(target_arch = "wasm32"))]
pub use svg::Svg;
pub use text::{Align, Typesetter, Weight};
pub use theme::{GROUP_COLORS, Texture, Theme};
