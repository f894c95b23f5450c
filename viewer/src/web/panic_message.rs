//! Reports a panic on the page. A panic stops a WebAssembly program at once; without a message the
//! page would look as if it still worked.

use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use web_sys::console;

use super::browser::window;

/// Installs a panic hook that shows the panic on the page and on the browser's console.
pub(super) fn install() {
    /// Installs the hook once, however often the viewer is started.
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            console::error_1(&info.to_string().into());
            show(&message(info));
            previous(info);
        }));
    });
}

/// Returns the message for the user: the panic's reason and source location.
fn message(info: &panic::PanicHookInfo) -> String {
    let reason = info.payload_as_str().unwrap_or("unknown reason");
    let location = info.location().map(|at| format!(" ({}:{})", at.file(), at.line())).unwrap_or_default();
    format!("vramscope stopped: {reason}{location}; reload the page.")
}

/// Shows a panic's message without `Page`, which may be borrowed at this moment.
fn show(text: &str) {
    /// Whether a panic has been shown; later ones are consequences of the first.
    static IS_SHOWN: AtomicBool = AtomicBool::new(false);
    // Later panics are consequences of the first.
    if IS_SHOWN.swap(true, Ordering::Relaxed) {
        return;
    }
    let Some(document) = window().ok().and_then(|window| window.document()) else { return };
    if let Some(element) = document.get_element_by_id("message-text") {
        element.set_text_content(Some(text));
    }
    if let Some(message) = document.get_element_by_id("message") {
        let _ = message.remove_attribute("hidden");
    }
}
