//! The names of spans that a user may choose as steps.

use std::collections::HashMap;

use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{DeviceId, Recording};

use super::from_spans::split_number;
use crate::spans::Marks;

/// Spans that differ only in the number at the end of their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanName {
    /// The name without its number, which [`find_steps`](super::find_steps) accepts as the chosen
    /// name.
    pub name: String,
    /// Whether any of the names has a number.
    pub is_numbered: bool,
    /// Number of spans and marks.
    pub spans: u64,
    /// Least number of enclosing spans.
    pub depth: usize,
}

/// Returns the names of the spans of a device's process that occur at least twice, apart from
/// numbers at their ends: outermost first, then in the order in which they first occur.
///
/// The cost is linear in the number of spans.
#[must_use]
pub fn span_names(recording: &Recording, marks: &Marks, device: DeviceId) -> Vec<SpanName> {
    let definitions = recording.definitions();
    let mut positions = HashMap::new();
    let mut by_base: HashMap<&str, usize> = HashMap::new();
    let mut names: Vec<SpanName> = Vec::new();
    for span in marks.spans_on(recording.info(), device) {
        let position = *positions.entry(span.name).or_insert_with(|| {
            let (base, number) = split_number(definitions.string(span.name));
            let position = *by_base.entry(base).or_insert_with(|| {
                names.push(SpanName { name: base.to_owned(), is_numbered: false, spans: 0, depth: span.depth });
                names.len() - 1
            });
            names[position].is_numbered |= number.is_some();
            position
        });
        names[position].spans += 1;
        names[position].depth = names[position].depth.min(span.depth);
    }
    names.retain(|name| name.spans > 1 && !name.name.is_empty());
    sort_by_key(&mut names, |name| name.depth);
    names
}
