//! Saving what is on the page as a file.

use js_sys::{Array, Uint8Array};
use vramscope_trace::Recording;
use wasm_bindgen::prelude::*;
use web_sys::{Blob, BlobPropertyBag, HtmlElement, Url};

use super::{App, live};
use crate::model::Origin;
use crate::open::saved_name;

/// The recording's media type.
const MEDIA_TYPE: &str = "application/vnd.vramscope.trace";

/// So many pieces are put together to one, which the browser may keep outside of memory.
const MOST_PIECES: u32 = 1024;

/// How long a saved file can be read by the browser: as long as a person may take to say where it goes.
const READABLE_MS: i32 = 600_000;

/// The bytes of the recording that is on the page.
pub(super) enum Kept {
    /// Pieces that the browser holds.
    Pieces(Array),
    /// They are a server's, and most of them were never read.
    Url(String),
    /// The recording on the page is live: the server has all of it, and while there is no connection, the page has a part.
    Live,
}

/// Where a server has everything that was recorded live.
const EVERYTHING: &str = "trace.vram";

impl Default for Kept {
    fn default() -> Self {
        Self::Pieces(Array::new())
    }
}

impl Kept {
    /// Adds a piece: bytes, or a file.
    pub(super) fn push(&mut self, piece: &JsValue) {
        let Self::Pieces(pieces) = self else { return };
        pieces.push(piece);
        if pieces.length() >= MOST_PIECES
            && let Ok(blob) = blob(pieces)
        {
            *pieces = Array::of1(&blob);
        }
    }

    /// Of the pieces that a conversion made.
    pub(super) fn of(pieces: &[Vec<u8>]) -> Self {
        let mut kept = Self::default();
        for piece in pieces {
            kept.push(&Uint8Array::from(piece.as_slice()));
        }
        kept
    }

    /// What the page holds of a recording.
    fn held(recording: &Recording) -> Self {
        let mut kept = Self::default();
        for piece in recording.held() {
            kept.push(&Uint8Array::from(piece.as_slice()));
        }
        kept
    }

    /// Whether there is nothing to be saved.
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Pieces(pieces) if pieces.length() == 0)
    }
}

fn blob(pieces: &Array) -> Result<Blob, JsValue> {
    let options = BlobPropertyBag::new();
    options.set_type(MEDIA_TYPE);
    Blob::new_with_blob_sequence_and_options(pieces, &options)
}

/// Gives the browser the recording as a file to keep.
pub(super) fn save(app: &App) {
    app.change(|state| {
        if state.kept.is_empty() {
            return Ok(());
        }
        let name = saved_name(state.model.source());
        let kept = match &state.kept {
            Kept::Live if state.model.origin() == Origin::Live => &Kept::Url(EVERYTHING.to_owned()),
            Kept::Live => &Kept::held(state.model.recording()),
            kept => kept,
        };
        download(&state.page.document, kept, &name).map_err(|error| format!("the recording cannot be saved: {error:?}"))
    });
}

fn download(document: &web_sys::Document, kept: &Kept, name: &str) -> Result<(), JsValue> {
    let url = match kept {
        Kept::Pieces(pieces) => Url::create_object_url_with_blob(&blob(pieces)?)?,
        Kept::Url(url) => url.clone(),
        Kept::Live => return Ok(()),
    };
    let link: HtmlElement = document.create_element("a")?.unchecked_into();
    link.set_attribute("href", &url)?;
    link.set_attribute("download", name)?;
    link.set_hidden(true);
    document.body().ok_or("the page has no body")?.append_child(&link)?;
    link.click();
    link.remove();
    if let Kept::Pieces(_) = kept {
        live::after(READABLE_MS, move || {
            // It fails only for a name that is none.
            let _ = Url::revoke_object_url(&url);
        });
    }
    Ok(())
}
