//! What the environment variables ask for, and what they hold that means nothing.

use std::ffi::OsString;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

/// Where to serve the live page, `127.0.0.1:7791`; port 0 is any free one.
const LISTEN: &str = "VRAMSCOPE_LISTEN";
/// The file to write the recording to.
const RECORD: &str = "VRAMSCOPE_RECORD";

/// Where a recording is to go. A variable that is set to nothing asks for nothing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Where to serve the live page.
    pub(crate) listen: Option<SocketAddr>,
    /// The file to write.
    pub(crate) record: Option<PathBuf>,
}

/// A variable that holds what it cannot mean.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Misset {
    variable: &'static str,
    reason: String,
}

impl fmt::Display for Misset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.variable, self.reason)
    }
}

/// Reads the variables, as `variable` gives them. What one of them holds in vain does not take the other away.
pub(crate) fn read(variable: impl Fn(&str) -> Option<OsString>) -> (Wanted, Option<Misset>) {
    let set = |name| variable(name).filter(|value| !value.is_empty());
    let record = set(RECORD).map(PathBuf::from);
    match set(LISTEN).map(address).transpose() {
        Ok(listen) => (Wanted { listen, record }, None),
        Err(reason) => (Wanted { listen: None, record }, Some(Misset { variable: LISTEN, reason })),
    }
}

fn address(value: OsString) -> Result<SocketAddr, String> {
    let wrong = |why: String| format!("{value:?} is not an address such as 127.0.0.1:7791{why}");
    let text = value.to_str().ok_or_else(|| wrong(String::new()))?;
    let mut addresses = text.to_socket_addrs().map_err(|error| wrong(format!(": {error}")))?;
    addresses.next().ok_or_else(|| wrong(String::new()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn check(listen: &str, record: &str) -> Result<Wanted, String> {
        let (wanted, misset) = read(|name| match name {
            LISTEN => Some(listen.into()),
            RECORD => Some(record.into()),
            _ => None,
        });
        misset.map_or(Ok(wanted), |misset| Err(misset.to_string()))
    }

    #[test]
    fn nothing_set_asks_for_nothing() {
        assert_eq!(read(|_| None), (Wanted::default(), None));
        assert_eq!(check("", ""), Ok(Wanted::default()));
    }

    #[test]
    fn an_address_and_a_file_are_read() {
        let listen = Some(SocketAddr::from(([127, 0, 0, 1], 7791)));
        let record = Some(PathBuf::from("a b.vram"));
        assert_eq!(check("127.0.0.1:7791", "a b.vram"), Ok(Wanted { listen, record }));
    }

    #[test]
    fn what_is_no_address_is_named_and_the_file_is_still_wanted() {
        let said = check("7791", "").expect_err("no address");
        assert!(said.starts_with("VRAMSCOPE_LISTEN: \"7791\" is not an address such as 127.0.0.1:7791"), "{said}");
        let odd = OsString::from_vec(vec![b'a', 0xff]);
        let (wanted, misset) = read(|_| Some(odd.clone()));
        assert_eq!(wanted, Wanted { listen: None, record: Some(PathBuf::from(odd)) });
        let said = misset.expect("no address").to_string();
        assert_eq!(said, "VRAMSCOPE_LISTEN: \"a\\xFF\" is not an address such as 127.0.0.1:7791");
    }
}
