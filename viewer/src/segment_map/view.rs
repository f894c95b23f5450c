//! The user's view of the heatmap: scaling, order of the rows, zoom and scroll position.

use crate::named::named;

named! {
    /// The scale of the heatmap: how many bytes a pixel stands for.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum Scaling {
        /// Every segment has its own scale, so that it is as wide as the map.
        #[default]
        EachSegment = "segment",
        /// All segments have one scale, so that areas can be compared. Long segments continue on
        /// the next line, small ones share a line.
        Common = "common",
    }
}

named! {
    /// The order of the heatmap's rows.
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

/// The user's view of the heatmap: scaling, order of the rows, zoom and scroll position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// Factor for the height of rows, at least 1. At 1, all rows fit if they can.
    pub zoom: f32,
    /// Scroll position: the height in pixels of the rows above the map's upper edge.
    pub scroll: i32,
    /// Factor for the width of bytes, at least 1. At 1, segments with their own scale are as wide
    /// as the map, and segments with the common scale all fit if they can. With the common scale, a
    /// larger factor makes more lines, not wider ones.
    pub column_zoom: f64,
    /// The share (0 to 1) of each line that is left of the map's left edge because of
    /// `column_zoom`; always 0 with the common scale.
    pub column_start: f64,
    /// How segments are scaled.
    pub scaling: Scaling,
    /// The order of the rows.
    pub sort: SortBy,
}

impl Default for View {
    fn default() -> Self {
        Self {
            zoom: 1.0,
            scroll: 0,
            column_zoom: 1.0,
            column_start: 0.0,
            scaling: Scaling::default(),
            sort: SortBy::default(),
        }
    }
}

impl View {
    /// Maximum value of [`zoom`](Self::zoom).
    pub const MAX_ZOOM: f32 = 24.0;
    /// Maximum value of [`column_zoom`](Self::column_zoom).
    pub const MAX_COLUMN_ZOOM: f64 = 1e7;

    /// Returns the view with `zoom`, `column_zoom` and `column_start` clamped to their bounds;
    /// numbers that are not finite become 1, 1 and 0.
    #[must_use]
    pub(super) fn clamped(self) -> Self {
        let finite = |value: f64, least: f64| if value.is_finite() { value } else { least };
        let column_zoom = finite(self.column_zoom, 1.0).clamp(1.0, Self::MAX_COLUMN_ZOOM);
        let column_start = match self.scaling {
            Scaling::EachSegment => finite(self.column_start, 0.0).clamp(0.0, 1.0 - 1.0 / column_zoom),
            Scaling::Common => 0.0,
        };
        let zoom = if self.zoom.is_finite() { self.zoom.clamp(1.0, Self::MAX_ZOOM) } else { 1.0 };
        Self { zoom, column_zoom, column_start, ..self }
    }
}
