//! The user's view of the device map: order of the segments, zoom and scroll position.

use crate::named::named;

named! {
    /// The order of the segments on the map.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum SortBy {
        /// Lowest address first.
        #[default]
        Address = "address",
        /// Largest segment first.
        Size = "size",
        /// Default pool before private pools; small before large segments; then by stream.
        Pool = "pool",
        /// Segment with the largest free share of its bytes first.
        FreeShare = "free",
    }
}

/// The user's view of the device map: order of the segments, zoom and scroll position.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct View {
    /// Factor by which bytes are wider than if the whole pool fits the map; below 1, more of the
    /// device fits. `None` for the first view: the whole device if the pool
    /// is a large part of it, else the whole pool.
    pub zoom: Option<f64>,
    /// Scroll position: the height in pixels of the rows above the map's upper edge.
    pub scroll: i32,
    /// The position of a byte on the memory line to scroll to, instead of `scroll`,
    /// until the user moves the map.
    pub first_byte: Option<u64>,
    /// The order of the segments.
    pub sort: SortBy,
}

impl View {
    /// Maximum value of [`zoom`](Self::zoom).
    pub const MAX_ZOOM: f64 = 1e7;
}
