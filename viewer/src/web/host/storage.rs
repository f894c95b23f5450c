//! Settings that the browser stores for this page.
//!
//! A browser may refuse to store anything, for example in a private window: settings then last as
//! long as the page.

use wasm_bindgen::prelude::*;

/// Prefix of the names of all stored settings.
const PREFIX: &str = "vramscope.";

#[wasm_bindgen]
extern "C" {
    // Returns a text from the browser's `localStorage`. The error may also be that the storage is
    // not accessible.
    #[wasm_bindgen(catch, js_namespace = localStorage, js_name = getItem)]
    fn get_item(name: &str) -> Result<Option<String>, JsValue>;

    /// Stores a text under a name in the browser's `localStorage`.
    #[wasm_bindgen(catch, js_namespace = localStorage, js_name = setItem)]
    fn set_item(name: &str, value: &str) -> Result<(), JsValue>;
}

/// Returns the setting called `name` from the browser's storage; empty if it is not set.
pub(super) fn load(name: &str) -> String {
    get_item(&format!("{PREFIX}{name}")).ok().flatten().unwrap_or_default()
}

/// Stores the setting called `name` in the browser.
pub(super) fn store(name: &str, value: &str) {
    // Without storage, the setting is forgotten with the page.
    let _ = set_item(&format!("{PREFIX}{name}"), value);
}
