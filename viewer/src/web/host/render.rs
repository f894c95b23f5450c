//! Turns [`Node`]s into elements of the page, and changes only the differences from the displayed
//! elements.

use vramscope_draw::Color;
use wasm_bindgen::prelude::*;
use web_sys::{Document, Element as HtmlNode, Event, HtmlElement, HtmlInputElement, HtmlSelectElement};

use crate::editor_link::is_safe;
use crate::ui::{Attribute, Element, Node, Tag};

/// Name of the attribute with the command that an element runs.
pub(super) const COMMAND: &str = "data-command";

/// The nodes that are on the page as the children of one element.
#[derive(Default)]
pub(super) struct Rendered(Vec<Node>);

impl Rendered {
    /// Changes the children of the page's element `root` to `nodes`.
    pub(super) fn show(&mut self, document: &Document, root: &HtmlNode, nodes: &[Node]) -> Result<(), JsValue> {
        patch_children(document, root, &self.0, nodes)?;
        self.0 = nodes.to_vec();
        Ok(())
    }
}

/// Changes the children of the page's element `parent`, which show `old`, to `new`.
fn patch_children(document: &Document, parent: &HtmlNode, old: &[Node], new: &[Node]) -> Result<(), JsValue> {
    for (index, node) in new.iter().enumerate() {
        let shown = parent.child_nodes().item(index as u32);
        match (old.get(index), node, shown) {
            (Some(before), after, Some(_)) if before == after => {}
            (Some(Node::Text(_)), Node::Text(text), Some(shown)) => shown.set_text_content(Some(text)),
            (Some(Node::Element(before)), Node::Element(after), Some(shown)) if is_same_kind(before, after) => {
                patch_element(document, shown.unchecked_ref(), before, after)?;
            }
            (_, after, Some(shown)) => {
                parent.replace_child(&create(document, after)?, &shown)?;
            }
            (_, after, None) => {
                parent.append_child(&create(document, after)?)?;
            }
        }
    }
    while parent.child_nodes().length() > new.len() as u32 {
        match parent.last_child() {
            Some(last) => parent.remove_child(&last)?,
            None => break,
        };
    }
    Ok(())
}

/// Returns true if one element can be changed into the other; false if it must be replaced.
fn is_same_kind(before: &Element, after: &Element) -> bool {
    let is_virtual = |element| attribute(element, Attribute::VirtualRows).is_some();
    let has_same_key = attribute(before, Attribute::Key) == attribute(after, Attribute::Key);
    before.tag == after.tag && has_same_key && is_virtual(before) == is_virtual(after)
}

/// Returns the value of an attribute of an element.
fn attribute(element: &Element, name: Attribute) -> Option<&String> {
    element.attributes.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
}

/// Creates the browser's node that shows `node`.
fn create(document: &Document, node: &Node) -> Result<web_sys::Node, JsValue> {
    match node {
        Node::Text(text) => Ok(document.create_text_node(text).into()),
        Node::Element(element) => {
            let shown = document.create_element(&element.tag.name())?;
            patch_element(document, &shown, &Element::new(element.tag), element)?;
            Ok(shown.into())
        }
    }
}

/// Changes an element of the page from `before` to `after`, which are of the same kind.
fn patch_element(document: &Document, shown: &HtmlNode, before: &Element, after: &Element) -> Result<(), JsValue> {
    if before.class != after.class {
        shown.set_attribute("class", &after.class)?;
    }
    for (name, _) in &before.attributes {
        if !after.attributes.iter().any(|(other, _)| other == name) {
            shown.remove_attribute(name.name())?;
        }
    }
    for (name, value) in &after.attributes {
        if before.attributes.contains(&(*name, value.clone())) {
            continue;
        }
        if *name == Attribute::Href {
            set_link(shown, value)?;
        } else {
            shown.set_attribute(name.name(), value)?;
        }
    }
    match &after.command {
        Some(command) if before.command.as_ref() != Some(command) => shown.set_attribute(COMMAND, &command.0)?,
        None if before.command.is_some() => shown.remove_attribute(COMMAND)?,
        _ => {}
    }
    patch_style(shown, before, after)?;
    patch_children(document, shown, &before.children, &after.children)?;
    set_values(shown, before, after);
    Ok(())
}

/// Sets the address of a link, unless that is not safe. Web pages and files open in a tab of their
/// own; an editor opens without one.
fn set_link(shown: &HtmlNode, address: &str) -> Result<(), JsValue> {
    if !is_safe(address) {
        return shown.remove_attribute("href");
    }
    let is_page = address.starts_with("http") || address.starts_with("file");
    shown.set_attribute("target", if is_page { "_blank" } else { "_self" })?;
    shown.set_attribute("rel", "noopener noreferrer")?;
    shown.set_attribute("href", address)
}

/// Changes the style sheet's variables of an element, such as the color of a swatch, from `before`
/// to `after`.
fn patch_style(shown: &HtmlNode, before: &Element, after: &Element) -> Result<(), JsValue> {
    let Some(html) = shown.dyn_ref::<HtmlElement>() else { return Ok(()) };
    let style = html.style();
    if before.color != after.color {
        style.set_property("--color", &after.color.map(Color::css).unwrap_or_default())?;
    }
    if before.share != after.share {
        style.set_property("--share", &after.share.map(|share| share.to_string()).unwrap_or_default())?;
    }
    if before.start != after.start {
        style.set_property("--start", &after.start.map(|start| start.to_string()).unwrap_or_default())?;
    }
    for (name, variable) in [(Attribute::VirtualRows, "--rows"), (Attribute::VirtualFirst, "--first")] {
        if let Some(value) = attribute(after, name) {
            style.set_property(variable, value)?;
        }
    }
    Ok(())
}

/// Sets the value of a field, because browsers ignore changes of its attribute once the user has
/// edited it. A field that the user is editing keeps its text.
fn set_values(shown: &HtmlNode, before: &Element, after: &Element) {
    if let Some(select) = shown.dyn_ref::<HtmlSelectElement>() {
        let is_selected = |option| attribute(option, Attribute::Selected).is_some();
        let chosen =
            after.children.iter().position(|child| matches!(child, Node::Element(option) if is_selected(option)));
        if let Some(chosen) = chosen {
            select.set_selected_index(chosen as i32);
        }
    } else if let (Some(input), Some(value)) = (shown.dyn_ref::<HtmlInputElement>(), attribute(after, Attribute::Value))
    {
        let is_edited = shown.owner_document().and_then(|document| document.active_element()).as_ref() == Some(shown);
        if !is_edited && (before.tag != Tag::Input || &input.value() != value) {
            input.set_value(value);
        }
    }
}

/// Returns the element that an event is for, or the closest one around it that a CSS selector
/// matches.
pub(super) fn closest(event: &Event, selector: &str) -> Option<HtmlNode> {
    event.target()?.dyn_ref::<HtmlNode>()?.closest(selector).ok().flatten()
}

/// Returns the element with a command that an event is for, and its command; `None` if there is
/// none.
pub(super) fn command_of(event: &Event) -> Option<(HtmlNode, String)> {
    let element = closest(event, &format!("[{COMMAND}]"))?;
    let command = element.get_attribute(COMMAND)?;
    Some((element, command))
}
