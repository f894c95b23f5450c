//! Positions and texts of the histogram's picture.

use std::collections::BTreeSet;

use vramscope_trace::{ByteSize, Count};

use vramscope_draw::axis_labels::axis_size;
use vramscope_draw::picture::{LABEL_DISTANCE, TEXT, chart_columns, px, text_color};
use vramscope_draw::{Align, Axis, Bitmap, Chart, Rect, Surface, Theme, Typesetter};
use vramscope_insight::incremental::{AllocationSum, LifeUnit, LifetimeCell, LifetimeHistogram};

/// Space above and below the cells, in units (pixels at scale 1).
const MARGINS: (f32, f32) = (10.0, 20.0);
/// Halvings of the largest bytes of a cell after which a cell has the lowest color.
const SHADES: f32 = 12.0;

/// A cell of the picture.
#[derive(Clone, Debug)]
struct CellArea {
    cell: LifetimeCell,
    area: Rect,
    /// The cell's bytes relative to the largest, on a logarithmic scale from 0 to 1.
    shade: f32,
    /// The bytes, if they fit.
    label: String,
}

/// The picture of a histogram: lifetimes from left to right, sizes from the bottom up.
pub(super) struct LifetimesScene {
    plot: Rect,
    /// The ends of the classes of lifetimes, in pixels, and of the classes of sizes.
    axes: [Axis; 2],
    cells: Vec<CellArea>,
    scale: f32,
}

/// Returns the text of a lifetime, a power of ten.
fn life_text(life: u64, unit: LifeUnit) -> String {
    match unit {
        LifeUnit::Time => {
            let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns")];
            let (ns, unit) = units.into_iter().find(|(ns, _)| life >= *ns).unwrap_or((1, "ns"));
            format!("{} {unit}", Count(life / ns))
        }
        LifeUnit::Events => Count(life).of("event", "events"),
    }
}

/// Returns the text of a class of lifetimes, such as `1 ms to 10 ms`.
pub(super) fn lives_text(cell: LifetimeCell, unit: LifeUnit) -> String {
    match cell.lives(unit) {
        _ if cell.life == LifetimeCell::NOT_FREED => "not freed".to_owned(),
        (0, to) => format!("less than {}", life_text(to, unit)),
        (from, to) => format!("{} to {}", life_text(from, unit), life_text(to, unit)),
    }
}

/// Returns the text of a class of sizes, such as `1 MiB to 2 MiB`.
pub(super) fn sizes_text(cell: LifetimeCell) -> String {
    let from = cell.min_size();
    format!("{} to {}", axis_size(from), axis_size(from.saturating_mul(2)))
}

impl LifetimesScene {
    /// Computes the picture of a histogram, `size` pixels large.
    pub(super) fn new(
        histogram: &LifetimeHistogram,
        unit: LifeUnit,
        size: (u32, u32),
        scale: f32,
        typesetter: &Typesetter,
    ) -> Self {
        let (x0, x1) = chart_columns(size.0, scale);
        let bottom = size.1.min(Bitmap::MAX_SIDE) as i32 - px(MARGINS.1, scale);
        let plot = Rect::new(x0, px(MARGINS.0, scale), x1, bottom.max(px(MARGINS.0, scale) + 1));
        let keys = || histogram.cells.keys();
        // All classes between the shortest and the longest lifetime have a column.
        let lives: BTreeSet<u8> = keys().map(|cell| cell.life).collect();
        let freed = || lives.iter().copied().filter(|life| *life != LifetimeCell::NOT_FREED);
        let freed = freed().min().zip(freed().max()).map(|(first, last)| first..=last);
        let mut columns: Vec<u8> = freed.into_iter().flatten().collect();
        columns.extend(lives.contains(&LifetimeCell::NOT_FREED).then_some(LifetimeCell::NOT_FREED));
        let sizes = keys().map(|cell| cell.size).min().zip(keys().map(|cell| cell.size).max());
        let (smallest, largest) = sizes.unwrap_or_default();
        let rows = i32::from(largest - smallest) + 1;
        let x = |column: usize| plot.x0 + (column as i32 * plot.width()) / columns.len().max(1) as i32;
        let y = |row: i32| plot.y1 - row * plot.height() / rows;
        let most = histogram.cells.values().map(|sum| sum.bytes).max().unwrap_or(0).max(1);
        let cells = histogram.cells.iter().filter_map(|(&cell, sum)| {
            let column = columns.iter().position(|life| *life == cell.life)?;
            let row = i32::from(cell.size - smallest);
            let area = Rect::new(x(column), y(row + 1), x(column + 1), y(row));
            let shade = 1.0 + libm::log2f(sum.bytes.max(1) as f32 / most as f32) / SHADES;
            let label = ByteSize(sum.bytes).to_string();
            let size = TEXT * scale;
            let fits = area.height() as f32 > size * 1.3 && typesetter.width(&label, size) + size < area.width() as f32;
            Some(CellArea { cell, area, shade: shade.max(0.0), label: if fits { label } else { String::new() } })
        });
        let cells = cells.collect();
        let ends = columns.iter().enumerate().filter(|(_, life)| **life != LifetimeCell::NOT_FREED);
        let mut ends: Vec<(f64, String)> = ends
            .map(|(column, &life)| {
                let (_, to) = LifetimeCell { size: 0, life }.lives(unit);
                (f64::from(x(column + 1) - plot.x0), life_text(to, unit))
            })
            .collect();
        let width = |text: &str| typesetter.width(text, TEXT * scale);
        let fitting = (size.0 as i32 - plot.x0, px(LABEL_DISTANCE, scale));
        if columns.last() == Some(&LifetimeCell::NOT_FREED) {
            let middle = (x(columns.len() - 1) + x(columns.len())) / 2 - plot.x0;
            let label = "not freed".to_owned();
            // This label is more important than the one before it.
            if let Some((end, text)) = ends.last_mut()
                && *end + f64::from(width(text) + width(&label)) / 2.0 + f64::from(fitting.1) > f64::from(middle)
            {
                text.clear();
            }
            ends.push((f64::from(middle), label));
        }
        let lives = Axis::new(f64::from(plot.width()), ends).without_grid().with_fitting_texts(fitting, width);
        // Every class has a label if there is space for it.
        let step = (px(2.0 * TEXT, scale) * rows / plot.height().max(1) + 1) as usize;
        let starts = (smallest..=largest)
            .step_by(step)
            .map(|size| (f64::from(size - smallest), axis_size(LifetimeCell { size, life: 0 }.min_size())));
        let sizes = Axis::new(f64::from(rows), starts.collect()).without_grid();
        Self { plot, axes: [lives, sizes], cells, scale }
    }

    /// Returns the cell at a pixel.
    pub(super) fn hit(&self, (x, y): (i32, i32)) -> Option<LifetimeCell> {
        let is_in = |area: &Rect| (area.x0..area.x1).contains(&x) && (area.y0..area.y1).contains(&y);
        self.cells.iter().find(|one| is_in(&one.area)).map(|one| one.cell)
    }

    /// Draws the picture's base.
    pub(super) fn draw_on(&self, surface: &mut dyn Surface, theme: &Theme) {
        surface.fill(surface.bounds(), theme.background);
        surface.fill(self.plot, theme.well);
        let gap = px(1.0, self.scale).max(1);
        for CellArea { area, shade, label, .. } in &self.cells {
            let color = theme.sequential(*shade);
            surface.fill(
                Rect { x1: (area.x1 - gap).max(area.x0 + 1), y0: (area.y0 + gap).min(area.y1 - 1), ..*area },
                color,
            );
            let middle = ((area.x0 + area.x1) as f32 / 2.0, (area.y0 + area.y1) as f32 / 2.0);
            surface.text(label, TEXT * self.scale, middle, Align::Center, text_color(color));
        }
        let [x, y] = &self.axes;
        Chart { plot: self.plot, x, y, text_size: TEXT, scale: self.scale }.draw_axes(surface, theme);
    }

    /// Outlines a cell.
    pub(super) fn draw_outline(&self, bitmap: &mut Bitmap, cell: LifetimeCell, theme: &Theme) {
        let Some(one) = self.cells.iter().find(|one| one.cell == cell) else { return };
        let (Rect { x0, y0, x1, y1 }, stroke) = (one.area, px(2.0, self.scale).max(1));
        for edge in [
            Rect::new(x0, y0, x1, y0 + stroke),
            Rect::new(x0, y1 - stroke, x1, y1),
            Rect::new(x0, y0, x0 + stroke, y1),
            Rect::new(x1 - stroke, y0, x1, y1),
        ] {
            bitmap.fill(edge, theme.cursor);
        }
    }
}

/// Returns the lines of text beside the pointer on a cell.
pub(super) fn pointer_text(cell: LifetimeCell, sum: AllocationSum, unit: LifeUnit) -> Vec<String> {
    let count = Count(sum.allocations).of("allocation", "allocations");
    vec![
        format!("{count}, {}", ByteSize(sum.bytes)),
        format!("size: {}", sizes_text(cell)),
        format!("lifetime: {}", lives_text(cell, unit)),
    ]
}
