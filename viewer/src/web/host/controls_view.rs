//! The elements of the panel with the running program's commands.

use super::page::Page;

/// Name of the command that records to a file.
pub(super) const RECORD: &str = "record";
/// Name of the command that adds a mark to the recording.
pub(super) const MARK: &str = "mark";
/// Name of the command that releases the pool's cached segments.
pub(super) const EMPTY_CACHE: &str = "empty-cache";

/// The names of the program's commands, each with the id of its element in the panel.
const COMMAND_ELEMENTS: [(&str, &str); 3] =
    [(RECORD, "control-record"), (MARK, "control-mark"), (EMPTY_CACHE, "control-empty-cache")];

/// Ids of all buttons and fields in the panel of the program's commands, which are enabled and
/// disabled together.
const INPUTS: [&str; 5] = ["record-now", "mark-name", "mark-now", "empty-cache", "empty-cache-now"];

/// Text in the panel of the program's commands if the page's address lacks the token.
const NO_TOKEN: &str = "To use these commands, open the full address that the program printed; it contains the token.";
/// Text in the panel of the program's commands while there is no live connection.
const NOT_CONNECTED: &str = "Not connected to the program.";

/// The commands that the running program offers, and whether the page may send one now.
#[derive(Debug, Default)]
pub(super) struct Controls {
    pub(super) commands: Vec<String>,
    /// Whether this page may send commands.
    pub(super) is_allowed: bool,
    /// Whether a command has been sent and not answered.
    pub(super) is_busy: bool,
}

impl Controls {
    /// Returns true if the running program offers the command called `command`.
    pub(super) fn offers(&self, command: &str) -> bool {
        self.commands.iter().any(|offered| offered == command)
    }

    /// Shows the offered commands in their panel if the page shows a program (`is_live`); without
    /// token or connection, and while a command runs, they are disabled.
    pub(super) fn show(&self, page: &Page, is_live: bool, is_connected: bool) {
        let has_commands = COMMAND_ELEMENTS.iter().any(|(command, _)| self.offers(command));
        page.set_hidden("program", !has_commands || !is_live);
        if !has_commands || !is_live {
            page.set_hidden("controls", true);
        }
        for (command, element) in COMMAND_ELEMENTS {
            page.set_hidden(element, !self.offers(command));
        }
        let reason = match is_connected {
            _ if !self.is_allowed => NO_TOKEN,
            true => "",
            false => NOT_CONNECTED,
        };
        page.set_optional_text("controls-unavailable-reason", reason);
        let is_disabled = !self.is_allowed || self.is_busy || !is_connected;
        for id in INPUTS {
            // Fails only for invalid attribute names.
            let _ = page.element(id).map(|input| input.toggle_attribute_with_force("disabled", is_disabled));
        }
    }
}

/// Opens or closes the panel of the running program's commands.
pub(super) fn set_open(page: &Page, is_open: bool) {
    page.set_hidden("controls", !is_open);
    page.set_text("control-result", "");
    set_confirming(page, false);
    if let Ok(button) = page.element("program") {
        // Fails only for invalid attribute names.
        let _ = button.set_attribute("aria-expanded", if is_open { "true" } else { "false" });
        if !is_open {
            let _ = button.focus();
        }
    }
}

/// Closes the panel of the running program's commands. Returns true if it was open.
pub(super) fn close(page: &Page) -> bool {
    let is_open = page.element("controls").is_ok_and(|panel| !panel.hidden());
    if is_open {
        set_open(page, false);
    }
    is_open
}

/// Shows the question that confirms emptying the cache, or hides it (false).
pub(super) fn set_confirming(page: &Page, is_confirming: bool) {
    page.set_hidden("empty-cache", is_confirming);
    page.set_hidden("empty-cache-confirm", !is_confirming);
}

/// Shows the result of a command in the panel, as a success or as an error.
pub(super) fn show_result(page: &Page, text: &str, is_success: bool) {
    page.set_text("control-result", text);
    page.set_attribute("control-result", "data-kind", if is_success { "done" } else { "wrong" });
}
