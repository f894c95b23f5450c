//! The page in the browser: elements, canvas, input and the connection to the server.

mod app;
mod canvas;
mod elements;
mod events;
mod page;
mod socket;

use std::cell::RefCell;
use std::rc::Rc;

use wasm_bindgen::prelude::*;

use app::App;

thread_local! {
    /// The running page; `None` before [`start`].
    static APP: RefCell<Option<Rc<App>>> = const { RefCell::new(None) };
}

/// Starts the page of all ranks in the current document.
///
/// # Errors
/// If the document lacks an element, or the browser a function.
#[wasm_bindgen]
pub fn start() -> Result<(), JsValue> {
    let app = App::start()?;
    APP.with_borrow_mut(|running| *running = Some(app));
    Ok(())
}

/// Returns the page's state as JSON, for scripts.
#[wasm_bindgen]
#[must_use]
pub fn state() -> String {
    APP.with_borrow(|app| app.as_ref().map_or_else(|| "null".to_owned(), |app| app.state()))
}
