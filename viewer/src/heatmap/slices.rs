//! What each pixel column of a row stands for.

use vramscope_trace::{Block, DeviceState, Segment};

/// What a stretch of a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind<'a> {
    /// What was asked for of a live block.
    Live(&'a Block),
    /// The end of a live block that nobody asked for.
    Waste(&'a Block),
    /// Free space.
    Free,
}

/// One pixel column: an equal part of the segment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slice<'a> {
    /// The share of it, 0 to 1, that is free.
    pub(super) free: f32,
    /// What most of the live part is.
    pub(super) live: Option<Kind<'a>>,
    live_share: f32,
    /// The first address of the extent that has the most of it.
    pub(super) most: u64,
    most_share: f32,
    /// Whether an extent begins at its left edge, to within a pixel.
    pub(super) begins: bool,
}

impl<'a> Slice<'a> {
    /// Whether it lies behind the segment's end.
    pub(super) fn is_outside(&self) -> bool {
        self.most_share == 0.0
    }

    fn add(&mut self, kind: Kind<'a>, extent: u64, share: f32) {
        if share > self.most_share {
            self.most_share = share;
            self.most = extent;
        }
        match kind {
            Kind::Free => self.free += share,
            live if share > self.live_share => {
                self.live_share = share;
                self.live = Some(live);
            }
            _ => {}
        }
    }
}

/// Adds a stretch of `kind` from pixel `from` to pixel `to` (not whole ones) to the columns that it touches.
fn add<'a>(columns: &mut [Slice<'a>], kind: Kind<'a>, extent: u64, from: f64, to: f64) {
    let first = (from.max(0.0) as usize).min(columns.len() - 1);
    let last = (to.ceil() as usize).clamp(first + 1, columns.len());
    for (column, slice) in columns[first..last].iter_mut().enumerate() {
        let left = (first + column) as f64;
        // The least share keeps a stretch that is thinner than a number can say from vanishing.
        let share = (to.min(left + 1.0) - from.max(left)).max(1e-9);
        slice.add(kind, extent, share as f32);
    }
}

/// The columns of a segment, `width` for every `line_bytes` or part of them.
pub(super) fn slices<'a>(device: &'a DeviceState, segment: &Segment, width: usize, line_bytes: u64) -> Vec<Slice<'a>> {
    let lines = segment.size.div_ceil(line_bytes.max(1)).max(1) as usize;
    let mut columns = vec![Slice { most: segment.address, ..Slice::default() }; width.max(1) * lines];
    let per_byte = width.max(1) as f64 / line_bytes.max(1) as f64;
    for extent in device.extents(segment) {
        let begin = (extent.address - segment.address) as f64 * per_byte;
        let end = begin + extent.size as f64 * per_byte;
        let wide = end - begin >= 3.0;
        match extent.block {
            None => add(&mut columns, Kind::Free, extent.address, begin, end),
            Some(block) => {
                let asked = block.requested.min(extent.size);
                let waste = begin + asked as f64 * per_byte;
                // Less than a pixel of waste would only make the block's edge look dirty.
                let split = if end - waste >= 1.0 { waste } else { end };
                add(&mut columns, Kind::Live(block), extent.address, begin, split);
                if split < end {
                    add(&mut columns, Kind::Waste(block), extent.address, split, end);
                }
            }
        }
        if wide && let Some(slice) = columns.get_mut(begin.round() as usize) {
            slice.begins = true;
        }
    }
    columns
}
