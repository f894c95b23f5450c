//! The picture of the ranks' cells as data: positions, colors and texts.

use vramscope_insight::fleet::{EventsState, RankRow};

use crate::arrange::Group;
use crate::layout::Layout;
use crate::metric::{Metric, Scale};
use crate::palette::LEVELS;

/// Width of a digit in a cell's label as a fraction of the font size, rounded up.
const DIGIT_WIDTH: f32 = 0.6;
/// Minimum and maximum font size of a cell's label, in CSS pixels.
const LABEL_SIZES: (f32, f32) = (9.0, 13.0);

/// The fill of a cell: a color for its value, or for a rank that has ended or lacks a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fill {
    /// A color from 0, the least, to [`LEVELS`] - 1, the most.
    Level(u8),
    /// The rank has ended.
    Ended,
    /// The value is unknown.
    Unknown,
}

/// A rank's cell to draw: its position, fill, label and marks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Left edge.
    pub x: f32,
    /// Upper edge.
    pub y: f32,
    /// Its color.
    pub fill: Fill,
    /// The rank; `None` if it has none.
    pub rank: Option<u32>,
    /// True if the rank differs from those like it.
    pub is_marked: bool,
    /// True if the server reads the rank's events.
    pub has_events: bool,
}

/// A group's title to draw: its position, name and note.
#[derive(Clone, Debug, PartialEq)]
pub struct Title {
    /// Left edge.
    pub x: f32,
    /// Upper edge.
    pub y: f32,
    /// Space for name and note.
    pub width: f32,
    /// The group's name.
    pub name: String,
    /// A text after the name, which is shown if there is room.
    pub note: String,
}

/// The picture of all cells and titles, ready to draw. Two equal scenes look equal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scene {
    /// Width and height of a cell.
    pub cell_size: f32,
    /// Size of the font of the cells' labels; `None` if cells are too small for labels.
    pub label_size: Option<f32>,
    /// The cells, in reading order.
    pub cells: Vec<Cell>,
    /// The titles of groups.
    pub titles: Vec<Title>,
    /// The index of the selected cell.
    pub selected: Option<usize>,
    /// The index of the cell under the pointer.
    pub hovered: Option<usize>,
    /// Height of all groups together.
    pub height: f32,
}

impl Scene {
    /// Creates the picture of the ranks' cells, colored by `metric` on the color scale `scale`.
    #[must_use]
    pub fn new(rows: &[RankRow], groups: &[Group], layout: &Layout, metric: Metric, scale: Scale) -> Self {
        let cells = layout.cells.iter().map(|cell| {
            let row = &rows[cell.row];
            let fill = match metric.value(row) {
                _ if row.has_ended => Fill::Ended,
                None => Fill::Unknown,
                Some(value) => Fill::Level((scale.position(value) * (LEVELS - 1) as f64).round() as u8),
            };
            let (x, y, rank) = (cell.x, cell.y, row.rank);
            let (is_marked, has_events) = (row.outlier.is_some(), row.events != EventsState::Closed);
            Cell { x, y, fill, rank, is_marked, has_events }
        });
        let titles = layout.titles.iter().map(|title| {
            let group = &groups[title.group];
            let marked = group.rows.iter().filter(|row| rows[**row].outlier.is_some()).count();
            let count = group.rows.len();
            let ranks = format!("{count} {}", if count == 1 { "rank" } else { "ranks" });
            let note = if marked > 0 { format!("{ranks}, {marked} marked") } else { ranks };
            Title { x: title.x, y: title.y, width: title.width, name: group.title.clone(), note }
        });
        let largest = rows.iter().filter_map(|row| row.rank).max().unwrap_or(0);
        Self {
            cell_size: layout.cell_size(),
            label_size: label_size(layout.cell_size(), largest),
            cells: cells.collect(),
            titles: titles.collect(),
            height: layout.height,
            ..Self::default()
        }
    }
}

/// Returns the font size, in CSS pixels, with which the largest rank's number fits into a cell;
/// `None` if that is too small.
fn label_size(cell_size: f32, largest: u32) -> Option<f32> {
    let digits = largest.checked_ilog10().unwrap_or(0) + 1;
    let (least, most) = LABEL_SIZES;
    let size = ((cell_size - 3.0) / (digits as f32 * DIGIT_WIDTH)).min(cell_size * 0.5).min(most);
    (size >= least).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrange::arrange;
    use crate::settings::{GroupBy, SortBy};
    use crate::test_view::{outlier, rows};

    #[test]
    fn cells_show_values_marks_and_ends() {
        let mut rows = rows(5);
        for (index, row) in rows.iter_mut().enumerate() {
            row.step = Some(100 + 10 * index as u64);
        }
        rows[1].outlier = Some(outlier(9.0));
        rows[2].has_ended = true;
        rows[3].step = None;
        rows[4].events = EventsState::Open;
        let groups = arrange(&rows, GroupBy::Host, SortBy::Rank, Metric::Step);
        let layout = Layout::new(&groups, 600.0, 400.0);
        let scene = Scene::new(&rows, &groups, &layout, Metric::Step, Scale::of(Metric::Step, &rows));
        let fills: Vec<Fill> = scene.cells.iter().map(|cell| cell.fill).collect();
        let [low, high] = [6, LEVELS as u8 - 1].map(Fill::Level);
        assert_eq!(fills, [Fill::Level(0), low, Fill::Ended, Fill::Unknown, high]);
        let marked: Vec<bool> = scene.cells.iter().map(|cell| cell.is_marked).collect();
        assert_eq!(marked, [false, true, false, false, false]);
        assert!(scene.cells[4].has_events && !scene.cells[0].has_events);
        assert_eq!((scene.titles[0].name.as_str(), scene.titles[0].note.as_str()), ("node0", "5 ranks, 1 marked"));
    }

    #[test]
    fn labels_are_shown_where_they_fit() {
        let check = |cell_size: f32, largest: u32, expected: Option<f32>| {
            let size = label_size(cell_size, largest);
            assert_eq!(size.map(f32::round), expected, "{cell_size} {largest}");
        };
        check(49.0, 7, Some(13.0));
        check(25.0, 1023, Some(9.0));
        check(22.0, 1023, None);
        check(22.0, 255, Some(11.0));
        check(11.0, 4095, None);
    }
}
