//! Requests, plain and one at a time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 200 where all is well.
    pub status: u16,
    /// What stands behind the head.
    pub body: Vec<u8>,
}

/// Asks for something beside a page, with the page's own token.
///
/// # Errors
/// Where there is no answer.
pub fn ask(page: &str, method: &str, path: &str, body: &str) -> Result<Answer, String> {
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
    let asked = TcpStream::connect(address).and_then(|mut stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
        stream.read_to_end(&mut bytes)
    });
    asked.map_err(|error| format!("{method} {path}: {error}"))?;
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.ok_or_else(|| format!("{method} {path}: {} bytes, and no head", bytes.len()))?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| format!("{method} {path}: {head:?}"))?;
    Ok(Answer { status, body: bytes.split_off(end + 4) })
}
