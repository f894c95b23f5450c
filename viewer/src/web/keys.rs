//! The keyboard.

use wasm_bindgen::prelude::*;
use web_sys::KeyboardEvent;

use super::app::App;
use super::browser::window;
use super::commands::{change_speed, choose_file, follow, play_or_pause, toggle_color, toggle_help};
use super::save::save;
use super::{controls, controls_view};
use crate::model::{Model, PeakKind};

/// Number of events by which the arrow keys step with Shift.
const LONG_STEP: i64 = 100;
/// Part of its length by which a key press moves the timeline's range.
const PAN_FRACTION: f64 = 0.15;
/// Factor by which a key press shortens the timeline's range, or its inverse lengthens it.
const ZOOM_FACTOR: f64 = 0.75;

/// Registers the listener for all key presses on the page.
pub(super) fn listen(app: &App) -> Result<(), JsValue> {
    app.on(window()?.as_ref(), "keydown", |app: &App, event: KeyboardEvent| {
        let is_command = (event.ctrl_key() || event.meta_key()) && !event.alt_key() && !event.shift_key();
        if is_command && event.key().eq_ignore_ascii_case("s") {
            event.prevent_default();
            save(app);
            return;
        }
        if event.ctrl_key() || event.meta_key() || event.alt_key() || is_for_focused_element(app, &event) {
            return;
        }
        if execute_key(app, &event.key(), event.shift_key()) {
            event.prevent_default();
        }
    })
}

/// Returns true if the focused element, such as a text field, uses the key itself, so that the key
/// is no command.
fn is_for_focused_element(app: &App, event: &KeyboardEvent) -> bool {
    let state = app.0.state.borrow();
    if state.page.help.open() {
        return event.key() != "?";
    }
    let Some(active) = state.page.document.active_element() else { return false };
    match active.tag_name().as_str() {
        "INPUT" | "SELECT" => true,
        "BUTTON" => matches!(event.key().as_str(), " " | "Enter"),
        _ => false,
    }
}

/// Executes the command of a pressed key; `shift` makes steps longer. Returns false for keys
/// without a command.
fn execute_key(app: &App, key: &str, shift: bool) -> bool {
    let step = if shift { LONG_STEP } else { 1 };
    match key {
        " " => play_or_pause(app),
        "ArrowLeft" => app.change(|state| state.model.step(-step)),
        "ArrowRight" => app.change(|state| state.model.step(step)),
        "Home" => app.change(|state| state.model.go_to_edge(false)),
        "End" => app.change(|state| state.model.go_to_edge(true)),
        "p" => app.change(|state| state.model.go_to_peak(PeakKind::Allocated)),
        "P" => app.change(|state| state.model.go_to_peak(PeakKind::Reserved)),
        "l" | "L" => follow(app),
        "<" => app.change_model(|model| change_speed(model, false)),
        ">" => app.change_model(|model| change_speed(model, true)),
        "w" | "W" | "+" | "=" => app.change_model(|model| zoom(model, ZOOM_FACTOR)),
        "s" | "S" | "-" | "_" => app.change_model(|model| zoom(model, 1.0 / ZOOM_FACTOR)),
        "a" | "A" => app.change_model(|model| model.pan(-PAN_FRACTION)),
        "d" | "D" => app.change_model(|model| model.pan(PAN_FRACTION)),
        "f" | "F" => app.change_model(Model::fit),
        "[" => select_neighbor(app, false, false),
        "]" => select_neighbor(app, true, false),
        "{" => select_neighbor(app, false, true),
        "}" => select_neighbor(app, true, true),
        "Escape" => escape(app),
        "c" | "C" => app.change_model(toggle_color),
        "o" | "O" => choose_file(app),
        "m" | "M" => return controls::edit_mark(app),
        "?" => toggle_help(app),
        _ => return false,
    }
    true
}

/// Makes the timeline show `factor` times as much time (below 1: less), around the moment on the
/// screen.
fn zoom(model: &mut Model, factor: f64) {
    let center_ns = model.time_ns();
    model.zoom(factor, center_ns);
}

/// Executes the Escape key: closes the message or the panel of the program's commands; if neither
/// is open, clears the selection.
fn escape(app: &App) {
    let has_closed = {
        let state = app.0.state.borrow();
        state.page.hide_message() || controls_view::close(&state.page)
    };
    if !has_closed {
        app.change_model(|model| model.select(None));
    }
}

/// Selects the next (`forward`) or previous block or free range, or with `whole_segments` the first
/// one of the next or previous segment, and scrolls to it.
fn select_neighbor(app: &App, forward: bool, whole_segments: bool) {
    app.change(|state| {
        state.model.select_neighbor(forward, whole_segments);
        let layout = state.scene.heatmap.as_ref().map(|heatmap| &heatmap.layout);
        let scroll = layout.zip(state.model.selection()).and_then(|(layout, address)| layout.scroll_to(address));
        if let Some(scroll) = scroll {
            state.model.heatmap_view.scroll = scroll;
        }
        Ok::<_, String>(())
    });
}
