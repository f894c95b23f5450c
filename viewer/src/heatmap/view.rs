//! How the user looks at the heatmap: layout mode, order of the rows, zoom and scroll position.

/// How the heatmap scales segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scaling {
    /// Every segment is as wide as the map.
    #[default]
    EachSegment,
    /// A pixel stands for equally many bytes everywhere, so that areas can be compared. Long
    /// segments continue on the next line, small ones share a line.
    Common,
}

impl Scaling {
    /// All values, in the order of menus.
    pub const ALL: [Self; 2] = [Self::EachSegment, Self::Common];

    /// Returns the name in links and for scripts: `segment` or `common`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::EachSegment => "segment",
            Self::Common => "common",
        }
    }

    /// Returns the value with this [`name`](Self::name), or `None` if no value has it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scaling| scaling.name() == name)
    }
}

/// The order of the heatmap's rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SortBy {
    /// Lowest address first.
    #[default]
    Address,
    /// Largest segment first.
    Size,
    /// Default pools before private ones, then by stream.
    Pool,
    /// Largest free share first.
    FreeShare,
}

impl SortBy {
    /// All values, in the order of menus.
    pub const ALL: [Self; 4] = [Self::Address, Self::Size, Self::Pool, Self::FreeShare];

    /// Returns the name in links and for scripts: `address`, `size`, `pool` or `free`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Size => "size",
            Self::Pool => "pool",
            Self::FreeShare => "free",
        }
    }

    /// Returns the value with this [`name`](Self::name), or `None` if no value has it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|sort| sort.name() == name)
    }
}

/// Layout mode, order, zoom and scroll position of the heatmap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// Factor for the height of rows, relative to all rows fitting; at least 1.
    pub zoom: f32,
    /// Pixels of rows above the upper edge.
    pub scroll: i32,
    /// Factor for the width of bytes; at least 1. With the common scale, lines become more instead
    /// of wider.
    pub column_zoom: f64,
    /// The part of each line that is left of the map, 0 to 1; always 0 with the common scale.
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
    /// Maximum factor for the height of rows.
    pub const MAX_ZOOM: f32 = 24.0;
    /// Maximum factor for the width of bytes.
    pub const MAX_COLUMN_ZOOM: f64 = 1e7;

    /// Returns the view with zooms and the left part within their bounds.
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
