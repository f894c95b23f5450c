//! Percent-encoding for the URLs that the server makes.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};

/// Characters to percent-encode: all except the unreserved ones of RFC 3986 (letters, digits and
/// `-._~`).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Percent-encodes text for one path segment or one parameter value of a URL.
pub(super) fn encode_component(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, RESERVED)
}

/// Returns the URL of a complete recording, relative to the server's root.
///
/// `index` and `name` are the recording's index and name in
/// [`ServedContent::files`](super::content::ServedContent::files).
pub(super) fn recording_url(index: usize, name: &str) -> String {
    format!("files/{index}/{}", encode_component(name))
}

/// Returns the address of the page with a complete recording opened, relative to the server's root.
///
/// `index` and `name` are the recording's index and name in
/// [`ServedContent::files`](super::content::ServedContent::files).
#[must_use]
pub fn page_address(index: usize, name: &str) -> String {
    // The name is encoded twice: in the path from `recording_url`, and again as a parameter value.
    let segment = encode_component(name).to_string();
    format!("?trace=files/{index}/{}", encode_component(&segment))
}
