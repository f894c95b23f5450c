//! The content of the page's panels as data: elements, texts, and the commands that they run.
//!
//! Views describe what they show with [`Node`]s, so that all of it is computed and tested without a
//! browser; the `web` module turns nodes into elements of the page. Texts are never parsed as
//! markup, and no node can contain a script or an image. Links only lead to files in the user's
//! editor; see [`Element::file_link`].

use std::borrow::Cow;
use std::ops::Deref;

use serde::{Deserialize, Serialize};
use vramscope_draw::{Color, Texture, Theme};

use crate::editor_link::EditorTemplate;
use crate::linked_memory::LinkedMemory;

/// A piece of a panel: a text or an element.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Node {
    /// A text.
    Text(String),
    /// An element with its content.
    Element(Element),
}

/// The kind of an element, named as in HTML.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "HTML defines the elements")]
pub enum Tag {
    A,
    Button,
    Code,
    Dd,
    Details,
    Div,
    Dl,
    Dt,
    H2,
    H3,
    I,
    Input,
    Kbd,
    Label,
    Li,
    Ol,
    Option,
    P,
    Section,
    Select,
    Span,
    Summary,
    Table,
    Tbody,
    Td,
    Th,
    Thead,
    Tr,
    Ul,
}

impl Tag {
    /// Returns the element's name in HTML.
    #[must_use]
    pub fn name(self) -> String {
        format!("{self:?}").to_ascii_lowercase()
    }
}

/// An attribute that panels may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attribute {
    /// Name for screen readers.
    AriaLabel,
    /// Whether a row is that of the moment on the screen; `true`.
    AriaCurrent,
    /// Whether a toggle is on: `true` or `false`.
    AriaPressed,
    /// Whether a row or option is selected: `true` or `false`.
    AriaSelected,
    /// How a column is sorted: `ascending`, `descending` or `none`.
    AriaSort,
    /// Whether a fold is open: `true` or `false`.
    AriaExpanded,
    /// Nesting depth, counted from 1.
    AriaLevel,
    /// Number of all rows of a table of which only some are in the page.
    AriaRowCount,
    /// Number of a row among all rows of its table, from 1.
    AriaRowIndex,
    /// Number of columns that a cell covers.
    ColSpan,
    /// Whether a control is disabled; its presence counts.
    Disabled,
    /// Address of a link; the page ignores addresses that are not
    /// [safe](crate::editor_link::is_safe).
    Href,
    /// Stable identity of an element among its siblings, so that it keeps the focus.
    Key,
    /// Whether a fold is open at first; its presence counts.
    Open,
    /// Text in an empty field.
    Placeholder,
    /// Role for screen readers.
    Role,
    /// The memory that the element stands for, as the text of a
    /// [`LinkedMemory`].
    Light,
    /// Row (from 0) that a list of which only some rows are in the page scrolls to, and the number
    /// of the request.
    ScrollTo,
    /// Whether a table header heads a row or a column: `row` or `col`.
    Scope,
    /// Whether an option is chosen; its presence counts.
    Selected,
    /// Position in the order of the Tab key.
    TabIndex,
    /// Text that is shown under the pointer.
    Title,
    /// Type of a field or button.
    Type,
    /// Value of a field or option.
    Value,
    /// Number of all rows of a list that scrolls; see [`Element::virtual_list`].
    VirtualRows,
    /// Number (from 0) of the first row of a list that is in the page.
    VirtualFirst,
}

impl Attribute {
    /// Returns the attribute's name in HTML.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AriaLabel => "aria-label",
            Self::AriaCurrent => "aria-current",
            Self::AriaPressed => "aria-pressed",
            Self::AriaSelected => "aria-selected",
            Self::AriaSort => "aria-sort",
            Self::AriaExpanded => "aria-expanded",
            Self::AriaLevel => "aria-level",
            Self::AriaRowCount => "aria-rowcount",
            Self::AriaRowIndex => "aria-rowindex",
            Self::ColSpan => "colspan",
            Self::Disabled => "disabled",
            Self::Href => "href",
            Self::Key => "data-key",
            Self::Open => "open",
            Self::Placeholder => "placeholder",
            Self::Role => "role",
            Self::Light => "data-light",
            Self::ScrollTo => "data-scroll-to",
            Self::Scope => "scope",
            Self::Selected => "selected",
            Self::TabIndex => "tabindex",
            Self::Title => "title",
            Self::Type => "type",
            Self::Value => "value",
            Self::VirtualRows => "data-rows",
            Self::VirtualFirst => "data-first",
        }
    }
}

/// The text of a [`Command`](crate::command::Command), or of a field's command without its value;
/// the page parses it when it is run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandText(pub String);

impl Deref for CommandText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// An element of a panel with its content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Element {
    /// Kind of the element.
    pub tag: Tag,
    /// Classes of the style sheet, separated by spaces.
    pub class: Cow<'static, str>,
    /// Attributes with their values.
    pub attributes: Vec<(Attribute, String)>,
    /// Color of a swatch or a bar, as the style sheet's variable `--color`.
    pub color: Option<Color>,
    /// Length of a bar, 0 to 1, as the style sheet's variable `--share`.
    pub share: Option<f32>,
    /// Start of a bar, 0 to 1, as the style sheet's variable `--start`.
    pub start: Option<f32>,
    /// The command that a click runs (for a field: that a change of its value runs, with the value
    /// appended).
    pub command: Option<CommandText>,
    /// Content.
    pub children: Vec<Node>,
}

impl Element {
    /// Creates an empty element.
    pub fn new(tag: Tag) -> Self {
        let class = Cow::Borrowed("");
        Self {
            tag,
            class,
            attributes: Vec::new(),
            color: None,
            share: None,
            start: None,
            command: None,
            children: Vec::new(),
        }
    }

    /// Creates an element that contains a text.
    pub fn text(tag: Tag, text: impl Into<String>) -> Self {
        Self::new(tag).with_text(text)
    }

    /// Creates a button that runs a command.
    pub fn button(text: impl Into<String>, command: impl Into<CommandText>) -> Self {
        Self::text(Tag::Button, text).with(Attribute::Type, "button").with_command(command)
    }

    /// Creates a link that opens a line of a file in the user's editor, whose template is `editor`;
    /// the text alone without a template, or if the file is not known.
    pub fn file_link(text: impl Into<String>, editor: Option<&EditorTemplate>, file: &str, line: u32) -> Self {
        match editor.and_then(|editor| editor.link(file, line)) {
            Some(address) => Self::text(Tag::A, text)
                .with(Attribute::Href, address)
                .with(Attribute::Title, format!("Open {file}:{line} in your editor")),
            None => Self::text(Tag::Span, text),
        }
    }

    /// Creates a scrolling list of which only some rows are in the page.
    ///
    /// `rows` is the number of all rows, `first` the number (from 0) of the first one in `content`.
    /// The page asks for other rows with the command `scroll` when the user scrolls.
    pub fn virtual_list(rows: u64, first: u64, content: Self) -> Self {
        Self::new(Tag::Div)
            .with_class("virtual")
            .with(Attribute::VirtualRows, rows.to_string())
            .with(Attribute::VirtualFirst, first.to_string())
            .with_child(content)
    }

    /// Sets the classes of the style sheet.
    #[must_use]
    pub fn with_class(mut self, class: impl Into<Cow<'static, str>>) -> Self {
        self.class = class.into();
        self
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, attribute: Attribute, value: impl Into<String>) -> Self {
        self.attributes.push((attribute, value.into()));
        self
    }

    /// Sets the color of a swatch or bar.
    #[must_use]
    pub fn with_color(mut self, color: Color) -> Self {
        self.color = Some(color);
        self
    }

    /// Lights up the memory that the element stands for while the pointer is on it.
    #[must_use]
    pub fn with_light(self, memory: LinkedMemory) -> Self {
        self.with(Attribute::Light, memory.to_string())
    }

    /// Sets the command that a click or a change of value runs.
    #[must_use]
    pub fn with_command(mut self, command: impl Into<CommandText>) -> Self {
        self.command = Some(command.into());
        self
    }

    /// Appends a text to the content.
    #[must_use]
    pub fn with_text(mut self, text: impl Into<String>) -> Self {
        self.children.push(Node::Text(text.into()));
        self
    }

    /// Appends a node, such as an element, to the content.
    #[must_use]
    pub fn with_child(mut self, child: impl Into<Node>) -> Self {
        self.children.push(child.into());
        self
    }

    /// Appends elements to the content.
    #[must_use]
    pub fn with_children(mut self, children: impl IntoIterator<Item = Self>) -> Self {
        self.children.extend(children.into_iter().map(Node::from));
        self
    }

    /// Adds a texture to a swatch.
    #[must_use]
    pub fn with_texture(self, theme: &Theme, texture: Texture) -> Self {
        match self.color.filter(|_| texture != Texture::None) {
            Some(color) => self.with_pattern(texture.name(), theme.texture_ink(color)),
            None => self,
        }
    }

    /// Adds a pattern of the style sheet to a swatch, with strokes of color `ink`.
    #[must_use]
    pub fn with_pattern(self, name: &str, ink: Color) -> Self {
        let class = format!("texture texture-{name}");
        self.with_child(Self::new(Tag::I).with_class(class).with_color(ink))
    }

    /// Returns the text of the element and all of its content, pieces separated by spaces.
    pub fn text_content(&self) -> String {
        let mut text = String::new();
        collect_text(&self.children, &mut text);
        text
    }
}

/// Appends the texts of nodes to `text`.
fn collect_text(nodes: &[Node], text: &mut String) {
    for node in nodes {
        match node {
            Node::Text(piece) => {
                if !text.is_empty() && !text.ends_with(' ') {
                    text.push(' ');
                }
                text.push_str(piece);
            }
            Node::Element(element) => collect_text(&element.children, text),
        }
    }
}

impl From<Element> for Node {
    fn from(element: Element) -> Self {
        Self::Element(element)
    }
}

impl From<&str> for Node {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Node {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// Returns nodes as plain text: a line for each heading, paragraph, item, and pair of name and
/// value, which a tab separates. Buttons, hints beside a heading and the list of findings are left
/// out.
pub fn plain_text(nodes: &[Node]) -> String {
    let mut text = String::new();
    for node in nodes {
        let element = match node {
            Node::Text(piece) => {
                text.push_str(piece);
                continue;
            }
            Node::Element(element) => element,
        };
        let content = || plain_text(&element.children).trim().to_owned();
        match element.tag {
            Tag::Button => {}
            _ if element.class == "pinned"
                || element.class == "links"
                || element.class == "findings"
                || element.class == "owners" => {}
            Tag::Dt | Tag::Th | Tag::Td => text += &format!("{}\t", content()),
            Tag::Dd => text += &format!("{}\n", element.text_content()),
            Tag::H2 | Tag::H3 | Tag::Li | Tag::P | Tag::Summary | Tag::Tr => text += &format!("{}\n", content()),
            Tag::Span | Tag::A => text += &format!("  {}", content()),
            _ => text += &plain_text(&element.children),
        }
    }
    text.replace('\u{a0}', " ")
}

/// Creates a list of names with their values.
pub fn facts(rows: impl IntoIterator<Item = (impl Into<String>, Node)>) -> Element {
    let mut list = Element::new(Tag::Dl).with_class("facts");
    for (name, value) in rows {
        list.children.push(Element::text(Tag::Dt, name).into());
        list.children.push(Element::new(Tag::Dd).with_child(value).into());
    }
    list
}

/// Number of letters of a file's name that stay before the line number of a shortened name.
const NAME_END: usize = 10;

/// Returns the content of an element with a name that is shortened where it lacks room. A line
/// number at its end, and a part of the file's name before it, stays and never breaks.
pub fn shortened_name(name: &str) -> Vec<Element> {
    let line = name.rfind(':').filter(|&at| name[at + 1..].starts_with(|letter: char| letter.is_ascii_digit()));
    let Some(line) = line else { return vec![Element::text(Tag::Span, name).with_class("name-start")] };
    let end = name[..line].char_indices().rev().take(NAME_END).last().map_or(line, |(at, _)| at);
    let start = (end > 0).then(|| Element::text(Tag::Span, &name[..end]).with_class("name-start"));
    start.into_iter().chain([Element::text(Tag::Span, &name[end..]).with_class("name-end")]).collect()
}

/// Creates a swatch, a small area that shows a color.
pub fn swatch(color: Color) -> Element {
    Element::new(Tag::I).with_class("swatch").with_color(color)
}
