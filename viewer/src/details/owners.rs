//! Where the memory of a device goes: bars for its owners, for the parts of the pool, and for the
//! lines of the program that hold most.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use vramscope_draw::Theme;
use vramscope_insight::group::GroupBy;
use vramscope_insight::pools::{MemoryPart, PartKind};
use vramscope_insight::sites::Caller;
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{ByteSize, Category, Count, Percent};

use crate::command::Command;
use crate::device_map::{Fill, KindStyle, MemoryKind};
use crate::linked_memory::LinkedMemory;
use crate::ui::{Attribute, Element, Node, Tag, shortened_name};

/// Number of lines of the program that are listed.
const MAX_LINES: usize = 8;

/// Number of callers of a line that are listed.
const MAX_CALLERS: usize = 4;

/// A bar with a name: the part of `full_width` bytes from `start` on.
struct Bar<'a> {
    name: &'a str,
    /// The name with further facts.
    title: String,
    memory: LinkedMemory,
    style: KindStyle,
    start: u64,
    bytes: u64,
    /// The bytes that its share is of.
    whole: u64,
    /// The bytes of a bar as wide as its cell.
    full_width: u64,
}

impl Bar<'_> {
    /// Returns the table row with name, bar, bytes and share. A click keeps its memory lit.
    fn row(&self, kept: Option<LinkedMemory>) -> Element {
        let share = |bytes: u64| Some(bytes as f32 / self.full_width.max(1) as f32);
        let mut bar = Element::new(Tag::I).with_class("part-bar").with_color(self.style.color);
        (bar.start, bar.share) = (share(self.start), share(self.bytes));
        if let Some(pattern) = self.style.pattern() {
            bar = bar.with_pattern(pattern, self.style.ink);
        }
        let command = Command::KeepLight(self.memory);
        let name = Element::button("", command.clone())
            .with(Attribute::Title, &*self.title)
            .with(Attribute::AriaLabel, &*self.title)
            .with(Attribute::AriaPressed, (kept == Some(self.memory)).to_string())
            .with_class("link short-name");
        let name = Element { children: Vec::new(), ..name }.with_children(shortened_name(self.name));
        let number = |text: String| Element::text(Tag::Td, text).with_class("number");
        Element::new(Tag::Tr)
            .with_light(self.memory)
            .with_command(command)
            .with_child(Element::new(Tag::Th).with(Attribute::Scope, "row").with_child(name))
            .with_child(Element::new(Tag::Td).with_class("part").with_child(bar))
            .with_child(number(ByteSize(self.bytes).to_string()))
            .with_child(number(Percent::of(self.bytes, self.whole).to_string()))
    }
}

/// Returns the style of a part of the device's memory, as on the map.
fn style_of(kind: PartKind, theme: &Theme) -> KindStyle {
    let kind = match kind {
        PartKind::Category(category) => MemoryKind::Live(Fill::Category(category as u8)),
        PartKind::Stuck => MemoryKind::MOST_STUCK,
        PartKind::Releasable => MemoryKind::Releasable,
        PartKind::Outside => MemoryKind::Outside,
        PartKind::OtherProcesses => MemoryKind::Others,
        PartKind::Free => MemoryKind::DriverFree,
        PartKind::Unknown => MemoryKind::Unknown,
        PartKind::Device | PartKind::Recorded | PartKind::Reserved | PartKind::Line => {
            return KindStyle::plain(theme.reserved());
        }
    };
    KindStyle::new(kind, theme)
}

/// Returns a table of bars.
fn table<'a>(label: &str, bars: impl IntoIterator<Item = Bar<'a>>, kept: Option<LinkedMemory>) -> Element {
    let rows = bars.into_iter().map(|bar| bar.row(kept));
    Element::new(Tag::Table)
        .with_class("parts")
        .with(Attribute::AriaLabel, label)
        .with_child(Element::new(Tag::Tbody).with_children(rows))
}

/// Returns the bars of the parts of `whole`, one after the other, from its left end or with
/// `from_right` from its right end.
fn bars_of<'a>(whole: &'a MemoryPart, from_right: bool, theme: &Theme) -> Vec<Bar<'a>> {
    let mut start = if from_right { whole.bytes } else { 0 };
    let bar = |part: &'a MemoryPart| {
        let bytes = part.bytes;
        start = if from_right { start.saturating_sub(bytes) } else { start };
        let bar = Bar {
            name: &part.name,
            title: part.name.to_string(),
            memory: LinkedMemory::Part(part.kind),
            style: style_of(part.kind, theme),
            start,
            bytes,
            whole: whole.bytes,
            full_width: whole.bytes,
        };
        start = if from_right { start } else { start.saturating_add(bytes) };
        bar
    };
    whole.parts.iter().map(bar).collect()
}

/// The lines of the program that call those that hold memory.
#[derive(Clone, Debug, Default)]
pub struct LineCalls {
    /// The callers of the line with nearly all memory; none if no line has as much.
    pub callers: Vec<Caller>,
    /// The lines that call the model for a line's memory, by its group number.
    pub model_calls: HashMap<u32, String>,
}

/// A line of the program with the bytes that it holds, and the category of most of them.
struct HolderLine {
    name: Arc<str>,
    group: u32,
    bytes: u64,
    category: (Category, u64),
}

/// Returns the lines that hold memory of the pool, largest first.
fn holders(pool: &MemoryPart) -> Vec<HolderLine> {
    let mut lines: Vec<HolderLine> = Vec::new();
    let mut index_of: HashMap<u32, usize> = HashMap::new();
    for category in &pool.parts {
        let PartKind::Category(kind) = category.kind else { continue };
        for line in &category.parts {
            let Some(group) = line.group else { continue };
            match index_of.get(&group).and_then(|&index| lines.get_mut(index)) {
                Some(known) => {
                    known.bytes = known.bytes.saturating_add(line.bytes);
                    if line.bytes > known.category.1 {
                        known.category = (kind, line.bytes);
                    }
                }
                None => {
                    index_of.insert(group, lines.len());
                    let (name, bytes) = (line.name.clone(), line.bytes);
                    lines.push(HolderLine { name, group, bytes, category: (kind, bytes) });
                }
            }
        }
    }
    sort_by_key(&mut lines, |line| (Reverse(line.bytes), line.group));
    lines
}

/// Returns a sentence with the lines that call the line with nearly all memory; `None` without any.
fn callers_text(callers: &[Caller]) -> Option<String> {
    let named = callers.iter().filter(|caller| !caller.name.is_empty()).take(MAX_CALLERS);
    let named: Vec<String> = named.map(|caller| format!("{} ({})", caller.name, ByteSize(caller.bytes))).collect();
    (!named.is_empty()).then(|| format!("Called at {}.", named.join(", ")))
}

/// Returns the elements that show where the memory of a device goes. `tree` is the device's memory,
/// `calls` are the calls of its lines, `kept` the memory that a click has lit, `holders_view` the
/// name of the view with all lines.
pub fn elements(
    (tree, calls): &(MemoryPart, LineCalls),
    theme: &Theme,
    kept: Option<LinkedMemory>,
    holders_view: &'static str,
) -> Vec<Node> {
    let Some(pool) = tree.find(PartKind::Reserved) else { return Vec::new() };
    let whole = if tree.parts.len() > 1 { tree } else { pool };
    let mut nodes = vec![Element::text(Tag::H2, format!("Where {} go", ByteSize(whole.bytes))).into()];
    if tree.parts.len() > 1 {
        nodes.push(table("Owners of the device's memory", bars_of(tree, false, theme), kept).into());
    }
    let reserved = Bar {
        name: &pool.name,
        title: pool.name.to_string(),
        memory: LinkedMemory::Part(PartKind::Reserved),
        style: style_of(PartKind::Reserved, theme),
        start: 0,
        bytes: pool.bytes,
        whole: pool.bytes,
        full_width: pool.bytes,
    };
    let parts = bars_of(pool, true, theme);
    nodes.push(table("Parts of the reserved memory", std::iter::once(reserved).chain(parts), kept).into());
    let lines = holders(pool);
    let Some(most) = lines.first().map(|line| line.bytes) else { return nodes };
    let count = Count(lines.len() as u64).of("line", "lines");
    let all = Element::button(format!("all {count}"), Command::View(holders_view.into()))
        .with_class("link")
        .with(Attribute::Title, "Show all of them in a table");
    nodes.push(Element::text(Tag::H3, "Who holds it").with_child(all).into());
    let bars = lines.iter().take(MAX_LINES).map(|line| Bar {
        name: &line.name,
        title: match calls.model_calls.get(&line.group) {
            Some(call) => format!("{}, model called at {call}", line.name),
            None => line.name.to_string(),
        },
        memory: LinkedMemory::Group(GroupBy::Line, line.group),
        style: style_of(PartKind::Category(line.category.0), theme),
        start: 0,
        bytes: line.bytes,
        whole: pool.bytes,
        full_width: most,
    });
    nodes.push(table("Lines of the program that hold most", bars, kept).into());
    nodes.extend(callers_text(&calls.callers).map(|text| Element::text(Tag::P, text).into()));
    nodes
}
