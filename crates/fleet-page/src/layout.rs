//! The positions of all ranks' cells and of the groups' titles; sizes are in CSS pixels.
//!
//! All cells have one size: the largest with which everything fits into the given area, or the
//! minimum size, in which case the area is scrolled. A group fills rows over the whole width, or is
//! a tile beside other tiles, whichever allows larger cells.

use crate::arrange::Group;

/// Maximum and minimum distance between the left edges of neighboring cells, in CSS pixels.
const SIZES: (u32, u32) = (64, 9);
/// Height of a group's title, in CSS pixels.
const TITLE_HEIGHT: f32 = 19.0;
/// Space between neighboring groups, in CSS pixels.
const GROUP_GAP: f32 = 10.0;
/// Estimated width of a character of a group's title, in CSS pixels, rounded up.
const CHARACTER_WIDTH: f32 = 8.0;
/// Minimum and maximum width of a group's title that widens a narrow tile, in CSS pixels.
const TITLE_WIDTHS: (f32, f32) = (44.0, 150.0);

/// Maximum number of rows of cells for which a group chooses a number of columns that fills all
/// rows.
const FEW_ROWS: usize = 3;

/// The direction in which a key moves the selection between cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the cell before, in reading order.
    Left,
    /// To the next cell, in reading order.
    Right,
    /// To the nearest cell above.
    Up,
    /// To the nearest cell below.
    Down,
    /// To the first cell.
    First,
    /// To the last cell.
    Last,
}

/// The position of a rank's cell: its upper left corner, in CSS pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CellPosition {
    /// The index of the rank's row.
    pub row: usize,
    /// Distance from the left edge of the area.
    pub x: f32,
    /// Distance from the upper edge of the area.
    pub y: f32,
}

/// The position and width of a group's title, in CSS pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TitlePosition {
    /// The index of the group.
    pub group: usize,
    /// Distance from the left edge of the area.
    pub x: f32,
    /// Distance of the title's upper edge from the upper edge of the area.
    pub y: f32,
    /// Width that is available for the title.
    pub width: f32,
}

/// The positions of all ranks' cells and of the groups' titles.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    /// The distance between neighboring cells.
    pub pitch: f32,
    /// The cells, in reading order.
    pub cells: Vec<CellPosition>,
    /// The titles of groups.
    pub titles: Vec<TitlePosition>,
    /// Height of all groups together.
    pub height: f32,
}

/// The arrangement of a group's cells: the number of columns, and the group's width in CSS pixels.
type Shape = (usize, f32);

/// A function that arranges a group's cells, given the width of the area and the distance between
/// the left edges of neighboring cells.
type ShapeOf = fn(&Group, f32, f32) -> Shape;

/// The two arrangements that a layout tries: rows over the whole width, and tiles beside each
/// other.
const SHAPES: [ShapeOf; 2] = [row_shape, tile_shape];

impl Layout {
    /// Arranges the cells of all groups in an area of this size, in CSS pixels. If they do not fit
    /// even at the minimum size, they are higher than the area.
    #[must_use]
    pub fn new(groups: &[Group], width: f32, height: f32) -> Self {
        let measured = |pitch: u32| SHAPES.map(|shape| (measure(groups, width, pitch as f32, shape), pitch, shape));
        let (largest, least) = SIZES;
        let fitting = (least..=largest).rev().flat_map(measured).find(|(measured, ..)| *measured <= height);
        let (_, pitch, shape) = fitting.unwrap_or_else(|| {
            let [rows, tiles] = measured(least);
            if rows.0 <= tiles.0 { rows } else { tiles }
        });
        place(groups, width, pitch as f32, shape)
    }

    /// Returns the width and height of a cell, without the gap between cells.
    #[must_use]
    pub fn cell_size(&self) -> f32 {
        self.pitch - if self.pitch >= 18.0 { 3.0 } else { 2.0 }
    }

    /// Returns the index in `cells` of the cell at a point of the area; `None` if none is there.
    #[must_use]
    pub fn cell_at(&self, x: f32, y: f32) -> Option<usize> {
        let is_in = |start: f32, at: f32| (start..start + self.pitch).contains(&at);
        self.cells.iter().position(|cell| is_in(cell.x, x) && is_in(cell.y, y))
    }

    /// Returns the index in `cells` of the cell that shows the rank with index `row`; `None` if
    /// none does.
    #[must_use]
    pub fn cell_of(&self, row: usize) -> Option<usize> {
        self.cells.iter().position(|cell| cell.row == row)
    }

    /// Returns the index of the cell to which a key moves the selection from the cell `from`.
    /// Without a selected cell, that is the first one; `None` without cells.
    #[must_use]
    pub fn neighbor(&self, from: Option<usize>, direction: Direction) -> Option<usize> {
        let last = self.cells.len().checked_sub(1)?;
        let Some((from, cell)) = from.and_then(|from| Some((from, self.cells.get(from)?))) else { return Some(0) };
        let vertical = |is_beyond: fn(f32, f32) -> bool| {
            let beyond = self.cells.iter().enumerate().filter(|(_, other)| is_beyond(other.y, cell.y));
            // A row further away is chosen only if the nearest one ends before this column.
            let cost = |other: &CellPosition| (other.y - cell.y).abs() + 4.0 * (other.x - cell.x).abs();
            beyond.min_by(|(_, a), (_, b)| cost(a).total_cmp(&cost(b))).map_or(from, |(index, _)| index)
        };
        Some(match direction {
            Direction::Left => from.saturating_sub(1),
            Direction::Right => (from + 1).min(last),
            Direction::Up => vertical(|other, own| other < own),
            Direction::Down => vertical(|other, own| other > own),
            Direction::First => 0,
            Direction::Last => last,
        })
    }
}

/// Arranges a group's cells in rows over the whole `width`; `pitch` is the distance between the
/// left edges of neighboring cells.
fn row_shape(group: &Group, width: f32, pitch: f32) -> Shape {
    (row_columns(group.rows.len(), columns_in(width, pitch)), width)
}

/// Arranges a group's cells in a tile that is about as wide as high; `pitch` is the distance
/// between the left edges of neighboring cells.
fn tile_shape(group: &Group, width: f32, pitch: f32) -> Shape {
    let columns = tile_columns(group.rows.len()).min(columns_in(width, pitch));
    (columns, (columns as f32 * pitch).max(title_width(&group.title)).min(width))
}

/// Returns the number of cells that fit beside each other into `width`, at least one.
fn columns_in(width: f32, pitch: f32) -> usize {
    ((width / pitch) as usize).max(1)
}

/// Returns the number of columns, at most `most`, for a group of `cells` cells in rows over the
/// whole width. A few rows are all filled if possible; of many rows, the last one may be shorter.
fn row_columns(cells: usize, most: usize) -> usize {
    let has_few_rows = cells.div_ceil(most) <= FEW_ROWS;
    let mut filled = (most / 2 + 1..=most.min(cells)).rev().filter(|columns| cells.is_multiple_of(*columns));
    filled.next().filter(|_| has_few_rows).unwrap_or(most)
}

/// Returns the number of columns of a tile with `cells` cells: about √2 times the square root, or a
/// number near it that fills all rows.
fn tile_columns(cells: usize) -> usize {
    let root = (cells as f32).sqrt();
    let (least, most) = (root.ceil() as usize, (root * std::f32::consts::SQRT_2).ceil() as usize + 2);
    let filled = (least..=most.min(cells)).rev().find(|columns| cells.is_multiple_of(*columns));
    filled.unwrap_or_else(|| (root * std::f32::consts::SQRT_2).ceil() as usize).max(1)
}

/// Returns the minimum width of a tile with this title, in CSS pixels; 0 without a title.
fn title_width(title: &str) -> f32 {
    let (least, most) = TITLE_WIDTHS;
    if title.is_empty() { 0.0 } else { (title.chars().count() as f32 * CHARACTER_WIDTH).clamp(least, most) }
}

/// Arranges all groups from left to right and then downwards, and calls `visit` with each group's
/// index, the group, its position (x, y) and its shape. Returns the height of all groups.
fn flow(
    groups: &[Group],
    width: f32,
    pitch: f32,
    shape: ShapeOf,
    mut visit: impl FnMut(usize, &Group, (f32, f32), Shape),
) -> f32 {
    let (mut x, mut y, mut row_height) = (0.0_f32, 0.0_f32, 0.0_f32);
    for (index, group) in groups.iter().enumerate() {
        let (columns, group_width) = shape(group, width, pitch);
        let title_height = if group.title.is_empty() { 0.0 } else { TITLE_HEIGHT };
        let group_height = title_height + group.rows.len().div_ceil(columns) as f32 * pitch;
        if x > 0.0 && x + group_width > width {
            (x, y, row_height) = (0.0, y + row_height + GROUP_GAP, 0.0);
        }
        visit(index, group, (x, y), (columns, group_width));
        x += group_width + GROUP_GAP;
        row_height = row_height.max(group_height);
    }
    y + row_height
}

/// Returns the height of all groups for this distance between cells and this arrangement.
fn measure(groups: &[Group], width: f32, pitch: f32, shape: ShapeOf) -> f32 {
    flow(groups, width, pitch, shape, |_, _, _, _| {})
}

/// Computes the positions of all groups' cells and titles for this distance between cells and
/// arrangement.
fn place(groups: &[Group], width: f32, pitch: f32, shape: ShapeOf) -> Layout {
    let mut layout = Layout { pitch, ..Layout::default() };
    let Layout { cells, titles, .. } = &mut layout;
    let height = flow(groups, width, pitch, shape, |index, group, (x, y), (columns, width)| {
        let mut top = y;
        if !group.title.is_empty() {
            titles.push(TitlePosition { group: index, x, y, width });
            top += TITLE_HEIGHT;
        }
        cells.extend(group.rows.iter().enumerate().map(|(at, &row)| CellPosition {
            row,
            x: x + (at % columns) as f32 * pitch,
            y: top + (at / columns) as f32 * pitch,
        }));
    });
    layout.height = height;
    layout
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(count: usize, size: usize) -> Vec<Group> {
        let title = |group| if count == 1 { String::new() } else { format!("node{group:04}") };
        (0..count)
            .map(|group| Group { title: title(group), rows: (group * size..(group + 1) * size).collect() })
            .collect()
    }

    #[test]
    fn all_cells_are_in_the_area_and_none_overlap() {
        for (count, size) in [(1, 1), (1, 64), (4, 256), (128, 8), (512, 8), (1, 4096), (8, 512), (37, 3), (4096, 1)] {
            for (width, height) in [(1050.0, 760.0), (380.0, 500.0), (60.0, 50.0)] {
                let layout = Layout::new(&groups(count, size), width, height);
                assert_eq!(layout.cells.len(), count * size);
                let mut corners = std::collections::HashSet::new();
                for cell in &layout.cells {
                    assert!(cell.x + layout.pitch <= width.max(layout.pitch) + 0.5, "{cell:?}");
                    assert!(cell.y + layout.pitch <= layout.height + 0.5, "{cell:?}");
                    assert!(corners.insert((cell.x as i32, cell.y as i32)), "{cell:?}");
                }
                for pair in layout.titles.windows(2) {
                    let is_beside = pair[1].x >= pair[0].x + pair[0].width || pair[1].y > pair[0].y;
                    assert!(is_beside, "{pair:?}");
                }
            }
        }
        assert_eq!(Layout::new(&[], 100.0, 100.0).cells, []);
        assert_eq!(Layout::new(&groups(1, 3), 0.0, 0.0).cells.len(), 3);
    }

    #[test]
    fn cells_are_as_large_as_fits() {
        let check = |count: usize, size: usize, pitch: f32| {
            let layout = Layout::new(&groups(count, size), 1050.0, 760.0);
            assert_eq!(layout.pitch, pitch, "{count} groups of {size}");
            assert!(layout.height <= 760.0);
        };
        check(1, 8, 64.0);
        check(1, 1024, 27.0);
        check(4, 256, 24.0);
        check(1, 4096, 13.0);
        check(128, 8, 19.0);
        // Every machine of 4,096 ranks has a title.
        let machines = Layout::new(&groups(512, 8), 1050.0, 760.0);
        assert_eq!((machines.pitch, machines.titles.len()), (9.0, 512));
    }

    #[test]
    fn few_rows_are_full_if_possible() {
        let check = |cells: usize, most: usize, expected: usize| assert_eq!(row_columns(cells, most), expected);
        check(16, 20, 16);
        check(16, 15, 8);
        check(48, 20, 16);
        check(256, 42, 42);
        check(37, 20, 20);
        check(1, 1, 1);
        check(0, 9, 9);
    }

    #[test]
    fn points_lead_to_cells() {
        let layout = Layout::new(&groups(4, 16), 400.0, 300.0);
        for (index, cell) in layout.cells.iter().enumerate() {
            assert_eq!(layout.cell_at(cell.x + 1.0, cell.y + 1.0), Some(index));
            assert_eq!(layout.cell_of(cell.row), Some(index));
        }
        assert_eq!(layout.cell_at(-1.0, 5.0), None);
        assert_eq!(layout.cell_at(5.0, layout.height + 1.0), None);
    }

    #[test]
    fn keys_move_between_cells() {
        // Two groups of two rows with four cells each.
        let layout = Layout::new(&groups(2, 8), 4.0 * 64.0, 1000.0);
        let check = |from: Option<usize>, direction: Direction, expected: usize| {
            assert_eq!(layout.neighbor(from, direction), Some(expected), "{from:?} {direction:?}");
        };
        check(None, Direction::Down, 0);
        check(Some(0), Direction::Left, 0);
        check(Some(0), Direction::Right, 1);
        check(Some(3), Direction::Right, 4);
        check(Some(1), Direction::Down, 5);
        check(Some(5), Direction::Down, 9);
        check(Some(9), Direction::Up, 5);
        check(Some(1), Direction::Up, 1);
        check(Some(14), Direction::Down, 14);
        check(Some(3), Direction::First, 0);
        check(Some(3), Direction::Last, 15);
        check(Some(99), Direction::Last, 0);
        assert_eq!(Layout::default().neighbor(None, Direction::Right), None);
    }
}
