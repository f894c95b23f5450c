//! Event listeners that are removed when their owner is dropped.

use wasm_bindgen::prelude::*;
use web_sys::{AddEventListenerOptions, Event, EventTarget};

/// A registered listener for a browser event. Dropping it removes the listener, also from within
/// its own call.
pub(super) struct Listener {
    target: EventTarget,
    name: &'static str,
    closure: Closure<dyn FnMut(Event)>,
}

impl Listener {
    /// Calls `react` for every `name` event of type `E` on `target`.
    pub(super) fn new<E: JsCast + 'static>(
        target: &EventTarget,
        name: &'static str,
        mut react: impl FnMut(E) + 'static,
    ) -> Result<Self, JsValue> {
        let react = move |event: Event| {
            if let Ok(event) = event.dyn_into::<E>() {
                react(event);
            }
        };
        Self::add(target, name, Box::new(react))
    }

    /// Calls `react` for every `name` event on `target`. Not generic, so that the page has it once.
    fn add(target: &EventTarget, name: &'static str, react: Box<dyn FnMut(Event)>) -> Result<Self, JsValue> {
        let closure = Closure::wrap(react);
        let options = AddEventListenerOptions::new();
        // Wheel and touch listeners must be able to prevent scrolling.
        options.set_passive(false);
        target.add_event_listener_with_callback_and_add_event_listener_options(
            name,
            closure.as_ref().unchecked_ref(),
            &options,
        )?;
        Ok(Self { target: target.clone(), name, closure })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Fails only for arguments that `new` has accepted.
        let _ = self.target.remove_event_listener_with_callback(self.name, self.closure.as_ref().unchecked_ref());
    }
}
