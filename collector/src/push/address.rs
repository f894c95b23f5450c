//! The servers that a recording can be pushed to, by the scheme of their address.

use std::fmt;
use std::io;
use std::iter;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::pusher::Push;
use super::websocket::WebSocketTransport;
use crate::hub::Hub;
use crate::process::{Process, Rank};
use crate::socket::{Address, AddressError};

/// A server that recordings can be pushed to. Its `Display` is its address without secrets.
pub trait PushServer: fmt::Display + Send + Sync {
    /// Starts to push the hub's recording. `program` is the program's name, `rank` its rank in a
    /// distributed run.
    ///
    /// # Errors
    /// If the operating system cannot start a thread.
    fn start(&self, program: &str, rank: Rank, hub: &Hub) -> io::Result<Push>;
}

/// Parses the address of a server, with its scheme.
pub type ParsePushServer = fn(&str) -> Result<Arc<dyn PushServer>, AddressError>;

/// A scheme that [`register_push_scheme`] has added, with the parser of its addresses.
struct Scheme {
    name: &'static str,
    parse: ParsePushServer,
    /// The scheme that was added before.
    previous: Option<&'static Self>,
}

/// The scheme that was added last, the head of a linked list; null for none. Schemes stay until the
/// process ends. The list has no lock: in a forked child, a lock that a thread of the parent held
/// would stay locked.
static NEWEST_SCHEME: AtomicPtr<Scheme> = AtomicPtr::new(ptr::null_mut());

/// Returns the newest of the added schemes.
fn newest_scheme() -> Option<&'static Scheme> {
    // SAFETY: The pointer is null, or came from `Box::into_raw` in `register_push_scheme` and is
    // never freed.
    unsafe { NEWEST_SCHEME.load(Ordering::Acquire).as_ref() }
}

/// Returns the first scheme among `newest` and those before it that `matches`.
fn find_scheme(newest: Option<&'static Scheme>, matches: impl Fn(&str) -> bool) -> Option<&'static Scheme> {
    iter::successors(newest, |scheme| scheme.previous).find(|scheme| matches(scheme.name))
}

/// Adds a scheme, such as `nats`, to those that [`PushAddress::parse`] knows. A program calls this
/// before it reads an address; a second call with the same scheme has no effect.
pub fn register_push_scheme(scheme: &'static str, parse: ParsePushServer) {
    loop {
        let previous = newest_scheme();
        if find_scheme(previous, |name| name == scheme).is_some() {
            return;
        }
        let new = Box::into_raw(Box::new(Scheme { name: scheme, parse, previous }));
        let expected = previous.map_or(ptr::null_mut(), |previous| ptr::from_ref(previous).cast_mut());
        if NEWEST_SCHEME.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return;
        }
        // SAFETY: The pointer is that of the box, which no other thread has seen.
        drop(unsafe { Box::from_raw(new) });
    }
}

/// The address of a server to push a recording to. `{}` and `{:?}` show it without secrets.
#[derive(Clone)]
pub struct PushAddress(Arc<dyn PushServer>);

impl PushAddress {
    /// Parses an address: that of a `vramscope serve`, such as `ws://127.0.0.1:7791`, or one with a
    /// [registered](register_push_scheme) scheme.
    ///
    /// # Errors
    /// If the text is not an address with a known scheme.
    pub fn parse(url: &str) -> Result<Self, AddressError> {
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        match find_scheme(newest_scheme(), |name| name.eq_ignore_ascii_case(scheme)) {
            Some(scheme) => (scheme.parse)(url).map(Self),
            None => Ok(Self::from(Address::parse(url)?)),
        }
    }
}

impl Push {
    /// Starts to push the hub's recording. `program` is the program's name, `rank` its rank in a
    /// distributed run.
    ///
    /// Logs when the server cannot be reached, and when it can be again.
    ///
    /// # Errors
    /// If the operating system cannot start a thread.
    pub fn start(address: impl Into<PushAddress>, program: &str, rank: Rank, hub: &Hub) -> io::Result<Self> {
        address.into().0.start(program, rank, hub)
    }
}

impl From<Address> for PushAddress {
    fn from(address: Address) -> Self {
        Self(Arc::new(address))
    }
}

/// Two addresses are equal if their displayed texts are equal; these do not include secrets.
impl PartialEq for PushAddress {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for PushAddress {}

impl fmt::Display for PushAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for PushAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PushAddress({self})")
    }
}

impl PushServer for Address {
    fn start(&self, program: &str, rank: Rank, hub: &Hub) -> io::Result<Push> {
        let transport = WebSocketTransport::new(self.clone());
        let process = Process::this(hub.identity().to_string(), program, rank, hub.is_redacted());
        Push::start_with(transport, self.to_string(), process, hub)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheme_decides_which_server_is_meant() {
        struct Refusing;
        impl fmt::Display for Refusing {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("test://server")
            }
        }
        impl PushServer for Refusing {
            fn start(&self, _: &str, _: Rank, _: &Hub) -> io::Result<Push> {
                Err(io::Error::other("this server cannot be pushed to"))
            }
        }
        register_push_scheme("test", |url| match url {
            "test://server" => Ok(Arc::new(Refusing)),
            _ => Err(AddressError::new("no such server")),
        });
        register_push_scheme("test", |_| Err(AddressError::new("registered twice")));
        let check = |url: &str| PushAddress::parse(url).map(|address| address.to_string()).map_err(|e| e.to_string());
        assert_eq!(check("test://server"), Ok("test://server".to_owned()));
        assert_eq!(check("test://other"), Err("not an address: no such server".to_owned()));
        assert_eq!(check("ws://127.0.0.1:1/?token=secret"), Ok("http://127.0.0.1:1/".to_owned()));
        assert_eq!(check("127.0.0.1:1"), Ok("http://127.0.0.1:1/".to_owned()));
        assert!(check("unknown://server").is_err_and(|error| error.contains("http, https, ws or wss")));
        let address = PushAddress::parse("test://server").expect("a registered scheme");
        let error = Push::start(address, "train.py", Rank::default(), &Hub::default()).expect_err("it always fails");
        assert_eq!(error.to_string(), "this server cannot be pushed to");
    }
}
