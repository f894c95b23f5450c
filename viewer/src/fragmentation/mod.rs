//! The "Fragmentation" view's picture: fragmentation over time, and below it the free memory in
//! segments, and the largest free block with the largest requests.
//!
//! All charts have the timeline's left and right edges, so a pixel column shows equal moments in
//! all. Fragmentation is a line at its value at each column's end, on a band from its lowest to its
//! highest value. Below, the free bytes that are stuck beside live blocks and the releasable free
//! bytes (whole free segments) are stacked. At the bottom, to its own scale, the largest free block
//! is a line, and the largest request of each column a dot: a dot above the line could not be
//! served from free memory.
//!
//! [`vramscope_insight::pools`] computes the columns; a [`FragmentationScene`] adds positions and
//! texts, and [`draw`] paints it.

mod draw;
mod scene;
#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests;

pub use draw::draw;
pub use scene::{FragmentationContent, FragmentationScene, Part};
