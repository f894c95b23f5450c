//! Where plotters meets a [`Surface`]: a drawing backend that needs no page, so that charts come out the same everywhere.

use std::convert::Infallible;

use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind, rasterizer,
};

use crate::frame::{Color, Frame, Rect};
use crate::surface::Surface;
use crate::text::{Align, Typesetter};

/// Draws on a surface.
pub(crate) struct Backend<'a, S>(pub(crate) &'a mut S);

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

fn color(of: BackendColor) -> Color {
    let (r, g, b) = of.rgb;
    Color { r, g, b }
}

/// The rectangle with both corners in it, whichever way they were given.
fn spanned(a: BackendCoord, b: BackendCoord) -> Rect {
    Rect::new(a.0.min(b.0), a.1.min(b.1), a.0.max(b.0).saturating_add(1), a.1.max(b.1).saturating_add(1))
}

impl<S: Surface> Backend<'_, S> {
    fn paint(&mut self, rect: Rect, of: BackendColor) {
        if of.alpha >= 1.0 {
            self.0.fill(rect, color(of));
        } else if of.alpha > 0.0 {
            self.0.tint(rect, color(of), of.alpha as f32);
        }
    }
}

impl<S: Surface> DrawingBackend for Backend<'_, S> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        self.0.size()
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, of: BackendColor) -> Drawn {
        self.paint(spanned((x, y), (x, y)), of);
        Ok(())
    }

    fn draw_line<T: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &T) -> Drawn {
        self.draw_path([from, to], style)
    }

    fn draw_rect<T: BackendStyle>(&mut self, a: BackendCoord, b: BackendCoord, style: &T, fill: bool) -> Drawn {
        if fill {
            self.paint(spanned(a, b), style.color());
            return Ok(());
        }
        self.draw_path([a, (b.0, a.1), b, (a.0, b.1), a], style)
    }

    fn draw_path<T: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, path: I, style: &T) -> Drawn {
        let points: Vec<BackendCoord> = path.into_iter().collect();
        let of = style.color();
        if of.alpha > 0.0 {
            self.0.line(&points, style.stroke_width().max(1), color(of), of.alpha as f32);
        }
        Ok(())
    }

    fn draw_text<T: BackendTextStyle>(&mut self, text: &str, style: &T, (x, y): BackendCoord) -> Drawn {
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
        self.0.text(text, size, (x as f32, center), align, color(style.color()));
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

/// Draws a line through `points` on a frame. Level and upright lines, which are nearly all of a chart, are painted row by row.
pub(crate) fn line(frame: &mut Frame, points: &[BackendCoord], stroke: u32, color: Color, alpha: f32) {
    let style = Style { color, alpha, stroke };
    let (before, behind) = ((stroke.max(1) as i32 - 1) / 2, stroke.max(1) as i32 / 2);
    for pair in points.windows(2) {
        let &[from, to] = pair else { continue };
        let line = spanned(from, to);
        if from.1 == to.1 {
            frame.tint(Rect { y0: line.y0 - before, y1: line.y1 + behind, ..line }, color, alpha);
        } else if from.0 == to.0 {
            frame.tint(Rect { x0: line.x0 - before, x1: line.x1 + behind, ..line }, color, alpha);
        } else {
            // It cannot fail: pixels do not.
            let _ = rasterizer::draw_line(&mut Pixels(frame), from, to, &style);
        }
    }
}

struct Style {
    color: Color,
    alpha: f32,
    stroke: u32,
}

impl BackendStyle for Style {
    fn color(&self) -> BackendColor {
        let Color { r, g, b } = self.color;
        BackendColor { alpha: f64::from(self.alpha), rgb: (r, g, b) }
    }

    fn stroke_width(&self) -> u32 {
        self.stroke
    }
}

/// What a sloping line is made of.
struct Pixels<'a>(&'a mut Frame);

impl DrawingBackend for Pixels<'_> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        (self.0.width() as u32, self.0.height() as u32)
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, of: BackendColor) -> Drawn {
        self.0.blend(x, y, color(of), of.alpha as f32);
        Ok(())
    }
}
