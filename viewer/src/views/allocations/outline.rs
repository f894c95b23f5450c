//! The outline of one allocation in the "Allocations" view.

use std::ops::Range;

use vramscope_insight::address_map::AddressMap;
use vramscope_insight::bands::BandLayout;
use vramscope_insight::composition::AllocationRows;

use super::geometry::Geometry;

/// The pixels of one allocation in the picture: its pixel columns, and the rows that it fills in
/// each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// For each pixel column from left to right: x, the uppermost y, and the first y below the
    /// allocation.
    pub(super) columns: Vec<(i32, i32, i32)>,
}

impl Outline {
    /// Returns true if no pixel shows the allocation.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// Returns the outline of the allocation with row number `row` in a stacked layout; empty if it
    /// has no band of its own.
    pub(super) fn of_band(layout: &BandLayout, geometry: &Geometry, row: u32) -> Self {
        let mut outline = Self::default();
        if let Some(band) = layout.band_of(row) {
            for (column, rows) in layout.rows_of(band) {
                outline.add(geometry, geometry.pixels(column as usize, layout.column_count()), &rows);
            }
        }
        outline
    }

    /// Returns the outline of the allocation with row number `row` in an address map; empty if it
    /// is not in the map. `rows` are all allocations of the device.
    pub(super) fn in_map(map: &AddressMap, geometry: &Geometry, rows: &impl AllocationRows, row: u32) -> Self {
        let mut outline = Self::default();
        if let Some((columns, pixel_rows)) = map.outline(rows, row) {
            let count = map.moments().len();
            let pixels = geometry.pixels(columns.start, count).start..geometry.pixels(columns.end - 1, count).end;
            outline.add(geometry, pixels, &(pixel_rows.start as u32..pixel_rows.end as u32));
        }
        outline
    }

    /// Adds pixel columns, counted from the plot's left edge, in which the allocation fills the
    /// pixel rows `rows`, counted from its lower edge. Adds nothing if `rows` is empty.
    fn add(&mut self, geometry: &Geometry, pixels: Range<usize>, rows: &Range<u32>) {
        if rows.is_empty() {
            return;
        }
        let (y0, y1) = geometry.rows(rows);
        self.columns.extend(pixels.map(|pixel| (geometry.plot.x0 + pixel as i32, y0, y1)));
    }
}
