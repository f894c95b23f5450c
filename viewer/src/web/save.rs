//! Saving the recording on the page as a file.

use wasm_bindgen::prelude::*;
use web_sys::{Document, HtmlElement, Url};

use super::app::App;
use super::browser::run_after;
use super::recording_bytes::{RecordingBytes, blob};
use crate::model::Origin;
use crate::open::saved_name;

/// Time in milliseconds during which the browser can read a download's bytes: the user may have to
/// choose a folder first.
const READABLE_MS: i32 = 600_000;

/// URL of the live recording, relative to the page.
const LIVE_RECORDING_URL: &str = "trace.vram";

/// Offers the recording on the page as a download; does nothing if no recording is open.
pub(super) fn save(app: &App) {
    app.change(|state| {
        if state.bytes.is_empty() {
            return Ok(());
        }
        let name = saved_name(state.model.source());
        let bytes = match &state.bytes {
            RecordingBytes::Live if state.model.origin() == Origin::Live => {
                &RecordingBytes::Url(LIVE_RECORDING_URL.to_owned())
            }
            RecordingBytes::Live => &RecordingBytes::held_by(state.model.recording()),
            bytes => bytes,
        };
        download(&state.page.document, bytes, &name).map_err(|error| format!("cannot save the recording: {error:?}"))
    });
}

/// Makes the browser download a recording's bytes as a file called `name`.
fn download(document: &Document, bytes: &RecordingBytes, name: &str) -> Result<(), JsValue> {
    let url = match bytes {
        RecordingBytes::Pieces(pieces) => Url::create_object_url_with_blob(&blob(pieces)?)?,
        RecordingBytes::Url(url) => url.clone(),
        RecordingBytes::Live => return Ok(()),
    };
    let link: HtmlElement = document.create_element("a")?.unchecked_into();
    link.set_attribute("href", &url)?;
    link.set_attribute("download", name)?;
    link.set_hidden(true);
    document.body().ok_or("the page has no body")?.append_child(&link)?;
    link.click();
    link.remove();
    if let RecordingBytes::Pieces(_) = bytes {
        run_after(READABLE_MS, move || {
            // Fails only for an invalid URL.
            let _ = Url::revoke_object_url(&url);
        });
    }
    Ok(())
}
