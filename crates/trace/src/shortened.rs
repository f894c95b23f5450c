//! Text of limited length for messages.

/// Returns the first `max_chars` characters of `text`, and `…` if there are more.
///
/// ```
/// assert_eq!(vramscope_trace::shortened("garbage", 4), "garb…");
/// ```
#[must_use]
pub fn shortened(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
