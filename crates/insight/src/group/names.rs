//! Names and details of groups.

use vramscope_trace::{
    ByteSize, Category, Definitions, MempoolId, PoolKey, PoolKind, SiteId, StackId, StreamId, StringId,
    short_file_name, short_function_name, site_name, stack_name,
};

use super::grouping::{GroupKey, Grouping};
use super::phase::Phase;
use crate::frames::{StackView, WhyNoStack, line_name, operation_name};

/// The name of the group of requests that were made in no scope.
const NO_MODULE: &str = "no module recorded";

/// Properties of a group besides its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupDetails {
    /// The function's complete name; empty if the group has more than one, or none.
    pub function: String,
    /// The file's path; empty if the group has more than one, or none.
    pub file: String,
    /// The line, from 1; 0 if the group has more than one, or none.
    pub line: u32,
    /// The call stack; empty if the group has more than one, or none.
    pub stack: StackView,
    /// Why the group's blocks have no stack or no line of the program, if they have none.
    pub why_no_stack: Option<WhyNoStack>,
}

impl Grouping {
    /// Returns a group's name: `train.py:66`, `optimizer state (inferred)`, `1–2 MiB`. Empty for a
    /// number that is not in use.
    #[must_use]
    pub fn group_name(&self, definitions: &Definitions, group: u32) -> String {
        let Some(&key) = self.keys.get(group as usize) else { return String::new() };
        match key {
            GroupKey::Site(site) => site_name(definitions, site),
            GroupKey::Stack(stack) => {
                stack_name(definitions, stack).unwrap_or_else(|| WhyNoStack::LibraryOnly.name().to_owned())
            }
            GroupKey::Function { function, file } => function_name(definitions, function, file),
            GroupKey::Operation { function, file, is_backward } => {
                let name = operation_name(definitions.string(function), definitions.string(file));
                let name = name.unwrap_or_else(|| function_name(definitions, function, file));
                if is_backward && !name.contains("ackward") { name + " backward" } else { name }
            }
            GroupKey::Line { file, line } => line_name(definitions, file, line),
            GroupKey::Backward { function, function_file, file, line } => {
                let name = operation_name(definitions.string(function), definitions.string(function_file));
                let name = name.unwrap_or_else(|| function_name(definitions, function, function_file));
                let operation = name.strip_suffix(".forward").unwrap_or(&name);
                format!("backward of {operation} in {}", line_name(definitions, file, line))
            }
            GroupKey::File(file) => definitions.string(file).to_owned(),
            GroupKey::Module(scope) => definitions.string(scope).to_owned(),
            GroupKey::NoModule => NO_MODULE.to_owned(),
            GroupKey::Category(category) => category.name().to_owned(),
            GroupKey::Stream(stream) => stream_name(stream),
            GroupKey::Pool(pool) => pool_name(pool),
            GroupKey::Size(exponent) => size_range_name(exponent),
            GroupKey::Phase(phase) => phase.name().to_owned(),
            GroupKey::NoStack { before_recording } => {
                let why = self.recorded.why_missing(before_recording);
                self.backward_calls.name_of(definitions, why).unwrap_or_else(|| why.name().to_owned())
            }
            GroupKey::LibraryOnly => WhyNoStack::LibraryOnly.name().to_owned(),
        }
    }

    /// Returns the text that the blocks of a group have in common: the path of a file or a module.
    /// `None` for other groups.
    pub(crate) fn text_of(&self, group: u32) -> Option<StringId> {
        match self.keys.get(group as usize)? {
            GroupKey::File(text) | GroupKey::Module(text) => Some(*text),
            _ => None,
        }
    }

    /// Returns the category that all blocks of a group by category have; `Unknown` for other
    /// groups.
    #[must_use]
    pub fn category_at(&self, group: u32) -> Category {
        match self.keys.get(group as usize) {
            Some(GroupKey::Category(category)) => category.category,
            _ => Category::Unknown,
        }
    }

    /// Returns the phase that all requests of a group by phase are in; `None` for requests of
    /// unknown phase and for other groups.
    #[must_use]
    pub fn phase(&self, group: u32) -> Option<Phase> {
        match self.keys.get(group as usize) {
            Some(GroupKey::Phase(phase)) => Some(*phase),
            _ => None,
        }
    }

    /// Returns the phase of a site's requests, grouped by phase; `None` if nothing tells, and for
    /// other groupings. Requests older than the recording are not meant.
    #[must_use]
    pub fn phase_of(&self, site: SiteId) -> Option<Phase> {
        self.phase(self.known_group(site)?)
    }

    /// Returns true for a group of blocks that lack the property by which blocks are grouped; its
    /// name says why.
    #[must_use]
    pub fn is_unknown(&self, group: u32) -> bool {
        let key = self.keys.get(group as usize);
        matches!(key, Some(GroupKey::NoModule | GroupKey::NoStack { .. } | GroupKey::LibraryOnly))
    }

    /// Returns the properties of a group besides its name.
    #[must_use]
    pub fn group_details(&self, definitions: &Definitions, group: u32) -> GroupDetails {
        let mut details = GroupDetails::default();
        let Some(&key) = self.keys.get(group as usize) else { return details };
        let text = |id| match definitions.string(id) {
            "??" => String::new(),
            text => text.to_owned(),
        };
        let stack: Option<StackId> = match key {
            GroupKey::Site(site) => Some(definitions.site(site).stack),
            GroupKey::Stack(stack) => Some(stack),
            _ => None,
        };
        match key {
            GroupKey::Function { function, file } | GroupKey::Operation { function, file, .. } => {
                (details.function, details.file) = (text(function), text(file));
            }
            GroupKey::Line { file, line } | GroupKey::Backward { file, line, .. } => {
                (details.file, details.line) = (text(file), line);
            }
            GroupKey::File(file) => details.file = text(file),
            GroupKey::NoStack { before_recording } => {
                details.why_no_stack = Some(self.recorded.why_missing(before_recording));
            }
            GroupKey::LibraryOnly => details.why_no_stack = Some(WhyNoStack::LibraryOnly),
            GroupKey::Site(site) => {
                details.why_no_stack = crate::frames::why_no_stack(definitions, &self.recorded, site, false);
                self.fill_frame(definitions, site, &mut details);
            }
            GroupKey::Stack(_) => {
                let site = self.representatives[group as usize];
                details.why_no_stack = crate::frames::why_no_stack(definitions, &self.recorded, site, false);
                self.fill_frame(definitions, site, &mut details);
            }
            _ => {}
        }
        if let Some(stack) = stack {
            details.stack = StackView::new(definitions, stack);
        }
        details
    }

    /// Sets function, file and line from the innermost own frame of a site.
    fn fill_frame(&self, definitions: &Definitions, site: SiteId, details: &mut GroupDetails) {
        if let Some(frame) = crate::frames::innermost_own_frame(definitions, site) {
            details.function = definitions.string(frame.function).to_owned();
            details.file = definitions.string(frame.file).to_owned();
            details.line = frame.line;
        }
    }
}

/// Returns the name of a function with its file: `gpt_step (train.py)`.
fn function_name(definitions: &Definitions, function: StringId, file: StringId) -> String {
    let function = short_function_name(definitions.string(function));
    match short_file_name(definitions.string(file)) {
        "" | "??" => function.to_owned(),
        file if function.is_empty() => file.to_owned(),
        file => format!("{function} ({file})"),
    }
}

/// Returns a stream's name: `stream 7`, or `stream 0 (default)`.
#[must_use]
pub fn stream_name(stream: StreamId) -> String {
    match stream {
        StreamId(0) => "stream 0 (default)".to_owned(),
        StreamId(handle) => format!("stream {handle}"),
    }
}

/// Returns a pool's name: `default, large` or `private (0, 1), small`.
#[must_use]
pub fn pool_name(pool: PoolKey) -> String {
    let kind = match pool.kind {
        PoolKind::Small => "small",
        PoolKind::Large => "large",
    };
    match pool.owner {
        MempoolId(0, 0) => format!("default, {kind}"),
        MempoolId(a, b) => format!("private ({a}, {b}), {kind}"),
    }
}

/// Returns the name of the sizes from 2 to the power of `exponent` bytes to twice that: `1–2 MiB`.
fn size_range_name(exponent: u32) -> String {
    let Some(from) = 1u64.checked_shl(exponent) else { return ByteSize(0).to_string() };
    let from_name = ByteSize(from).to_string();
    let Some(to) = from.checked_mul(2) else { return format!("{from_name} or more") };
    let to_name = ByteSize(to).to_string();
    match (from_name.split_once(' '), to_name.split_once(' ')) {
        (Some((number, unit)), Some((_, to_unit))) if unit == to_unit => format!("{number}–{to_name}"),
        _ => format!("{from_name}–{to_name}"),
    }
}
