//! The lines between timeline, panes and details, which the user moves with pointer or keys.

use wasm_bindgen::prelude::*;
use web_sys::{DomRect, Event, KeyboardEvent, PointerEvent};

use super::app::App;
use super::storage;
use crate::pane_sizes::{PaneSizes, Splitter};

/// Name of the browser's stored setting with the sizes of the page's parts.
const SETTING: &str = "sizes";
/// Percentage points by which an arrow key moves a splitter.
const STEP: f64 = 2.0;
/// Bit of the primary (left) button in a pointer event's `buttons`.
const PRIMARY: u16 = 1;

/// Applies the stored sizes of the page's parts, and registers the listeners of all splitters.
pub(super) fn listen(app: &App) -> Result<(), JsValue> {
    let sizes = PaneSizes::parse(&storage::load(SETTING));
    app.state.borrow_mut().sizes = sizes;
    for splitter in Splitter::ALL {
        show(app, splitter);
        let element = app.page.element(&format!("split-{}", splitter.name()))?;
        let captured = element.clone();
        app.on(&element, "pointerdown", move |_: &App, event: PointerEvent| {
            event.prevent_default();
            // Without the capture, dragging merely ends at the line's edge.
            let _ = captured.set_pointer_capture(event.pointer_id());
            let _ = captured.focus();
        })?;
        app.on(&element, "pointermove", move |app: &App, event: PointerEvent| {
            if event.buttons() & PRIMARY != 0
                && let Some(percent) = percent_at(app, splitter, (event.client_x(), event.client_y()))
            {
                set(app, splitter, Some(percent));
            }
        })?;
        app.on(&element, "pointerup", |app: &App, _: Event| store(app))?;
        app.on(&element, "dblclick", move |app: &App, _: Event| {
            set(app, splitter, None);
            store(app);
        })?;
        app.on(&element, "keydown", move |app: &App, event: KeyboardEvent| {
            let has_modifier = event.ctrl_key() || event.meta_key() || event.alt_key();
            if !has_modifier && press(app, splitter, &event.key()) {
                event.prevent_default();
                event.stop_propagation();
            }
        })?;
        app.on(&element, "focus", move |app: &App, _: Event| show(app, splitter))?;
    }
    Ok(())
}

/// Handles a key press on a splitter. Returns false if the key does nothing there.
fn press(app: &App, splitter: Splitter, key: &str) -> bool {
    let (least, most) = splitter.limits();
    // The details are right of their splitter.
    let forward = if splitter == Splitter::Details { -STEP } else { STEP };
    match key {
        "ArrowLeft" | "ArrowUp" => move_by(app, splitter, -forward),
        "ArrowRight" | "ArrowDown" => move_by(app, splitter, forward),
        "Home" => set(app, splitter, Some(least)),
        "End" => set(app, splitter, Some(most)),
        "Enter" => set(app, splitter, None),
        _ => return false,
    }
    store(app);
    true
}

/// Adds `percent` percentage points to the share of a splitter, and stores the sizes.
pub(super) fn change(app: &App, splitter: Splitter, percent: f64) {
    move_by(app, splitter, percent);
    store(app);
}

/// Restores the default sizes.
pub(super) fn reset(app: &App) {
    Splitter::ALL.into_iter().for_each(|splitter| set(app, splitter, None));
    store(app);
}

/// Adds `percent` percentage points to the share of a splitter.
fn move_by(app: &App, splitter: Splitter, percent: f64) {
    if let Some(shown) = shown_percent(app, splitter) {
        set(app, splitter, Some(shown + percent));
    }
}

/// Sets the share of a splitter in percent (`None` for the default) and shows it on the page.
fn set(app: &App, splitter: Splitter, percent: Option<f64>) {
    app.state.borrow_mut().sizes.set(splitter, percent);
    show(app, splitter);
    app.remeasure();
}

/// Stores the sizes of the page's parts in the browser.
fn store(app: &App) {
    let text = app.state.borrow().sizes.text();
    storage::store(SETTING, &text);
}

/// Applies the share of a splitter to the page.
fn show(app: &App, splitter: Splitter) {
    let (variable, id) = (format!("--{}", splitter.name()), format!("split-{}", splitter.name()));
    let Ok(root) = app.page.element("app") else { return };
    // Fails only for invalid names of properties.
    let _ = match app.state.borrow().sizes.get(splitter) {
        Some(percent) => root.style().set_property(&variable, &percent.to_string()),
        None => root.style().remove_property(&variable).map(|_| ()),
    };
    if let Some(percent) = shown_percent(app, splitter) {
        app.page.set_attribute(&id, "aria-valuenow", &format!("{percent:.0}"));
    }
}

/// Returns a share in percent: what `measure` returns for the positions of the part whose size a
/// splitter sets, and of the whole of which that size is a share; `None` if it is not finite.
fn percent(app: &App, splitter: Splitter, measure: impl FnOnce(DomRect, DomRect) -> f64) -> Option<f64> {
    let (part, whole) = match splitter {
        Splitter::Timeline => ("timeline-section", "app"),
        Splitter::Panes => ("pane-left", "panes"),
        Splitter::Details => ("details-panel", "middle"),
    };
    let (part, whole) = (app.page.element(part).ok()?, app.page.element(whole).ok()?);
    let share = measure(part.get_bounding_client_rect(), whole.get_bounding_client_rect());
    Some(share * 100.0).filter(|percent| percent.is_finite())
}

/// Returns a splitter's share as measured on the screen, in percent.
fn shown_percent(app: &App, splitter: Splitter) -> Option<f64> {
    percent(app, splitter, |part, whole| match splitter {
        Splitter::Timeline => part.height() / whole.height(),
        Splitter::Panes | Splitter::Details => part.width() / whole.width(),
    })
}

/// Returns the share, in percent, that moves a splitter to the pointer's position (x, y) in CSS
/// pixels.
fn percent_at(app: &App, splitter: Splitter, (x, y): (i32, i32)) -> Option<f64> {
    percent(app, splitter, |part, whole| match splitter {
        Splitter::Timeline => (f64::from(y) - part.top()) / whole.height(),
        Splitter::Panes => (f64::from(x) - part.left()) / whole.width(),
        Splitter::Details => (part.right() - f64::from(x)) / whole.width(),
    })
}
