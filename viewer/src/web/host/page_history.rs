//! The page's address, and the entries of the browser's history.
//!
//! Each view that the user opens, selects or goes to is an entry; gestures change the newest entry.
//! An entry's address has the view as its fragment, and the URLs of the recordings as parameters.
//! Its state has the [`Sources`] in JSON, which also name files that the user has chosen: the page
//! keeps these files, so that going back opens them again.

use js_sys::Date;
use wasm_bindgen::prelude::*;
use web_sys::{History, UrlSearchParams};

use super::super::browser::window;
use crate::protocol::{RecordingSource, Sources};

/// Maximum number of files that the page keeps so that the user can go back to them.
const MAX_FILES: usize = 16;

/// The state of the page's entries in the browser's history: the view on the page and the newest
/// entry.
#[derive(Default)]
pub(super) struct PageHistory {
    /// The recordings and the fragment in the newest entry.
    pub(super) written: (Sources, String),
    /// The recordings and the fragment of the view on the page.
    pub(super) shown: (Sources, String),
    /// Number of the engine's entries that the page knows.
    pub(super) entry: u64,
    /// Number of requests to go back that the engine has not answered.
    pub(super) going_back: u32,
    pub(super) is_scheduled: bool,
    /// The files that the user has chosen, with their numbers; oldest first.
    files: Vec<(u64, JsValue)>,
    last_file: u64,
}

impl PageHistory {
    /// Writes the view on the page to the browser's history, as a new entry (`as_newest`) or in
    /// place of the current one.
    pub(super) fn write_shown(&mut self, as_newest: bool) {
        write(&self.shown.0, &self.shown.1, &self.written.0, as_newest);
        self.written = self.shown.clone();
    }

    /// Keeps a file that the user has chosen, and returns its number.
    pub(super) fn keep_file(&mut self, file: &JsValue) -> u64 {
        // Numbers of an earlier load of the page, in entries of the history, are not used again.
        self.last_file = (self.last_file + 1).max(Date::now() as u64);
        self.files.push((self.last_file, file.clone()));
        if self.files.len() > MAX_FILES {
            self.files.remove(0);
        }
        self.last_file
    }

    /// Returns the file with this number; `None` if the page no longer has it.
    pub(super) fn file(&self, number: u64) -> Option<JsValue> {
        self.files.iter().find(|(known, _)| *known == number).map(|(_, file)| file.clone())
    }

    /// Returns the files of sources, in order; `None` if the page no longer has one of them.
    pub(super) fn files_of(&self, sources: &Sources) -> Option<Vec<JsValue>> {
        let numbers = [&sources.recording, &sources.second].into_iter().filter_map(|source| match source {
            RecordingSource::File(number) => Some(*number),
            _ => None,
        });
        numbers.map(|number| self.file(number)).collect()
    }
}

/// Returns the browser's history; `None` without a window.
pub(super) fn history() -> Option<History> {
    window().ok()?.history().ok()
}

/// Writes an entry of the browser's history with recordings and a view, as a new entry
/// (`as_newest`) or in place of the newest. `addressed` are the recordings in the page's current
/// address.
pub(super) fn write(sources: &Sources, fragment: &str, addressed: &Sources, as_newest: bool) {
    let (Ok(window), Some(history)) = (window(), history()) else { return };
    let location = window.location();
    let (Ok(path), Ok(search)) = (location.pathname(), location.search()) else { return };
    let search = if sources == addressed { search } else { search_for(&search, sources) };
    let hash = if fragment.is_empty() { String::new() } else { format!("#{fragment}") };
    let address = format!("{path}{search}{hash}");
    let state = JsValue::from(serde_json::to_string(sources).unwrap_or_default());
    // Fails for a page embedded in another document, which works without.
    let _ = if as_newest {
        history.push_state_with_url(&state, "", Some(&address))
    } else {
        history.replace_state_with_url(&state, "", Some(&address))
    };
}

/// Returns the address's parameters (`search`) with the recordings' URLs replaced by those of
/// `sources`. Files and the running program have no URL.
fn search_for(search: &str, sources: &Sources) -> String {
    let Ok(parameters) = UrlSearchParams::new_with_str(search) else { return search.to_owned() };
    let mut has_changed = false;
    for (name, source) in [("trace", &sources.recording), ("compare", &sources.second)] {
        let url = match source {
            RecordingSource::Url(url) => Some(url.as_str()),
            _ => None,
        };
        if parameters.get(name).as_deref() == url {
            continue;
        }
        has_changed = true;
        match url {
            Some(url) => parameters.set(name, url),
            None => parameters.delete(name),
        }
    }
    if !has_changed {
        return search.to_owned();
    }
    let text = String::from(parameters.to_string());
    if text.is_empty() { text } else { format!("?{text}") }
}
