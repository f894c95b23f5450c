//! `window.vramscope`: the interface for scripts, tests and embedding pages. Its names and their
//! meaning are stable.

use js_sys::{Array, JSON, Object, Promise, Reflect};
use wasm_bindgen::prelude::*;

use super::super::browser::window;
use super::app::App;
use crate::protocol::{Call, RecordingSource};
use crate::views::ViewId;

/// Sets a property of a JavaScript object.
fn set(object: &Object, name: &str, value: impl Into<JsValue>) -> Result<(), JsValue> {
    Reflect::set(object, &name.into(), &value.into()).map(|_| ())
}

/// Adds the functions of the interface to `window.vramscope`, which the page's loader may have
/// created.
pub(super) fn publish(app: &App) -> Result<(), JsValue> {
    let window = window()?;
    let api = Reflect::get(&window, &"vramscope".into())?.dyn_into::<Object>().unwrap_or_else(|_| Object::new());
    let files = app.clone();
    add_call(app, &api, "open", move |source, _| {
        let (source, objects) = source_of(&files, source);
        (Call::Open(source), objects)
    })?;
    let files = app.clone();
    add_call(app, &api, "compare", move |source, _| {
        let (source, objects) = source_of(&files, source);
        (Call::Compare(source), objects)
    })?;
    add_call(app, &api, "select", |from, to| {
        let range = from.as_f64().zip(to.as_f64()).map(|(from, to)| (from as u64, to as u64));
        (Call::SelectRange(range), Vec::new())
    })?;
    // The conversion saturates: NaN is 0, and numbers beyond the end are the end.
    add_call(app, &api, "seek", |event, _| (Call::Seek(event.as_f64().unwrap_or(0.0) as u64), Vec::new()))?;
    add_call(app, &api, "show", |view, _| (Call::Show(view.as_string().unwrap_or_default()), Vec::new()))?;
    add_call(app, &api, "rows", |view, options| {
        // Nothing to encode makes no text.
        let options = if options.is_undefined() { JsValue::NULL } else { options };
        let options = JSON::stringify(&options).map(String::from).unwrap_or_default();
        (Call::Rows { view: view.as_string().unwrap_or_default(), options }, Vec::new())
    })?;
    add_call(app, &api, "digest", |_, _| (Call::Digest, Vec::new()))?;
    add_state(app, &api)?;
    let views = Closure::<dyn Fn() -> Array>::new(|| {
        ["timeline"].into_iter().chain(ViewId::all().map(ViewId::name)).map(JsValue::from).collect()
    });
    set(&api, "views", views.into_js_value())?;
    Reflect::set(&window, &"vramscope".into(), &api).map(|_| ())
}

/// Converts a script's argument, a URL or a `File`, to a source and the objects to send beside the
/// call.
fn source_of(app: &App, source: JsValue) -> (RecordingSource, Vec<JsValue>) {
    match source.as_string() {
        Some(url) => (RecordingSource::Url(url), Vec::new()),
        None => (RecordingSource::File(app.state.borrow_mut().history.keep_file(&source)), vec![source]),
    }
}

/// Adds a function called `name`, of up to two arguments, that the engine answers. `call` converts
/// the arguments to the call and the objects beside it.
fn add_call(
    app: &App,
    api: &Object,
    name: &str,
    call: impl Fn(JsValue, JsValue) -> (Call, Vec<JsValue>) + 'static,
) -> Result<(), JsValue> {
    let app = app.clone();
    // Scripts own the functions, so their closures are given to JavaScript.
    let function = Closure::<dyn Fn(JsValue, JsValue) -> Promise>::new(move |first, second| {
        let (call, objects) = call(first, second);
        app.call(call, &objects)
    });
    set(api, name, function.into_js_value())
}

/// Adds `state()` and `peak()`, which return the values of the last frame.
fn add_state(app: &App, api: &Object) -> Result<(), JsValue> {
    let add = |name: &str, describe: fn(JsValue) -> Result<JsValue, JsValue>| {
        let app = app.clone();
        let function = Closure::<dyn Fn() -> Result<JsValue, JsValue>>::new(move || {
            describe(JSON::parse(&app.state.borrow().state_json)?)
        });
        set(api, name, function.into_js_value())
    };
    add("state", Ok)?;
    add("peak", |state| Reflect::get(&state, &"peak".into()))
}
