//! Pointer, wheel, buttons and files.

use std::cell::Cell;
use std::rc::Rc;

use wasm_bindgen::prelude::*;
use web_sys::{DragEvent, Event, EventTarget, HashChangeEvent, KeyboardEvent, MouseEvent, PointerEvent, WheelEvent};

use super::app::{App, Pointer, State};
use super::browser::window;
use super::commands::{choose_file, follow, play_or_pause, toggle_color, toggle_help};
use super::panel::BANDS;
use super::save::save;
use super::{controls, keys, live, open_file};
use crate::bands::Band;
use crate::heatmap::View;
use crate::link::Link;
use crate::model::{Model, PeakKind};
use crate::units;

/// Speed of zooming with the wheel: each CSS pixel changes the timeline's range by a factor of e to
/// this power.
const ZOOM_PER_PIXEL: f64 = 0.0015;
/// Greatest zoom of the heatmap's rows; at zoom 1 all rows fit, if they can.
const MAX_HEATMAP_ZOOM: f32 = 24.0;

/// Registers all listeners for pointer, keyboard, buttons, files, and changes of the address.
pub(super) fn listen(app: &App) -> Result<(), JsValue> {
    listen_to_timeline(app)?;
    listen_to_heatmap(app)?;
    listen_to_buttons(app)?;
    listen_to_fields(app)?;
    listen_to_files(app)?;
    controls::listen(app)?;
    keys::listen(app)?;
    app.on(window()?.as_ref(), "hashchange", |app: &App, event: HashChangeEvent| {
        // The event's address: the page may have written its own state to the window's since.
        let address = event.new_url();
        let fragment = address.split_once('#').map_or("", |(_, fragment)| fragment);
        app.change(|state| state.model.go_to_link(&Link::parse(fragment)));
    })
}

/// Converts a position in CSS pixels, as in pointer events, to pixels of a canvas.
fn canvas_point(state: &State, x: i32, y: i32) -> Pointer {
    let ratio = state.screen.ratio();
    Pointer { x: f64::from(x) * ratio, y: f64::from(y) * ratio }
}

/// Returns the wheel's movement (horizontal, vertical) in CSS pixels.
fn wheel_pixels(event: &WheelEvent) -> (f64, f64) {
    let unit = match event.delta_mode() {
        WheelEvent::DOM_DELTA_LINE => 16.0,
        WheelEvent::DOM_DELTA_PAGE => 400.0,
        _ => 1.0,
    };
    (event.delta_x() * unit, event.delta_y() * unit)
}

/// What dragging on the timeline does: change the moment (`Scrub`) or move the time range (`Pan`).
#[derive(Clone, Copy, PartialEq)]
enum Drag {
    Scrub,
    Pan { last_x: i32 },
}

/// Registers the timeline's listeners: scrub, pan, zoom, and fit by double click.
fn listen_to_timeline(app: &App) -> Result<(), JsValue> {
    let canvas = app.0.state.borrow().page.timeline.clone();
    let drag = Rc::new(Cell::new(None::<Drag>));

    let (started, captured) = (drag.clone(), canvas.clone());
    app.on(&canvas, "pointerdown", move |app: &App, event: PointerEvent| {
        // Without the capture, dragging merely ends at the canvas's edge.
        let _ = captured.set_pointer_capture(event.pointer_id());
        let is_pan = event.shift_key() || event.button() == 1;
        started.set(Some(if is_pan { Drag::Pan { last_x: event.offset_x() } } else { Drag::Scrub }));
        if !is_pan {
            scrub(app, &event);
        }
    })?;
    let dragging = drag.clone();
    app.on(&canvas, "pointermove", move |app: &App, event: PointerEvent| match dragging.get() {
        Some(Drag::Scrub) => scrub(app, &event),
        Some(Drag::Pan { last_x }) => {
            dragging.set(Some(Drag::Pan { last_x: event.offset_x() }));
            app.change(|state| {
                let pixels = f64::from(last_x - event.offset_x()) * state.screen.ratio();
                if let Some(timeline) = &state.scene.timeline {
                    state.model.pan(pixels / f64::from(timeline.geometry.plot.width()));
                }
                Ok::<_, String>(())
            });
        }
        None => {}
    })?;
    for name in ["pointerup", "pointercancel"] {
        let drag = drag.clone();
        app.on(&canvas, name, move |_: &App, _: PointerEvent| drag.set(None))?;
    }
    app.on(&canvas, "wheel", |app: &App, event: WheelEvent| {
        event.prevent_default();
        let (dx, dy) = wheel_pixels(&event);
        app.change(|state| {
            let pointer = canvas_point(state, event.offset_x(), event.offset_y());
            let Some(timeline) = &state.scene.timeline else { return Ok::<_, String>(()) };
            let (center_ns, width) = (timeline.geometry.time_ns(pointer.x), f64::from(timeline.geometry.plot.width()));
            let sideways = if event.shift_key() && dx == 0.0 { dy } else { dx };
            if sideways.abs() > dy.abs() || event.shift_key() {
                state.model.pan(sideways * state.screen.ratio() / width);
            } else {
                state.model.zoom((dy * ZOOM_PER_PIXEL).exp(), center_ns);
            }
            Ok(())
        });
    })?;
    app.on(&canvas, "dblclick", |app: &App, _: Event| {
        app.change(|state| {
            state.model.fit();
            Ok::<_, String>(())
        });
    })
}

/// Makes the next frame go to the time under the pointer on the timeline.
fn scrub(app: &App, event: &PointerEvent) {
    let mut state = app.0.state.borrow_mut();
    state.input.scrub_x = Some(canvas_point(&state, event.offset_x(), event.offset_y()).x);
    drop(state);
    app.want_frame();
}

/// Stores the pointer's position on the heatmap, in CSS pixels, for the next frame; `None` if it
/// has left the heatmap.
fn set_hover(app: &App, hover: Option<(i32, i32)>) {
    let mut state = app.0.state.borrow_mut();
    state.input.hover = hover.map(|(x, y)| canvas_point(&state, x, y));
    state.input.hover_changed = true;
    drop(state);
    app.want_frame();
}

/// Registers the heatmap's listeners: hover, select, scroll and zoom.
fn listen_to_heatmap(app: &App) -> Result<(), JsValue> {
    let canvas = app.0.state.borrow().page.heatmap.clone();
    scroll_by_touch(app, &canvas)?;
    app.on(&canvas, "pointermove", |app: &App, event: PointerEvent| {
        set_hover(app, Some((event.offset_x(), event.offset_y())));
    })?;
    app.on(&canvas, "pointerleave", |app: &App, _: PointerEvent| set_hover(app, None))?;
    app.on(&canvas, "click", |app: &App, event: MouseEvent| {
        app.change(|state| {
            let pointer = canvas_point(state, event.offset_x(), event.offset_y());
            let hit = state.scene.hit(state.model.device_state(), (pointer.x as i32, pointer.y as i32));
            let is_selected =
                hit.is_some() && hit.map(|hit| hit.address) == state.model.selected().map(|hit| hit.address);
            state.model.select(hit.filter(|_| !is_selected).map(|hit| hit.address));
            Ok::<_, String>(())
        });
    })?;
    app.on(&canvas, "wheel", |app: &App, event: WheelEvent| {
        event.prevent_default();
        let (_, dy) = wheel_pixels(&event);
        app.change(|state| {
            let pointer = canvas_point(state, event.offset_x(), event.offset_y());
            let ratio = state.screen.ratio();
            let Some(heatmap) = &state.scene.heatmap else { return Ok::<_, String>(()) };
            let (layout, view) = (&heatmap.layout, state.model.heatmap_view);
            state.model.heatmap_view = if event.ctrl_key() || event.meta_key() {
                let factor = (-dy * ZOOM_PER_PIXEL * 2.0).exp() as f32;
                let zoom = (view.zoom * factor).clamp(1.0, MAX_HEATMAP_ZOOM);
                let y = pointer.y - f64::from(layout.map.y0);
                let scroll = (f64::from(view.scroll) + y) * f64::from(zoom / view.zoom) - y;
                View { zoom, scroll: scroll as i32 }
            } else {
                View { scroll: (view.scroll + (dy * ratio) as i32).clamp(0, layout.max_scroll), ..view }
            };
            state.model.moment_changed();
            Ok(())
        });
    })
}

/// Registers the listeners that scroll the heatmap when a finger drags it, on devices without a
/// wheel.
fn scroll_by_touch(app: &App, canvas: &EventTarget) -> Result<(), JsValue> {
    let last_y = Rc::new(Cell::new(None::<i32>));
    let started = last_y.clone();
    app.on(canvas, "pointerdown", move |_: &App, event: PointerEvent| {
        started.set((event.pointer_type() == "touch").then(|| event.offset_y()));
    })?;
    let moved = last_y.clone();
    app.on(canvas, "pointermove", move |app: &App, event: PointerEvent| {
        let Some(y) = moved.get() else { return };
        moved.set(Some(event.offset_y()));
        app.change(|state| {
            let pixels = f64::from(y - event.offset_y()) * state.screen.ratio();
            let max_scroll = state.scene.heatmap.as_ref().map_or(0, |heatmap| heatmap.layout.max_scroll);
            let view = state.model.heatmap_view;
            let scroll = view.scroll.saturating_add(pixels as i32).clamp(0, max_scroll);
            state.model.heatmap_view = View { scroll, ..view };
            state.model.moment_changed();
            Ok::<_, String>(())
        });
    })?;
    for name in ["pointerup", "pointercancel"] {
        let last_y = last_y.clone();
        app.on(canvas, name, move |_: &App, _: PointerEvent| last_y.set(None))?;
    }
    Ok(())
}

/// Registers the listeners of all buttons outside of the panel with the program's commands.
fn listen_to_buttons(app: &App) -> Result<(), JsValue> {
    app.on_button("home", |app| app.change(|state| state.model.go_to_edge(false)))?;
    app.on_button("end", |app| app.change(|state| state.model.go_to_edge(true)))?;
    app.on_button("back", |app| app.change(|state| state.model.step(-1)))?;
    app.on_button("forward", |app| app.change(|state| state.model.step(1)))?;
    app.on_button("play", play_or_pause)?;
    app.on_button("peak", |app| app.change(|state| state.model.go_to_peak(PeakKind::Allocated)))?;
    app.on_button("peak-reserved", |app| app.change(|state| state.model.go_to_peak(PeakKind::Reserved)))?;
    app.on_button("fit", |app| app.change_model(Model::fit))?;
    app.on_button("live", follow)?;
    app.on_button("load-all", live::load_everything)?;
    app.on_button("color", |app| app.change_model(toggle_color))?;
    for (band, [_, button, _]) in Band::ALL.into_iter().zip(BANDS) {
        app.on_button(button, move |app| app.change_model(|model| model.toggle_band(band)))?;
    }
    app.on_button("help-button", toggle_help)?;
    app.on_button("open", choose_file)?;
    app.on_button("save", save)?;
    app.on_button("empty-open", choose_file)?;
    app.on_button("message-close", |app| {
        app.0.state.borrow().page.hide_message();
    })
}

/// Registers the listeners of the speed, device and event fields.
fn listen_to_fields(app: &App) -> Result<(), JsValue> {
    let (speed, device, event) = {
        let page = &app.0.state.borrow().page;
        (page.speed.clone(), page.device.clone(), page.event.clone())
    };
    app.on(&speed.clone(), "change", move |app: &App, _: Event| {
        let index = usize::try_from(speed.selected_index()).unwrap_or(0);
        app.change_model(|model| model.playback.set_speed(index));
    })?;
    app.on(&device.clone(), "change", move |app: &App, _: Event| {
        if let Ok(number) = device.value().parse() {
            app.change(|state| state.model.set_device(vramscope_trace::DeviceId(number)));
        }
    })?;
    let field = event.clone();
    app.on(&event, "change", move |app: &App, _: Event| {
        match units::parse_count(&field.value()) {
            Some(event) => app.change(|state| state.model.seek(event)),
            // Replaces invalid text with the current event number.
            None => app.change_model(|_| ()),
        }
        let _ = field.blur();
    })?;
    let field = event.clone();
    app.on(&event, "keydown", move |app: &App, event: KeyboardEvent| {
        if event.key() == "Escape" {
            field.set_value(&app.0.state.borrow().model.state().event().to_string());
            let _ = field.blur();
        }
    })
}

/// Registers the listeners for choosing a file and for dropping one on the page.
fn listen_to_files(app: &App) -> Result<(), JsValue> {
    let (file, document) = {
        let state = app.0.state.borrow();
        (state.page.file.clone(), state.page.document.clone())
    };
    app.on(&file.clone(), "change", move |app: &App, _: Event| {
        if let Some(chosen) = file.files().and_then(|files| files.get(0)) {
            open_file::open_in_background(app, chosen.into());
        }
    })?;
    for name in ["dragenter", "dragover"] {
        app.on(&document, name, |app: &App, event: DragEvent| {
            event.prevent_default();
            app.0.state.borrow().page.drop_overlay.set_hidden(false);
        })?;
    }
    app.on(&document, "dragleave", |app: &App, event: DragEvent| {
        // There is a related target when the pointer moves to another element of the page.
        if event.related_target().is_none() {
            app.0.state.borrow().page.drop_overlay.set_hidden(true);
        }
    })?;
    app.on(&document, "drop", |app: &App, event: DragEvent| {
        event.prevent_default();
        app.0.state.borrow().page.drop_overlay.set_hidden(true);
        if let Some(dropped) = event.data_transfer().and_then(|data| data.files()).and_then(|files| files.get(0)) {
            open_file::open_in_background(app, dropped.into());
        }
    })
}
