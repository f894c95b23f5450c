//! A search that begins before its field is on the page.

use super::super::browser::now_ms;

/// Maximum time in milliseconds for which keys are collected for a search field that is not on the
/// page yet.
const MAX_WAIT_MS: f64 = 3000.0;

/// The text that the user types after the search key, until the search field is on the page and has
/// the focus.
pub(super) struct EarlySearch {
    /// The page's clock when the search began.
    since_ms: f64,
    /// The text so far.
    pub(super) text: String,
}

impl EarlySearch {
    /// Starts collecting keys for the search field.
    pub(super) fn new() -> Self {
        Self { since_ms: now_ms(), text: String::new() }
    }

    /// Adds a key to the text. Returns false if the search ends instead: by Escape, or because the
    /// field has not appeared in time.
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
