//! Every allocation as a band from its start to its end, stacked in the order of the starts.
//!
//! This is the "active memory timeline" of PyTorch's memory_viz, for all allocations at any zoom.
//! An allocation at least one pixel high is a band of its own; the bytes of all smaller ones are
//! drawn by layer (see [`composition`](crate::composition)) below the bands. Nothing is left out:
//! in every pixel column, layers and bands add up to the live bytes at the column's moment.
//!
//! [`BandIndex`] finds the allocations of at least a given size that are live at any of the
//! columns' moments, without reading the others. [`BandLayout`] stacks them.

mod index;
mod layout;
mod scale;

pub use index::BandIndex;
pub(crate) use index::Search;
pub use layout::{Band, BandCell, BandHit, BandLayout};
pub use scale::ByteScale;
