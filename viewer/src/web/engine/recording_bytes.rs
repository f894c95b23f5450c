//! The bytes of the recording on the page, for saving it.

use js_sys::{Array, Uint8Array};
use vramscope_trace::Recording;
use wasm_bindgen::prelude::*;
use web_sys::{Blob, BlobPropertyBag};

/// The media type of a recording file.
const MEDIA_TYPE: &str = "application/vnd.vramscope.trace";

/// Number of pieces (byte arrays or blobs) of a recording at which all are combined into one blob,
/// which the browser may move to disk.
const MAX_PIECES: u32 = 1024;

/// Where the bytes of the recording on the page can be read for saving: in the browser, at a URL,
/// or from a live program.
pub(super) enum RecordingBytes {
    /// In the browser: byte arrays and blobs.
    Pieces(Array),
    /// At a URL; the page has read only parts.
    Url(String),
    /// On the server of a live connection, which has all of them; after a disconnection, the page
    /// has the part that it holds.
    Live,
}

impl Default for RecordingBytes {
    fn default() -> Self {
        Self::Pieces(Array::new())
    }
}

impl RecordingBytes {
    /// Copies the bytes of the part of a recording that is in the page's memory.
    pub(super) fn held_by(recording: &Recording) -> Self {
        let mut bytes = Self::default();
        for piece in recording.bytes_in_memory() {
            bytes.push(&Uint8Array::from(piece.as_slice()));
        }
        bytes
    }

    /// Appends a byte array or a blob; does nothing if the bytes are at a URL or from a live
    /// program.
    pub(super) fn push(&mut self, piece: &JsValue) {
        let Self::Pieces(pieces) = self else { return };
        pieces.push(piece);
        if pieces.length() >= MAX_PIECES
            && let Ok(blob) = blob(pieces)
        {
            *pieces = Array::of1(&blob);
        }
    }

    /// Returns true if there is nothing to save; false for a URL or a live program.
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Pieces(pieces) if pieces.length() == 0)
    }
}

/// Combines byte arrays and blobs into one blob with a recording's media type.
pub(super) fn blob(pieces: &Array) -> Result<Blob, JsValue> {
    let options = BlobPropertyBag::new();
    options.set_type(MEDIA_TYPE);
    Blob::new_with_blob_sequence_and_options(pieces, &options)
}
