//! Small helpers around the browser's interfaces, which work on the page and in a worker.

use js_sys::{Promise, Reflect};
use wasm_bindgen::prelude::*;
use web_sys::{MessageChannel, RequestInit, Window};

#[wasm_bindgen]
extern "C" {
    /// The browser's `setTimeout`: calls `callback` once after `delay_ms` milliseconds.
    #[wasm_bindgen(js_name = setTimeout)]
    fn set_timeout(callback: &JsValue, delay_ms: i32) -> JsValue;

    /// Requests a URL with the browser's `fetch`; the promise resolves with the response.
    #[wasm_bindgen(js_name = fetch)]
    pub(super) fn fetch(url: &str, init: &RequestInit) -> Promise;

    /// Returns the browser's clock, in milliseconds since the page or the worker was started.
    #[wasm_bindgen(js_namespace = performance, js_name = now)]
    pub(super) fn now_ms() -> f64;
}

/// Returns the browser's window; an error in a worker.
pub(super) fn window() -> Result<Window, JsValue> {
    web_sys::window().ok_or_else(|| "there is no window".into())
}

/// Calls `then` once, after `delay_ms` milliseconds.
pub(super) fn run_after(delay_ms: i32, then: impl FnOnce() + 'static) {
    set_timeout(&Closure::once_into_js(then), delay_ms);
}

/// Calls `then` once, after the events that are already queued. This is sooner than [`run_after`]
/// with 0 milliseconds: browsers delay nested timers by at least 4 milliseconds.
pub(super) fn run_soon(then: impl FnOnce() + 'static) {
    let Ok(channel) = MessageChannel::new() else { return run_after(0, then) };
    let port = channel.port1();
    let closing = port.clone();
    let called = Closure::once_into_js(move || {
        closing.close();
        then();
    });
    port.set_onmessage(Some(called.unchecked_ref()));
    // Fails only for values that cannot be sent.
    let _ = channel.port2().post_message(&JsValue::NULL);
}

/// Returns the message of a JavaScript error, or any other value as text.
pub(super) fn error_text(error: &JsValue) -> String {
    let message =
        error.as_string().or_else(|| error.dyn_ref::<js_sys::Error>().map(|error| String::from(error.message())));
    message.unwrap_or_else(|| format!("{error:?}"))
}

/// Returns the page's origin, such as `https://host:8000`, also in the engine's worker; empty if it
/// is unknown.
pub(super) fn origin() -> String {
    let location = Reflect::get(&js_sys::global(), &"location".into()).unwrap_or_default();
    Reflect::get(&location, &"origin".into()).ok().and_then(|origin| origin.as_string()).unwrap_or_default()
}
