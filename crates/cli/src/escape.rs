//! Escapes untrusted text for the terminal.

use vramscope_collector::is_control;

/// Returns `text` with [control characters](is_control) escaped, so that it stays on one line and
/// cannot move the cursor or reorder the text around it.
pub(crate) fn escape_controls(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_control(c) { escaped.extend(c.escape_default()) } else { escaped.push(c) }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escape_controls("a \u{e4}\u{1f600} b"), "a \u{e4}\u{1f600} b");
        assert_eq!(escape_controls("a\nlistening: x\u{1b}[2J\u{202e}"), "a\\nlistening: x\\u{1b}[2J\\u{202e}");
    }
}
