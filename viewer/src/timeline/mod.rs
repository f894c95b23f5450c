//! The timeline: allocated, active and reserved bytes over time, memory outside the pool above
//! them, and marks on top.
//!
//! A [`TimelineScene`] depends on the recording, the range of time and the picture's size, not on
//! the moment on the screen: it is computed and drawn once, and a [`Cursor`] is added to a copy of
//! the picture.

mod draw;
mod geometry;
mod scene;

#[cfg(not(target_arch = "wasm32"))]
pub(crate) use draw::draw_on;
pub use draw::{draw, draw_cursor};
pub use geometry::Geometry;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use geometry::{time_origin_ns, to_rgb};
pub use scene::{Content, Cursor, PeakMark, TimelineScene, moment_text};
