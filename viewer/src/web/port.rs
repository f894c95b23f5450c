//! Messages between the page and the engine through a message port.

use js_sys::{Array, Uint8Array};
use serde::Serialize;
use serde::de::DeserializeOwned;
use wasm_bindgen::prelude::*;
use web_sys::{MessageEvent, MessagePort};

use super::listener::Listener;

/// One end of the channel between page and engine. A message is a list: the encoded message, and
/// the objects that travel beside it, such as files.
pub(super) struct Port {
    port: MessagePort,
    _listener: Listener,
}

impl Port {
    /// Calls `react` with every message and the objects beside it.
    pub(super) fn new<T: DeserializeOwned>(
        port: MessagePort,
        mut react: impl FnMut(T, Vec<JsValue>) + 'static,
    ) -> Result<Self, JsValue> {
        let listener = Listener::new(&port, "message", move |event: MessageEvent| {
            let parts: Vec<JsValue> = event.data().dyn_into::<Array>().map(|parts| parts.to_vec()).unwrap_or_default();
            let mut parts = parts.into_iter();
            let bytes = parts.next().and_then(|bytes| bytes.dyn_into::<Uint8Array>().ok());
            // Both ends are one program, so that a message can always be decoded.
            if let Some(message) = bytes.and_then(|bytes| postcard::from_bytes(&bytes.to_vec()).ok()) {
                react(message, parts.collect());
            }
        })?;
        port.start();
        Ok(Self { port, _listener: listener })
    }

    /// Sends a message with the objects beside it; objects in `transferred` are moved instead of
    /// copied.
    pub(super) fn send<T: Serialize>(&self, message: &T, objects: &[JsValue], transferred: &[JsValue]) {
        let Ok(bytes) = postcard::to_stdvec(message) else { return };
        let parts = Array::of1(&Uint8Array::from(bytes.as_slice()));
        for object in objects {
            parts.push(object);
        }
        // Fails only for objects that cannot be sent; files, blobs and buffers can.
        let _ = self.port.post_message_with_transferable(&parts, &transferred.iter().collect::<Array>());
    }
}
