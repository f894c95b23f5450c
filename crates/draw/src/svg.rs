//! A [`Surface`] that writes an SVG document without external references.
//!
//! Unlike plotters' SVG backend, it measures text with the bundled font, as the pixel surface does,
//! embeds that font, and combines adjacent shapes of one color: a chart of a thousand columns would
//! otherwise have a thousand elements.

use std::borrow::Cow;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::bitmap::{Bitmap, Color, Rect};
use crate::png;
use crate::surface::Surface;
use crate::text::{Align, REGULAR, SEMI_BOLD, Typesetter, Weight};

/// The embedded font and its replacements in programs that ignore embedded fonts.
const FONTS: &str = "Inter,'Helvetica Neue',Helvetica,Arial,sans-serif";

/// An SVG document under construction; adjacent rectangles of one color become one element.
pub struct Svg {
    typesetter: Typesetter,
    weight: Weight,
    size: (u32, u32),
    body: String,
    /// Rectangles of one color and opacity that are not in the body yet.
    pending_path: String,
    pending_paint: Option<(Color, f32)>,
}

/// Escapes text for XML, and replaces each character that XML forbids by U+FFFD.
fn escape(text: &str) -> Cow<'_, str> {
    let is_forbidden = |c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
    if text.contains(is_forbidden) {
        let replaced = text.replace(is_forbidden, "\u{fffd}");
        return Cow::Owned(quick_xml::escape::escape(replaced).into_owned());
    }
    quick_xml::escape::escape(text)
}

impl Svg {
    /// Creates an empty document of `size` pixels.
    pub fn new(size: (u32, u32)) -> Self {
        let (typesetter, weight) = (Typesetter::new(), Weight::Regular);
        Self { typesetter, weight, size, body: String::new(), pending_path: String::new(), pending_paint: None }
    }

    /// Returns the complete document with `title`; `scale` of its pixels are displayed as one CSS
    /// pixel. The fonts are embedded if `embeds_fonts`; without them the document is 29 kB smaller,
    /// and a font of the system is stretched to the measured widths.
    pub fn finish(mut self, title: &str, scale: f32, embeds_fonts: bool) -> String {
        self.flush();
        let (width, height) = self.size;
        let shown = |pixels: u32| (pixels as f32 / scale).round();
        let font = |bytes: &[u8], weight: u16| {
            if !embeds_fonts {
                return String::new();
            }
            let bytes = BASE64.encode(bytes);
            format!("@font-face{{font-family:Inter;font-weight:{weight};src:url(data:font/otf;base64,{bytes})}}")
        };
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" viewBox=\"0 0 {width} {height}\" \
             role=\"img\">\n<title>{}</title>\n<style>{}{}text{{font-family:{FONTS};white-space:pre}}\
             .b{{font-weight:600}}.m{{text-anchor:middle}}.e{{text-anchor:end}}</style>\n{}</svg>\n",
            shown(width),
            shown(height),
            escape(title),
            font(REGULAR, 400),
            font(SEMI_BOLD, 600),
            self.body
        )
    }

    /// Adds an element, given as formatted text, to the document's body.
    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        self.flush();
        // Writing to a string never fails.
        let _ = self.body.write_fmt(element);
    }

    /// Writes the rectangles that were combined so far to the document's body as one element.
    fn flush(&mut self) {
        if let Some((color, alpha)) = self.pending_paint.take() {
            let opacity = if alpha < 1.0 { format!(" fill-opacity=\"{alpha:.2}\"") } else { String::new() };
            let _ = writeln!(self.body, "<path fill=\"{}\"{opacity} d=\"{}\"/>", color.css(), self.pending_path);
            self.pending_path.clear();
        }
    }

    /// Adds a rectangle with opacity `alpha` (0 to 1), clipped to the document.
    fn add_rect(&mut self, rect: Rect, color: Color, alpha: f32) {
        let rect = rect.intersect(self.bounds());
        if rect.width() == 0 || rect.height() == 0 || alpha <= 0.0 {
            return;
        }
        // Transparent shapes may overlap, so each is its own element.
        if alpha < 1.0 || self.pending_paint != Some((color, alpha)) {
            self.flush();
        }
        self.pending_paint = Some((color, alpha));
        let (x, y, width, height) = (rect.x0, rect.y0, rect.width(), rect.height());
        let _ = write!(self.pending_path, "M{x} {y}h{width}v{height}h-{width}z");
    }
}

impl Surface for Svg {
    fn size(&self) -> (u32, u32) {
        self.size
    }

    fn fill(&mut self, rect: Rect, color: Color) {
        self.add_rect(rect, color, 1.0);
    }

    fn tint(&mut self, rect: Rect, color: Color, alpha: f32) {
        self.add_rect(rect, color, alpha);
    }

    fn line(&mut self, points: &[(i32, i32)], stroke: u32, color: Color, alpha: f32) {
        let mut path = String::new();
        for (x, y) in points {
            let letter = if path.is_empty() { 'M' } else { 'L' };
            // Through the middle of the pixels, as on the pixel surface.
            let _ = write!(path, "{letter}{x}.5 {y}.5");
        }
        let opacity = if alpha < 1.0 { format!(" stroke-opacity=\"{alpha:.2}\"") } else { String::new() };
        let color = color.css();
        self.add(format_args!(
            "<path fill=\"none\" stroke=\"{color}\"{opacity} stroke-width=\"{stroke}\" d=\"{path}\"/>\n"
        ));
    }

    fn area(&mut self, columns: &[Rect], color: Color) {
        self.flush();
        let Some((first, last)) = columns.first().zip(columns.last()) else { return };
        let mut path = format!("M{} {}", first.x0, first.y1);
        let mut y = first.y1;
        let mut x = first.x0;
        for column in columns {
            if column.y0 != y {
                if column.x0 != x {
                    let _ = write!(path, "H{}", column.x0);
                }
                let _ = write!(path, "V{}", column.y0);
                (x, y) = (column.x0, column.y0);
            }
        }
        let _ = write!(path, "H{}V{}z", last.x1, last.y1);
        let _ = writeln!(self.body, "<path fill=\"{}\" d=\"{path}\"/>", color.css());
    }

    fn set_weight(&mut self, weight: Weight) {
        self.weight = weight;
        self.typesetter.set_weight(weight);
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
        // textLength keeps the measured width with any font.
        let width = self.typesetter.width(text, size);
        self.add(format_args!(
            "<text{classes} x=\"{x:.1}\" y=\"{baseline}\" font-size=\"{size}\" fill=\"{}\" \
             textLength=\"{width:.1}\">{}</text>\n",
            color.css(),
            escape(text)
        ));
    }

    fn typesetter(&self) -> &Typesetter {
        &self.typesetter
    }

    fn pixels(&mut self, background: Color, draw: &mut dyn FnMut(&mut Bitmap)) {
        let (width, height) = self.size;
        let mut bitmap = Bitmap::new(width, height, background);
        draw(&mut bitmap);
        let bytes = BASE64.encode(png::encode(&bitmap));
        self.add(format_args!(
            "<image width=\"{width}\" height=\"{height}\" href=\"data:image/png;base64,{bytes}\"/>\n"
        ));
    }

    fn panel(&mut self, at: Rect, background: Color, draw: &mut dyn FnMut(&mut dyn Surface)) {
        self.add(format_args!("<g transform=\"translate({} {})\">\n", at.x0, at.y0));
        let outer = std::mem::replace(&mut self.size, (at.width().max(0) as u32, at.height().max(0) as u32));
        self.fill(self.bounds(), background);
        draw(self);
        self.size = outer;
        self.add(format_args!("</g>\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        assert_eq!(
            escape("<b a=\"1\" c='2'>&\u{1}\n"),
            "&lt;b a=&quot;1&quot; c=&apos;2&apos;&gt;&amp;\u{fffd}\u{fffd}"
        );
        let mut svg = Svg::new((100, 20));
        svg.text("]]></style><script>", 10.0, (0.0, 10.0), Align::Right, Color::hex(0));
        let text = svg.finish("</title><script>", 1.0, true);
        assert!(!text.contains("<script"), "{text}");
        assert_eq!(text.matches("</title>").count(), 1);
    }

    #[test]
    fn rectangles_of_one_color_are_one_element() {
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
