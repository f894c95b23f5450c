//! The pixels of an address map, painted in steps.

use std::ops::Range;

use super::axis::AddressAxis;
use super::painted_rows::{NO_ROW, PaintedRows};
use super::segment_spans::{SegmentSpan, SegmentSpans, sort_spans};
use crate::bands::{BandIndex, ByteScale, Search};
use crate::composition::{AllocationRows, CompositionSeries};

/// Minimum height in pixel rows of a [`LargeRectangle`].
const LARGE_ROWS: usize = 10;
/// Minimum width in columns of a [`LargeRectangle`].
const LARGE_COLUMNS: usize = 16;
/// Number of pixels that are painted in about the time in which one allocation is read. A step
/// measures its work in pixels.
const PIXELS_PER_ROW: usize = 16;

/// The content of a pixel of an address map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapPixel {
    /// The gap between two ranges of addresses, or space beyond the last one.
    Gap,
    /// Addresses that are not reserved at the column's moment.
    NotReserved,
    /// Free memory of a segment.
    Free,
    /// An allocation.
    Allocation {
        /// The layer of its group, see [`CompositionSeries::layer_of`].
        layer: u8,
    },
}

impl MapPixel {
    /// Code in `AddressMap::pixels` of a gap, or of space beyond the last range. The code of a
    /// pixel with an allocation is its layer.
    const GAP: u8 = u8::MAX;
    /// Code in `AddressMap::pixels` of addresses that are not reserved.
    const NOT_RESERVED: u8 = u8::MAX - 1;
    /// Code in `AddressMap::pixels` of free memory of a segment.
    const FREE: u8 = u8::MAX - 2;

    /// Returns the content that a code in `AddressMap::pixels` stands for.
    const fn from_code(code: u8) -> Self {
        match code {
            Self::GAP => Self::Gap,
            Self::NOT_RESERVED => Self::NotReserved,
            Self::FREE => Self::Free,
            layer => Self::Allocation { layer },
        }
    }
}

/// The object under a pixel of an address map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressHit {
    /// An allocation.
    Allocation {
        /// Its row number.
        row: u32,
    },
    /// Free memory of a segment.
    Free {
        /// Address of the first byte.
        address: u64,
        /// Size in bytes.
        size: u64,
        /// The moment that the pixel's column shows.
        moment: u64,
    },
    /// An address that is not reserved at the column's moment.
    NotReserved {
        /// The address.
        address: u64,
        /// The moment that the pixel's column shows.
        moment: u64,
    },
}

/// An allocation whose rectangle has room for its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargeRectangle {
    /// Its row number.
    pub row: u32,
    /// The layer of its group, see [`CompositionSeries::layer_of`].
    pub layer: u8,
    /// The columns that it fills.
    pub columns: Range<usize>,
    /// The pixel rows that it fills, counted from the lowest address.
    pub pixel_rows: Range<usize>,
}

/// The part of an [`AddressMap`] that the next step paints.
#[derive(Clone, Debug)]
enum Stage {
    /// The free memory of the segments that are left, the largest last.
    Segments(Vec<SegmentSpan>),
    /// Allocations of one size class after the other, the largest first.
    Allocations {
        size_class: usize,
        search: Search,
    },
    Complete,
}

/// A picture of one device's memory: time across, addresses up.
///
/// A new map has no allocations. [`step`](Self::step) paints them, the large ones first, so that
/// the picture is useful after the first steps. A pixel shows the allocation that covers most of
/// it.
#[derive(Clone, Debug)]
pub struct AddressMap {
    moments: Vec<u64>,
    axis: AddressAxis,
    scale: ByteScale,
    /// A code of [`MapPixel`] for each pixel, the lowest row of pixels first and each row from the
    /// left.
    pixels: Vec<u8>,
    painted: PaintedRows,
    large: Vec<LargeRectangle>,
    stage: Stage,
}

impl AddressMap {
    /// Creates the map of the columns with `moments`, which must not decrease, on `height` pixel
    /// rows. It shows the part `visible` of the axis ([`AddressAxis::length`] bytes long), or all
    /// of it for `None`. `segments` are the spans of the device's segments.
    ///
    /// At most 65,534 columns are painted.
    #[must_use]
    pub fn new(segments: &SegmentSpans, mut moments: Vec<u64>, visible: Option<Range<u64>>, height: u32) -> Self {
        moments.truncate(PaintedRows::MAX_WIDTH);
        let (first, last) = (moments.first().copied().unwrap_or(0), moments.last().copied().unwrap_or(0));
        let mut spans: Vec<SegmentSpan> = segments
            .between(first, last)
            .filter(|span| !columns_of(&moments, span.first_moment, span.end).is_empty())
            .collect();
        // `step` takes spans from the end, so it paints the largest first.
        sort_spans(&mut spans, |span| span.size);
        let axis = AddressAxis::new(spans.iter().copied(), height);
        let scale = ByteScale::new(&visible.unwrap_or(0..axis.length()), height);
        let height = scale.rows() as usize;
        let mut pixels = Vec::with_capacity(moments.len() * height);
        for y in 0..scale.rows() {
            // The middle of the pixel row.
            let position = scale.bytes(y).saturating_add((scale.bytes_per_row() / 2.0) as u64);
            let code = if axis.address(position).is_some() { MapPixel::NOT_RESERVED } else { MapPixel::GAP };
            pixels.resize(pixels.len() + moments.len(), code);
        }
        let painted = PaintedRows::new(moments.len(), height);
        Self { moments, axis, scale, pixels, painted, large: Vec::new(), stage: Stage::Segments(spans) }
    }

    /// Returns the vertical axis.
    #[must_use]
    pub fn axis(&self) -> &AddressAxis {
        &self.axis
    }

    /// Returns the vertical scale, which converts positions on the axis to pixel rows.
    #[must_use]
    pub fn scale(&self) -> &ByteScale {
        &self.scale
    }

    /// Returns the moments of the columns.
    #[must_use]
    pub fn moments(&self) -> &[u64] {
        &self.moments
    }

    /// Returns true if everything is painted.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        matches!(self.stage, Stage::Complete)
    }

    /// Returns what has been painted so far in column `x` and pixel row `y`, counted from the
    /// lowest address.
    #[must_use]
    #[inline]
    pub fn pixel(&self, x: usize, y: usize) -> MapPixel {
        MapPixel::from_code(self.code(x, y))
    }

    /// Returns the code of a pixel: that of a [`MapPixel`].
    #[inline]
    fn code(&self, x: usize, y: usize) -> u8 {
        let width = self.moments.len();
        if x < width { self.pixels.get(y * width + x).copied().unwrap_or(MapPixel::GAP) } else { MapPixel::GAP }
    }

    /// Iterates over what has been painted so far in pixel row `y`, from the left; `y` counts from
    /// the lowest address. The second value is the row number of the pixel's allocation; it is
    /// meaningless for a pixel without one.
    pub fn pixel_row(&self, y: usize) -> impl Iterator<Item = (MapPixel, u32)> + '_ {
        let width = self.moments.len();
        let codes = self.pixels.get(y * width..(y + 1) * width).unwrap_or_default();
        codes.iter().map(|&code| MapPixel::from_code(code)).zip(self.painted.rows(y).iter().copied())
    }

    /// Returns the row number of the allocation that a pixel shows, or `None`.
    #[must_use]
    pub fn row(&self, x: usize, y: usize) -> Option<u32> {
        (x < self.moments.len()).then(|| self.painted.row(x, y)).filter(|&row| row != NO_ROW)
    }

    /// Returns the allocations painted so far that are large enough for a name, in no particular
    /// order. They do not overlap.
    #[must_use]
    pub fn large_rectangles(&self) -> &[LargeRectangle] {
        &self.large
    }

    /// Paints up to about `max_rows` further allocations, and returns true if the map is complete.
    ///
    /// The index and the series must have been built from all of `rows`. Pass them unchanged in all
    /// steps. Takes about 100 ns for an allocation.
    pub fn step<R: AllocationRows>(
        &mut self,
        (index, rows): (&BandIndex, &R),
        series: &CompositionSeries,
        max_rows: usize,
    ) -> bool {
        let mut left = max_rows.max(1).saturating_mul(PIXELS_PER_ROW);
        if let Stage::Segments(spans) = &mut self.stage {
            let mut spans = std::mem::take(spans);
            while let Some(span) = spans.pop() {
                left = left.saturating_sub(self.paint_segment(&span) + PIXELS_PER_ROW);
                if left == 0 {
                    self.stage = Stage::Segments(spans);
                    return false;
                }
            }
            self.stage = Stage::Allocations { size_class: 63, search: Search::new(63) };
        }
        while let Stage::Allocations { size_class, mut search } = self.stage {
            let moments = std::mem::take(&mut self.moments);
            let is_done = search.step((index, rows), &moments, 1, left / PIXELS_PER_ROW, |candidate| {
                let columns = candidate.first_column as usize..candidate.end_column as usize;
                let layer = series.layer_of(candidate.group);
                let range = (rows.address(candidate.row), candidate.size);
                let work = self.paint_allocation(candidate.row, layer, range, columns, size_class);
                left = left.saturating_sub(work + PIXELS_PER_ROW);
                left > 0
            });
            self.moments = moments;
            self.stage = match size_class.checked_sub(1) {
                _ if !is_done => Stage::Allocations { size_class, search },
                Some(size_class) => Stage::Allocations { size_class, search: Search::new(size_class) },
                None => Stage::Complete,
            };
            if !is_done || left == 0 {
                break;
            }
        }
        self.is_complete()
    }

    /// Paints the memory of a segment as free. Returns the number of pixels painted.
    fn paint_segment(&mut self, span: &SegmentSpan) -> usize {
        let columns = columns_of(&self.moments, span.first_moment, span.end);
        let Some(range) = self.axis.locate(span.address, span.size) else { return 0 };
        let rows = touched_rows(&self.scale, &range);
        let pixels = columns.len() * rows.len();
        for y in rows {
            let start = y * self.moments.len();
            self.pixels[start + columns.start..start + columns.end].fill(MapPixel::FREE);
        }
        pixels
    }

    /// Paints an allocation of `size` bytes at `address` in `columns`, on the pixels of which it
    /// covers more than the allocation painted there. `size_class` is the base-2 logarithm of the
    /// least size of its class. Returns the number of pixels looked at.
    fn paint_allocation(
        &mut self,
        row: u32,
        layer: u8,
        (address, size): (u64, u64),
        columns: Range<usize>,
        size_class: usize,
    ) -> usize {
        let Some(range) = self.axis.locate(address, size) else { return 0 };
        let (bottom, top) = (self.scale.position(range.start), self.scale.position(range.end));
        // At one moment, only one allocation can cover more than half of a pixel. Later allocations
        // are less than twice as large as the smallest possible one of this class.
        let class_part = (1u64 << size_class.min(63)) as f64 / self.scale.bytes_per_row();
        let closing = (2.0 * class_part).min(0.5) as f32;
        // The number of columns; `self.moments` is empty while `step` searches.
        let width = self.pixels.len() / (self.scale.rows() as usize).max(1);
        let pixels = &mut self.pixels;
        let mut work = 0;
        let pixel_rows = touched_rows(&self.scale, &range);
        let most = (pixels.len() / (LARGE_ROWS * LARGE_COLUMNS)).max(1);
        if pixel_rows.len() >= LARGE_ROWS && columns.len() >= LARGE_COLUMNS && self.large.len() < most {
            let (columns, pixel_rows) = (columns.clone(), pixel_rows.clone());
            self.large.push(LargeRectangle { row, layer, columns, pixel_rows });
        }
        for y in pixel_rows {
            let part = (top.min(y as f64 + 1.0) - bottom.max(y as f64)) as f32;
            work += self.painted.cover((columns.start, columns.end), y, row, (part, closing), |x| {
                pixels[y * width + x] = layer;
            });
        }
        work
    }

    /// Returns the columns and the pixel rows of an allocation's rectangle; `None` if none of it is
    /// in the map. Rows count from the lowest address.
    #[must_use]
    pub fn outline(&self, rows: &impl AllocationRows, row: u32) -> Option<(Range<usize>, Range<usize>)> {
        let span = rows.span(row);
        let columns = columns_of(&self.moments, span.first_moment, span.end);
        let range = self.axis.locate(rows.address(row), span.size)?;
        let pixel_rows = touched_rows(&self.scale, &range);
        (!columns.is_empty() && !pixel_rows.is_empty()).then_some((columns, pixel_rows))
    }

    /// Returns the object under a pixel, or `None` in a gap. `y` counts from the lowest address.
    ///
    /// For free memory, the cost is linear in the number of allocations that are live at the
    /// moment.
    #[must_use]
    pub fn hit<R: AllocationRows>(
        &self,
        (index, rows): (&BandIndex, &R),
        segments: &SegmentSpans,
        (x, y): (usize, usize),
    ) -> Option<AddressHit> {
        if let Some(row) = self.row(x, y) {
            return Some(AddressHit::Allocation { row });
        }
        let moment = *self.moments.get(x)?;
        let pixel_row = u32::try_from(y).ok()?;
        let middle = self.scale.bytes(pixel_row).saturating_add((self.scale.bytes_per_row() / 2.0) as u64);
        // The middle of a pixel row can be in a gap beside a short range.
        let candidates = [middle, self.scale.bytes(pixel_row), self.scale.bytes(pixel_row + 1).saturating_sub(1)];
        let address = candidates.into_iter().find_map(|position| self.axis.address(position))?;
        match self.pixel(x, y) {
            MapPixel::Gap => None,
            MapPixel::NotReserved => Some(AddressHit::NotReserved { address, moment }),
            _ => {
                let free = free_range((index, rows), segments, moment, address);
                Some(match free {
                    Some(range) => AddressHit::Free { address: range.start, size: range.end - range.start, moment },
                    None => AddressHit::NotReserved { address, moment },
                })
            }
        }
    }
}

/// Returns the columns whose moments are at or after `first_moment` and before `end`.
fn columns_of(moments: &[u64], first_moment: u64, end: u64) -> Range<usize> {
    let start = moments.partition_point(|&moment| moment < first_moment);
    start..moments.partition_point(|&moment| moment < end).max(start)
}

/// Returns the pixel rows that show at least one byte of `range`, a part of the axis.
fn touched_rows(scale: &ByteScale, range: &Range<u64>) -> Range<usize> {
    let height = f64::from(scale.rows());
    let bottom = scale.position(range.start).floor().clamp(0.0, height) as usize;
    let top = scale.position(range.end).ceil().clamp(0.0, height) as usize;
    bottom..top.max(bottom)
}

/// Returns the free memory around `address` at a moment: up to the next live allocations, within
/// its segment; `None` if the address is not reserved.
fn free_range<R: AllocationRows>(
    (index, rows): (&BandIndex, &R),
    segments: &SegmentSpans,
    moment: u64,
    address: u64,
) -> Option<Range<u64>> {
    let mut spans: Vec<SegmentSpan> =
        segments.between(moment, moment).filter(|span| span.first_moment <= moment && span.end > moment).collect();
    sort_spans(&mut spans, |span| span.address);
    let after = spans.partition_point(|span| span.address <= address);
    let here = *spans.get(after.checked_sub(1)?)?;
    let mut free = Some(here.address..here.end_address()).filter(|free| free.contains(&address))?;
    // Adjacent mapped parts belong to one expandable segment; other adjacent segments stay apart.
    if here.is_mapped_part {
        for span in spans[after..].iter().take_while(|span| span.is_mapped_part) {
            if span.address != free.end {
                break;
            }
            free.end = span.end_address();
        }
        for span in spans[..after - 1].iter().rev().take_while(|span| span.is_mapped_part) {
            if span.end_address() < free.start {
                break;
            }
            free.start = span.address;
        }
    }
    for size_class in 0..64 {
        Search::new(size_class).step((index, rows), &[moment], 1, usize::MAX, |candidate| {
            let start = rows.address(candidate.row);
            let end = start.saturating_add(candidate.size);
            if start > address {
                free.end = free.end.min(start);
            } else {
                free.start = free.start.max(end.min(address));
            }
            true
        });
    }
    Some(free)
}
