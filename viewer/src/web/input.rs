//! What a person does with pointer, wheel, buttons and files.

use wasm_bindgen::prelude::*;
use web_sys::{DragEvent, Event, EventTarget, HashChangeEvent, KeyboardEvent, PointerEvent, WheelEvent};

use super::panel::BANDS;
use super::save::save;
use super::{App, Pointer, State, controls, keys, live, source, window};
use crate::bands::Band;
use crate::heatmap::{ColorBy, View};
use crate::link::Link;
use crate::model::{Model, Origin, PeakOf};
use crate::playback::SPEEDS;
use crate::units;

/// How much one notch of a wheel zooms.
const ZOOM_PER_PIXEL: f64 = 0.0015;

/// Calls `react` at every `name` event on `target`, for as long as the page lives.
pub(super) fn on<E: JsCast + 'static>(
    target: &EventTarget,
    name: &str,
    mut react: impl FnMut(E) + 'static,
) -> Result<(), JsValue> {
    let closure = Closure::<dyn FnMut(Event)>::new(move |event: Event| {
        if let Ok(event) = event.dyn_into::<E>() {
            react(event);
        }
    });
    let options = web_sys::AddEventListenerOptions::new();
    options.set_passive(false);
    target.add_event_listener_with_callback_and_add_event_listener_options(
        name,
        closure.as_ref().unchecked_ref(),
        &options,
    )?;
    closure.forget();
    Ok(())
}

/// Listens to everything.
pub(super) fn listen(app: &App) -> Result<(), JsValue> {
    listen_to_timeline(app)?;
    listen_to_heatmap(app)?;
    listen_to_controls(app)?;
    listen_to_files(app)?;
    controls::listen(app)?;
    keys::listen(app)?;
    let on_link = app.clone();
    on(window()?.as_ref(), "hashchange", move |event: HashChangeEvent| {
        // Not the window's own address: the page may have written its state there since.
        let address = event.new_url();
        let fragment = address.split_once('#').map_or("", |(_, fragment)| fragment);
        on_link.change(|state| state.model.go_to_link(&Link::parse(fragment)));
    })
}

fn canvas_point(state: &State, x: i32, y: i32) -> Pointer {
    let ratio = state.screen.ratio();
    Pointer { x: f64::from(x) * ratio, y: f64::from(y) * ratio }
}

/// What a wheel moved by, in CSS pixels, whatever unit the browser reports.
fn wheel_pixels(event: &WheelEvent) -> (f64, f64) {
    let unit = match event.delta_mode() {
        WheelEvent::DOM_DELTA_LINE => 16.0,
        WheelEvent::DOM_DELTA_PAGE => 400.0,
        _ => 1.0,
    };
    (event.delta_x() * unit, event.delta_y() * unit)
}

/// What the pointer does on the timeline while its button is down.
#[derive(Clone, Copy, PartialEq)]
enum Drag {
    Scrub,
    Pan { last_x: i32 },
}

fn listen_to_timeline(app: &App) -> Result<(), JsValue> {
    let canvas = app.0.state.borrow().page.timeline.clone();
    let drag = std::rc::Rc::new(std::cell::Cell::new(None::<Drag>));

    let (on_down, down_drag, capture) = (app.clone(), drag.clone(), canvas.clone());
    on(&canvas, "pointerdown", move |event: PointerEvent| {
        // Without the capture a drag ends at the canvas's edge, and that is all.
        let _ = capture.set_pointer_capture(event.pointer_id());
        let pans = event.shift_key() || event.button() == 1;
        down_drag.set(Some(if pans { Drag::Pan { last_x: event.offset_x() } } else { Drag::Scrub }));
        if !pans {
            scrub(&on_down, &event);
        }
    })?;
    let (on_move, move_drag) = (app.clone(), drag.clone());
    on(&canvas, "pointermove", move |event: PointerEvent| match move_drag.get() {
        Some(Drag::Scrub) => scrub(&on_move, &event),
        Some(Drag::Pan { last_x }) => {
            move_drag.set(Some(Drag::Pan { last_x: event.offset_x() }));
            on_move.change(|state| {
                let moved = f64::from(last_x - event.offset_x()) * state.screen.ratio();
                if let Some(geometry) = state.screen.geometry() {
                    let share = moved / f64::from(geometry.plot.width());
                    state.model.pan(share);
                }
                Ok::<_, String>(())
            });
        }
        None => {}
    })?;
    for name in ["pointerup", "pointercancel"] {
        let drag = drag.clone();
        on(&canvas, name, move |_: PointerEvent| drag.set(None))?;
    }
    let on_wheel = app.clone();
    on(&canvas, "wheel", move |event: WheelEvent| {
        event.prevent_default();
        let (dx, dy) = wheel_pixels(&event);
        on_wheel.change(|state| {
            let at = canvas_point(state, event.offset_x(), event.offset_y());
            let Some(geometry) = state.screen.geometry() else { return Ok::<_, String>(()) };
            let (around, width) = (geometry.time_ns(at.x), f64::from(geometry.plot.width()));
            let sideways = if event.shift_key() && dx == 0.0 { dy } else { dx };
            if sideways.abs() > dy.abs() || event.shift_key() {
                state.model.pan(sideways * state.screen.ratio() / width);
            } else {
                state.model.zoom((dy * ZOOM_PER_PIXEL).exp(), around);
            }
            Ok(())
        });
    })?;
    let on_double = app.clone();
    on(&canvas, "dblclick", move |_: Event| {
        on_double.change(|state| {
            state.model.fit();
            Ok::<_, String>(())
        });
    })
}

fn scrub(app: &App, event: &PointerEvent) {
    let mut state = app.0.state.borrow_mut();
    state.pending.scrub = Some(canvas_point(&state, event.offset_x(), event.offset_y()).x);
    drop(state);
    app.want_frame();
}

fn listen_to_heatmap(app: &App) -> Result<(), JsValue> {
    let canvas = app.0.state.borrow().page.heatmap.clone();
    scroll_by_touch(app, &canvas)?;
    let on_move = app.clone();
    on(&canvas, "pointermove", move |event: PointerEvent| {
        let mut state = on_move.0.state.borrow_mut();
        state.pending.hover = Some(canvas_point(&state, event.offset_x(), event.offset_y()));
        state.pending.hover_changed = true;
        drop(state);
        on_move.want_frame();
    })?;
    let on_leave = app.clone();
    on(&canvas, "pointerleave", move |_: PointerEvent| {
        let mut state = on_leave.0.state.borrow_mut();
        state.pending.hover = None;
        state.pending.hover_changed = true;
        drop(state);
        on_leave.want_frame();
    })?;
    let on_click = app.clone();
    on(&canvas, "click", move |event: web_sys::MouseEvent| {
        on_click.change(|state| {
            let at = canvas_point(state, event.offset_x(), event.offset_y());
            let layout = state.screen.layout();
            let hit = layout.and_then(|layout| layout.hit(state.model.device_state(), at.x as i32, at.y as i32));
            let again = hit.is_some() && hit.map(|hit| hit.address) == state.model.selected().map(|hit| hit.address);
            state.model.select(hit.filter(|_| !again).map(|hit| hit.address));
            Ok::<_, String>(())
        });
    })?;
    let on_wheel = app.clone();
    on(&canvas, "wheel", move |event: WheelEvent| {
        event.prevent_default();
        let (_, dy) = wheel_pixels(&event);
        on_wheel.change(|state| {
            let at = canvas_point(state, event.offset_x(), event.offset_y());
            let ratio = state.screen.ratio();
            let Some(layout) = state.screen.layout() else { return Ok::<_, String>(()) };
            let view = state.model.heatmap_view;
            state.model.heatmap_view = if event.ctrl_key() || event.meta_key() {
                let zoom = (view.zoom * (-dy * ZOOM_PER_PIXEL * 2.0).exp() as f32).clamp(1.0, 24.0);
                let above = f64::from(view.scroll) + at.y - f64::from(layout.map.y0);
                let scroll = above * f64::from(zoom / view.zoom) - (at.y - f64::from(layout.map.y0));
                View { zoom, scroll: scroll as i32 }
            } else {
                View { scroll: (view.scroll + (dy * ratio) as i32).clamp(0, layout.scroll_end), ..view }
            };
            state.model.redraw_moment();
            Ok(())
        });
    })
}

/// A finger has no wheel: it pulls the rows along.
fn scroll_by_touch(app: &App, canvas: &EventTarget) -> Result<(), JsValue> {
    let held = std::rc::Rc::new(std::cell::Cell::new(None::<i32>));
    let on_down = held.clone();
    on(canvas, "pointerdown", move |event: PointerEvent| {
        on_down.set((event.pointer_type() == "touch").then(|| event.offset_y()));
    })?;
    let (on_move, moved) = (app.clone(), held.clone());
    on(canvas, "pointermove", move |event: PointerEvent| {
        let Some(last) = moved.get() else { return };
        moved.set(Some(event.offset_y()));
        on_move.change(|state| {
            let by = f64::from(last - event.offset_y()) * state.screen.ratio();
            let end = state.screen.layout().map_or(0, |layout| layout.scroll_end);
            let view = state.model.heatmap_view;
            state.model.heatmap_view = View { scroll: view.scroll.saturating_add(by as i32).clamp(0, end), ..view };
            state.model.redraw_moment();
            Ok::<_, String>(())
        });
    })?;
    for name in ["pointerup", "pointercancel"] {
        let held = held.clone();
        on(canvas, name, move |_: PointerEvent| held.set(None))?;
    }
    Ok(())
}

/// Runs `action` when the button `id` is pressed.
pub(super) fn on_button(app: &App, id: &str, action: impl Fn(&App) + 'static) -> Result<(), JsValue> {
    let button = app.0.state.borrow().page.element(id)?;
    let app = app.clone();
    on(&button, "click", move |_: Event| action(&app))
}

fn listen_to_controls(app: &App) -> Result<(), JsValue> {
    on_button(app, "home", |app| app.change(|state| state.model.go_to_edge(false)))?;
    on_button(app, "end", |app| app.change(|state| state.model.go_to_edge(true)))?;
    on_button(app, "back", |app| app.change(|state| state.model.step(-1)))?;
    on_button(app, "forward", |app| app.change(|state| state.model.step(1)))?;
    on_button(app, "play", play_or_pause)?;
    on_button(app, "peak", |app| app.change(|state| state.model.go_to_peak(PeakOf::Allocated)))?;
    on_button(app, "peak-reserved", |app| app.change(|state| state.model.go_to_peak(PeakOf::Reserved)))?;
    on_button(app, "fit", |app| change_model(app, Model::fit))?;
    on_button(app, "live", follow)?;
    on_button(app, "load-all", live::load_everything)?;
    on_button(app, "color", |app| change_model(app, toggle_color))?;
    for (band, [_, button, _]) in Band::ALL.into_iter().zip(BANDS) {
        on_button(app, button, move |app| change_model(app, |model| model.toggle_band(band)))?;
    }
    on_button(app, "help-button", toggle_help)?;
    on_button(app, "open", pick_file)?;
    on_button(app, "save", save)?;
    on_button(app, "empty-open", pick_file)?;
    on_button(app, "message-close", |app| {
        app.0.state.borrow().page.hide_message();
    })?;

    let state = app.0.state.borrow();
    let (speed, on_speed) = (state.page.speed.clone(), app.clone());
    on(&speed.clone(), "change", move |_: Event| {
        let index = usize::try_from(speed.selected_index()).unwrap_or(0);
        change_model(&on_speed, |model| model.playback.set_speed(index));
    })?;
    let (device, on_device) = (state.page.device.clone(), app.clone());
    on(&device.clone(), "change", move |_: Event| {
        if let Ok(number) = device.value().parse() {
            on_device.change(|state| state.model.set_device(vramscope_trace::DeviceId(number)));
        }
    })?;
    let (number, on_number) = (state.page.event.clone(), app.clone());
    on(&number.clone(), "change", move |_: Event| {
        match units::typed_count(&number.value()) {
            Some(event) => on_number.change(|state| state.model.seek(event)),
            // What is no number gives way to the moment that is on the screen.
            None => change_model(&on_number, |_| ()),
        }
        let _ = number.blur();
    })?;
    let (number, on_number) = (state.page.event.clone(), app.clone());
    on(&number.clone(), "keydown", move |event: KeyboardEvent| {
        if event.key() == "Escape" {
            number.set_value(&on_number.0.state.borrow().model.state().event().to_string());
            let _ = number.blur();
        }
    })
}

/// A change of the model that cannot fail.
pub(super) fn change_model(app: &App, change: impl FnOnce(&mut Model)) {
    app.change(|state| {
        change(&mut state.model);
        state.model.redraw_moment();
        Ok::<_, String>(())
    });
}

pub(super) fn toggle_color(model: &mut Model) {
    model.color_by = match model.color_by {
        ColorBy::State => ColorBy::Category,
        ColorBy::Category => ColorBy::State,
    };
}

pub(super) fn play_or_pause(app: &App) {
    let clock_ms = super::now_ms();
    app.change(|state| state.model.play_or_pause(clock_ms));
}

pub(super) fn change_speed(model: &mut Model, faster: bool) {
    let speed = model.playback.speed();
    let next = if faster { (speed + 1).min(SPEEDS.len() - 1) } else { speed.saturating_sub(1) };
    model.playback.set_speed(next);
}

/// Follows the newest event; asks for a new connection where there is none any more.
pub(super) fn follow(app: &App) {
    let origin = app.0.state.borrow().model.origin();
    match origin {
        Origin::Live => app.change(|state| state.model.follow()),
        Origin::Disconnected => live::connect(app),
        Origin::Nowhere | Origin::File => {}
    }
}

pub(super) fn toggle_help(app: &App) {
    let help = app.0.state.borrow().page.help.clone();
    if help.open() {
        help.close();
    } else {
        // It fails only while it is open already.
        let _ = help.show_modal();
    }
}

pub(super) fn pick_file(app: &App) {
    let file = app.0.state.borrow().page.file.clone();
    // Emptied, so that the same file can be picked again.
    file.set_value("");
    file.click();
}

fn listen_to_files(app: &App) -> Result<(), JsValue> {
    let (file, document) = {
        let state = app.0.state.borrow();
        (state.page.file.clone(), state.page.document.clone())
    };
    let on_pick = app.clone();
    on(&file.clone(), "change", move |_: Event| {
        if let Some(picked) = file.files().and_then(|files| files.get(0)) {
            source::open_in_background(&on_pick, picked.into());
        }
    })?;
    for name in ["dragenter", "dragover"] {
        let app = app.clone();
        on(&document, name, move |event: DragEvent| {
            event.prevent_default();
            app.0.state.borrow().page.veil.set_hidden(false);
        })?;
    }
    let on_leave = app.clone();
    on(&document, "dragleave", move |event: DragEvent| {
        // Leaving for another element of the page is not leaving the page.
        if event.related_target().is_none() {
            on_leave.0.state.borrow().page.veil.set_hidden(true);
        }
    })?;
    let on_drop = app.clone();
    on(&document, "drop", move |event: DragEvent| {
        event.prevent_default();
        on_drop.0.state.borrow().page.veil.set_hidden(true);
        if let Some(dropped) = event.data_transfer().and_then(|data| data.files()).and_then(|files| files.get(0)) {
            source::open_in_background(&on_drop, dropped.into());
        }
    })
}
