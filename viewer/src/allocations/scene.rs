//! Computes the texts and positions of the view, without colors.

use vramscope_insight::address_map::{AddressMap, MapPixel};
use vramscope_insight::bands::{BandHit, BandLayout};
use vramscope_insight::composition::{AllocationRows, LAYERS};
use vramscope_trace::sort::sort_by;

use super::geometry::Geometry;
use super::labels::{AxisLabel, BandLabel, band_labels, byte_labels, map_labels, range_labels};
use super::outline::Outline;
use crate::group_style::GroupStyle;
use crate::text::Typesetter;

/// Text in the middle of a view without allocations.
const EMPTY: &str = "no memory is allocated in this range";

/// A layout of all allocations: stacked, or by address.
#[derive(Clone, Debug)]
pub enum AllocationsLayout {
    /// Bands stacked in the order of their starts.
    Stacked(BandLayout),
    /// Rectangles at their addresses.
    ByAddress(AddressMap),
}

impl AllocationsLayout {
    /// Returns the number of columns.
    #[must_use]
    pub fn columns(&self) -> usize {
        match self {
            Self::Stacked(layout) => layout.column_count(),
            Self::ByAddress(map) => map.moments().len(),
        }
    }
}

/// The inputs of the view.
pub struct AllocationsContent<'a> {
    /// The layout, with [`Geometry::height`] pixel rows and at most [`Geometry::width`] columns.
    pub layout: AllocationsLayout,
    /// The color of every layer.
    pub styles: [GroupStyle; LAYERS],
    /// Returns the short name of an allocation's site, by row number.
    pub name_of: &'a mut dyn FnMut(u32) -> String,
    /// Returns the name of a layer's group.
    pub layer_name: &'a mut dyn FnMut(u8) -> String,
    /// The layer to emphasize; all others are drawn dim.
    pub emphasized: Option<u8>,
}

/// The object under a pixel of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// An allocation.
    Allocation {
        /// Its row number.
        row: u32,
    },
    /// The allocations of a layer that are less than a pixel high.
    Small {
        /// The layer.
        layer: u8,
        /// Their bytes.
        bytes: u64,
    },
    /// Free memory of a segment; [`AddressMap::hit`] tells its range.
    Free,
    /// Addresses that are not reserved at the column's moment.
    NotReserved,
}

/// The view ready to draw.
#[derive(Clone, Debug)]
pub struct AllocationsScene {
    /// Positions of the plot.
    pub geometry: Geometry,
    pub(super) layout: AllocationsLayout,
    pub(super) styles: [GroupStyle; LAYERS],
    pub(super) emphasized: Option<u8>,
    /// Row numbers of the allocations that are outlined, ascending; `None` if none are, and nothing
    /// is dimmed for them.
    pub(super) outlined: Option<Vec<u32>>,
    pub(super) labels: Vec<BandLabel>,
    pub(super) axis_labels: Vec<AxisLabel>,
    /// Text in the middle of an empty view.
    pub(super) notice: Option<&'static str>,
}

impl AllocationsScene {
    /// Computes the view for a picture with `geometry`.
    #[must_use]
    pub fn new(content: AllocationsContent, geometry: Geometry, typesetter: &Typesetter) -> Self {
        let AllocationsContent { layout, styles, name_of, layer_name, emphasized } = content;
        let (labels, axis_labels, is_empty) = match &layout {
            AllocationsLayout::Stacked(bands) => {
                let is_empty = (0..bands.column_count()).all(|column| bands.cells(column).next().is_none());
                let labels = band_labels(bands, &geometry, typesetter, name_of, layer_name);
                (labels, byte_labels(&bands.scale().range(), &geometry), is_empty)
            }
            AllocationsLayout::ByAddress(map) => {
                let labels = map_labels(map, &geometry, typesetter, name_of);
                (labels, range_labels(map, &geometry), map.axis().ranges().is_empty())
            }
        };
        let axis_labels = if is_empty { Vec::new() } else { axis_labels };
        let notice = is_empty.then_some(EMPTY);
        Self { geometry, layout, styles, emphasized, outlined: None, labels, axis_labels, notice }
    }

    /// Outlines the allocations of the picture that `matches` accepts by their row numbers, and
    /// makes all others dim. Call it again after more of an address map is painted.
    pub fn outline_matches(&mut self, matches: &mut dyn FnMut(u32) -> bool) {
        let mut rows: Vec<u32> = Vec::new();
        match &self.layout {
            AllocationsLayout::Stacked(layout) => rows.extend(layout.bands().iter().map(|band| band.row)),
            AllocationsLayout::ByAddress(map) => {
                for (pixel, row) in (0..self.geometry.height() as usize).flat_map(|y| map.pixel_row(y)) {
                    if matches!(pixel, MapPixel::Allocation { .. }) && rows.last() != Some(&row) {
                        rows.push(row);
                    }
                }
            }
        }
        sort_by(&mut rows, Ord::cmp);
        rows.dedup();
        rows.retain(|&row| matches(row));
        self.outlined = Some(rows);
    }

    /// Returns true if an allocation is outlined; `None` if none are.
    pub(super) fn is_outlined(&self, row: u32) -> Option<bool> {
        self.outlined.as_ref().map(|rows| rows.binary_search(&row).is_ok())
    }

    /// Returns the layout.
    #[must_use]
    pub fn layout(&self) -> &AllocationsLayout {
        &self.layout
    }

    /// Returns true if everything is painted; an address map is painted in steps.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        match &self.layout {
            AllocationsLayout::Stacked(_) => true,
            AllocationsLayout::ByAddress(map) => map.is_complete(),
        }
    }

    /// Returns the address map mutably, to [paint](AddressMap::step) more of it; `None` if the
    /// layout is stacked.
    pub fn map_mut(&mut self) -> Option<&mut AddressMap> {
        match &mut self.layout {
            AllocationsLayout::ByAddress(map) => Some(map),
            AllocationsLayout::Stacked(_) => None,
        }
    }

    /// Computes the names in an address map again, after more of it was [painted](AddressMap::step).
    /// `name_of` returns the short name of an allocation's site, by row number.
    pub fn update_names(&mut self, typesetter: &Typesetter, name_of: &mut dyn FnMut(u32) -> String) {
        if let AllocationsLayout::ByAddress(map) = &self.layout {
            self.labels = map_labels(map, &self.geometry, typesetter, name_of);
        }
    }

    /// Sets the layer to emphasize; all others are drawn dim. `None` draws all alike.
    pub fn emphasize(&mut self, layer: Option<u8>) {
        self.emphasized = layer;
    }

    /// Returns the moment that the column at `x` shows; `None` outside of the plot.
    #[must_use]
    pub fn moment(&self, x: i32) -> Option<u64> {
        let column = self.geometry.column(x, self.layout.columns())?;
        match &self.layout {
            AllocationsLayout::Stacked(layout) => layout.column(column).map(|(moment, _)| moment),
            AllocationsLayout::ByAddress(map) => map.moments().get(column).copied(),
        }
    }

    /// Returns the column and the pixel row of the layout at pixel (`x`, `y`), counted from its
    /// lower left corner; `None` outside of the plot.
    #[must_use]
    pub fn position(&self, (x, y): (i32, i32)) -> Option<(usize, u32)> {
        self.geometry.column(x, self.layout.columns()).zip(self.geometry.pixel_row(y))
    }

    /// Returns the object under pixel (`x`, `y`); `None` where nothing is drawn.
    #[must_use]
    pub fn hit(&self, point: (i32, i32)) -> Option<Target> {
        let (column, row) = self.position(point)?;
        match &self.layout {
            AllocationsLayout::Stacked(layout) => {
                let cell = layout.hit(column, row)?;
                Some(match cell.content {
                    BandHit::Small { layer } => Target::Small { layer, bytes: cell.top - cell.bottom },
                    BandHit::Band(band) => Target::Allocation { row: layout.bands()[band as usize].row },
                })
            }
            AllocationsLayout::ByAddress(map) => match map.pixel(column, row as usize) {
                MapPixel::Gap => None,
                MapPixel::NotReserved => Some(Target::NotReserved),
                MapPixel::Free => Some(Target::Free),
                MapPixel::Allocation { .. } => map.row(column, row as usize).map(|row| Target::Allocation { row }),
            },
        }
    }

    /// Returns the outline of an allocation, empty if it has no pixel of its own here. `rows` are
    /// the rows from which the layout was computed.
    #[must_use]
    pub fn outline(&self, rows: &impl AllocationRows, row: u32) -> Outline {
        match &self.layout {
            AllocationsLayout::Stacked(layout) => Outline::of_band(layout, &self.geometry, row),
            AllocationsLayout::ByAddress(map) => Outline::in_map(map, &self.geometry, rows, row),
        }
    }
}
