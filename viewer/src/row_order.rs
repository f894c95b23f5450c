//! The order of a table's rows, which stays while the pointer is on a row.

use std::collections::HashMap;

use vramscope_trace::sort::sort_by_key;

use crate::ui::{Attribute, Element, Node, Tag};

/// Puts the rows of tables in `new` into the order that they have in `old`, the same part of the
/// page before; rows that `old` lacks come last.
///
/// Only tables with a row that stands for `lit`, texts of the memory under the pointer, keep their
/// order, and only while their headings stay, which tell the sort. Rows are recognized by their
/// commands. Trees, and lists of which only a part is in the page, are left as they are.
pub(crate) fn keep_row_order(new: &mut [Node], old: &[Node], lit: &[String]) {
    for pair in new.iter_mut().zip(old) {
        let (Node::Element(new), Node::Element(old)) = pair else { continue };
        if new.tag == Tag::Table && head(new) != head(old) {
            continue;
        }
        let is_lit = |row: &Node| match row {
            Node::Element(row) => {
                row.attributes.iter().any(|(name, text)| *name == Attribute::Light && lit.contains(text))
            }
            Node::Text(_) => false,
        };
        if new.tag == Tag::Tbody && old.tag == Tag::Tbody {
            if !old.children.iter().any(is_lit) {
                continue;
            }
            let positions = old.children.iter().enumerate().filter_map(|(index, row)| Some((key(row)?, index)));
            let positions: HashMap<&str, usize> = positions.collect();
            if new.children.iter().all(|row| key(row).is_some()) {
                let position = |row: &Node| key(row).and_then(|key| positions.get(key).copied()).unwrap_or(usize::MAX);
                sort_by_key(&mut new.children, position);
            }
        } else {
            keep_row_order(&mut new.children, &old.children, lit);
        }
    }
}

/// Returns the headings of a table.
fn head(table: &Element) -> Option<&Node> {
    table.children.iter().find(|node| matches!(node, Node::Element(Element { tag: Tag::Thead, .. })))
}

/// Returns the command of a row, by which it is recognized; `None` for a row without one, of a tree
/// or of a part of a list.
fn key(row: &Node) -> Option<&str> {
    let Node::Element(Element { tag: Tag::Tr, attributes, command, .. }) = row else { return None };
    let is_placed = |(name, _): &(Attribute, String)| matches!(name, Attribute::AriaLevel | Attribute::AriaRowIndex);
    command.as_ref().filter(|_| !attributes.iter().any(is_placed)).map(|command| &**command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Command;
    use crate::linked_memory::LinkedMemory;
    use vramscope_insight::group::GroupBy;

    /// Returns a panel with a table whose rows are about these groups.
    fn panel(groups: &[u32]) -> Vec<Node> {
        let row = |group: &u32| {
            let row = Element::new(Tag::Tr).with_command(Command::Group(GroupBy::Line, *group, None));
            row.with_light(LinkedMemory::Group(GroupBy::Line, *group))
        };
        let body = Element::new(Tag::Tbody).with_children(groups.iter().map(row));
        vec![Element::text(Tag::P, "rows").into(), Element::new(Tag::Table).with_child(body).into()]
    }

    #[test]
    fn rows_keep_their_order_and_new_ones_come_last() {
        let mut new = panel(&[5, 3, 1, 4]);
        keep_row_order(&mut new, &panel(&[1, 2, 3]), &["group line 7".to_owned()]);
        assert_eq!(new, panel(&[5, 3, 1, 4]), "the pointer is elsewhere");
        keep_row_order(&mut new, &panel(&[1, 2, 3]), &["group line 2".to_owned()]);
        assert_eq!(new, panel(&[1, 3, 5, 4]));
    }

    #[test]
    fn rows_without_a_command_are_left_as_they_are() {
        let lit = LinkedMemory::Group(GroupBy::Line, 1);
        let row = |text: &str| Element::text(Tag::Tr, text).with_light(lit);
        let body = |rows: [&str; 2]| vec![Node::from(Element::new(Tag::Tbody).with_children(rows.map(row)))];
        let mut new = body(["b", "a"]);
        keep_row_order(&mut new, &body(["a", "b"]), &[lit.to_string()]);
        assert_eq!(new, body(["b", "a"]));
    }
}
