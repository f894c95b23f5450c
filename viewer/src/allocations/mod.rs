//! The "Allocations" view: every allocation as a band over time, stacked or by address.
//!
//! The plot has the timeline's left and right edges, so that a pixel column shows equal moments in
//! both. In the stacked layout, each column shows the live allocations at the column's moment of
//! the most live bytes, older ones below; allocations less than a pixel high are added up by color
//! on top. In the layout by address, every allocation is a rectangle at its address.
//!
//! [`vramscope_insight::bands`] and [`vramscope_insight::address_map`] compute both layouts; an
//! [`AllocationsScene`] adds positions and texts, and [`draw`] paints it.

mod draw;
mod geometry;
mod labels;
mod outline;
mod scene;
#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests;

pub use crate::group_style::GroupStyle;
pub use draw::{draw, draw_outline};
pub use geometry::Geometry;
pub use outline::Outline;
pub use scene::{AllocationsContent, AllocationsLayout, AllocationsScene, Target};
