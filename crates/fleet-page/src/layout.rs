//! Where the cells of all ranks are; sizes in CSS pixels.
//!
//! All cells have one size: the largest with which everything fits into the given area, or the
//! least size, in which case the area is scrolled. Groups are rows over the whole width, or tiles
//! beside each other, whichever allows larger cells.

use crate::arrange::Group;

/// The largest and the least distance between the left edges of neighboring cells.
const SIZES: (u32, u32) = (64, 9);
/// Height of a group's title.
const TITLE_HEIGHT: f32 = 19.0;
/// Space between groups.
const GROUP_GAP: f32 = 10.0;
/// Width of a character of a title, rounded up.
const CHARACTER_WIDTH: f32 = 8.0;
/// The least and the most width that a tile leaves to its title.
const TITLE_WIDTHS: (f32, f32) = (44.0, 150.0);

/// Rows of a group, up to which they are filled evenly.
const FEW_ROWS: usize = 3;

/// A key's direction.
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

/// The position of a rank's cell: its upper left corner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CellPosition {
    /// The index of the rank's row.
    pub row: usize,
    /// Distance from the left edge of the area.
    pub x: f32,
    /// Distance from the upper edge of the area.
    pub y: f32,
}

/// The position of a group's title.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TitlePosition {
    /// The index of the group.
    pub group: usize,
    /// Distance from the left edge of the area.
    pub x: f32,
    /// Distance of the title's upper edge from that of the area.
    pub y: f32,
    /// Space for the title.
    pub width: f32,
}

/// The positions of all cells and titles.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    /// The distance between neighboring cells.
    pub pitch: f32,
    /// The cells, in reading order.
    pub cells: Vec<CellPosition>,
    /// The titles of groups.
    pub titles: Vec<TitlePosition>,
    /// Height of everything.
    pub height: f32,
}

/// How the cells of a group are arranged: columns, and the group's width.
type Shape = (usize, f32);

impl Layout {
    /// Places the cells of all groups in an area of this size.
    #[must_use]
    pub fn new(groups: &[Group], width: f32, height: f32) -> Self {
        let rows = |pitch: f32| {
            move |group: &Group| -> Shape { (row_columns(group.rows.len(), columns_in(width, pitch)), width) }
        };
        let tiles = |pitch: f32| {
            move |group: &Group| -> Shape {
                let columns = tile_columns(group.rows.len()).min(columns_in(width, pitch));
                (columns, (columns as f32 * pitch).max(title_width(&group.title)).min(width))
            }
        };
        let (largest, least) = SIZES;
        for pitch in (least..=largest).rev().map(|pitch| pitch as f32) {
            if measure(groups, width, pitch, rows(pitch)) <= height {
                return place(groups, width, pitch, rows(pitch));
            }
            if measure(groups, width, pitch, tiles(pitch)) <= height {
                return place(groups, width, pitch, tiles(pitch));
            }
        }
        let pitch = least as f32;
        if measure(groups, width, pitch, rows(pitch)) <= measure(groups, width, pitch, tiles(pitch)) {
            place(groups, width, pitch, rows(pitch))
        } else {
            place(groups, width, pitch, tiles(pitch))
        }
    }

    /// Returns the width and height of a cell, without the gap between cells.
    #[must_use]
    pub fn cell_size(&self) -> f32 {
        self.pitch - if self.pitch >= 18.0 { 3.0 } else { 2.0 }
    }

    /// Returns the index of the cell at a point.
    #[must_use]
    pub fn cell_at(&self, x: f32, y: f32) -> Option<usize> {
        let is_in = |start: f32, at: f32| (start..start + self.pitch).contains(&at);
        self.cells.iter().position(|cell| is_in(cell.x, x) && is_in(cell.y, y))
    }

    /// Returns the index of the cell of a row.
    #[must_use]
    pub fn cell_of(&self, row: usize) -> Option<usize> {
        self.cells.iter().position(|cell| cell.row == row)
    }

    /// Returns the index of the cell that a key leads to from the cell `from`; the first without
    /// one. `None` without cells.
    #[must_use]
    pub fn neighbor(&self, from: Option<usize>, direction: Direction) -> Option<usize> {
        let last = self.cells.len().checked_sub(1)?;
        let Some((from, cell)) = from.and_then(|from| Some((from, self.cells.get(from)?))) else { return Some(0) };
        let vertical = |is_beyond: fn(f32, f32) -> bool| {
            let distance = |other: &CellPosition| ((other.y - cell.y).abs(), (other.x - cell.x).abs());
            let beyond = self.cells.iter().enumerate().filter(|(_, other)| is_beyond(other.y, cell.y));
            // A row further away is chosen only if the nearest one ends before this column.
            let cost = |other: &CellPosition| {
                let (down, across) = distance(other);
                down + 4.0 * across
            };
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

/// Returns how many cells fit beside each other; at least one.
fn columns_in(width: f32, pitch: f32) -> usize {
    ((width / pitch) as usize).max(1)
}

/// Returns the columns of a group over the whole width, at most `most`. A few rows are all full, if
/// possible; of many rows, only the last one is not.
fn row_columns(cells: usize, most: usize) -> usize {
    let has_few_rows = cells.div_ceil(most) <= FEW_ROWS;
    let mut filled = (most / 2 + 1..=most.min(cells)).rev().filter(|columns| cells.is_multiple_of(*columns));
    filled.next().filter(|_| has_few_rows).unwrap_or(most)
}

/// Returns the columns of a tile with this many cells: as many as rows, or up to twice as many if
/// that fills all rows.
fn tile_columns(cells: usize) -> usize {
    let root = (cells as f32).sqrt();
    let (least, most) = (root.ceil() as usize, (root * std::f32::consts::SQRT_2).ceil() as usize + 2);
    let filled = (least..=most.min(cells)).rev().find(|columns| cells.is_multiple_of(*columns));
    filled.unwrap_or_else(|| (root * std::f32::consts::SQRT_2).ceil() as usize).max(1)
}

/// Returns the width that a tile leaves to its title.
fn title_width(title: &str) -> f32 {
    let (least, most) = TITLE_WIDTHS;
    if title.is_empty() { 0.0 } else { (title.chars().count() as f32 * CHARACTER_WIDTH).clamp(least, most) }
}

/// Calls `visit` with each group and the position and the shape of its area. Returns the height of
/// everything.
fn flow(
    groups: &[Group],
    width: f32,
    pitch: f32,
    shape: impl Fn(&Group) -> Shape,
    mut visit: impl FnMut(usize, &Group, (f32, f32), Shape),
) -> f32 {
    let (mut x, mut y, mut row_height) = (0.0_f32, 0.0_f32, 0.0_f32);
    for (index, group) in groups.iter().enumerate() {
        let (columns, group_width) = shape(group);
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

/// Returns the height of all groups.
fn measure(groups: &[Group], width: f32, pitch: f32, shape: impl Fn(&Group) -> Shape) -> f32 {
    flow(groups, width, pitch, shape, |_, _, _, _| {})
}

/// Places all groups.
fn place(groups: &[Group], width: f32, pitch: f32, shape: impl Fn(&Group) -> Shape) -> Layout {
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
