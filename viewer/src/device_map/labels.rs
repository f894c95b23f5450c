//! Texts in, beside and above the map, and its scroll bar.

use vramscope_draw::axis_labels::binary_step;
use vramscope_draw::picture::px;
use vramscope_draw::{Align, Rect, Typesetter};
use vramscope_trace::{Block, ByteSize, DeviceState, PoolKind};

use super::hit::hit_at;
use super::layout::Layout;
use super::memory_kind::{KindId, MemoryKind};
use super::memory_line::MemoryLine;

/// Font size of the texts beside the map and in blocks, in units (pixels at scale 1).
pub(super) const TEXT: f32 = 10.5;
/// Minimum width of a block with a text, in units.
const LEAST_WIDTH: f32 = 44.0;
/// Space left and right of a text in a block, in units.
const PADDING: f32 = 4.0;
/// Minimum vertical distance between texts beside the map, in units.
const LABEL_DISTANCE: f32 = 26.0;
/// Text in the middle of a map without memory.
const EMPTY: &str = "no memory is reserved at this moment";

/// A function that returns the short name of a block's origin, for its label.
pub type BlockName<'a> = &'a mut dyn FnMut(&Block) -> String;

/// The inputs of the texts inside memory.
pub struct MapTexts<'a> {
    /// Returns the names of blocks.
    pub name: BlockName<'a>,
    /// The kind of pool and size in bytes of a request that failed: free memory of this kind is
    /// labelled with what it lacks.
    pub failed: Option<(PoolKind, u64)>,
}

/// A text of the map with its position, font size and alignment.
#[derive(Clone, Debug)]
pub(super) struct Label {
    pub(super) text: String,
    /// Font size in pixels.
    pub(super) size: f32,
    /// Position in pixels (x, y): of the text's edge or center as `align` says, and of its vertical
    /// center.
    pub(super) at: (f32, f32),
    pub(super) align: Align,
}

/// A text in a block.
#[derive(Clone, Debug)]
pub(super) struct BlockLabel {
    pub(super) text: String,
    /// The pixels of the text, inside the block.
    pub(super) area: Rect,
    /// The kind of memory, whose color is behind the text.
    pub(super) kind: KindId,
    /// Whether the block is dimmed.
    pub(super) is_dimmed: bool,
}

/// The rectangles of a scroll bar's track and thumb.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScrollBar {
    pub(super) track: Rect,
    pub(super) thumb: Rect,
}

/// Returns the texts in blocks and free memory that have room for one. A block on several rows has
/// its text in the widest of them.
pub(super) fn of_blocks(
    line: &MemoryLine,
    layout: &Layout,
    device: &DeviceState,
    texts: MapTexts<'_>,
    typesetter: &Typesetter,
) -> Vec<BlockLabel> {
    let MapTexts { name, failed } = texts;
    let px = |units| px(units, layout.scale);
    let size = TEXT * layout.scale;
    let mut labels = Vec::new();
    if (layout.row_pixels() as f32) < size {
        return labels;
    }
    let least_bytes = (f64::from(px(LEAST_WIDTH)) * layout.bytes_per_column()) as u64;
    let (first, last) = layout.shown();
    let mut index = line.span_at(first as u64);
    while let Some(span) = line.spans.get(index) {
        let start = index.checked_sub(1).map_or(0, |before| line.spans[before].end);
        if start as f64 >= last {
            break;
        }
        index += 1;
        let mut end = span.end;
        // Whole free segments that follow each other have one text.
        while let Some(next) = line.spans.get(index).filter(|next| next.kind == span.kind) {
            // A request can use one of them only.
            if span.kind != KindId::of(MemoryKind::Releasable) || failed.is_some() {
                break;
            }
            end = next.end;
            index += 1;
        }
        if end - start < least_bytes {
            continue;
        }
        let areas =
            layout.areas(start, end - start).filter(|area| area.y1 <= layout.map.y1 && area.y0 >= layout.map.y0);
        let Some(area) = areas.max_by_key(|area| (area.width(), -area.y0)) else { continue };
        let room = area.width() - 2 * px(PADDING);
        let texts = match failed.and_then(|failed| shortage(line, device, (span.kind, start), failed)) {
            Some(texts) => texts,
            None => texts_of(line, device, span.kind, (start, end), name),
        };
        let text = texts.iter().find(|text| typesetter.width(text, size) <= room as f32).cloned();
        let Some(text) = text else { continue };
        let x0 = area.x0 + px(PADDING);
        let width = typesetter.width(&text, size).ceil() as i32;
        let area = Rect { x0, x1: (x0 + width).min(area.x1), ..area };
        labels.push(BlockLabel { text, area, kind: span.kind, is_dimmed: span.is_dimmed });
    }
    labels
}

/// Returns the texts about free memory on which a request failed, longest first: how much is
/// missing. `None` for other memory.
fn shortage(
    line: &MemoryLine,
    device: &DeviceState,
    (kind, start): (KindId, u64),
    (pool, request): (PoolKind, u64),
) -> Option<Vec<String>> {
    let is_free = matches!(kind.kind(), MemoryKind::Stuck(_) | MemoryKind::Releasable);
    let segment = line.parts.get(line.part_at(start)?)?.segment?;
    // Whole pages of an expandable segment are a part of the free block.
    let bytes = hit_at(device, line.address_at(start)?)?.size;
    let (size, missing) = (ByteSize(bytes), request.checked_sub(bytes)?);
    if !is_free || segment.pool.kind != pool || missing == 0 {
        return None;
    }
    let missing = ByteSize(missing);
    Some(vec![format!("{size} free: too small by {missing}"), format!("too small by {missing}"), size.to_string()])
}

/// Returns the possible texts of memory of a kind, longest first; at least one.
fn texts_of(
    line: &MemoryLine,
    device: &DeviceState,
    kind: KindId,
    (start, end): (u64, u64),
    name: BlockName<'_>,
) -> Vec<String> {
    let bytes = ByteSize(end - start);
    match kind.kind() {
        MemoryKind::Live(_) => {
            let block = line.address_at(start).and_then(|address| device.block(address));
            let Some(block) = block else { return vec![bytes.to_string()] };
            let name = name(block);
            if name.is_empty() {
                vec![bytes.to_string()]
            } else {
                vec![format!("{name}  {bytes}"), name, bytes.to_string()]
            }
        }
        other => vec![format!("{} {bytes}", other.name()), other.name().to_owned()],
    }
}

/// Returns the caption above the map, and the texts left of it: sizes of segments, or how many
/// bytes are above a row.
pub(super) fn beside(line: &MemoryLine, layout: &Layout, typesetter: &Typesetter) -> Vec<Label> {
    let (scale, map) = (layout.scale, layout.map);
    let px = |units: f32| units * scale;
    let size = px(TEXT);
    let mut labels = Vec::new();
    if line.end() == 0 {
        let at = ((map.x0 + map.x1) as f32 / 2.0, (map.y0 + map.y1) as f32 / 2.0);
        labels.push(Label { text: EMPTY.to_owned(), size, at, align: Align::Center });
        return labels;
    }
    let caption = captions(layout).into_iter().find(|text| typesetter.width(text, size) <= map.width() as f32);
    let at = (map.x0 as f32, px(9.0));
    labels.extend(caption.map(|text| Label { text, size, at, align: Align::Left }));
    if (map.x0 as f32) < px(40.0) {
        return labels;
    }
    let mut lowest = i32::MIN / 2;
    let distance = px(LABEL_DISTANCE) as i32;
    let step = binary_step(layout.bytes, (layout.map.height() / distance.max(1)).max(1) as u64).max(1);
    let shown = layout.rows.iter().filter(|row| row.y0 >= map.y0 && row.y1 <= map.y1 + 1);
    for row in shown {
        let middle = i32::midpoint(row.y0, row.y1);
        if middle - lowest < if layout.has_own_rows() { distance / 2 } else { distance } {
            continue;
        }
        let text = match layout.has_own_rows() {
            true if row.begins_part => line.parts.get(row.part).map(|part| ByteSize(part.bytes).to_string()),
            true => None,
            false => {
                // The first multiple of the step on the row.
                let first = (row.start.max(0.0) as u64).div_ceil(step).saturating_mul(step);
                ((first as f64) < row.end).then(|| ByteSize(first).to_string())
            }
        };
        let Some(text) = text else { continue };
        lowest = middle;
        labels.push(Label { text, size, at: (map.x0 as f32 - px(8.0), middle as f32), align: Align::Right });
    }
    labels
}

/// Returns the possible captions above the map, longest first.
fn captions(layout: &Layout) -> [String; 3] {
    let row = ByteSize(layout.row_bytes.round() as u64);
    let order =
        if layout.has_own_rows() { "a segment begins on a new row" } else { "addresses from left to right, then down" };
    [
        format!("every byte to one scale: a row is {row}; {order}"),
        format!("a row is {row}; {order}"),
        format!("a row is {row}"),
    ]
}

/// Returns the scroll bar right of the map, if not all rows are in view.
pub(super) fn scroll_bar(layout: &Layout) -> Option<ScrollBar> {
    let px = |units| px(units, layout.scale);
    if layout.max_scroll == 0 {
        return None;
    }
    let x1 = layout.map.x1 + px(7.0);
    let track = Rect::new(x1 - px(5.0), layout.map.y0, x1, layout.map.y1);
    let total = f64::from(layout.max_scroll) + f64::from(track.height());
    let to_track = |pixels: i32| (f64::from(pixels) / total * f64::from(track.height())) as i32;
    let length = to_track(track.height()).max(px(16.0)).min(track.height());
    let y0 = (track.y0 + to_track(layout.scroll)).min(track.y1 - length);
    Some(ScrollBar { track, thumb: Rect { y0, y1: y0 + length, ..track } })
}
