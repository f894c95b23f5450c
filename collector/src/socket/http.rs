//! Downloads a file over HTTP, with a limit of size and time.

use std::fmt;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use super::address::Address;
use super::stream::Stream;
use super::{CONNECT_TIMEOUT, SocketError, connect_error, is_timeout};

/// The most bytes of the head of a response.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Size in bytes of the pieces that are read.
const PIECE_BYTES: usize = 64 << 10;
/// The longest wait for the next bytes before `keep_going` is called again.
const READ_TIMEOUT: Duration = Duration::from_millis(200);

/// Requests the server's file `path` and returns its bytes, at most `max_bytes`. `keep_going`
/// receives the number of bytes so far and, if the server sent it, the total. Fails after
/// `timeout`, once `keep_going` returns false, and for redirections.
pub(crate) fn get(
    address: &Address,
    path: &str,
    max_bytes: u64,
    timeout: Duration,
    mut keep_going: impl FnMut(u64, Option<u64>) -> bool,
) -> Result<Vec<u8>, SocketError> {
    let deadline = Instant::now() + timeout;
    let mut stream = Stream::connect(address, None, CONNECT_TIMEOUT).map_err(connect_error)?;
    stream.write_all(request(address, path)?.as_bytes()).map_err(SocketError::lost)?;
    stream.set_read_timeout(READ_TIMEOUT).map_err(SocketError::lost)?;
    let mut bytes = Vec::new();
    let mut head: Option<Head> = None;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let length = head.as_ref().and_then(|head| head.length);
        let received = if head.is_some() { bytes.len() as u64 } else { 0 };
        if length.is_some_and(|length| received >= length) {
            break;
        }
        if !keep_going(received, length) {
            return Err(SocketError::permanent("cancelled"));
        }
        if Instant::now() > deadline {
            let seconds = timeout.as_secs();
            return Err(SocketError::temporary(format_args!("the server has not sent everything within {seconds} s")));
        }
        let read = match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if is_timeout(&error) => continue,
            // The server closed the connection without TLS's closing message. A truncated body is
            // found by its length below.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(SocketError::lost(error)),
        };
        bytes.extend_from_slice(&piece[..read]);
        if head.is_none() {
            let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
                if bytes.len() > MAX_HEAD_BYTES {
                    return Err(no_recording("its answer is not HTTP"));
                }
                continue;
            };
            let parsed = Head::parse(&bytes[..end])?;
            bytes.drain(..end + 4);
            head = Some(parsed);
        }
        let total = head.as_ref().and_then(|head| head.length).unwrap_or(0).max(bytes.len() as u64);
        if total > max_bytes {
            return Err(SocketError::permanent(format_args!("the recording is larger than {max_bytes} bytes")));
        }
    }
    let head = head.ok_or_else(|| no_recording("its answer is not HTTP"))?;
    match head.length {
        Some(length) if length > bytes.len() as u64 => {
            Err(SocketError::temporary("the server closed the connection unexpectedly"))
        }
        Some(length) => {
            bytes.truncate(usize::try_from(length).unwrap_or(usize::MAX));
            Ok(bytes)
        }
        None => Ok(bytes),
    }
}

/// Returns the request for a file. It uses HTTP 1.0, so that the response has no chunked encoding
/// and ends with the connection.
fn request(address: &Address, path: &str) -> Result<String, SocketError> {
    let mut request = format!("GET {} HTTP/1.0\r\nHost: {}\r\n", address.target(path), address.authority());
    if let Some(token) = address.token() {
        if token.chars().any(char::is_control) {
            return Err(SocketError::permanent("the token has characters that a header cannot have"));
        }
        request += &format!("Authorization: Bearer {token}\r\n");
    }
    Ok(request + "\r\n")
}

/// Returns the error for a server that is not a vramscope server.
fn no_recording(reason: impl fmt::Display) -> SocketError {
    SocketError::permanent(format_args!("the address serves no live recording ({reason})"))
}

/// The parsed head of a successful HTTP response: the length of its body.
#[derive(Debug)]
struct Head {
    /// Length of the body in bytes; `None` if the body ends when the connection closes.
    length: Option<u64>,
}

impl Head {
    /// Parses the head of a response. Fails unless the status is a success (2xx).
    fn parse(bytes: &[u8]) -> Result<Self, SocketError> {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.split("\r\n");
        let status = lines.next().filter(|line| line.starts_with("HTTP/1.")).and_then(|line| line.split(' ').nth(1));
        match status {
            Some("200") => {}
            Some(status @ ("401" | "403")) => {
                let reason = format_args!("the server denied access ({status}): use the full address with its token");
                return Err(SocketError::permanent(reason));
            }
            Some(status) => return Err(no_recording(format_args!("status {:.8}", status))),
            None => return Err(no_recording("its answer is not HTTP")),
        }
        let mut length = None;
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.trim().parse().map_err(|_| no_recording("it has an invalid length"))?);
            }
            if name.eq_ignore_ascii_case("transfer-encoding") {
                return Err(no_recording("its answer is in chunks, which a request of HTTP 1.0 excludes"));
            }
        }
        Ok(Self { length })
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Serves one response; returns the result of the download with these limits.
    fn download(response: &'static [u8], max_bytes: u64, timeout: Duration) -> Result<Vec<u8>, String> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("a bound socket").port();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = [0; 1024];
            let read = stream.read(&mut request).expect("a request");
            stream.write_all(response).expect("the response fits into the socket's buffer");
            if response.ends_with(b"...") {
                // Waits for the client to disconnect, so that the connection stays open until then.
                let _ = stream.read(&mut request);
            }
            String::from_utf8_lossy(&request[..read]).into_owned()
        });
        let address = Address::parse(&format!("http://127.0.0.1:{port}/gpu/?token=secret")).expect("an address");
        let result = get(&address, "trace.vram", max_bytes, timeout, |_, _| true).map_err(|error| error.to_string());
        let request = server.join().expect("the server ends");
        let expected =
            format!("GET /gpu/trace.vram HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer secret\r\n\r\n");
        assert_eq!(request, expected);
        result
    }

    #[test]
    fn body_ends_with_its_length_or_the_connection() {
        let long = Duration::from_secs(30);
        let check = |response, expected: &[u8]| assert_eq!(download(response, 10, long).as_deref(), Ok(expected));
        check(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", b"abc");
        check(b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\nabcdef...", b"abc");
        check(b"HTTP/1.0 200 OK\r\n\r\nabc", b"abc");
        check(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", b"");
    }

    #[test]
    fn unusable_responses_are_errors() {
        let check = |response, expected: &str| {
            let error = download(response, 10, Duration::from_millis(600)).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        };
        check(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc", "closed the connection unexpectedly");
        check(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n", "larger than 10 bytes");
        check(b"HTTP/1.1 200 OK\r\n\r\nabcdefghijkl", "larger than 10 bytes");
        check(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", "invalid length");
        check(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc", "in chunks");
        check(b"HTTP/1.1 401 Unauthorized\r\n\r\n", "denied access (401)");
        check(b"HTTP/1.1 302 Found\r\nLocation: http://example.org/\r\n\r\n", "no live recording (status 302)");
        check(b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP");
        check(b"", "not HTTP");
        check(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n...", "within 0 s");
    }

    #[test]
    fn download_ends_when_the_caller_asks() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}/", listener.local_addr().expect("a bound socket"));
        let address = Address::parse(&url).expect("an address");
        let error = get(&address, "trace.vram", 10, Duration::from_secs(30), |_, _| false).expect_err("cancelled");
        assert_eq!(error.to_string(), "cancelled");
    }
}
