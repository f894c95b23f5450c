//! A surface that keeps shapes: one SVG document that needs nothing beside it.
//!
//! plotters has a backend for SVG of its own; this one measures text with the bundled font, as the pixels do, carries that font with it,
//! and puts neighboring shapes of one color together, without which a chart of a thousand columns would be a thousand elements.

use std::fmt::Write as _;

use super::png;
use crate::frame::{Color, Frame, Rect};
use crate::surface::Surface;
use crate::text::{Align, REGULAR, SEMI_BOLD, Typesetter, Weight};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

/// What text is set in where the document's own font may not be used.
const FONTS: &str = "Inter,'Helvetica Neue',Helvetica,Arial,sans-serif";

/// A document under way.
pub(super) struct Svg {
    type_: Typesetter,
    weight: Weight,
    size: (u32, u32),
    body: String,
    /// Rectangles of one color that are not in the body yet.
    path: String,
    paint: Option<(Color, f32)>,
}

fn hex(color: Color) -> String {
    format!("#{:02x}{:02x}{:02x}", color.r, color.g, color.b)
}

/// Text as an XML document may have it: nothing in it is markup, and what no document may hold is replaced.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}

impl Svg {
    /// An empty document of this many pixels.
    pub(super) fn new(size: (u32, u32)) -> Self {
        let (type_, weight) = (Typesetter::new(), Weight::Regular);
        Self { type_, weight, size, body: String::new(), path: String::new(), paint: None }
    }

    /// The document, shown with `scale` of its pixels to one of the page.
    pub(super) fn finish(mut self, title: &str, scale: f32) -> String {
        self.flush();
        let (width, height) = self.size;
        let shown = |pixels: u32| (pixels as f32 / scale).round();
        let font = |bytes: &[u8], weight: u16| {
            let bytes = BASE64.encode(bytes);
            format!("@font-face{{font-family:Inter;font-weight:{weight};src:url(data:font/otf;base64,{bytes})}}")
        };
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" viewBox=\"0 0 {width} {height}\" \
             role=\"img\">\n<title>{}</title>\n<style>{}{}text{{font-family:{FONTS};white-space:pre}}\
             .b{{font-weight:600}}.m{{text-anchor:middle}}.e{{text-anchor:end}}</style>\n{}</svg>\n",
            shown(width),
            shown(height),
            escaped(title),
            font(REGULAR, 400),
            font(SEMI_BOLD, 600),
            self.body
        )
    }

    /// Adds to the document. Writing to a string does not fail.
    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        self.flush();
        let _ = self.body.write_fmt(element);
    }

    /// Puts what was collected of one color into the document.
    fn flush(&mut self) {
        if let Some((color, alpha)) = self.paint.take() {
            let opacity = if alpha < 1.0 { format!(" fill-opacity=\"{alpha:.2}\"") } else { String::new() };
            let _ = writeln!(self.body, "<path fill=\"{}\"{opacity} d=\"{}\"/>", hex(color), self.path);
            self.path.clear();
        }
    }

    fn rect(&mut self, rect: Rect, color: Color, alpha: f32) {
        let rect = rect.intersect(self.bounds());
        if rect.width() == 0 || rect.height() == 0 || alpha <= 0.0 {
            return;
        }
        // Where shapes may lie on each other, a tint must be one element each.
        if alpha < 1.0 || self.paint != Some((color, alpha)) {
            self.flush();
        }
        self.paint = Some((color, alpha));
        let _ = write!(self.path, "M{} {}h{}v{}h-{}z", rect.x0, rect.y0, rect.width(), rect.height(), rect.width());
    }
}

impl Surface for Svg {
    fn size(&self) -> (u32, u32) {
        self.size
    }

    fn fill(&mut self, rect: Rect, color: Color) {
        self.rect(rect, color, 1.0);
    }

    fn tint(&mut self, rect: Rect, color: Color, alpha: f32) {
        self.rect(rect, color, alpha);
    }

    fn line(&mut self, points: &[(i32, i32)], stroke: u32, color: Color, alpha: f32) {
        let mut path = String::new();
        for (x, y) in points {
            let letter = if path.is_empty() { 'M' } else { 'L' };
            // Through the middle of pixels, as a line of one pixel is.
            let _ = write!(path, "{letter}{x}.5 {y}.5");
        }
        let opacity = if alpha < 1.0 { format!(" stroke-opacity=\"{alpha:.2}\"") } else { String::new() };
        let color = hex(color);
        self.add(format_args!(
            "<path fill=\"none\" stroke=\"{color}\"{opacity} stroke-width=\"{stroke}\" d=\"{path}\"/>\n"
        ));
    }

    fn set_weight(&mut self, weight: Weight) {
        self.weight = weight;
        self.type_.set_weight(weight);
    }

    fn text(&mut self, text: &str, size: f32, (x, center_y): (f32, f32), align: Align, color: Color) {
        if text.is_empty() {
            return;
        }
        let mut classes = String::new();
        if self.weight == Weight::SemiBold {
            classes.push_str(" class=\"b");
        }
        let anchor = match align {
            Align::Left => "",
            Align::Center => "m",
            Align::Right => "e",
        };
        if !anchor.is_empty() {
            classes.push_str(if classes.is_empty() { " class=\"" } else { " " });
            classes.push_str(anchor);
        }
        if !classes.is_empty() {
            classes.push('"');
        }
        let baseline = (center_y + Typesetter::cap_height(size) / 2.0).round();
        // As wide as was reckoned with, whatever font it is set in.
        let width = self.type_.width(text, size);
        self.add(format_args!(
            "<text{classes} x=\"{x:.1}\" y=\"{baseline}\" font-size=\"{size}\" fill=\"{}\" textLength=\"{width:.1}\">{}</text>\n",
            hex(color),
            escaped(text)
        ));
    }

    fn typesetter(&self) -> &Typesetter {
        &self.type_
    }

    fn pixels(&mut self, behind: Color, draw: impl FnOnce(&mut Frame)) {
        let (width, height) = self.size;
        let mut frame = Frame::new(width, height, behind);
        draw(&mut frame);
        let bytes = BASE64.encode(png::encode(&frame));
        self.add(format_args!(
            "<image width=\"{width}\" height=\"{height}\" href=\"data:image/png;base64,{bytes}\"/>\n"
        ));
    }

    fn panel(&mut self, at: Rect, behind: Color, draw: impl FnOnce(&mut Self)) {
        self.add(format_args!("<g transform=\"translate({} {})\">\n", at.x0, at.y0));
        let outer = std::mem::replace(&mut self.size, (at.width().max(0) as u32, at.height().max(0) as u32));
        self.fill(self.bounds(), behind);
        draw(self);
        self.size = outer;
        self.add(format_args!("</g>\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_no_markup() {
        assert_eq!(
            escaped("<b a=\"1\" c='2'>&\u{1}\n"),
            "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;\u{fffd}\u{fffd}"
        );
        let mut svg = Svg::new((100, 20));
        svg.text("]]></style><script>", 10.0, (0.0, 10.0), Align::Right, Color::hex(0));
        let text = svg.finish("</title><script>", 1.0);
        assert!(!text.contains("<script"), "{text}");
        assert_eq!(text.matches("</title>").count(), 1);
    }

    #[test]
    fn rectangles_of_one_color_are_one_shape() {
        let (a, b) = (Color::hex(0x112233), Color::hex(0x445566));
        let mut svg = Svg::new((100, 20));
        for x in 0..10 {
            svg.fill(Rect::new(x, 0, x + 1, 5), a);
        }
        svg.fill(Rect::new(-5, -5, 0, 90), a);
        svg.fill(Rect::new(0, 0, 1, 1), b);
        svg.tint(Rect::new(0, 0, 1, 1), b, 0.5);
        svg.tint(Rect::new(0, 0, 1, 1), b, 0.5);
        svg.flush();
        assert_eq!(svg.body.matches("<path").count(), 4, "{}", svg.body);
        assert_eq!(svg.body.lines().next().map(|line| line.matches('M').count()), Some(10));
    }
}
