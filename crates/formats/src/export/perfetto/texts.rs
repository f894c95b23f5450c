//! Texts of a trace, which are written once and then referred to by number.

use std::collections::HashMap;

use vramscope_trace::{ByteSize, Category, Recording, SiteId, StringId, site_name};

use super::proto::{InternedData, InternedName};
use crate::export::frames::stack_text;

/// The use of a text in a Perfetto trace. Perfetto numbers the texts of each use separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum TextUse {
    /// The name of a slice or an instant.
    Event,
    /// The name of an argument.
    ArgumentName,
    /// The value of an argument.
    ArgumentValue,
}

/// The value of a named argument of an event in a Perfetto trace.
#[derive(Clone, Copy, Debug)]
pub(super) enum Argument {
    Number(u64),
    Pointer(u64),
    Text(Text),
}

/// A reference to a text of a Perfetto trace: a fixed text, or the string or site of the recording
/// that it comes from. Equal references are written to the trace once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Text {
    /// A fixed text.
    Constant(&'static str),
    /// A string of the recording.
    String(StringId),
    /// The name of a site.
    Site(SiteId),
    /// A site's call stack.
    Stack(SiteId),
    /// The group of allocations with an unknown site and a size of at least 2ⁿ and less than 2ⁿ⁺¹
    /// bytes.
    UnknownSite(u32),
}

/// The texts that a Perfetto trace defines so far, and their numbers.
pub(super) struct Texts<'a> {
    recording: &'a Recording,
    numbers: HashMap<(TextUse, Text), u64>,
}

impl<'a> Texts<'a> {
    pub(super) fn new(recording: &'a Recording) -> Self {
        Self { recording, numbers: HashMap::new() }
    }

    /// Returns the number of a text for the given use and, if the text is new, the definition that
    /// must be written before the number is used.
    pub(super) fn number(&mut self, text_use: TextUse, text: Text) -> (u64, Option<InternedData>) {
        // All uses share one sequence of numbers, although each may have its own: this costs at
        // most one byte per number.
        let next = self.numbers.len() as u64 + 1;
        let iid = *self.numbers.entry((text_use, text)).or_insert(next);
        if iid < next {
            return (iid, None);
        }
        let names = vec![InternedName { iid: Some(iid), name: Some(self.resolve(text)) }];
        let mut data = InternedData::default();
        match text_use {
            TextUse::Event => data.event_names = names,
            TextUse::ArgumentName => data.debug_annotation_names = names,
            TextUse::ArgumentValue => data.debug_annotation_string_values = names,
        }
        (iid, Some(data))
    }

    /// Returns the text for a reference, looked up in the strings and sites of the recording.
    pub(super) fn resolve(&self, text: Text) -> String {
        let definitions = self.recording.definitions();
        match text {
            Text::Constant(text) => text.to_owned(),
            Text::String(id) => definitions.string(id).to_owned(),
            Text::Site(id) => site_name(definitions, id),
            Text::Stack(id) => stack_text(definitions, id),
            Text::UnknownSite(power) => format!("no line recorded, {} or more", ByteSize(1 << power)),
        }
    }

    /// Returns true if a site has a stack, scope, category or compile context; false for the
    /// unknown site.
    pub(super) fn is_known(&self, id: SiteId) -> bool {
        self.recording.definitions().site(id) != vramscope_trace::Site::default()
    }

    /// Returns names and values of the arguments that describe a site: category, scope, compile
    /// context and stack, each only if it is known.
    pub(super) fn site_arguments(&self, id: SiteId) -> impl Iterator<Item = (&'static str, Argument)> + use<> {
        let site = self.recording.definitions().site(id);
        let category = (site.category != Category::Unknown).then_some(Text::Constant(site.category.name()));
        let scope = (site.scope != StringId(0)).then_some(Text::String(site.scope));
        let context = (site.compile_context != StringId(0)).then_some(Text::String(site.compile_context));
        let stack = (site.stack.0 != 0).then_some(Text::Stack(id));
        let arguments = [("category", category), ("scope", scope), ("compile_context", context), ("stack", stack)];
        arguments.into_iter().filter_map(|(name, text)| Some((name, Argument::Text(text?))))
    }
}
