//! What the page receives: contents of panes after commands, and texts and elements of contents.

use vramscope_viewer::app::{PageFacts, Session, SessionReport};
use vramscope_viewer::protocol::{Action, FrameRequest, PaneContent, Screen};
use vramscope_viewer::ui::{Attribute, Element, Node, Tag, plain_text};

use super::command;

/// Runs commands, and draws until nothing changes; returns the last content of the left pane and
/// what was reported.
pub(crate) fn run(session: &mut Session, commands: &[&str]) -> (Option<PaneContent>, SessionReport) {
    let mut report = SessionReport::default();
    let mut content = None;
    let mut actions: Vec<Action> = commands.iter().map(command).collect();
    for _ in 0..100 {
        let request = FrameRequest { actions: std::mem::take(&mut actions), ..FrameRequest::default() };
        let [left, right] = session.frame(&request, &PageFacts::default(), &mut report).panes;
        let has_changed = left.is_some() || right.is_some();
        content = left.or(content);
        let has_more = session.work(1 << 20).expect("a readable recording");
        if !has_changed && !has_more && !session.model.has_changed() {
            break;
        }
    }
    (content, report)
}

/// Shows a view in the left pane after `commands`, and returns the pane's content.
pub(crate) fn show(session: &mut Session, view: &str, commands: &[&str]) -> PaneContent {
    session.resend();
    let pane = format!("pane 0 {view}");
    let commands: Vec<&str> = commands.iter().copied().chain([pane.as_str()]).collect();
    let (content, report) = run(session, &commands);
    assert_eq!(report.messages, [""; 0]);
    content.expect("the pane has content")
}

/// Runs commands, draws until nothing changes, and returns the contents of both panes.
pub(crate) fn draw_panes(session: &mut Session, commands: &[&str]) -> [PaneContent; 2] {
    session.resend();
    let actions = commands.iter().map(command).collect();
    let screen = Screen { sizes: [(900, 160), (700, 400), (700, 400)], scale: 1.0, is_dark: false };
    let mut request = FrameRequest { actions, screen: Some(screen), ..FrameRequest::default() };
    let mut panes: [Option<PaneContent>; 2] = [None, None];
    for _ in 0..100 {
        let mut report = SessionReport::default();
        let frame = session.frame(&request, &PageFacts::default(), &mut report);
        assert_eq!(report, SessionReport::default());
        request = FrameRequest::default();
        for (known, new) in panes.iter_mut().zip(frame.panes) {
            *known = new.or(known.take());
        }
        while session.work(100_000).expect("a readable recording") {}
        if !session.model.has_changed() {
            break;
        }
    }
    panes.map(|pane| pane.expect("both panes have content"))
}

/// Runs commands, and returns the content of the pane that then shows `view`: its controls and its
/// texts, a line for each paragraph, heading and row.
pub(crate) fn shown(session: &mut Session, view: &str, commands: &[&str]) -> String {
    session.show(view).expect("the view exists");
    session.resend();
    let actions = commands.iter().map(command).collect();
    let mut request = FrameRequest { actions, ..FrameRequest::default() };
    let mut text = String::new();
    // The content is complete once a frame changes nothing more.
    for _ in 0..100 {
        let mut report = SessionReport::default();
        let frame = session.frame(&request, &PageFacts::default(), &mut report);
        assert_eq!(report, SessionReport::default());
        request = FrameRequest::default();
        for content in frame.panes.into_iter().flatten().filter(|content| content.view == view) {
            text.clear();
            content.controls.iter().for_each(|node| lines(node, &mut text));
            content.content.iter().for_each(|node| lines(node, &mut text));
        }
        session.work(0).expect("a readable recording");
        if !session.model.has_changed() {
            break;
        }
    }
    text.replace('\u{a0}', " ")
}

/// Appends the text of a node, a line for each paragraph, heading, field and row.
fn lines(node: &Node, text: &mut String) {
    match node {
        Node::Text(piece) => text.push_str(piece),
        Node::Element(element) => match element.tag {
            Tag::Select | Tag::Input => text.push('_'),
            Tag::P | Tag::H2 | Tag::Tr | Tag::Dt | Tag::Label => {
                if !text.ends_with('\n') && !text.is_empty() {
                    text.push('\n');
                }
                for child in &element.children {
                    lines(child, text);
                    if element.tag == Tag::Tr {
                        text.push_str(" | ");
                    }
                }
                text.push_str(if element.tag == Tag::Dt { ": " } else { "\n" });
            }
            _ => element.children.iter().for_each(|child| lines(child, text)),
        },
    }
}

/// Returns the elements of a type below nodes, in order.
pub(crate) fn elements(nodes: &[Node], tag: Tag) -> Vec<&Element> {
    let mut found = Vec::new();
    for node in nodes {
        if let Node::Element(element) = node {
            found.extend(Some(element).filter(|element| element.tag == tag));
            found.extend(elements(&element.children, tag));
        }
    }
    found
}

/// Calls `each` for every element below nodes.
pub(crate) fn visit<'a>(nodes: &'a [Node], each: &mut dyn FnMut(&'a Element)) {
    for node in nodes {
        if let Node::Element(element) = node {
            each(element);
            visit(&element.children, each);
        }
    }
}

/// Returns the text of all nodes.
pub(crate) fn text(nodes: &[Node]) -> String {
    let root = Element { children: nodes.to_vec(), ..Element::new(Tag::Div) };
    root.text_content().replace('\u{a0}', " ")
}

/// Returns an attribute of an element.
pub(crate) fn attribute(element: &Element, name: Attribute) -> Option<&str> {
    element.attributes.iter().find(|(other, _)| *other == name).map(|(_, value)| value.as_str())
}

/// Returns the value of a fact among nodes, without non-breaking spaces.
pub(crate) fn fact(nodes: &[Node], name: &str) -> Option<String> {
    let text = plain_text(nodes);
    let row = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
    row.map(|value| value.trim().to_owned())
}
