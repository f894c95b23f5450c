//! Stacks bands in every pixel column.

use std::ops::Range;

use super::index::{BandIndex, Search};
use super::scale::ByteScale;
use crate::composition::{AllocationRows, CompositionColumn, CompositionSeries, LAYERS, LayerBytes};

/// Maximum number of (band, column) pairs in a layout: 8 MB. A picture without vertical
/// magnification needs at most one for each pixel. A magnified one would need more, so it shows
/// more allocations by layer instead.
const MAX_CELLS: usize = 2 << 20;

/// An allocation that is drawn as a band of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    /// Row number of the allocation.
    pub row: u32,
    /// The layer of its group, see [`CompositionSeries::layer_of`].
    pub layer: u8,
    /// Size in bytes, which is the band's height.
    pub size: u64,
    /// The first column in which it is drawn.
    pub first_column: u32,
    /// The first column in which it is not drawn any more.
    pub end_column: u32,
}

impl Band {
    /// Returns the number of columns in which it is drawn.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.end_column.saturating_sub(self.first_column)
    }
}

/// The content of a part of a column: the small allocations of a layer, or a band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BandHit {
    /// All allocations of a layer that are too small for a band of their own.
    Small {
        /// The layer.
        layer: u8,
    },
    /// The band with this index in [`BandLayout::bands`].
    Band(u32),
}

/// A part of a pixel column of a [`BandLayout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandCell {
    /// The content.
    pub content: BandHit,
    /// The layer whose color it has.
    pub layer: u8,
    /// Bytes below it in the column.
    pub bottom: u64,
    /// Bytes below its upper end.
    pub top: u64,
}

/// All live allocations in each pixel column, stacked.
#[derive(Clone, Debug)]
pub struct BandLayout {
    scale: ByteScale,
    /// The bands in the order of their allocations' row numbers and starts.
    bands: Vec<Band>,
    columns: Vec<Column>,
    /// Indices of the bands of all columns, one column after the other, from the bottom.
    cells: Vec<u32>,
    min_size: u64,
}

/// One pixel column of a [`BandLayout`].
#[derive(Clone, Debug)]
struct Column {
    moment: u64,
    total: u64,
    /// Bytes of the allocations without a band, by layer.
    small: LayerBytes,
    /// End of the column's bands in `cells`; they begin where the column before ends.
    cells_end: usize,
}

impl BandLayout {
    /// Computes the layout of `columns`, which `series` returned, for the bytes in `visible` on
    /// `height` pixel rows. The index and the series must have been built from all of `rows`.
    #[must_use]
    pub fn new<R: AllocationRows>(
        (index, rows): (&BandIndex, &R),
        series: &CompositionSeries,
        columns: &[CompositionColumn],
        visible: &Range<u64>,
        height: u32,
    ) -> Self {
        let scale = ByteScale::new(visible, height);
        let moments: Vec<u64> = columns.iter().map(|column| column.moment).collect();
        // A conversion from a float saturates.
        let (mut bands, min_size) =
            find_bands((index, rows), series, &moments, (scale.bytes_per_row().ceil() as u64).max(1));
        bands.sort_unstable_by_key(|band| band.row);
        let (columns, cells) = stack(&bands, columns);
        Self { scale, bands, columns, cells, min_size }
    }

    /// Returns the vertical scale.
    #[must_use]
    pub fn scale(&self) -> &ByteScale {
        &self.scale
    }

    /// Returns the number of columns.
    #[must_use]
    pub fn column_count(&self) -> usize {
        self.columns.len()
    }

    /// Returns the bands in the order of their allocations' starts.
    #[must_use]
    pub fn bands(&self) -> &[Band] {
        &self.bands
    }

    /// Returns the size in bytes from which allocations are bands of their own: one pixel row, or
    /// more if there are very many.
    #[must_use]
    pub fn min_size(&self) -> u64 {
        self.min_size
    }

    /// Returns the moment that a column shows and the live bytes then, which its cells add up to;
    /// `None` if there is no such column.
    #[must_use]
    pub fn column(&self, column: usize) -> Option<(u64, u64)> {
        self.columns.get(column).map(|column| (column.moment, column.total))
    }

    /// Returns the parts of a column that are not empty, from the bottom: first the bands, then the
    /// layers of small allocations.
    pub fn cells(&self, column: usize) -> impl Iterator<Item = BandCell> + '_ {
        let small = self.columns.get(column).map_or(&[0; LAYERS], |column| &column.small);
        let small = (0..).zip(small).map(|(layer, &bytes)| (BandHit::Small { layer }, layer, bytes));
        let indices = self.columns.get(column).map_or(&[][..], |this| {
            let start = column.checked_sub(1).map_or(0, |before| self.columns[before].cells_end);
            &self.cells[start..this.cells_end]
        });
        let bands = indices.iter().map(|&index| {
            let band = &self.bands[index as usize];
            (BandHit::Band(index), band.layer, band.size)
        });
        let mut top = 0u64;
        bands.chain(small).filter(|&(_, _, bytes)| bytes > 0).map(move |(content, layer, bytes)| {
            let bottom = top;
            top = top.saturating_add(bytes);
            BandCell { content, layer, bottom, top }
        })
    }

    /// Returns the part of a column on pixel row `row`, counted from the lowest byte; `None` above
    /// all parts.
    #[must_use]
    pub fn hit(&self, column: usize, row: u32) -> Option<BandCell> {
        let is_on_row = |cell: &BandCell| (self.scale.row(cell.bottom)..self.scale.row(cell.top)).contains(&row);
        self.cells(column).find(is_on_row)
    }

    /// Returns the index of the band of an allocation, or `None` if it has no band of its own.
    #[must_use]
    pub fn band_of(&self, row: u32) -> Option<u32> {
        self.bands.binary_search_by_key(&row, |band| band.row).ok().map(|index| index as u32)
    }

    /// Returns the pixel rows that a band fills in each of its columns, as (column, rows); outside
    /// of the visible bytes the range is empty.
    pub fn rows_of(&self, band: u32) -> impl Iterator<Item = (u32, Range<u32>)> + '_ {
        let columns = self.bands.get(band as usize).map_or(0..0, |band| band.first_column..band.end_column);
        columns.filter_map(move |column| {
            let cell = self.cells(column as usize).find(|cell| cell.content == BandHit::Band(band))?;
            Some((column, self.scale.row(cell.bottom)..self.scale.row(cell.top)))
        })
    }
}

/// Returns the allocations of at least `min_size` bytes that are live at some of `moments`, and the
/// least size for which all were found: larger than `min_size` if there are too many.
fn find_bands<R: AllocationRows>(
    (index, rows): (&BandIndex, &R),
    series: &CompositionSeries,
    moments: &[u64],
    min_size: u64,
) -> (Vec<Band>, u64) {
    let (mut bands, mut cells) = (Vec::new(), 0usize);
    let smallest_class = min_size.ilog2() as usize;
    for size_class in (smallest_class..64).rev() {
        let found_before = bands.len();
        let is_complete = Search::new(size_class).step((index, rows), moments, min_size, usize::MAX, |candidate| {
            cells = cells.saturating_add((candidate.end_column - candidate.first_column) as usize);
            bands.push(Band {
                row: candidate.row,
                layer: series.layer_of(candidate.group),
                size: candidate.size,
                first_column: candidate.first_column,
                end_column: candidate.end_column,
            });
            cells <= MAX_CELLS
        });
        if !is_complete {
            bands.truncate(found_before);
            return (bands, 2u64.checked_shl(size_class as u32).unwrap_or(u64::MAX));
        }
    }
    (bands, min_size)
}

/// Stacks bands, which are in the order of their starts, in every column. Returns the columns, and
/// the indices of the bands of all columns, one column after the other.
fn stack(bands: &[Band], columns: &[CompositionColumn]) -> (Vec<Column>, Vec<u32>) {
    let mut ends = vec![false; columns.len() + 1];
    for band in bands {
        ends[band.end_column as usize] = true;
    }
    let mut stacked = Vec::with_capacity(columns.len());
    let (mut live, mut cells): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
    let mut begun = 0;
    // Bytes of the live bands of each layer.
    let mut band_bytes: LayerBytes = [0; LAYERS];
    for (index, column) in columns.iter().enumerate() {
        if ends[index] {
            live.retain(|&band| {
                let band = &bands[band as usize];
                let stays = band.end_column as usize > index;
                if !stays {
                    let bytes = &mut band_bytes[usize::from(band.layer)];
                    *bytes = bytes.saturating_sub(band.size);
                }
                stays
            });
        }
        while let Some(band) = bands.get(begun).filter(|band| band.first_column as usize <= index) {
            let bytes = &mut band_bytes[usize::from(band.layer)];
            *bytes = bytes.saturating_add(band.size);
            live.push(begun as u32);
            begun += 1;
        }
        cells.extend_from_slice(&live);
        let mut small = column.layers;
        for (bytes, band_bytes) in small.iter_mut().zip(&band_bytes) {
            *bytes = bytes.saturating_sub(*band_bytes);
        }
        stacked.push(Column { moment: column.moment, total: column.total, small, cells_end: cells.len() });
    }
    (stacked, cells)
}
