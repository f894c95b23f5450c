//! Text from other processes and machines, made safe to show.

/// Returns true for control characters and for characters that change the direction of text.
///
/// These characters can start a new line, move a terminal's cursor or reorder the text around them.
#[must_use]
pub fn is_control(c: char) -> bool {
    let changes_direction =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || changes_direction
}
