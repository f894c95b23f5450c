//! The details panel: the selected or hovered block, or the device as a whole.

use vramscope_insight::frames::{FrameView, StackRow, folded_label};
use vramscope_trace::{Count, Percent, RecordingInfo};

use super::{BlockEvents, CALL_STACK, Details, DetailsKind, SEGMENT_STACK, StackSection};
use crate::command::{Command, PageCommand};
use crate::editor_link::EditorTemplate;
use crate::ui::{Attribute, Element, Node, Tag, facts};

use crate::view::event_link;

/// Name of the page's command that copies a text to the clipboard.
const COPY: &str = "copy";
/// Key of the details panel's button that copies the call stack.
const STACK: &str = "stack";

/// Returns the content of the details panel. With `is_selection`, its heading says that the
/// described object is selected. With `editor`, frames are links to files in the user's editor.
/// `info` is about the recording.
pub fn content(
    details: &Details,
    info: &RecordingInfo,
    is_selection: bool,
    editor: Option<&EditorTemplate>,
) -> Vec<Node> {
    let mut nodes = vec![heading(details.kind, is_selection).into()];
    for (index, section) in details.sections.iter().enumerate() {
        if !section.heading.is_empty() {
            nodes.push(Element::text(Tag::H3, section.heading).into());
        }
        let mut rows: Vec<_> = section.rows.iter().map(|(name, value)| (*name, Node::from(value.as_str()))).collect();
        if let Some(events) = details.events.filter(|_| index == 0) {
            rows.extend(event_rows(info, &events));
        }
        nodes.push(facts(rows).into());
        let has_links = is_selection || details.kind == DetailsKind::Event;
        nodes.extend(
            details.events.filter(|_| index == 0 && has_links).map(|events| links(&events, details.kind).into()),
        );
    }
    for section in &details.stacks {
        if !section.stack.is_empty() || ![CALL_STACK, SEGMENT_STACK].contains(&section.heading) {
            nodes.extend(stack_nodes(section, editor));
        }
        nodes.extend(section.why.map(|why| Element::text(Tag::P, why).with_class("nothing").into()));
    }
    nodes
}

/// Returns the details panel's content for a selected allocation that is not known yet, because the
/// recording is being read. `progress` is the share that has been read, 0 to 1; `None` if all has.
pub fn reading(progress: Option<f64>) -> Vec<Node> {
    let text = match progress {
        Some(share) => format!("Reading the recording: {}", Percent(share)),
        None => "The recording does not contain this allocation.".to_owned(),
    };
    vec![heading(DetailsKind::AbsentAllocation, true).into(), Element::text(Tag::P, text).with_class("nothing").into()]
}

/// Returns the heading of the details panel, with a sample of the map's color.
fn heading(kind: DetailsKind, is_selection: bool) -> Element {
    let class = match kind {
        DetailsKind::AllocatedBlock => "swatch swatch-allocated",
        DetailsKind::PendingBlock => "swatch swatch-pending",
        DetailsKind::FreeRange => "swatch swatch-free",
        DetailsKind::FreeSegment => "swatch swatch-cached",
        DetailsKind::AbsentAllocation | DetailsKind::Event | DetailsKind::Device => "",
    };
    let mut heading = Element::new(Tag::H2).with_class("subject");
    if !class.is_empty() {
        heading = heading.with_child(Element::new(Tag::I).with_class(class));
    }
    heading = heading.with_text(kind.title());
    match (is_selection, kind) {
        (false, _) => heading,
        (true, DetailsKind::AbsentAllocation) => {
            heading.with_child(Element::text(Tag::Span, "(Esc to deselect)").with_class("pinned"))
        }
        (true, _) => heading.with_child(Element::text(Tag::Span, "selected (Esc to deselect)").with_class("pinned")),
    }
}

/// Returns the rows of the details panel about a block's events, such as its allocation, with links
/// to them.
fn event_rows(info: &RecordingInfo, events: &BlockEvents) -> Vec<(&'static str, Node)> {
    let link = |event: u64| Node::from(event_link(event));
    let mut rows = vec![("allocated by", events.allocated_at.map_or_else(|| "not recorded".into(), link))];
    match (events.freed_at, events.is_complete) {
        (Some(event), _) => rows.push(("freed by", link(event))),
        (None, true) => rows.push(("freed by", "not freed by the recording's end".into())),
        (None, false) => {}
    }
    rows.extend(events.completed_at.map(|event| ("free completed by", link(event))));
    if let Some((duration_ns, count)) = events.lifetime {
        let text = info.time_and(duration_ns, Count(count).of("event", "events"));
        rows.push(("lifetime", text.into()));
    }
    rows
}

/// Returns the links to views that the details panel shows below the facts about a block or an
/// event.
fn links(events: &BlockEvents, kind: DetailsKind) -> Element {
    let link = |text: &str, command: Command| Element::button(text, command).with_class("link");
    let links = Element::new(Tag::P).with_class("links");
    let uses = link("All uses of this address", Command::AddressUses);
    match (events.allocation, kind) {
        (Some((address, since)), DetailsKind::Event) => {
            links.with_child(link("Select its allocation", Command::select_allocation(address, since)))
        }
        (None, DetailsKind::Event) => links,
        (Some((_, since)), DetailsKind::AbsentAllocation) => {
            links.with_child(link("Go to where it is live", Command::seek(since))).with_child(uses)
        }
        _ => match events.allocated_at {
            Some(event) => links.with_child(link("Go to its allocation", Command::seek(event))).with_child(uses),
            None => links.with_child(uses),
        },
    }
}

/// Returns the details panel's heading and list of frames for a call stack; successive library
/// frames are folded.
fn stack_nodes(section: &StackSection, editor: Option<&EditorTemplate>) -> [Node; 2] {
    let mut heading = Element::text(Tag::H3, section.heading);
    if !section.stack.is_empty() {
        let copy = Element::button("copy", Command::Page(PageCommand::Copy(section.stack.to_text())))
            .with(Attribute::Key, STACK)
            .with_class("link")
            .with(Attribute::Title, "Copy the call stack as text");
        heading = heading.with_child(copy);
    }
    let mut list = Element::new(Tag::Ol).with_class("stack");
    for row in &section.stack.rows {
        list = list.with_child(match row {
            StackRow::Own(frame) => frame_item(frame, editor).with_class("own"),
            StackRow::Folded(run) if run.len() == 1 => frame_item(&run[0], editor),
            StackRow::Folded(run) => {
                let frames = Element::new(Tag::Ol).with_children(run.iter().map(|frame| frame_item(frame, editor)));
                let fold = Element::new(Tag::Details)
                    .with_child(Element::text(Tag::Summary, folded_label(run)))
                    .with_child(frames);
                Element::new(Tag::Li).with_child(fold)
            }
        });
    }
    [heading.into(), list.into()]
}

/// Returns the call stack that a node of the details panel offers for copying; `None` if the node
/// has none.
pub(crate) fn stack_of(node: &Node) -> Option<&str> {
    let Node::Element(element) = node else { return None };
    if element.attributes.contains(&(Attribute::Key, STACK.to_owned())) {
        return element.command.as_ref()?.0.strip_prefix(COPY).map(str::trim_start);
    }
    element.children.iter().find_map(stack_of)
}

/// Creates the list item of a frame of a call stack: its function, file and line.
fn frame_item(frame: &FrameView, editor: Option<&EditorTemplate>) -> Element {
    let place = match (frame.file.as_str(), frame.line) {
        ("", _) => String::new(),
        (file, 0) => file.to_owned(),
        (file, line) => format!("{file}:{line}"),
    };
    // A frame without a function shows its location like a function.
    let class = if frame.function.is_empty() { "" } else { "place" };
    Element::text(Tag::Li, frame.function.as_str())
        .with_child(Element::file_link(place, editor, &frame.file, frame.line).with_class(class))
}
