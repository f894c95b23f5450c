//! Reading ranges of a file or URL.

use std::ops::Range;

use js_sys::{ArrayBuffer, Promise, Uint8Array};
use vramscope_trace::{Recording, RecordingOpener};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::{AbortSignal, Blob, Headers, RequestInit, Response, Url};

use super::super::browser::{error_text, fetch, origin};

/// A local file, or a URL whose server supports ranges, of which any range of bytes can be read.
#[derive(Clone, Debug)]
pub(super) enum ByteSource {
    /// A local file, or bytes in the browser.
    File(Blob),
    /// A URL whose server supports ranges, and its length in bytes.
    Url { url: String, len: u64 },
}

/// The response to a range request, with the range's first byte and the total length if the server
/// supports ranges.
pub(super) struct RangeResponse {
    pub(super) response: Response,
    /// First byte and total length, if the server supports ranges.
    pub(super) start_and_len: Option<(u64, u64)>,
}

/// Requests a range of a URL's bytes. A server that does not support ranges may answer with all
/// bytes. `signal` can abort the request.
pub(super) async fn request_range(
    url: &str,
    range: &Range<u64>,
    signal: Option<&AbortSignal>,
) -> Result<RangeResponse, JsValue> {
    let headers = Headers::new()?;
    headers.set("range", &format!("bytes={}-{}", range.start, range.end - 1))?;
    let init = RequestInit::new();
    init.set_headers(&headers);
    init.set_signal(signal);
    let fetched = JsFuture::from(fetch(url, &init)).await;
    let response: Response = fetched.map_err(|error| JsValue::from(fetch_error_text(url, &error)))?.dyn_into()?;
    let header = |name: &str| response.headers().get(name).ok().flatten();
    // A range of a compressed body cannot be decompressed.
    let is_usable = response.status() == 206 && header("content-encoding").is_none();
    let start_and_len = header("content-range").filter(|_| is_usable).and_then(|range| parse_content_range(&range));
    Ok(RangeResponse { response, start_and_len })
}

/// Parses a `Content-Range` header such as `bytes 5-9/100` into its first byte and the total length
/// in bytes; `None` for other text.
fn parse_content_range(text: &str) -> Option<(u64, u64)> {
    let (range, len) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.parse().ok()?, len.parse().ok()?))
}

/// Returns the error message for a URL that cannot be fetched. For another server's URL, the
/// message suggests to download the file, because browsers hide the reason.
pub(super) fn fetch_error_text(url: &str, error: &JsValue) -> String {
    if Url::new(url).is_ok_and(|url| url.origin() != origin()) {
        return format!(
            "{url}: this page can only load files from its own server. Download the file, and open the file here."
        );
    }
    format!("{url}: {}. Check that the program that serves this page is still running.", error_text(error))
}

/// Waits for a promise of an `ArrayBuffer` and copies its bytes.
pub(super) async fn read_buffer(buffer: Promise) -> Result<Vec<u8>, JsValue> {
    let buffer = JsFuture::from(buffer).await?.dyn_into::<ArrayBuffer>()?;
    Ok(Uint8Array::new(&buffer).to_vec())
}

impl ByteSource {
    /// Returns the length of the whole file in bytes.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::File(blob) => blob.size() as u64,
            Self::Url { len, .. } => *len,
        }
    }

    /// Reads exactly the bytes of a range; fails if fewer arrive. `signal` can abort the request.
    pub(super) async fn read(&self, range: &Range<u64>, signal: Option<&AbortSignal>) -> Result<Vec<u8>, JsValue> {
        let bytes = match self {
            Self::File(blob) => {
                let slice = blob.slice_with_f64_and_f64(range.start as f64, range.end as f64)?;
                read_buffer(slice.array_buffer()).await?
            }
            Self::Url { url, len } => {
                let RangeResponse { response, start_and_len } = request_range(url, range, signal).await?;
                if start_and_len != Some((range.start, *len)) {
                    let (status, text) = (response.status(), response.status_text());
                    return Err(format!(
                        "the server answered {status} {text}; the file may have changed: open it again"
                    )
                    .into());
                }
                read_buffer(response.array_buffer()?).await?
            }
        };
        let requested = range.end - range.start;
        if bytes.len() as u64 == requested {
            return Ok(bytes);
        }
        Err(format!("received {} of {requested} bytes", bytes.len()).into())
    }

    /// Opens a recording by reading only its index; `None` if it has no index and must be read
    /// completely. `on_read` gets the number of bytes of each part that is read.
    pub(super) async fn open(&self, mut on_read: impl FnMut(usize)) -> Result<Option<Recording>, JsValue> {
        let mut opening = RecordingOpener::new(self.len());
        while let Some(range) = opening.wanted_range() {
            let bytes = self.read(&range, None).await?;
            on_read(bytes.len());
            opening.supply(range.start, &bytes);
        }
        Ok(opening.finish())
    }
}
