//! The plotters backend for a [`Surface`], so that charts look the same on every target.

use std::convert::Infallible;

use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind, rasterizer,
};

use crate::bitmap::{Bitmap, Color, Rect};
use crate::surface::Surface;
use crate::text::{Align, Typesetter};

/// A plotters backend that draws on a [`Surface`]: a picture's pixels or an SVG.
pub(crate) struct Backend<'a>(pub(crate) &'a mut dyn Surface);

/// The result of a drawing call. It is always `Ok`; the error type is required by plotters.
type DrawResult = Result<(), DrawingErrorKind<Infallible>>;

/// Converts plotters' color to the viewer's, ignoring its opacity.
fn opaque_color(color: BackendColor) -> Color {
    let (r, g, b) = color.rgb;
    Color { r, g, b }
}

/// Returns the smallest rectangle that contains the pixels `a` and `b`, two opposite corners.
fn rect_including(a: BackendCoord, b: BackendCoord) -> Rect {
    Rect::new(a.0.min(b.0), a.1.min(b.1), a.0.max(b.0).saturating_add(1), a.1.max(b.1).saturating_add(1))
}

impl Backend<'_> {
    /// Fills a rectangle with a color that may be partly or fully transparent.
    fn paint(&mut self, rect: Rect, color: BackendColor) {
        if color.alpha >= 1.0 {
            self.0.fill(rect, opaque_color(color));
        } else if color.alpha > 0.0 {
            self.0.tint(rect, opaque_color(color), color.alpha as f32);
        }
    }
}

impl DrawingBackend for Backend<'_> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        self.0.size()
    }

    fn ensure_prepared(&mut self) -> DrawResult {
        Ok(())
    }

    fn present(&mut self) -> DrawResult {
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, color: BackendColor) -> DrawResult {
        self.paint(rect_including((x, y), (x, y)), color);
        Ok(())
    }

    fn draw_line<T: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &T) -> DrawResult {
        self.draw_path([from, to], style)
    }

    fn draw_rect<T: BackendStyle>(&mut self, a: BackendCoord, b: BackendCoord, style: &T, fill: bool) -> DrawResult {
        if fill {
            self.paint(rect_including(a, b), style.color());
            return Ok(());
        }
        self.draw_path([a, (b.0, a.1), b, (a.0, b.1), a], style)
    }

    fn draw_path<T: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, path: I, style: &T) -> DrawResult {
        let points: Vec<BackendCoord> = path.into_iter().collect();
        let color = style.color();
        if color.alpha > 0.0 {
            self.0.line(&points, style.stroke_width().max(1), opaque_color(color), color.alpha as f32);
        }
        Ok(())
    }

    fn draw_text<T: BackendTextStyle>(&mut self, text: &str, style: &T, (x, y): BackendCoord) -> DrawResult {
        let anchor = style.anchor();
        let align = match anchor.h_pos {
            HPos::Left => Align::Left,
            HPos::Center => Align::Center,
            HPos::Right => Align::Right,
        };
        let size = style.size() as f32;
        let half = Typesetter::cap_height(size) / 2.0;
        let center = y as f32
            + match anchor.v_pos {
                VPos::Top => half,
                VPos::Center => 0.0,
                VPos::Bottom => -half,
            };
        self.0.text(text, size, (x as f32, center), align, opaque_color(style.color()));
        Ok(())
    }

    fn estimate_text_size<T: BackendTextStyle>(
        &self,
        text: &str,
        style: &T,
    ) -> Result<(u32, u32), DrawingErrorKind<Infallible>> {
        let size = style.size() as f32;
        Ok((self.0.typesetter().width(text, size).ceil() as u32, Typesetter::cap_height(size).ceil() as u32))
    }
}

/// Draws a line through `points` (x, y) on a bitmap, `stroke` pixels wide, with opacity `alpha` (0
/// to 1).
///
/// Horizontal and vertical lines, nearly all lines of a chart, are filled as rectangles.
pub(crate) fn draw_line(bitmap: &mut Bitmap, points: &[BackendCoord], stroke: u32, color: Color, alpha: f32) {
    let style = LineStyle { color, alpha, stroke };
    let (before, after) = ((stroke.max(1) as i32 - 1) / 2, stroke.max(1) as i32 / 2);
    let fill = |bitmap: &mut Bitmap, rect: Rect| match alpha >= 1.0 {
        true => bitmap.fill(rect, color),
        false => bitmap.tint(rect, color, alpha),
    };
    for pair in points.windows(2) {
        let &[from, to] = pair else { continue };
        let line = rect_including(from, to);
        if from.1 == to.1 {
            fill(bitmap, Rect { y0: line.y0 - before, y1: line.y1 + after, ..line });
        } else if from.0 == to.0 {
            fill(bitmap, Rect { x0: line.x0 - before, x1: line.x1 + after, ..line });
        } else {
            // `PixelBackend` never returns an error.
            let _ = rasterizer::draw_line(&mut PixelBackend(bitmap), from, to, &style);
        }
    }
}

/// Color, opacity (0 to 1) and width in pixels of a sloping line, for plotters' rasterizer.
struct LineStyle {
    color: Color,
    alpha: f32,
    stroke: u32,
}

impl BackendStyle for LineStyle {
    fn color(&self) -> BackendColor {
        let Color { r, g, b } = self.color;
        BackendColor { alpha: f64::from(self.alpha), rgb: (r, g, b) }
    }

    fn stroke_width(&self) -> u32 {
        self.stroke
    }
}

/// A plotters backend that draws single pixels on a bitmap; plotters' rasterizer draws sloping
/// lines with it.
struct PixelBackend<'a>(&'a mut Bitmap);

impl DrawingBackend for PixelBackend<'_> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        (self.0.width() as u32, self.0.height() as u32)
    }

    fn ensure_prepared(&mut self) -> DrawResult {
        Ok(())
    }

    fn present(&mut self) -> DrawResult {
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, color: BackendColor) -> DrawResult {
        self.0.blend(x, y, opaque_color(color), color.alpha as f32);
        Ok(())
    }
}
