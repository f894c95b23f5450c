//! Going back and forward in the browser's history, and keeping it up to date.

use wasm_bindgen::prelude::*;
use web_sys::{Event, HashChangeEvent};

use super::super::browser::{run_after, window};
use super::app::App;
use super::page_history::{history, write};
use crate::command::Direction;
use crate::protocol::{RecordingSource, Sources, ToEngine};

/// Delay in milliseconds between a change of the view and updating the page's address. Browsers
/// limit the rate of updates.
const LINK_DELAY_MS: i32 = 400;
/// Message when the user goes back to a file that the page no longer has.
const FILE_IS_GONE: &str =
    "This page was reloaded since the file was open, so the browser cannot open it again: open it once more.";

/// Registers the listeners for changes of the page's address, such as going back.
pub(super) fn listen(app: &App) -> Result<(), JsValue> {
    let window = window()?;
    app.on(&window, "popstate", |app: &App, _: Event| {
        if let Some(sources) = entry_sources() {
            go_back(app, sources);
        }
    })?;
    app.on(&window, "hashchange", |app: &App, event: HashChangeEvent| {
        // An entry of the page itself has been handled.
        if entry_sources().is_some() {
            return;
        }
        // The event's address: the page may have written its own state to the window's since.
        let address = event.new_url();
        let fragment = address.split_once('#').map_or("", |(_, fragment)| fragment);
        app.send_with(&ToEngine::Link(fragment.to_owned()), &[]);
        app.want_frame();
    })
}

/// Returns the recordings in the current entry of the browser's history; `None` if the page has not
/// created the entry.
fn entry_sources() -> Option<Sources> {
    serde_json::from_str(&history()?.state().ok()?.as_string()?).ok()
}

/// Goes back or forward in the browser's history.
pub(super) fn go(direction: Direction) {
    if let Some(history) = history() {
        // Fails only while the page is being closed.
        let _ = if direction.is_forward() { history.forward() } else { history.back() };
    }
}

/// Shows the view and the recordings of the history entry that the user has gone to.
fn go_back(app: &App, sources: Sources) {
    let hash = window().and_then(|window| window.location().hash()).unwrap_or_default();
    let fragment = hash.trim_start_matches('#').to_owned();
    let files = {
        let history = &mut app.state.borrow_mut().history;
        history.written = (sources.clone(), fragment.clone());
        let files = history.files_of(&sources);
        history.going_back += u32::from(files.is_some());
        files
    };
    match files {
        Some(files) => app.send_with(&ToEngine::GoBack(sources, fragment), &files),
        None => app.page.show_message(FILE_IS_GONE),
    }
    app.want_frame();
}

impl App {
    /// Handles that the engine has finished going back to a view.
    pub(super) fn went_back(&self) {
        let history = &mut self.state.borrow_mut().history;
        history.going_back = history.going_back.saturating_sub(1);
        self.want_frame();
    }

    /// Updates the browser's history after a frame: `link` is the view as a URL fragment, `entry`
    /// the engine's number of entries.
    pub(super) fn update_history(&self, link: String, entry: u64) {
        // The address is used until the engine is ready.
        let is_starting = self.on_ready.borrow().is_some();
        let mut state = self.state.borrow_mut();
        let is_shown = self.page.has_content();
        let history = &mut state.history;
        let before = std::mem::replace(&mut history.shown.1, link);
        let is_new = std::mem::replace(&mut history.entry, entry) != entry;
        if is_starting || !is_shown || history.going_back > 0 || history.shown == history.written {
            return;
        }
        let was_empty = history.written.0.recording == RecordingSource::None;
        let is_other = history.shown.0 != history.written.0;
        if (is_new || is_other) && !was_empty {
            // The previous entry shows the result of the gestures since.
            if !is_other && before != history.written.1 {
                write(&history.written.0, &before, &history.written.0, false);
            }
            history.write_shown(true);
        } else if is_other {
            history.write_shown(false);
        } else if !std::mem::replace(&mut history.is_scheduled, true) {
            let app = self.clone();
            run_after(LINK_DELAY_MS, move || app.write_link());
        }
    }

    /// Writes the current view to the newest entry of the browser's history.
    fn write_link(&self) {
        let mut state = self.state.borrow_mut();
        let history = &mut state.history;
        history.is_scheduled = false;
        if history.going_back == 0 && history.shown != history.written {
            history.write_shown(false);
        }
    }
}
