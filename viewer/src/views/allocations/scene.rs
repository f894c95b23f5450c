//! Computes the texts and positions of the "Allocations" view, without colors.

use vramscope_draw::{Axis, GroupStyle, Typesetter};
use vramscope_insight::address_map::{AddressMap, MapPixel};
use vramscope_insight::bands::{BandHit, BandLayout};
use vramscope_insight::composition::{AllocationRows, LAYERS};
use vramscope_trace::sort::sort_by;

use super::geometry::Geometry;
use super::labels::{BandLabel, address_axis, band_labels, bytes_axis, map_labels};
use super::outline::Outline;

/// Text in the middle of a view without allocations.
const EMPTY: &str = "no memory is allocated in this range";

/// A layout of the view's allocations: stacked in each column, or at their addresses.
#[derive(Clone, Debug)]
pub enum AllocationsLayout {
    /// Allocations as bands over time, stacked in the order in which they were allocated.
    Stacked(BandLayout),
    /// Allocations as rectangles, from first to last moment and from first to last address.
    ByAddress(AddressMap),
}

impl AllocationsLayout {
    /// Returns the number of columns, each of which shows one moment.
    pub fn columns(&self) -> usize {
        match self {
            Self::Stacked(layout) => layout.column_count(),
            Self::ByAddress(map) => map.moments().len(),
        }
    }
}

/// The inputs of an [`AllocationsScene`].
pub struct AllocationsContent<'a> {
    /// The layout, with [`Geometry::height`] pixel rows and at most [`Geometry::width`] columns.
    pub layout: AllocationsLayout,
    /// The style of every layer. A layer is a group of allocations with a color of its own; the
    /// last layer has all other groups.
    pub styles: [GroupStyle; LAYERS],
    /// Returns the short name of an allocation's site, by row number.
    pub name_of: &'a mut dyn FnMut(u32) -> String,
    /// Returns the name of a layer's group.
    pub layer_name: &'a mut dyn FnMut(u8) -> String,
}

/// The object under a pixel of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// An allocation.
    Allocation {
        /// Row number of the allocation in [`AllocationRows`].
        row: u32,
    },
    /// All allocations of a layer that are less than a pixel high in this column.
    Small {
        /// Index of the layer.
        layer: u8,
        /// Bytes of these allocations.
        bytes: u64,
    },
    /// Free memory of a segment; [`AddressMap::hit`] returns its address range.
    Free,
    /// Addresses that are not reserved at the column's moment.
    NotReserved,
}

/// The "Allocations" view ready to draw.
#[derive(Clone, Debug)]
pub struct AllocationsScene {
    /// Pixel positions of the plot.
    pub geometry: Geometry,
    pub(super) layout: AllocationsLayout,
    pub(super) styles: [GroupStyle; LAYERS],
    /// The layer to emphasize; all others are drawn dim. `None` to draw all alike.
    pub(super) emphasized: Option<u8>,
    /// Row numbers of the outlined allocations, ascending; all others are drawn dim. `None` if
    /// nothing is outlined or dim.
    pub(super) outlined: Option<Vec<u32>>,
    pub(super) labels: Vec<BandLabel>,
    /// The vertical axis.
    pub(super) axis: Axis,
    /// Text in the middle of an empty view; `None` if allocations are shown.
    pub(super) notice: Option<&'static str>,
}

impl AllocationsScene {
    /// Computes texts and positions for a picture with `geometry`. Nothing is outlined yet.
    pub fn new(content: AllocationsContent, geometry: Geometry, typesetter: &Typesetter) -> Self {
        let AllocationsContent { layout, styles, name_of, layer_name } = content;
        let (labels, axis, is_empty) = match &layout {
            AllocationsLayout::Stacked(bands) => {
                let is_empty = (0..bands.column_count()).all(|column| bands.cells(column).next().is_none());
                let labels = band_labels(bands, &geometry, typesetter, name_of, layer_name);
                (labels, bytes_axis(&bands.scale().range(), &geometry), is_empty)
            }
            AllocationsLayout::ByAddress(map) => {
                let labels = map_labels(map, &geometry, typesetter, name_of);
                (labels, address_axis(map, &geometry), map.axis().ranges().is_empty())
            }
        };
        let axis = if is_empty { Axis::default() } else { axis };
        let notice = is_empty.then_some(EMPTY);
        Self { geometry, layout, styles, emphasized: None, outlined: None, labels, axis, notice }
    }

    /// Emphasizes a layer, or none, and removes all outlines.
    pub fn emphasize(&mut self, layer: Option<u8>) {
        (self.emphasized, self.outlined) = (layer, None);
    }

    /// Returns the emphasized layer.
    pub fn emphasized(&self) -> Option<u8> {
        self.emphasized
    }

    /// Outlines the allocations of the picture for whose row numbers `matches` returns true, and
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

    /// Returns true if the allocation with row number `row` is outlined, false if it is dim, and
    /// `None` before [`outline_matches`](Self::outline_matches).
    pub(super) fn is_outlined(&self, row: u32) -> Option<bool> {
        self.outlined.as_ref().map(|rows| rows.binary_search(&row).is_ok())
    }

    /// Returns the layout of the allocations.
    pub fn layout(&self) -> &AllocationsLayout {
        &self.layout
    }

    /// Returns true if the layout is complete. An address map is painted in several steps; a
    /// stacked layout is always complete.
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

    /// Returns the moment (event number) that the column at `x` pixels from the picture's left edge
    /// shows; `None` outside of the plot.
    pub fn moment(&self, x: i32) -> Option<u64> {
        let column = self.geometry.column(x, self.layout.columns())?;
        match &self.layout {
            AllocationsLayout::Stacked(layout) => layout.column(column).map(|(moment, _)| moment),
            AllocationsLayout::ByAddress(map) => map.moments().get(column).copied(),
        }
    }

    /// Returns the layout's column and pixel row at pixel (`x`, `y`) of the picture; `None` outside
    /// of the plot. Pixel rows are counted from the plot's lower edge.
    pub fn position(&self, (x, y): (i32, i32)) -> Option<(usize, u32)> {
        self.geometry.column(x, self.layout.columns()).zip(self.geometry.pixel_row(y))
    }

    /// Returns the object under pixel (`x`, `y`); `None` where nothing is drawn.
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

    /// Returns the outline of the allocation with row number `row`; empty if it has no pixel of its
    /// own in the picture. `rows` are the allocations that the layout was computed for.
    pub fn outline(&self, rows: &impl AllocationRows, row: u32) -> Outline {
        match &self.layout {
            AllocationsLayout::Stacked(layout) => Outline::of_band(layout, &self.geometry, row),
            AllocationsLayout::ByAddress(map) => Outline::in_map(map, &self.geometry, rows, row),
        }
    }
}
