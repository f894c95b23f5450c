//! The "Flame graph" view's picture: bytes by call stack, the outermost frame at the top, or by
//! group.
//!
//! Every node is a box as wide as its bytes, below its caller or the group that it is a part of;
//! the largest child is leftmost. The space right of a box's children stands for blocks whose
//! stacks end there. Children narrower than a pixel are one hatched box, so that widths still add
//! up. A click on a box makes it as wide as the picture, with its callers above.
//!
//! [`vramscope_insight::flame`] computes the nodes; a [`FlameScene`] adds positions and texts, and
//! [`draw`] paints it.

mod draw;
mod scene;
#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests;

pub use draw::{color_of, draw, draw_highlight};
pub(crate) use scene::zoomed_node;
pub use scene::{BoxStyle, FlameBox, FlameContent, FlameScene, Target, box_styles, function_hue};
