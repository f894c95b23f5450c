//! A picture of a view to save as a file: pixels with title and legend around them.
//!
//! The layout is computed here; the page draws it on a canvas (PNG), or embeds the pixels in
//! [`SavedPicture::svg`], whose texts stay texts.

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use vramscope_draw::{Color, Theme, Typesetter, Weight};

use crate::ui::{Element, Node, Tag};

/// Space around a saved picture and between its parts, in units (pixels at scale 1).
const MARGIN: f32 = 14.0;
/// Font size of a saved picture's title, in units (pixels at scale 1).
const TITLE_SIZE: f32 = 15.0;
/// Font size of all other texts on a saved picture, in units (pixels at scale 1).
const TEXT_SIZE: f32 = 12.0;
/// Height of a line of text on a saved picture, in units (pixels at scale 1).
const LINE_HEIGHT: f32 = 19.0;
/// Width and height of a swatch, the legend's sample of a color, in units (pixels at scale 1).
const SWATCH: (f32, f32) = (15.0, 10.0);
/// Space between a swatch and its text, and between entries of the legend, in units (pixels at
/// scale 1).
const GAPS: (f32, f32) = (6.0, 18.0);
/// Width of a texture's stripe on a legend's swatch, as a fraction of the swatch's height.
pub const STRIPE_WIDTH: f32 = 0.15;
/// Maximum number of legend entries that are drawn on a saved picture.
const MAX_ENTRIES: usize = 60;

/// The form in which a picture leaves the page: a file format, or the clipboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PictureFormat {
    /// Pixels.
    Png,
    /// Pixels, and texts as vectors.
    Svg,
    /// Pixels on the clipboard.
    Clipboard,
}

impl PictureFormat {
    /// Returns the form with this name in commands, or `None`.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Png, Self::Svg, Self::Clipboard].into_iter().find(|format| format.name() == name)
    }

    /// Returns the name in commands.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Png => "png",
            Self::Svg => "svg",
            Self::Clipboard => "copy",
        }
    }

    /// Returns the extension of a file of this format.
    #[must_use]
    pub const fn extension(self) -> &'static str {
        if let Self::Svg = self { "svg" } else { "png" }
    }
}

/// A text on a saved picture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacedText {
    /// The text.
    pub text: String,
    /// Left end of the text's base line, in pixels.
    pub at: (f32, f32),
    /// Font size in pixels.
    pub size: f32,
    /// Whether the text is semi-bold.
    pub is_bold: bool,
    /// Color.
    pub color: Color,
}

/// A swatch of the legend on a saved picture: a rectangle of one color, with stripes if it has a
/// texture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacedSwatch {
    /// Left upper corner in pixels.
    pub at: (f32, f32),
    /// Width and height in pixels.
    pub size: (f32, f32),
    /// Color.
    pub color: Color,
    /// Color of stripes on it; `None` without a texture.
    pub stripes: Option<Color>,
}

/// A line between two points (x, y), in pixels.
pub type Line = [(f32, f32); 2];

impl PlacedSwatch {
    /// Returns the color of the stripes and the three stripes as lines; `None` for a swatch without
    /// a texture.
    pub fn lines(&self) -> Option<(Color, [Line; 3])> {
        let ((x, y), (width, height)) = (self.at, self.size);
        let line = |part: f32| -> Line {
            let left = x + (width - height).max(0.0) * part;
            [(left, y + height), (left + height.min(width), y)]
        };
        Some((self.stripes?, [line(0.0), line(0.5), line(1.0)]))
    }
}

/// A picture of a view to save as a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedPicture {
    /// Name of the file.
    pub name: String,
    /// Kind of the file.
    pub format: PictureFormat,
    /// Width and height of the whole in pixels.
    pub size: (u32, u32),
    /// Left upper corner of the pixels.
    pub at: (u32, u32),
    /// Width and height of the pixels.
    pub picture_size: (u32, u32),
    /// Color behind everything.
    pub background: Color,
    /// Title and legend.
    pub texts: Vec<PlacedText>,
    /// Samples of the legend's colors.
    pub swatches: Vec<PlacedSwatch>,
}

/// An entry of a legend: the color of its swatch, and its text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LegendEntry {
    /// Color; `None` if the entry is a text only.
    pub color: Option<Color>,
    /// Color of stripes; `None` without a texture.
    pub stripes: Option<Color>,
    /// Text.
    pub text: String,
}

/// Title, legend and other parts around the pixels of a saved picture.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Surroundings {
    /// First line.
    pub title: String,
    /// Second line.
    pub subtitle: String,
    /// The legend.
    pub legend: Vec<LegendEntry>,
}

impl SavedPicture {
    /// Arranges title, pixels and legend of a file called `name` below each other. `picture_size`
    /// is the size of the pixels, and `scale` the number of pixels per unit.
    pub fn new(
        (name, format): (String, PictureFormat),
        picture_size: (u32, u32),
        around: &Surroundings,
        scale: f32,
        theme: &Theme,
        typesetter: &mut Typesetter,
    ) -> Self {
        let units = |length: f32| length * scale;
        let margin = units(MARGIN);
        let width = picture_size.0 as f32 + 2.0 * margin;
        let inner = width - 2.0 * margin;
        let mut texts = Vec::new();
        let mut place = |typesetter: &mut Typesetter, text: &str, size: f32, at: (f32, f32), is_bold: bool| {
            typesetter.set_weight(if is_bold { Weight::SemiBold } else { Weight::Regular });
            let (size, is_title) = (units(size), is_bold);
            let fitted = typesetter.fit(text, size, inner);
            let text_width = typesetter.width(&fitted, size);
            typesetter.set_weight(Weight::Regular);
            let color = if is_title { theme.text } else { theme.dim };
            texts.push(PlacedText { text: fitted, at, size, is_bold, color });
            text_width
        };
        let mut y = margin + units(TITLE_SIZE);
        place(typesetter, &around.title, TITLE_SIZE, (margin, y), true);
        y += units(LINE_HEIGHT);
        place(typesetter, &around.subtitle, TEXT_SIZE, (margin, y), false);
        let top = (y + units(MARGIN) * 0.7).ceil();
        y = top + picture_size.1 as f32 + units(LINE_HEIGHT);
        let mut x = margin;
        let mut swatches = Vec::new();
        let (swatch, gaps) = ((units(SWATCH.0), units(SWATCH.1)), (units(GAPS.0), units(GAPS.1)));
        for entry in around.legend.iter().take(MAX_ENTRIES) {
            let sample = if entry.color.is_none() { 0.0 } else { swatch.0 + gaps.0 };
            let needed = sample + typesetter.width(&entry.text, units(TEXT_SIZE));
            if x > margin && x + needed > margin + inner {
                (x, y) = (margin, y + units(LINE_HEIGHT));
            }
            let placed = |color| PlacedSwatch { at: (x, y - swatch.1), size: swatch, color, stripes: entry.stripes };
            swatches.extend(entry.color.map(placed));
            x += sample + place(typesetter, &entry.text, TEXT_SIZE, (x + sample, y), false) + gaps.1;
        }
        let bottom = if around.legend.is_empty() { y - units(LINE_HEIGHT) } else { y };
        Self {
            name,
            format,
            size: (width.ceil() as u32, (bottom + margin).ceil() as u32),
            at: (margin.round() as u32, top as u32),
            picture_size,
            background: theme.background,
            texts,
            swatches,
        }
    }

    /// Returns the picture as SVG; `pixels` is a URL of its pixels as an image (`data:`).
    pub fn svg(&self, pixels: &str) -> String {
        let (width, height) = self.size;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"Inter, system-ui, sans-serif\">\
             <rect width=\"100%\" height=\"100%\" fill=\"{}\"/>",
            self.background.css()
        );
        let ((x, y), (width, height)) = (self.at, self.picture_size);
        // Writing to a string cannot fail.
        let _ = write!(svg, "<image x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" href=\"");
        push_escaped(&mut svg, pixels);
        svg.push_str("\"/>");
        for swatch in &self.swatches {
            let ([x, y], [width, height]) = (rounded(swatch.at), rounded(swatch.size));
            let color = swatch.color.css();
            let _ = write!(svg, "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{color}\"/>");
            if let Some((color, lines)) = swatch.lines() {
                svg.push_str("<path d=\"");
                for [[x0, y0], [x1, y1]] in lines.map(|line| line.map(rounded)) {
                    let _ = write!(svg, "M{x0} {y0}L{x1} {y1}");
                }
                let _ = write!(
                    svg,
                    "\" stroke=\"{}\" stroke-width=\"{}\"/>",
                    color.css(),
                    height * f64::from(STRIPE_WIDTH)
                );
            }
        }
        for PlacedText { text, at, size, is_bold, color } in &self.texts {
            let ([x, y], size) = (rounded(*at), f64::from(*size));
            let weight = if *is_bold { 600 } else { 400 };
            let color = color.css();
            let _ = write!(
                svg,
                "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" font-weight=\"{weight}\" fill=\"{color}\">"
            );
            push_escaped(&mut svg, text);
            svg.push_str("</text>");
        }
        svg + "</svg>\n"
    }
}

/// Rounds a point or a size to hundredths of a pixel. Returns `f64`, because formatting `f32` would
/// make the page's code larger.
fn rounded((x, y): (f32, f32)) -> [f64; 2] {
    [x, y].map(|length| (f64::from(length) * 100.0).round() / 100.0)
}

/// Appends a text with XML's special characters escaped; characters that XML cannot have are left
/// out.
fn push_escaped(xml: &mut String, text: &str) {
    for letter in text.chars() {
        match letter {
            '&' => xml.push_str("&amp;"),
            '<' => xml.push_str("&lt;"),
            '>' => xml.push_str("&gt;"),
            '"' => xml.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => {}
            letter if letter.is_control() => {}
            letter => xml.push(letter),
        }
    }
}

/// Reads the entries of a legend from the page's elements that show it.
pub fn legend_entries(nodes: &[Node], theme: &Theme) -> Vec<LegendEntry> {
    let mut entries = Vec::new();
    for node in nodes {
        let Node::Element(element) = node else { continue };
        match element.tag {
            Tag::Li | Tag::P => {
                let text = element.text_content().replace('\u{a0}', " ");
                let (color, stripes) = swatch_of(element).and_then(|swatch| look_of(swatch, theme)).unzip();
                if !text.is_empty() {
                    entries.push(LegendEntry { color, stripes: stripes.flatten(), text });
                }
            }
            Tag::Button | Tag::Select | Tag::Input => {}
            _ => entries.extend(legend_entries(&element.children, theme)),
        }
    }
    entries
}

/// Returns the first swatch among the descendants of an element; `None` without one.
fn swatch_of(element: &Element) -> Option<&Element> {
    element.children.iter().find_map(|node| match node {
        Node::Element(child) if child.class.split(' ').any(|class| class == "swatch") => Some(child),
        Node::Element(child) => swatch_of(child),
        Node::Text(_) => None,
    })
}

/// Returns the color of a swatch and the color of its stripes: its own colors, or the colors that
/// the style sheet gives its class.
fn look_of(swatch: &Element, theme: &Theme) -> Option<(Color, Option<Color>)> {
    if let Some(color) = swatch.color {
        let texture = swatch.children.iter().find_map(|node| match node {
            Node::Element(texture) => texture.color,
            Node::Text(_) => None,
        });
        return Some((color, texture));
    }
    swatch.class.split(' ').find_map(|class| match class {
        "swatch-allocated" => Some((theme.allocated, None)),
        "swatch-pending" => Some((theme.pending, None)),
        "swatch-waste" => Some((theme.rounding(theme.allocated), None)),
        "swatch-free" => Some((theme.free, Some(theme.free_hatch))),
        "swatch-cached" => Some((theme.cached, Some(theme.cached_hatch))),
        "swatch-narrow" => Some((theme.grid, Some(theme.dim))),
        _ => None,
    })
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use crate::ui::swatch;

    fn picture(title: &str) -> SavedPicture {
        let theme = Theme::new(false);
        let item = |sample: Element, text: &str| Element::new(Tag::Li).with_child(sample).with_text(text);
        let narrow = Element::new(Tag::I).with_class("swatch swatch-narrow");
        let free = Element::new(Tag::I).with_class("swatch swatch-free");
        let list = Element::new(Tag::Ul)
            .with_children((0..11).map(|index| item(swatch(theme.pending), &format!("entry number {index}"))))
            .with_child(item(free, "free"))
            .with_child(item(narrow, "<narrow> & \"more\""));
        let legend = legend_entries(&[list.into(), Element::text(Tag::Button, "Fit").into()], &theme);
        assert_eq!(legend.len(), 13);
        assert_eq!((legend[12].color, legend[12].stripes), (Some(theme.grid), Some(theme.dim)));
        assert_eq!((legend[11].color, legend[11].stripes), (Some(theme.free), Some(theme.free_hatch)));
        let around = Surroundings { title: title.to_owned(), subtitle: "event 3".to_owned(), legend };
        let file = ("run device event 3.svg".to_owned(), PictureFormat::Svg);
        SavedPicture::new(file, (500, 200), &around, 1.0, &theme, &mut Typesetter::new())
    }

    #[test]
    fn texts_and_swatches_are_inside_and_apart() {
        let picture = picture("A title that is much too long for a picture of five hundred pixels, so it is shortened");
        let (width, height) = (picture.size.0 as f32, picture.size.1 as f32);
        let mut typesetter = Typesetter::new();
        let (top, bottom) = (picture.at.1 as f32, (picture.at.1 + picture.picture_size.1) as f32);
        for text in &picture.texts {
            typesetter.set_weight(if text.is_bold { Weight::SemiBold } else { Weight::Regular });
            let (x, y) = text.at;
            assert!(x >= MARGIN && x + typesetter.width(&text.text, text.size) <= width - MARGIN + 0.5, "{text:?}");
            assert!(y < top || y - text.size > bottom, "{text:?} covers the picture");
            assert!(y < height - 5.0, "{text:?}");
        }
        assert!(picture.texts[0].text.ends_with('…'));
        assert!(picture.swatches.iter().all(|one| one.at.1 > bottom));
        assert_eq!(picture.swatches.len(), 13);
    }

    #[test]
    fn svg_is_valid_and_shows_all_texts() {
        let picture = picture("a<b>&\u{1}\"c\"");
        let svg = picture.svg("data:image/png;base64,AA==");
        let document = roxmltree::Document::parse(&svg).expect("valid XML");
        let texts: Vec<&str> =
            document.descendants().filter(|node| node.has_tag_name("text")).filter_map(|node| node.text()).collect();
        assert_eq!(texts[0], "a<b>&\"c\"");
        assert_eq!(texts.last(), Some(&"<narrow> & \"more\""));
        let image = document.descendants().find(|node| node.has_tag_name("image")).expect("the pixels");
        assert_eq!(image.attribute("href"), Some("data:image/png;base64,AA=="));
        assert_eq!(image.attribute("width"), Some("500"));
        assert_eq!(document.descendants().filter(|node| node.has_tag_name("path")).count(), 2, "two are striped");
    }
}
