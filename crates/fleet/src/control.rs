//! Requests of servers for the events of a process.

use std::fmt;
use std::time::Duration;

/// The longest time for which a server can ask for events at once.
const MAX_LEASE: Duration = Duration::from_secs(60);

/// The request of a server for the events of a process, as text: `SECONDS SERVER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventRequest {
    /// How long the process should send its events: whole seconds, up to a minute.
    pub(crate) lease: Duration,
    /// A number that tells the server from others.
    pub(crate) server: u64,
}

impl EventRequest {
    /// Returns a number for a server.
    pub(crate) fn new_server() -> u64 {
        fastrand::u64(..)
    }

    /// Parses the payload of a message; `None` if it has another form.
    pub(crate) fn parse(payload: &[u8]) -> Option<Self> {
        let (seconds, server) = std::str::from_utf8(payload).ok()?.split_once(' ')?;
        let lease = Duration::from_secs(seconds.parse().ok()?).min(MAX_LEASE);
        Some(Self { lease, server: u64::from_str_radix(server, 16).ok()? })
    }
}

impl fmt::Display for EventRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:016x}", self.lease.as_secs(), self.server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_their_encoding() {
        let request = EventRequest { lease: Duration::from_secs(15), server: 0xab };
        assert_eq!(request.to_string(), "15 00000000000000ab");
        assert_eq!(EventRequest::parse(request.to_string().as_bytes()), Some(request));
        // Longer leases are cut.
        let long = EventRequest::parse(b"18446744073709551615 1");
        assert_eq!(long, Some(EventRequest { lease: MAX_LEASE, server: 1 }));
        for damaged in [&b""[..], b"15", b"15 ", b"x 1", b"-1 1", b"15 1 2", b"15 xyz", b"\xff 1"] {
            assert_eq!(EventRequest::parse(damaged), None, "{damaged:?}");
        }
    }
}
