//! The outline of one allocation.

use std::ops::Range;

use vramscope_insight::address_map::AddressMap;
use vramscope_insight::bands::BandLayout;
use vramscope_insight::composition::AllocationRows;

use super::geometry::Geometry;

/// The pixels of one allocation: in each pixel column the rows that it fills.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// For every pixel column from left to right: x, the first y, and the first y below.
    pub(super) columns: Vec<(i32, i32, i32)>,
}

impl Outline {
    /// Returns true if no pixel shows the allocation.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// Returns the outline of an allocation with a band of its own.
    pub(super) fn of_band(layout: &BandLayout, geometry: &Geometry, row: u32) -> Self {
        let mut outline = Self::default();
        if let Some(band) = layout.band_of(row) {
            for (column, rows) in layout.rows_of(band) {
                outline.add(geometry, geometry.pixels(column as usize, layout.column_count()), &rows);
            }
        }
        outline
    }

    /// Returns the outline of an allocation in an address map.
    pub(super) fn in_map(map: &AddressMap, geometry: &Geometry, rows: &impl AllocationRows, row: u32) -> Self {
        let mut outline = Self::default();
        if let Some((columns, pixel_rows)) = map.outline(rows, row) {
            let count = map.moments().len();
            let pixels = geometry.pixels(columns.start, count).start..geometry.pixels(columns.end - 1, count).end;
            outline.add(geometry, pixels, &(pixel_rows.start as u32..pixel_rows.end as u32));
        }
        outline
    }

    /// Adds pixel columns (from the plot's left edge) in which the allocation fills `rows`; nothing
    /// for an empty range.
    fn add(&mut self, geometry: &Geometry, pixels: Range<usize>, rows: &Range<u32>) {
        if rows.is_empty() {
            return;
        }
        let (y0, y1) = geometry.rows(rows);
        self.columns.extend(pixels.map(|pixel| (geometry.plot.x0 + pixel as i32, y0, y1)));
    }
}
