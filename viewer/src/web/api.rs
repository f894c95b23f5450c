//! `window.vramscope`: the page for scripts. What stands in the project's `interfaces` does not change its meaning.

use js_sys::{Object, Promise, Reflect};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::future_to_promise;

use super::{App, State, source, window};
use crate::link::Link;
use crate::model::{Origin, PeakOf};
use crate::playback::SPEEDS;
use vramscope_trace::digest;

fn set(object: &Object, name: &str, value: impl Into<JsValue>) -> Result<(), JsValue> {
    Reflect::set(object, &name.into(), &value.into()).map(|_| ())
}

/// Puts the functions on `window.vramscope`, beside what the loader put there.
pub(super) fn publish(app: &App) -> Result<(), JsValue> {
    let window = window()?;
    let api = match Reflect::get(&window, &"vramscope".into())?.dyn_into::<Object>() {
        Ok(object) => object,
        Err(_) => Object::new(),
    };
    let of = app.clone();
    let open = Closure::<dyn Fn(JsValue) -> Promise>::new(move |what: JsValue| {
        let app = of.clone();
        future_to_promise(async move { source::open(&app, what, &Link::default()).await.map(|()| JsValue::UNDEFINED) })
    });
    set(&api, "open", open.into_js_value())?;
    let of = app.clone();
    let seek = Closure::<dyn Fn(f64) -> Promise>::new(move |event: f64| {
        let app = of.clone();
        future_to_promise(async move {
            // A number that is none becomes 0, and one beyond the end the end.
            {
                let mut state = app.0.state.borrow_mut();
                state.model.seek(event as u64).map_err(|error| JsValue::from(error.to_string()))?;
                app.read_on(&mut state);
            }
            app.drawn().await.map(|()| JsValue::UNDEFINED)
        })
    });
    set(&api, "seek", seek.into_js_value())?;
    let of = app.clone();
    let state = Closure::<dyn Fn() -> Result<Object, JsValue>>::new(move || describe(&of.0.state.borrow()));
    set(&api, "state", state.into_js_value())?;
    let of = app.clone();
    let hex = Closure::<dyn Fn() -> String>::new(move || format!("{:016x}", digest(of.0.state.borrow().model.state())));
    set(&api, "digest", hex.into_js_value())?;
    let of = app.clone();
    let peak = Closure::<dyn Fn() -> f64>::new(move || of.0.state.borrow().model.peak_event(PeakOf::Allocated) as f64);
    set(&api, "peak", peak.into_js_value())?;
    Reflect::set(&window, &"vramscope".into(), &api).map(|_| ())
}

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

/// How the recording comes, for who measures: the newest event's age when it was last drawn, and that of the oldest that came on the screen then.
fn describe_connection(object: &Object, state: &State) -> Result<(), JsValue> {
    let model = &state.model;
    set(object, "connection", state.connection.name())?;
    set(object, "received_bytes", state.arrivals.received_bytes)?;
    set(object, "waiting_bytes", state.arrivals.waiting_bytes())?;
    set(object, "held_bytes", model.recording().held_bytes() as f64)?;
    set(object, "first_event", model.recording().first_event() as f64)?;
    set(object, "missed_events", model.missed_events() as f64)?;
    let [newest, most] = state.age.latency_ms().map_or([JsValue::NULL; 2], |latency_ms| latency_ms.map(JsValue::from));
    set(object, "latency_ms", newest)?;
    set(object, "latency_most_ms", most)
}

/// What is looked at. Addresses are strings: a JavaScript number does not hold all of them.
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
