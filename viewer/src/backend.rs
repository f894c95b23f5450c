//! Where plotters meets the [`Frame`]: a drawing backend that needs no page, so that charts come out the same everywhere.

use std::convert::Infallible;

use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind, rasterizer,
};

use crate::frame::{Color, Frame, Rect};
use crate::text::{Align, Typesetter};

/// Draws on a frame. Filled rectangles and level and upright lines, which are nearly all of a chart, are painted row by row.
pub(crate) struct FrameBackend<'a> {
    frame: &'a mut Frame,
    type_: &'a mut Typesetter,
}

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

fn color(of: BackendColor) -> Color {
    let (r, g, b) = of.rgb;
    Color { r, g, b }
}

impl<'a> FrameBackend<'a> {
    /// A backend that draws on `frame` with the letters of `type_`.
    pub(crate) fn new(frame: &'a mut Frame, type_: &'a mut Typesetter) -> Self {
        Self { frame, type_ }
    }

    fn paint(&mut self, rect: Rect, of: BackendColor) {
        if of.alpha >= 1.0 {
            self.frame.fill(rect, color(of));
        } else if of.alpha > 0.0 {
            self.frame.tint(rect, color(of), of.alpha as f32);
        }
    }
}

/// The rectangle with both corners in it, whichever way they were given.
fn spanned(a: BackendCoord, b: BackendCoord) -> Rect {
    Rect::new(a.0.min(b.0), a.1.min(b.1), a.0.max(b.0).saturating_add(1), a.1.max(b.1).saturating_add(1))
}

impl DrawingBackend for FrameBackend<'_> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        (self.frame.width() as u32, self.frame.height() as u32)
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, of: BackendColor) -> Drawn {
        self.frame.blend(x, y, color(of), of.alpha as f32);
        Ok(())
    }

    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Drawn {
        let stroke = style.stroke_width().max(1) as i32;
        let straight = from.0 == to.0 || from.1 == to.1;
        if !straight {
            return rasterizer::draw_line(self, from, to, style);
        }
        let line = spanned(from, to);
        let (before, behind) = ((stroke - 1) / 2, stroke / 2);
        let rect = if from.1 == to.1 {
            Rect { y0: line.y0 - before, y1: line.y1 + behind, ..line }
        } else {
            Rect { x0: line.x0 - before, x1: line.x1 + behind, ..line }
        };
        self.paint(rect, style.color());
        Ok(())
    }

    fn draw_rect<S: BackendStyle>(&mut self, a: BackendCoord, b: BackendCoord, style: &S, fill: bool) -> Drawn {
        if fill {
            self.paint(spanned(a, b), style.color());
        } else {
            self.frame.outline(spanned(a, b), style.stroke_width().max(1) as i32, color(style.color()));
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
        self.type_.draw(self.frame, text, size, (x as f32, center), align, color(style.color()));
        Ok(())
    }

    fn estimate_text_size<T: BackendTextStyle>(
        &self,
        text: &str,
        style: &T,
    ) -> Result<(u32, u32), DrawingErrorKind<Infallible>> {
        let size = style.size() as f32;
        Ok((self.type_.width(text, size).ceil() as u32, Typesetter::cap_height(size).ceil() as u32))
    }
}
