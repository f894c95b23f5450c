//! Call stacks as text.

use vramscope_trace::{Definitions, Recording, SiteId, frame_name};

/// Maximum length of a call stack as text, in bytes; longer text is cut. Stacks share their outer
/// frames, so the stacks of a small forged recording can be much longer than its file.
const MAX_STACK_BYTES: usize = 64 << 10;

/// One call frame with its function and file as text instead of string numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ResolvedFrame<'a> {
    /// Function name.
    pub function: &'a str,
    /// Source file; empty if unknown.
    pub file: &'a str,
    /// Line number, from 1; 0 if unknown.
    pub line: u32,
}

/// Returns the call frames of a site, innermost first; empty if the site is unknown. The site's
/// scope and category are in `recording.definitions().site(site)`.
pub fn frames(recording: &Recording, site: SiteId) -> impl Iterator<Item = ResolvedFrame<'_>> + '_ {
    let definitions = recording.definitions();
    definitions.stack(definitions.site(site).stack).map(|frame| ResolvedFrame {
        function: definitions.string(frame.function),
        file: definitions.string(frame.file),
        line: frame.line,
    })
}

/// Returns a site's call stack as text, one frame a line, innermost first; empty if unknown. Text
/// of more than 64 KiB is cut there and ends in `…`.
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
