//! Draws a [`FragmentationScene`].

use vramscope_draw::picture::{TEXT, draw_diamond, px};
use vramscope_draw::{Align, Axis, Bitmap, Chart, LineStyle, Rect, Surface, Theme, opaque};

use super::FragmentationScene;

/// Titles of the three charts, from the top.
const TITLES: [&str; 3] = [
    "fragmentation: 1 − largest free block ÷ free bytes",
    "free bytes in segments",
    "largest free block, and largest request (dots above the line do not fit)",
];

impl FragmentationScene {
    /// Draws the "Fragmentation" view's picture on a surface, which must have the size that the
    /// scene was computed for.
    pub fn draw_on(&self, surface: &mut dyn Surface, theme: &Theme) {
        let (upper, scale) = (self.upper, self.scale);
        let plots = [upper, self.lower, self.requests];
        let mut titles = TITLES;
        if self.lower.height() > 0 {
            surface.pixels(theme.background, &mut |bitmap| {
                plots.iter().for_each(|&plot| bitmap.fill(plot, theme.well));
                draw_free(self, theme, bitmap);
            });
        } else {
            titles = Default::default();
            surface.fill(surface.bounds(), theme.background);
            surface.fill(upper, theme.well);
        }
        let times = self.axis.labels(upper, surface.bounds().x1, surface.typesetter(), scale);
        let no_times = Axis::new(f64::from(upper.width()), Vec::new());
        let charts: [Chart<'_>; 3] = std::array::from_fn(|index| {
            let x = if plots[index].y1 == self.requests.y1 { &times } else { &no_times };
            Chart { plot: plots[index], x, y: &self.value_axes[index], text_size: TEXT, scale }
        });
        for (chart, title) in charts.iter().zip(titles) {
            chart.draw_axes(surface, theme);
            let title = surface.typesetter().fit(title, TEXT * scale, upper.width() as f32);
            let at = (upper.x0 as f32, (chart.plot.y0 - px(10.0, scale)) as f32);
            surface.text(&title, TEXT * scale, at, Align::Left, theme.dim);
        }
        let (x0, x1) = self.axis.columns();
        let band = theme.well.mix(theme.free, 0.35);
        // The line covers a band as low as itself.
        for (x, rows) in (x0..x1).zip(&self.rows).filter(|(_, rows)| rows.band.1 - rows.band.0 > self.stroke()) {
            surface.fill(Rect::new(x, rows.band.0, x + 1, rows.band.1), band);
        }
        let style = LineStyle { color: theme.free, stroke: self.stroke(), dash: None };
        charts[0].draw_steps(surface, 0, self.columns.iter().map(|column| column.fragmentation), style);
        let threshold = std::iter::repeat_n(self.threshold, upper.width().unsigned_abs() as usize);
        charts[0].draw_steps(surface, 0, threshold, LineStyle { color: theme.alarm, dash: Some(self.dash()), ..style });
        let largest = self.columns.iter().map(|column| column.free.largest as f64);
        charts[2].draw_steps(surface, 0, largest, LineStyle { color: theme.text, ..style });
        for (x, rows) in (x0..x1).zip(&self.rows) {
            let (y0, y1) = rows.largest_request;
            surface.fill(Rect::new(x, y0, (x + self.dot()).min(x1), y1), theme.allocated);
        }
        draw_threshold(self, theme, surface);
        if self.columns.is_empty() {
            let at = ((upper.x0 + upper.x1) as f32 / 2.0, (upper.y0 + upper.y1) as f32 / 2.0);
            surface.text(self.notice, (TEXT + 1.0) * scale, at, Align::Center, theme.dim);
        }
    }
}

/// Draws the stuck and releasable bytes with the map's colors and hatching.
fn draw_free(scene: &FragmentationScene, theme: &Theme, bitmap: &mut Bitmap) {
    let period = (scene.scale * 6.0).round().max(4.0) as usize;
    let stroke = (scene.scale * 2.0).round().max(1.0) as usize;
    let (x0, x1) = scene.axis.columns();
    let colors = [[theme.cached, theme.cached_hatch], [theme.free, theme.free_hatch]].map(|pair| pair.map(opaque));
    // Only what every pixel needs, so that it stays in the processor's cache.
    let tops: Vec<(i32, i32)> = scene.rows.iter().map(|rows| (rows.releasable.0, rows.stuck.0)).collect();
    let strokes: Vec<bool> = (0..tops.len() + period).map(|index| index % period < stroke).collect();
    bitmap.for_each_row(Rect { x0, x1, ..scene.lower }, |y, pixels| {
        let strokes = &strokes[(x0 + y) as usize % period..];
        for ((pixel, &(releasable, stuck)), &is_stroke) in pixels.iter_mut().zip(&tops).zip(strokes) {
            if y >= releasable {
                *pixel = colors[usize::from(y >= stuck)][usize::from(is_stroke)];
            }
        }
    });
}

/// Draws the threshold's text right of the chart, and a diamond where fragmentation first exceeds
/// the threshold.
fn draw_threshold(scene: &FragmentationScene, theme: &Theme, surface: &mut dyn Surface) {
    let size = (TEXT - 0.5) * scene.scale;
    let line = scene.value_axes[0].row(scene.upper, scene.threshold);
    let (text, right) = (format!("{:.0}%", scene.threshold * 100.0), scene.upper.x1 + px(2.0, scene.scale));
    // Beside the chart, where it covers no values.
    surface.text(&text, size * 0.86, (right as f32, line as f32), Align::Left, theme.alarm);
    if let Some(point) = scene.crossing {
        draw_diamond(surface, point, scene.scale, theme);
    }
}
