//! Reports a panic on the page. A panic stops a WebAssembly program at once; without a message the
//! page would look as if it still worked.

use std::cell::RefCell;
use std::panic;
use std::sync::Once;

use web_sys::console;

/// A function that shows a panic's message to the user.
type MessageFunction = Box<dyn FnOnce(String)>;

thread_local! {
    /// The function that shows a panic's message to the user. It is called once, because later
    /// panics are consequences of the first.
    static REPORT: RefCell<Option<MessageFunction>> = const { RefCell::new(None) };
}

/// Installs a panic hook that calls `report` with a message for the user, and writes the panic to
/// the browser's console.
pub(super) fn report_to(report: impl FnOnce(String) + 'static) {
    /// Ensures that the panic hook is installed once, however often the viewer is started.
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            console::error_1(&info.to_string().into());
            if let Some(report) = REPORT.take() {
                report(message(info));
            }
            previous(info);
        }));
    });
    REPORT.set(Some(Box::new(report)));
}

/// Returns the message for the user about a panic: its reason and source location.
fn message(info: &panic::PanicHookInfo) -> String {
    let reason = info.payload_as_str().unwrap_or("unknown reason");
    let location = info.location().map(|at| format!(" ({}:{})", at.file(), at.line())).unwrap_or_default();
    format!("vramscope stopped: {reason}{location}; reload the page.")
}
