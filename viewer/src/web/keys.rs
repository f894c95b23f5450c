//! The keyboard.

use wasm_bindgen::prelude::*;
use web_sys::KeyboardEvent;

use super::input::{change_model, change_speed, follow, on, pick_file, play_or_pause, toggle_color, toggle_help};
use super::save::save;
use super::{App, controls, window};
use crate::model::{Model, PeakOf};

/// Events that a step with Shift goes.
const LONG_STEP: i64 = 100;
/// The share of the timeline that a key moves it by.
const PAN: f64 = 0.15;
/// What a key zooms by.
const ZOOM: f64 = 0.75;

pub(super) fn listen(app: &App) -> Result<(), JsValue> {
    let app = app.clone();
    on(window()?.as_ref(), "keydown", move |event: KeyboardEvent| {
        let is_command = (event.ctrl_key() || event.meta_key()) && !event.alt_key() && !event.shift_key();
        if is_command && event.key().eq_ignore_ascii_case("s") {
            event.prevent_default();
            save(&app);
            return;
        }
        if event.ctrl_key() || event.meta_key() || event.alt_key() || is_used_elsewhere(&app, &event) {
            return;
        }
        if react(&app, &event.key(), event.shift_key()) {
            event.prevent_default();
        }
    })
}

/// Whether the element with the focus has its own use for the key.
fn is_used_elsewhere(app: &App, event: &KeyboardEvent) -> bool {
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

/// Does what a key is for. Says whether it is for anything.
fn react(app: &App, key: &str, shift: bool) -> bool {
    let step = if shift { LONG_STEP } else { 1 };
    match key {
        " " => play_or_pause(app),
        "ArrowLeft" => app.change(|state| state.model.step(-step)),
        "ArrowRight" => app.change(|state| state.model.step(step)),
        "Home" => app.change(|state| state.model.go_to_edge(false)),
        "End" => app.change(|state| state.model.go_to_edge(true)),
        "p" => app.change(|state| state.model.go_to_peak(PeakOf::Allocated)),
        "P" => app.change(|state| state.model.go_to_peak(PeakOf::Reserved)),
        "l" | "L" => follow(app),
        "<" => change_model(app, |model| change_speed(model, false)),
        ">" => change_model(app, |model| change_speed(model, true)),
        "w" | "W" | "+" | "=" => change_model(app, |model| zoom(model, ZOOM)),
        "s" | "S" | "-" | "_" => change_model(app, |model| zoom(model, 1.0 / ZOOM)),
        "a" | "A" => change_model(app, |model| model.pan(-PAN)),
        "d" | "D" => change_model(app, |model| model.pan(PAN)),
        "f" | "F" => change_model(app, Model::fit),
        "[" => select(app, false, false),
        "]" => select(app, true, false),
        "{" => select(app, false, true),
        "}" => select(app, true, true),
        "Escape" => escape(app),
        "c" | "C" => change_model(app, toggle_color),
        "o" | "O" => pick_file(app),
        "m" | "M" => return controls::ask_for_mark(app),
        "?" => toggle_help(app),
        _ => return false,
    }
    true
}

fn zoom(model: &mut Model, factor: f64) {
    let now = model.time_ns();
    model.zoom(factor, now);
}

/// Lets go of what lies on top: a message, the panel of the program, the selection.
fn escape(app: &App) {
    let closed = {
        let state = app.0.state.borrow();
        state.page.hide_message() || controls::close(&state)
    };
    if !closed {
        change_model(app, |model| model.select(None));
    }
}

/// Selects a neighbor, and scrolls to where it can be seen.
fn select(app: &App, forward: bool, whole_segments: bool) {
    app.change(|state| {
        state.model.select_neighbor(forward, whole_segments);
        let scroll = state.screen.layout().zip(state.model.selection()).and_then(|(layout, at)| layout.scroll_to(at));
        if let Some(scroll) = scroll {
            state.model.heatmap_view.scroll = scroll;
        }
        Ok::<_, String>(())
    });
}
