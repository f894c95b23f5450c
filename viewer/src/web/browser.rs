//! Small helpers around the browser's interfaces.

use wasm_bindgen::prelude::*;
use web_sys::Window;

/// Returns the browser's window; an error outside of a page.
pub(super) fn window() -> Result<Window, JsValue> {
    web_sys::window().ok_or_else(|| "there is no window".into())
}

/// Returns the page's clock: milliseconds since the page was opened.
pub(super) fn now_ms() -> f64 {
    window().ok().and_then(|window| window.performance()).map_or(0.0, |performance| performance.now())
}

/// Calls `then` once, after `delay_ms` milliseconds.
pub(super) fn run_after(delay_ms: i32, then: impl FnOnce() + 'static) {
    if let Ok(window) = window() {
        let then = Closure::once_into_js(then);
        // Fails only while the page is being closed.
        let _ = window.set_timeout_with_callback_and_timeout_and_arguments_0(then.unchecked_ref(), delay_ms);
    }
}

/// Returns the message of a JavaScript error, or any other value as text.
pub(super) fn error_text(error: &JsValue) -> String {
    let message =
        error.as_string().or_else(|| error.dyn_ref::<js_sys::Error>().map(|error| String::from(error.message())));
    message.unwrap_or_else(|| format!("{error:?}"))
}
