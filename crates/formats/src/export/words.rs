//! A call stack in words.

use vramscope_trace::{Definitions, SiteId, frame_name};

/// The longest stack in words, in bytes. Stacks from outside may share their outer frames without end.
const STACK_BYTES: usize = 64 << 10;

/// A site's call stack, a frame a line, the innermost first; empty where it is not known. One that is cut ends in `…`.
pub(super) fn stack(definitions: &Definitions, site: SiteId) -> String {
    let mut stack = String::new();
    for frame in definitions.stack(definitions.site(site).stack) {
        if !stack.is_empty() {
            stack.push('\n');
        }
        stack.push_str(&frame_name(definitions, frame, false));
        if stack.len() > STACK_BYTES {
            stack.truncate(stack.floor_char_boundary(STACK_BYTES));
            stack.push('…');
            break;
        }
    }
    stack
}
