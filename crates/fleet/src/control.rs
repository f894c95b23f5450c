//! Requests of servers for the events of a process.

use std::fmt;
use std::time::Duration;

/// The word in a request by which a server requests a start.
const START: &str = "start";
/// Maximum duration of one request for events; a longer one is cut.
const MAX_LEASE: Duration = Duration::from_secs(60);

/// A server's request for the events of a process. As text it is `SECONDS SERVER`, followed by
/// ` start` if the process should send a new start (header, definitions and a full state). A
/// request of zero seconds without ` start` tells other servers that a user has closed the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventRequest {
    /// How long the process should send its events: whole seconds, up to a minute.
    pub(crate) lease: Duration,
    /// A random number that identifies the server.
    pub(crate) server: u64,
    /// True if the server has no full state of the process to begin with.
    pub(crate) wants_start: bool,
}

impl EventRequest {
    /// Returns a random number to identify a server.
    pub(crate) fn new_server() -> u64 {
        fastrand::u64(..)
    }

    /// Returns the request that a server sends after a user has closed a process.
    pub(crate) fn end(server: u64) -> Self {
        Self { lease: Duration::ZERO, server, wants_start: false }
    }

    /// Returns true if the request says that a user has closed the process.
    pub(crate) fn is_end(&self) -> bool {
        self.lease.is_zero() && !self.wants_start
    }

    /// Parses the payload of a message; `None` if it has another form.
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(payload).ok()?.split(' ');
        let lease = Duration::from_secs(words.next()?.parse().ok()?).min(MAX_LEASE);
        let server = u64::from_str_radix(words.next()?, 16).ok()?;
        let wants_start = words.next().map(|word| word == START);
        let is_valid = wants_start.unwrap_or(true) && words.next().is_none();
        is_valid.then_some(Self { lease, server, wants_start: wants_start.is_some() })
    }
}

impl fmt::Display for EventRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:016x}", self.lease.as_secs(), self.server)?;
        if self.wants_start { write!(f, " {START}") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_their_encoding() {
        let request = EventRequest { lease: Duration::from_secs(15), server: 0xab, wants_start: false };
        for (request, text) in [
            (request, "15 00000000000000ab"),
            (EventRequest { wants_start: true, ..request }, "15 00000000000000ab start"),
            (EventRequest::end(0xab), "0 00000000000000ab"),
        ] {
            assert_eq!(request.is_end(), text.starts_with('0'));
            assert_eq!((request.to_string().as_str(), EventRequest::parse(text.as_bytes())), (text, Some(request)));
        }
        // Longer leases are cut.
        let long = EventRequest::parse(b"18446744073709551615 1");
        assert_eq!(long, Some(EventRequest { lease: MAX_LEASE, server: 1, wants_start: false }));
        for damaged in [&b""[..], b"15", b"15 ", b"x 1", b"-1 1", b"15 1 2", b"15 1 start 3", b"15 xyz", b"\xff 1"] {
            assert_eq!(EventRequest::parse(damaged), None, "{damaged:?}");
        }
    }
}
