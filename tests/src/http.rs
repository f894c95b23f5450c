//! A minimal HTTP client: one request, one connection.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Longest wait for a response.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A server's response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Status code, 200 for success.
    pub status: u16,
    /// Content without the headers.
    pub body: Vec<u8>,
}

/// Sends a request to the server of `page`, with the token in the page's URL.
///
/// # Errors
/// Returns the reason if no complete response arrives.
pub fn request(page: &str, method: &str, path: &str, body: &str) -> Result<Response, String> {
    let rest = page.split("//").nth(1).unwrap_or(page);
    let address = rest.split(['/', '?']).next().unwrap_or(rest);
    let token = page.split_once("token=").map(|(_, token)| token);
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{token}Content-Length: {}\r\n\
         Content-Type: application/json\r\n\r\n",
        body.len()
    );
    let mut bytes = Vec::new();
    let sent = TcpStream::connect(address).and_then(|mut stream| {
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
        // Some servers keep the connection open.
        let mut part = [0; 16 << 10];
        while !is_complete(&bytes) {
            match stream.read(&mut part)? {
                0 => break,
                count => bytes.extend_from_slice(&part[..count]),
            }
        }
        Ok(())
    });
    sent.map_err(|error| format!("{method} {path}: {error}"))?;
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.ok_or_else(|| format!("{method} {path}: {} bytes without complete headers", bytes.len()))?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| format!("{method} {path}: {head:?}"))?;
    let body = bytes.split_off(end + 4);
    let body = match head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        true => join_chunks(&body).ok_or_else(|| format!("{method} {path}: the chunks are incomplete"))?,
        false => body,
    };
    Ok(Response { status, body })
}

/// Joins the chunks of a body; `None` if they are incomplete.
fn join_chunks(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut joined = Vec::new();
    loop {
        let line_end = body.windows(2).position(|window| window == b"\r\n")?;
        let length = usize::from_str_radix(std::str::from_utf8(&body[..line_end]).ok()?.trim(), 16).ok()?;
        if length == 0 {
            return Some(joined);
        }
        let start = line_end + 2;
        joined.extend_from_slice(body.get(start..start + length)?);
        body = body.get(start + length + 2..)?;
    }
}

/// Returns true if a response has as much content as its headers name.
fn is_complete(response: &[u8]) -> bool {
    let Some(end) = response.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&response[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    length
        .and_then(|length| length.trim().parse::<usize>().ok())
        .is_some_and(|length| response.len() >= end + 4 + length)
}
