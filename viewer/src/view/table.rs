//! Tables: the page shows them, scripts read them as objects, and users copy them as text, all from
//! one set of cells.

use std::borrow::Cow;

use serde_json::{Map, Value};
use vramscope_draw::Color;
use vramscope_insight::group::GroupBy;
use vramscope_trace::{ByteSize, Count, DurationNs, Percent, RecordingInfo};

use crate::command::{Command, OptionChange};
use crate::linked_memory::LinkedMemory;
use crate::ui::{Attribute, Element, Tag};
use crate::units;

/// The content of a column's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Text, aligned left.
    Text,
    /// Numbers, aligned right.
    Number,
    /// Numbers with a bar that shows the row's [share](Row::share).
    Bar,
}

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name in objects and commands.
    pub name: &'static str,
    /// Heading.
    pub title: &'static str,
    /// The content of its cells.
    pub kind: ColumnKind,
    /// Whether the page can sort by it, with the command `sort VIEW NAME`.
    pub is_sortable: bool,
    /// Its width in a long list, whose columns must not change while it scrolls; `None` to fit the
    /// rows.
    pub width: Option<ColumnWidth>,
}

/// The width of a column of a long list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnWidth {
    /// Short numbers.
    Narrow,
    /// Sizes, durations and event numbers.
    Number,
    /// Addresses and kinds of events.
    Name,
    /// Categories and times.
    Label,
    /// Sites.
    Wide,
}

impl ColumnWidth {
    /// Returns the class of the column's heading in the style sheet.
    const fn class(self) -> &'static str {
        match self {
            Self::Narrow => "narrow",
            Self::Number => "medium",
            Self::Name => "broad",
            Self::Label => "label",
            Self::Wide => "wide",
        }
    }
}

impl Column {
    /// Creates a column of texts.
    pub const fn text(name: &'static str, title: &'static str) -> Self {
        Self { name, title, kind: ColumnKind::Text, is_sortable: false, width: None }
    }

    /// Creates a column of numbers.
    pub const fn number(name: &'static str, title: &'static str) -> Self {
        Self { name, title, kind: ColumnKind::Number, is_sortable: false, width: None }
    }

    /// Creates a column of numbers with bars.
    pub const fn bar(name: &'static str, title: &'static str) -> Self {
        Self { name, title, kind: ColumnKind::Bar, is_sortable: false, width: None }
    }

    /// Sets the width in a long list.
    #[must_use]
    pub const fn with_width(mut self, width: ColumnWidth) -> Self {
        self.width = Some(width);
        self
    }

    /// Makes the column sortable: a click on its heading sorts the table by it.
    #[must_use]
    pub const fn sortable(mut self) -> Self {
        self.is_sortable = true;
        self
    }
}

/// A cell of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Nothing is known.
    Empty,
    /// A text.
    Text(String),
    /// A size in bytes.
    Bytes(u64),
    /// A difference of sizes in bytes.
    BytesChange(i128),
    /// A number of things.
    Count(u64),
    /// A number with a fraction, shown with one decimal.
    Decimal(f64),
    /// An event number; a click goes there.
    Event(u64),
    /// An address.
    Address(u64),
    /// A duration in nanoseconds.
    Duration(u64),
    /// A share, 0 to 1.
    Share(f64),
    /// Whether something holds.
    Flag(bool),
    /// A value that the page shows with a text of its own.
    Labeled(String, Box<Cell>),
}

impl Cell {
    /// Creates a cell that the page shows as `text` and whose value for scripts is `value`.
    pub fn labeled(text: impl Into<String>, value: Self) -> Self {
        Self::Labeled(text.into(), Box::new(value))
    }

    /// Creates the cell of a duration of `ns` nanoseconds; an empty one if the recording has no
    /// times.
    pub fn duration(info: &RecordingInfo, ns: u64) -> Self {
        if info.lacks_times { Self::Empty } else { Self::Duration(ns) }
    }

    /// Returns the cell's text on the page; empty if nothing is known.
    pub fn text(&self) -> String {
        match self {
            Self::Empty => String::new(),
            Self::Text(text) => text.clone(),
            Self::Bytes(bytes) => ByteSize(*bytes).to_string(),
            Self::BytesChange(change) => {
                let sign = if *change < 0 { "−" } else { "+" };
                let size = u64::try_from(change.unsigned_abs()).unwrap_or(u64::MAX);
                if size == 0 { "0 B".to_owned() } else { format!("{sign}{}", ByteSize(size)) }
            }
            Self::Count(count) | Self::Event(count) => Count(*count).to_string(),
            Self::Decimal(number) => format!("{number:.1}"),
            Self::Address(address) => units::address(*address),
            Self::Duration(duration_ns) => DurationNs(*duration_ns).to_string(),
            Self::Share(share) => Percent(*share).to_string(),
            Self::Flag(holds) => if *holds { "yes" } else { "no" }.to_owned(),
            Self::Labeled(text, _) => text.clone(),
        }
    }

    /// Returns the cell's value in the objects that scripts get: sizes in bytes, durations in
    /// nanoseconds, addresses as hexadecimal strings.
    pub fn json(&self) -> Value {
        match self {
            Self::Empty => Value::Null,
            Self::Text(text) => text.as_str().into(),
            Self::Bytes(number) | Self::Count(number) | Self::Event(number) | Self::Duration(number) => {
                (*number).into()
            }
            Self::BytesChange(change) => i64::try_from(*change).map_or(Value::Null, Value::from),
            Self::Address(address) => format!("{address:#x}").into(),
            Self::Share(number) | Self::Decimal(number) => (*number).into(),
            Self::Flag(holds) => (*holds).into(),
            Self::Labeled(_, value) => value.json(),
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// A row of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// The cells, in the order of the columns.
    pub cells: Vec<Cell>,
    /// The command that a click on the row runs.
    pub command: Option<Command>,
    /// Whether it is selected.
    pub is_selected: bool,
    /// Whether it is what exists at the moment on the screen.
    pub is_current: bool,
    /// Length of the bar in the row's bar cell, 0 to 1.
    pub share: Option<f64>,
    /// Color of the row's bar and swatch.
    pub color: Option<Color>,
    /// The number of the group that the row is about.
    pub group: Option<u32>,
    /// The memory that the row stands for.
    pub light: Option<LinkedMemory>,
    /// Further names and values that objects have and the page does not show.
    pub hidden: Vec<(&'static str, Cell)>,
    /// A link to the row's file in the user's editor, after its first cell.
    pub file_link: Option<Element>,
    /// Depth in a table that is a tree, from 1; `None` in other tables.
    pub level: Option<u32>,
}

impl Row {
    /// Creates a row from its cells.
    pub fn new(cells: Vec<Cell>) -> Self {
        Self { cells, ..Self::default() }
    }

    /// Sets the command that a click runs.
    #[must_use]
    pub fn with_command(mut self, command: Command) -> Self {
        self.command = Some(command);
        self
    }

    /// Sets the group that the row is about; a click on the row selects it.
    #[must_use]
    pub fn with_group(mut self, selected: Option<(GroupBy, u32)>, by: GroupBy, group: u32) -> Self {
        self.command = Some(Command::Group(by, group, None));
        self.is_selected = selected == Some((by, group));
        self.group = Some(group);
        self.light = Some(LinkedMemory::Group(by, group));
        self
    }

    /// Sets the length of the bar, 0 to 1.
    #[must_use]
    pub fn with_share(mut self, share: f64) -> Self {
        self.share = Some(share);
        self
    }
}

/// How the rows of a table are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sorting {
    /// Name of the column.
    pub column: &'static str,
    /// Whether the largest comes first.
    pub is_descending: bool,
}

/// A table, or the rows of it that are in view.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Name of the view, for commands.
    pub view: &'static str,
    /// Description of the table, for screen readers.
    pub caption: String,
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows, or only the rows in view.
    pub rows: Vec<Row>,
    /// Number of all rows and of the first one in `rows` (from 0), if only some are in `rows`.
    pub window: Option<(u64, u64)>,
    /// The row (from 0, of all rows) that the page scrolls to, and the number of the request; the
    /// page scrolls again when either changes.
    pub scroll_to: Option<(u64, u64)>,
    /// How the rows are ordered.
    pub sorting: Option<Sorting>,
}

impl Table {
    /// Creates an empty table of a view.
    pub fn new(view: &'static str, caption: impl Into<String>, columns: Vec<Column>) -> Self {
        Self { view, caption: caption.into(), columns, ..Self::default() }
    }

    /// Returns the table as an element of the page.
    pub fn element(&self) -> Element {
        let head = Element::new(Tag::Tr).with_children(self.columns.iter().map(|column| self.heading(column)));
        let rows = self.rows.iter().enumerate().map(|(index, row)| self.row(index as u64, row));
        let mut table = Element::new(Tag::Table)
            .with(Attribute::AriaLabel, &*self.caption)
            .with_child(Element::new(Tag::Thead).with_child(head))
            .with_child(Element::new(Tag::Tbody).with_children(rows));
        if self.rows.iter().any(|row| row.level.is_some()) {
            table = table.with(Attribute::Role, "treegrid");
        }
        match self.window {
            Some((rows, first)) => {
                table = table.with(Attribute::AriaRowCount, (rows + 1).to_string());
                let list = Element::virtual_list(rows, first, table);
                match self.scroll_to {
                    Some((row, request)) => list.with(Attribute::ScrollTo, format!("{row} {request}")),
                    None => list,
                }
            }
            None => table,
        }
    }

    /// Returns the heading of a column, with a button if the page can sort by it.
    fn heading(&self, column: &Column) -> Element {
        let heading = Element::new(Tag::Th).with(Attribute::Scope, "col").with_class(heading_class(column));
        if !column.is_sortable {
            return heading.with_text(column.title);
        }
        let sorting = self.sorting.filter(|sorting| sorting.column == column.name);
        let (order, arrow) = match sorting.map(|sorting| sorting.is_descending) {
            Some(true) => ("descending", " ↓"),
            Some(false) => ("ascending", " ↑"),
            None => ("none", ""),
        };
        let sort = Command::Set(self.view.into(), OptionChange::Sort(column.name.to_owned()));
        let button = Element::button(format!("{}{arrow}", column.title), sort);
        heading.with(Attribute::AriaSort, order).with_child(button)
    }

    /// Returns a row as an element; `index` counts from 0 within `rows`.
    fn row(&self, index: u64, row: &Row) -> Element {
        let cells = self.columns.iter().zip(&row.cells).enumerate().map(|(index, (column, cell))| {
            let text = cell.text();
            let mut element = Element::new(Tag::Td).with_class(class_of(column.kind));
            if column.kind == ColumnKind::Bar {
                element.share = row.share.map(|share| share as f32);
                element.color = row.color;
            }
            let element = match cell {
                Cell::Event(event) => {
                    element.with_child(Element::button(text, Command::seek(*event)).with_class("link"))
                }
                Cell::Labeled(_, value) if matches!(**value, Cell::Text(_)) => {
                    element.with(Attribute::Title, value.text()).with_text(text)
                }
                Cell::Text(_) | Cell::Labeled(..) => element.with(Attribute::Title, text.clone()).with_text(text),
                _ => element.with_text(text),
            };
            match row.file_link.as_ref().filter(|_| index == 0) {
                Some(link) => element.with_text(" ").with_child(link.clone()),
                None => element,
            }
        });
        let mut element = Element::new(Tag::Tr).with_children(cells);
        if row.is_current {
            element = element.with_class("current").with(Attribute::AriaCurrent, "true");
        }
        if let Some((_, first)) = self.window {
            element = element.with(Attribute::AriaRowIndex, (first + index + 2).to_string());
        }
        if let Some(level) = row.level {
            element = element.with(Attribute::AriaLevel, level.to_string());
        }
        if let Some(memory) = row.light {
            element = element.with_light(memory);
        }
        if let Some(command) = &row.command {
            element = element
                .with(Attribute::TabIndex, "0")
                .with(Attribute::AriaSelected, row.is_selected.to_string())
                .with_command(command.clone());
        }
        element
    }

    /// Returns the rows as JSON objects for scripts, with the columns' names as keys.
    pub fn objects(&self) -> Vec<Value> {
        let object = |row: &Row| {
            let shown = self.columns.iter().map(|column| column.name).zip(&row.cells);
            let hidden = row.hidden.iter().map(|(name, cell)| (*name, cell));
            let mut fields = Map::new();
            shown.chain(hidden).for_each(|(name, cell)| drop(fields.insert(name.to_owned(), cell.json())));
            Value::Object(fields)
        };
        self.rows.iter().map(object).collect()
    }

    /// Returns the table as text with tab-separated columns; sizes in bytes.
    pub fn to_tsv(&self) -> String {
        let plain = |cell: &Cell| match cell.json() {
            Value::String(text) => text.replace(['\t', '\n', '\r'], " "),
            Value::Null => String::new(),
            value => value.to_string(),
        };
        let mut lines = vec![self.columns.iter().map(|column| column.name).collect::<Vec<_>>().join("\t")];
        lines.extend(self.rows.iter().map(|row| row.cells.iter().map(plain).collect::<Vec<_>>().join("\t")));
        lines.join("\n") + "\n"
    }
}

/// Returns the classes of a column's heading in the style sheet.
fn heading_class(column: &Column) -> Cow<'static, str> {
    match column.width {
        Some(width) => format!("{} {}", class_of(column.kind), width.class()).into(),
        None => class_of(column.kind).into(),
    }
}

/// Returns the class of a column's cells in the style sheet.
const fn class_of(kind: ColumnKind) -> &'static str {
    match kind {
        ColumnKind::Text => "",
        ColumnKind::Number => "number",
        ColumnKind::Bar => "number bar",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let columns = vec![Column::text("name", "Site"), Column::bar("bytes", "Live").sortable()];
        let mut table = Table::new("sites", "Live bytes by site", columns);
        table.rows.push(Row::new(vec!["train.py:7".into(), Cell::Bytes(2 << 20)]).with_share(1.0));
        table.sorting = Some(Sorting { column: "bytes", is_descending: true });
        table
    }

    #[test]
    fn page_objects_and_copied_text_have_equal_cells() {
        let table = table();
        let shown = table.element().text_content().replace('\u{a0}', " ");
        assert_eq!(shown, "Site Live ↓ train.py:7 2 MiB");
        assert_eq!(table.objects()[0].to_string(), r#"{"bytes":2097152,"name":"train.py:7"}"#);
        assert_eq!(table.to_tsv(), "name\tbytes\ntrain.py:7\t2097152\n");
    }

    #[test]
    fn changes_have_signs() {
        let text = |change| Cell::BytesChange(change).text().replace('\u{a0}', " ");
        assert_eq!((text(1024), text(-2048), text(0)), ("+1 KiB".into(), "−2 KiB".into(), "0 B".into()));
    }
}
