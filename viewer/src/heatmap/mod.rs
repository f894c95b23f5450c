//! The fragmentation heatmap: every segment a row, in address order.
//!
//! A row is as wide as the map whatever its segment's size, and everything in it is to scale within
//! the row. Its height grows with the square root of the segment's size: large segments look large,
//! small ones stay visible. Rows are as high as lets all of them fit; where even the lowest rows do
//! not fit, the map scrolls. Where few segments leave space, a large one continues over several
//! lines, like text.
//!
//! A pixel column of a row stands for an equal part of its segment. A column with both live blocks
//! and free space is divided in proportion, live above and free below, and each part gets at least
//! a pixel: nothing vanishes, and colors are never mixed. Free space is orange and hatched; a
//! segment without live blocks, which the allocator could release to the driver, is hatched less
//! prominently. Rounding, the part of a block beyond the requested size, is the darker end of the
//! block where it is at least a pixel wide.
//!
//! Right of a row are its segment's fragmentation (1 − largest free block ÷ free bytes) as a color,
//! and its used percentage.

mod draw;
mod layout;
mod scene;
mod slices;

#[cfg(not(target_arch = "wasm32"))]
pub(crate) use draw::draw_on;
pub use draw::{Highlight, draw, draw_highlight};
pub(crate) use layout::hit_at;
pub use layout::{Hit, Layout, Row, View};
pub use scene::{ColorBy, Content, HeatmapScene, categories};
