//! The fragmentation heatmap: every segment a row, in address order.
//!
//! **The rule.** A row is as wide as the map, whatever its segment's size, and everything in it is to scale within the row; its height
//! grows with the square root of the segment's size, so that a large segment looks large and a small one can still be seen. Rows are
//! as high as lets all of them be on the screen; where even the lowest rows do not fit, the map scrolls. Where there are few segments,
//! and so room is left, a large one is continued over several lines, as text is.
//!
//! A pixel column of a row stands for an equal part of its segment. Where it holds both live blocks and free space, it is divided in
//! height in proportion, live above and free below, and neither gets less than a pixel: so nothing vanishes, however small, and no two
//! colors are ever mixed into a third. Free space is orange and hatched. A segment with nothing in it, which the allocator
//! could give back to the driver, is hatched more quietly. Rounding waste, the part of a block that nobody asked for, is a darker end
//! of the block where it is at least a pixel wide.
//!
//! At the right of a row stand its fragmentation (1 - largest free block / free bytes in the segment) as a color from none to full,
//! and the share of it that is in use.

mod draw;
mod layout;
mod slices;

// Only reports draw on anything but frames.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use draw::draw_on;
pub use draw::{ColorBy, Content, Highlight, categories, draw, draw_highlight};
pub(crate) use layout::hit_at;
pub use layout::{Hit, Layout, Row, View};
