//! `window.vramscope`: the interface for scripts, tests and embedding pages. Its names and their
//! meaning are stable.

use js_sys::{Object, Promise, Reflect};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::future_to_promise;

use vramscope_trace::digest;

use super::app::{App, State};
use super::browser::window;
use super::open_file;
use crate::link::Link;
use crate::model::{Origin, PeakKind};
use crate::playback::SPEEDS;

/// Sets a property of a JavaScript object.
fn set(object: &Object, name: &str, value: impl Into<JsValue>) -> Result<(), JsValue> {
    Reflect::set(object, &name.into(), &value.into()).map(|_| ())
}

/// Adds `open`, `seek`, `state`, `digest` and `peak` to `window.vramscope`, which the page's loader
/// may have created.
pub(super) fn publish(app: &App) -> Result<(), JsValue> {
    let window = window()?;
    let api = match Reflect::get(&window, &"vramscope".into())?.dyn_into::<Object>() {
        Ok(object) => object,
        Err(_) => Object::new(),
    };
    // Scripts own the functions, so their closures are given to JavaScript.
    let opening = app.clone();
    let open = Closure::<dyn Fn(JsValue) -> Promise>::new(move |source: JsValue| {
        let app = opening.clone();
        future_to_promise(
            async move { open_file::open(&app, source, &Link::default()).await.map(|()| JsValue::UNDEFINED) },
        )
    });
    set(&api, "open", open.into_js_value())?;
    let seeking = app.clone();
    let seek = Closure::<dyn Fn(f64) -> Promise>::new(move |event: f64| {
        let app = seeking.clone();
        future_to_promise(async move {
            // The conversion saturates: NaN is 0, and numbers beyond the end are the end.
            {
                let mut state = app.0.state.borrow_mut();
                state.model.seek(event as u64).map_err(|error| JsValue::from(error.to_string()))?;
                app.fetch_needed(&mut state);
            }
            app.drawn().await.map(|()| JsValue::UNDEFINED)
        })
    });
    set(&api, "seek", seek.into_js_value())?;
    let described = app.clone();
    let state = Closure::<dyn Fn() -> Result<Object, JsValue>>::new(move || describe(&described.0.state.borrow()));
    set(&api, "state", state.into_js_value())?;
    let digested = app.clone();
    let state_digest =
        Closure::<dyn Fn() -> String>::new(move || format!("{:016x}", digest(digested.0.state.borrow().model.state())));
    set(&api, "digest", state_digest.into_js_value())?;
    let asked = app.clone();
    let peak =
        Closure::<dyn Fn() -> f64>::new(move || asked.0.state.borrow().model.peak_event(PeakKind::Allocated) as f64);
    set(&api, "peak", peak.into_js_value())?;
    Reflect::set(&window, &"vramscope".into(), &api).map(|_| ())
}

/// Returns the object with the page's state that `window.vramscope.state()` returns to scripts.
fn describe(state: &State) -> Result<Object, JsValue> {
    let model = &state.model;
    let object = Object::new();
    let device = model.device_state();
    let counters = device.counters();
    set(&object, "source", model.source())?;
    set(&object, "live", model.origin() == Origin::Live)?;
    set(&object, "events", model.recording().end_event() as f64)?;
    set(&object, "lost_events", model.lost_events() as f64)?;
    set(&object, "event", model.state().event() as f64)?;
    set(&object, "time_ns", model.time_ns() as f64)?;
    set(&object, "device", model.device().0)?;
    set(&object, "allocated_bytes", counters.allocated as f64)?;
    set(&object, "reserved_bytes", counters.reserved as f64)?;
    set(&object, "active_bytes", counters.active as f64)?;
    set(&object, "segments", device.segments().len() as f64)?;
    set(&object, "blocks", device.blocks().len() as f64)?;
    set(&object, "fragmentation", device.free_space().fragmentation())?;
    set(&object, "view", describe_view(state)?)?;
    set(&object, "frame_ms", state.frame_ms)?;
    describe_connection(&object, state)?;
    Ok(object)
}

/// Adds the live connection's properties to the object of `window.vramscope.state()`. Latencies are
/// the ages in milliseconds of the newest and of the oldest event that the last frame showed first.
fn describe_connection(object: &Object, state: &State) -> Result<(), JsValue> {
    let model = &state.model;
    set(object, "connection", state.connection.state().name())?;
    set(object, "received_bytes", state.messages.received_bytes)?;
    set(object, "waiting_bytes", state.messages.queued_bytes())?;
    set(object, "held_bytes", model.recording().memory_bytes() as f64)?;
    set(object, "first_event", model.recording().first_event() as f64)?;
    set(object, "missed_events", model.missed_events() as f64)?;
    let latency_ms = state.lateness.latency_ms();
    let [newest, oldest] = latency_ms.map_or([JsValue::NULL; 2], |latency_ms| latency_ms.map(JsValue::from));
    set(object, "latency_ms", newest)?;
    set(object, "latency_most_ms", oldest)
}

/// Returns the `view` object in `window.vramscope.state()`: time range, playback, coloring and
/// selection. Addresses are strings, because JavaScript numbers cannot hold all of them.
fn describe_view(state: &State) -> Result<Object, JsValue> {
    let model = &state.model;
    let view = Object::new();
    let range = model.range();
    set(&view, "from_ns", range.start as f64)?;
    set(&view, "to_ns", range.end as f64)?;
    set(&view, "following", model.is_following())?;
    set(&view, "playing", model.playback.is_playing())?;
    set(&view, "speed", SPEEDS[model.playback.speed()])?;
    set(&view, "color", model.color_by.name())?;
    let selection = model.selection().map_or(JsValue::NULL, |address| format!("{address:#x}").into());
    set(&view, "selection", selection)?;
    Ok(view)
}
