//! Extracts the recording from an HTML export (`vramscope export --to html`).

use base64::engine::general_purpose::STANDARD as BASE64;
use base64::{DecodeError, Engine as _};

use vramscope_trace::ByteSize;

use crate::error::ReadError;
use crate::limits::Limits;

/// The start of the tag of the HTML element whose text is the recording in base64. Attributes may
/// follow in the tag. The page escapes names, so no text before the element can match.
const ELEMENT_START: &[u8] = b"<script type=\"application/octet-stream\" id=\"recording\"";
/// The beginning of the end tag of the element that holds the recording.
const ELEMENT_END: &[u8] = b"</script";
/// The first bytes of every HTML export, compared without regard to case.
const DOCTYPE: &[u8] = b"<!doctype html";

/// Returns true if `bytes` begin with an HTML doctype, so that the document may be an export of
/// vramscope; false for every other file.
pub(crate) fn is_html(bytes: &[u8]) -> bool {
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
    text.get(..DOCTYPE.len()).is_some_and(|start| start.eq_ignore_ascii_case(DOCTYPE))
}

/// Returns the byte offset of the first occurrence of `pattern` in `bytes`; `None` if it does not
/// occur. The pattern must not be empty.
pub(crate) fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}

/// Extracts the recording that an HTML export of vramscope contains.
///
/// Returns `None` if `bytes` are not an HTML document with an embedded recording.
/// [`unpack()`](crate::unpack()) calls this for HTML documents.
///
/// ```
/// use vramscope_formats::{Limits, recording_in_html};
///
/// let page = b"<!doctype html>\n<script type=\"application/octet-stream\" \
///     id=\"recording\" data-name=\"run.vram\">aGVsbG8=</script>";
/// let recording = recording_in_html(page, &Limits::default()).unwrap();
/// assert_eq!(recording.as_deref(), Some(&b"hello"[..]));
/// ```
///
/// # Errors
/// If the document ends inside the recording, if the recording is not valid base64, or if it is
/// larger than [`Limits::max_unpacked_bytes`].
pub fn recording_in_html(bytes: &[u8], limits: &Limits) -> Result<Option<Vec<u8>>, ReadError> {
    if !is_html(bytes) {
        return Ok(None);
    }
    let Some(element) = find(bytes, ELEMENT_START) else { return Ok(None) };
    let tag_end = bytes[element..].iter().position(|&byte| byte == b'>');
    let start = element + tag_end.ok_or_else(|| ReadError::truncated(bytes.len()))? + 1;
    let len = bytes[start..].iter().position(|&byte| byte == b'<');
    let end = start + len.ok_or_else(|| ReadError::truncated(bytes.len()))?;
    if !bytes[end..].starts_with(ELEMENT_END) {
        return Err(ReadError::at(end, "the recording in this HTML page is damaged"));
    }
    let text = &bytes[start..end];
    let too_large = || {
        let limit = ByteSize(limits.max_unpacked_bytes);
        ReadError::at(start, format!("the recording in this HTML page is larger than the limit of {limit}"))
    };
    // The estimate is at most two bytes too high.
    if base64::decoded_len_estimate(text.len()) as u64 > limits.max_unpacked_bytes.saturating_add(2) {
        return Err(too_large());
    }
    let recording = BASE64.decode(text).map_err(|error| {
        let offset = match error {
            DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _) => start + at,
            DecodeError::InvalidLength(_) | DecodeError::InvalidPadding => end,
        };
        ReadError::at(offset, "the recording in this HTML page is not valid base64").with_source(error)
    })?;
    if recording.len() as u64 > limits.max_unpacked_bytes {
        return Err(too_large());
    }
    Ok(Some(recording))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an HTML export that contains `recording`.
    fn page(recording: &[u8]) -> Vec<u8> {
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<title>a &lt;b&gt; · vramscope</title>\n<body>\n\
             <script type=\"application/wasm\" id=\"viewer-wasm\">AGFzbQ==</script>\n\
             <script type=\"application/octet-stream\" id=\"recording\" data-name=\"a &lt;b&gt;\">{}</script>\n\
             <script type=\"module\">start()</script>\n</body>",
            BASE64.encode(recording)
        )
        .into_bytes()
    }

    #[test]
    fn embedded_recording_is_extracted() {
        let recording: Vec<u8> = (0..10_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for recording in [&recording[..], &recording[..7], &[]] {
            let extracted = recording_in_html(&page(recording), &Limits::default()).expect("the page is valid");
            assert_eq!(extracted.as_deref(), Some(recording));
        }
        let with_mark = [b"\xef\xbb\xbf\r\n", page(b"x").as_slice()].concat();
        assert!(recording_in_html(&with_mark, &Limits::default()).expect("the page is valid").is_some());
    }

    #[test]
    fn other_documents_contain_no_recording() {
        let element = &page(b"recording")[16..];
        for other in [&b""[..], b"<!doctype html><p>text", b"<!DOCTYPE", element] {
            assert!(recording_in_html(other, &Limits::default()).expect("nothing is read").is_none());
        }
    }

    #[test]
    fn truncated_page_is_reported_with_its_length() {
        let page = page(&[7; 600]);
        let inside = find(&page, b"data-name").expect("the page has the element");
        let end = page.len() - 60;
        for len in [inside, inside + 5, end - 200] {
            let error = recording_in_html(&page[..len], &Limits::default()).expect_err("the page is cut off");
            assert!(error.is_truncated());
            assert_eq!(error.to_string(), format!("the file is cut off at byte {len}: save or copy it again"));
        }
    }

    #[test]
    fn invalid_base64_is_reported_with_its_position() {
        let mut page = page(&[7; 600]);
        let at = find(&page, b"BwcH").expect("the page has the recording") + 100;
        page[at] = b'!';
        let error = recording_in_html(&page, &Limits::default()).expect_err("the text is not base64");
        assert_eq!(error.offset, at as u64);
        assert!(std::error::Error::source(&error).is_some());
        page[at] = b'<';
        assert_eq!(recording_in_html(&page, &Limits::default()).expect_err("a tag").offset, at as u64);
    }

    #[test]
    fn recording_over_the_limit_is_refused() {
        let limits = Limits { max_unpacked_bytes: 500, ..Limits::default() };
        assert!(recording_in_html(&page(&[7; 500]), &limits).is_ok());
        assert!(recording_in_html(&page(&[7; 501]), &limits).is_err());
        let error = recording_in_html(&page(&[7; 600]), &limits).expect_err("600 bytes are over the limit");
        assert!(error.message.contains("larger than the limit of 500 B"), "{error}");
    }
}
