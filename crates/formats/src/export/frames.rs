//! Call stacks as text.

use vramscope_trace::{Definitions, Recording, SiteId, frame_name};

/// Maximum length of a call stack as text, in bytes. Untrusted stacks may share outer frames
/// without bound.
const MAX_STACK_BYTES: usize = 64 << 10;

/// A call frame with its strings resolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ResolvedFrame<'a> {
    /// Function name.
    pub function: &'a str,
    /// Source file; empty if unknown.
    pub file: &'a str,
    /// Line number, from 1; 0 if unknown.
    pub line: u32,
}

/// Returns the frames of a site, innermost first. Its scope and category are in
/// `recording.definitions().site(site)`.
pub fn frames(recording: &Recording, site: SiteId) -> impl Iterator<Item = ResolvedFrame<'_>> + '_ {
    let definitions = recording.definitions();
    definitions.stack(definitions.site(site).stack).map(|frame| ResolvedFrame {
        function: definitions.string(frame.function),
        file: definitions.string(frame.file),
        line: frame.line,
    })
}

/// Returns a site's call stack, one frame a line, innermost first; empty if unknown. A stack that
/// is too long is cut and ends in `…`.
pub(super) fn stack_text(definitions: &Definitions, site: SiteId) -> String {
    let mut text = String::new();
    for frame in definitions.stack(definitions.site(site).stack) {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&frame_name(definitions, frame, false));
        if text.len() > MAX_STACK_BYTES {
            text.truncate(text.floor_char_boundary(MAX_STACK_BYTES));
            text.push('…');
            break;
        }
    }
    text
}
