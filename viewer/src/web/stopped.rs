//! What a page says whose viewer has stopped. A broken assumption ends a WebAssembly program where it stands; without this the page
//! would look as if it were still alive.

use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use web_sys::console;

use super::window;

/// Has a panic said on the page and on the browser's console.
pub(super) fn say_when_stopped() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            console::error_1(&info.to_string().into());
            say(&message(info));
            before(info);
        }));
    });
}

fn message(info: &panic::PanicHookInfo) -> String {
    let why = info.payload_as_str().unwrap_or("an unknown reason");
    let place = info.location().map(|place| format!(" ({}:{})", place.file(), place.line())).unwrap_or_default();
    format!("vramscope stopped: {why}{place}; reload the page.")
}

/// Not by way of the page's own elements, which may be in use at this moment.
fn say(text: &str) {
    static SAID: AtomicBool = AtomicBool::new(false);
    // What fails afterwards fails because of the first.
    if SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let Some(document) = window().ok().and_then(|window| window.document()) else { return };
    if let Some(said) = document.get_element_by_id("message-text") {
        said.set_text_content(Some(text));
    }
    if let Some(message) = document.get_element_by_id("message") {
        let _ = message.remove_attribute("hidden");
    }
}
