//! A search that begins before its field is on the page.

use super::super::browser::now_ms;

/// How long keys belong to a field that has not appeared, in milliseconds.
const MAX_WAIT_MS: f64 = 3000.0;

/// The keys that the user presses after the key for the search, until the field has the focus.
pub(super) struct EarlySearch {
    /// The page's clock when the search began.
    since_ms: f64,
    /// The text so far.
    pub(super) text: String,
}

impl EarlySearch {
    /// Begins a search.
    pub(super) fn new() -> Self {
        Self { since_ms: now_ms(), text: String::new() }
    }

    /// Notes a key. Returns false if the search ends without it: by Escape, or because the field
    /// does not appear.
    pub(super) fn press(&mut self, key: &str) -> bool {
        match key {
            _ if now_ms() - self.since_ms > MAX_WAIT_MS => return false,
            "Escape" => return false,
            "Backspace" => drop(self.text.pop()),
            _ if key.chars().count() == 1 => self.text.push_str(key),
            _ => {}
        }
        true
    }
}
