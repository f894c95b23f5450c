//! Serves the page's files in the encoding that the client accepts.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use vramscope_page::{Content, PageFile, standalone_template};

use super::ranges::MEDIA_TYPE;

/// The files of the page that the server serves. `index.html` is served at the root.
///
/// The default is the vramscope page, embedded when this crate was built.
#[derive(Clone, Copy, Debug)]
pub struct Assets(pub &'static [PageFile]);

impl Default for Assets {
    fn default() -> Self {
        Self(vramscope_page::files())
    }
}

/// Path of the page as one HTML document without a recording; the page makes HTML files from it.
const TEMPLATE: &str = "viewer.html";
/// Media types (MIME) by file extension. Files with other extensions are not served.
const MEDIA_TYPES: &[(&str, &str)] = &[
    ("css", "text/css; charset=utf-8"),
    ("html", "text/html; charset=utf-8"),
    ("ico", "image/vnd.microsoft.icon"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("png", "image/png"),
    ("svg", "image/svg+xml"),
    ("ttf", "font/ttf"),
    ("vram", MEDIA_TYPE),
    ("wasm", "application/wasm"),
    ("webmanifest", "application/manifest+json"),
    ("woff2", "font/woff2"),
];

impl Assets {
    /// Returns the response with the page's file at `path`, relative to the server's root; `None`
    /// if the page has no such file. An empty path is `index.html`.
    pub(super) fn response(self, path: &str, request: &HeaderMap) -> Option<Response> {
        if path == TEMPLATE {
            return template(self.0);
        }
        let path = if path.is_empty() { "index.html" } else { path };
        let file = self.0.iter().find(|file| file.path == path)?;
        let (_, extension) = path.rsplit_once('.')?;
        let (_, media_type) = MEDIA_TYPES.iter().find(|(known, _)| *known == extension)?;
        let Ok((bytes, encoding)) = encode(file, request) else {
            return Some(StatusCode::INTERNAL_SERVER_ERROR.into_response());
        };
        let body = match bytes {
            Cow::Borrowed(bytes) => Body::from(bytes),
            Cow::Owned(bytes) => Body::from(bytes),
        };
        let mut response =
            ([(header::CONTENT_TYPE, *media_type), (header::VARY, "accept-encoding")], body).into_response();
        if let Some(encoding) = encoding {
            response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static(encoding));
        }
        Some(response)
    }
}

/// Returns the response with the page as one HTML document for a recording; `None` if the page was
/// not built. It is made for each request, which are rare, so that no program keeps its megabytes.
fn template(files: &[PageFile]) -> Option<Response> {
    let page = standalone_template(files).inspect_err(|error| tracing::warn!("{TEMPLATE}: {error}")).ok()?;
    // The document is no page of the server: it is saved, not shown.
    let headers = [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_DISPOSITION, "attachment")];
    Some((headers, page).into_response())
}

/// Returns a file's bytes in the smallest encoding that the request accepts, and the encoding's
/// name; `None` is unencoded.
fn encode(file: &PageFile, request: &HeaderMap) -> std::io::Result<(Cow<'static, [u8]>, Option<&'static str>)> {
    match file.content {
        Content::Brotli(bytes) if accepts(request, "br") => Ok((bytes.into(), Some("br"))),
        Content::Brotli(_) if accepts(request, "gzip") => Ok((file.gzip()?.into(), Some("gzip"))),
        _ => Ok((file.decompressed()?, None)),
    }
}

/// Returns true if `Accept-Encoding` names `encoding` with a weight above 0 (RFC 9110, 12.5.3),
/// otherwise false.
fn accepts(request: &HeaderMap, encoding: &str) -> bool {
    let lists = request.get_all(header::ACCEPT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|item| {
        let (name, parameters) = item.split_once(';').unwrap_or((item, ""));
        let weight = parameters.trim().strip_prefix("q=").and_then(|weight| weight.trim().parse().ok());
        name.trim().eq_ignore_ascii_case(encoding) && weight.unwrap_or(1.0_f32) > 0.0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_with_weight_zero_are_not_accepted() {
        let check = |accept: &str, brotli: bool, gzip: bool| {
            let headers =
                HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_str(accept).expect("ASCII"))]);
            assert_eq!((accepts(&headers, "br"), accepts(&headers, "gzip")), (brotli, gzip), "{accept}");
        };
        check("gzip, deflate, br, zstd", true, true);
        check("gzip;q=1.0, br;q=0", false, true);
        check("BR ; q=0.5", true, false);
        check("identity", false, false);
        check("", false, false);
        assert!(!accepts(&HeaderMap::new(), "br"));
    }
}
