//! Texts, each written once and then known by number.

use std::collections::HashMap;

use vramscope_trace::{Category, Recording, SiteId, StringId, site_name};

use super::Argument;
use super::proto::{InternedData, InternedName};
use crate::export::words;

/// What a text is for; each use has numbers of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// The name of a slice or a moment.
    Event,
    /// The name of an argument.
    ArgumentName,
    /// The value of an argument.
    ArgumentValue,
}

/// A text, by what it is the text of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Text {
    /// This one.
    Word(&'static str),
    /// A text of the recording.
    Defined(StringId),
    /// What a site is called.
    Site(SiteId),
    /// A site's call stack.
    Stack(SiteId),
    /// Allocations of unknown sites, of at least 2ⁿ bytes and less than twice that.
    UnknownOf(u32),
}

/// The texts that were written.
pub(super) struct Texts<'a> {
    recording: &'a Recording,
    numbers: HashMap<(Role, Text), u64>,
}

impl<'a> Texts<'a> {
    pub(super) fn new(recording: &'a Recording) -> Self {
        Self { recording, numbers: HashMap::new() }
    }

    /// A text's number and, where it is new, what defines it.
    pub(super) fn number(&mut self, role: Role, text: Text) -> (u64, Option<InternedData>) {
        // One row of numbers for all uses is less to remember, and costs at most a byte.
        let next = self.numbers.len() as u64 + 1;
        let iid = *self.numbers.entry((role, text)).or_insert(next);
        if iid < next {
            return (iid, None);
        }
        let names = vec![InternedName { iid: Some(iid), name: Some(self.words(text)) }];
        let mut data = InternedData::default();
        match role {
            Role::Event => data.event_names = names,
            Role::ArgumentName => data.debug_annotation_names = names,
            Role::ArgumentValue => data.debug_annotation_string_values = names,
        }
        (iid, Some(data))
    }

    /// The text.
    pub(super) fn words(&self, text: Text) -> String {
        let definitions = self.recording.definitions();
        match text {
            Text::Word(word) => word.to_owned(),
            Text::Defined(id) => definitions.string(id).to_owned(),
            Text::Site(id) => site_name(definitions, id),
            Text::Stack(id) => words::stack(definitions, id),
            Text::UnknownOf(power) => format!("unknown site, {} or more", bytes(power)),
        }
    }

    /// Whether a site says anything.
    pub(super) fn is_known(&self, id: SiteId) -> bool {
        self.recording.definitions().site(id) != vramscope_trace::Site::default()
    }

    /// What is known of a site.
    pub(super) fn site_arguments(&self, id: SiteId) -> impl Iterator<Item = (&'static str, Argument)> + use<> {
        let site = self.recording.definitions().site(id);
        let category = (site.category != Category::Unknown).then_some(Text::Word(site.category.name()));
        let scope = (site.scope != StringId(0)).then_some(Text::Defined(site.scope));
        let context = (site.compile_context != StringId(0)).then_some(Text::Defined(site.compile_context));
        let stack = (site.stack.0 != 0).then_some(Text::Stack(id));
        let arguments = [("category", category), ("scope", scope), ("compile_context", context), ("stack", stack)];
        arguments.into_iter().filter_map(|(name, text)| Some((name, Argument::Text(text?))))
    }
}

/// 2ⁿ bytes in words.
fn bytes(power: u32) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    format!("{} {}", 1 << (power % 10), UNITS[power as usize / 10])
}
