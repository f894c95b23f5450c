//! Saving the recording on the page as a file.

use wasm_bindgen::prelude::*;
use web_sys::{Blob, Document, HtmlElement, Url};

use super::super::browser::run_after;

/// Time in milliseconds for which a download's bytes stay readable for the browser: the user may
/// have to choose a folder first.
const READABLE_MS: i32 = 600_000;

/// Makes the browser download a blob, or the file at `url` if there is no blob, as a file called
/// `name`.
pub(super) fn download(document: &Document, blob: Option<&JsValue>, url: &str, name: &str) -> Result<(), JsValue> {
    let blob_url = match blob.and_then(|blob| blob.dyn_ref::<Blob>()) {
        Some(blob) => Some(Url::create_object_url_with_blob(blob)?),
        None => None,
    };
    let link: HtmlElement = document.create_element("a")?.unchecked_into();
    link.set_attribute("href", blob_url.as_deref().unwrap_or(url))?;
    link.set_attribute("download", name)?;
    link.set_hidden(true);
    document.body().ok_or("the page has no body")?.append_child(&link)?;
    link.click();
    link.remove();
    if let Some(blob_url) = blob_url {
        run_after(READABLE_MS, move || {
            // Fails only for an invalid URL.
            let _ = Url::revoke_object_url(&blob_url);
        });
    }
    Ok(())
}
