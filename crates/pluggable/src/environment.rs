//! What the environment variables ask for, and what they hold that means nothing.

use std::ffi::OsString;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use vramscope_collector::{Address, Keep, Overflow, PUSH_VARIABLE, TlsFiles, Token, parse_keep_bytes, parse_time};

/// Where to serve the live page, `127.0.0.1:7791`; port 0 is any free one.
const LISTEN: &str = "VRAMSCOPE_LISTEN";
/// What whoever opens the page must say.
const TOKEN: &str = "VRAMSCOPE_TOKEN";
/// Other names under which browsers reach it, with commas between them.
const ALLOW_HOST: &str = "VRAMSCOPE_ALLOW_HOST";
/// The certificate to serve it by HTTPS with.
const TLS_CERT: &str = "VRAMSCOPE_TLS_CERT";
/// That certificate's key.
const TLS_KEY: &str = "VRAMSCOPE_TLS_KEY";
/// The file to write the recording to.
const RECORD: &str = "VRAMSCOPE_RECORD";
/// How many bytes the file may have, `500M`; the newest part of the recording is kept.
const KEEP_BYTES: &str = "VRAMSCOPE_KEEP_BYTES";
/// How long the newest part is that is kept, `1h`.
const KEEP: &str = "VRAMSCOPE_KEEP";
/// What is done when the program is faster than the recorder.
const OVERFLOW: &str = "VRAMSCOPE_OVERFLOW";

/// Where a recording is to go. A variable that is set to nothing asks for nothing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Where to serve the live page.
    pub(crate) listen: Option<SocketAddr>,
    /// What whoever opens it must say.
    pub(crate) token: Option<Token>,
    /// Other names under which browsers reach it.
    pub(crate) allow_hosts: Vec<String>,
    /// The certificate to serve it by HTTPS with.
    pub(crate) tls: Option<TlsFiles>,
    /// The file to write.
    pub(crate) record: Option<PathBuf>,
    /// How much of the recording it keeps.
    pub(crate) keep: Keep,
    /// What is done when the program is faster than the recorder, where that is said.
    pub(crate) overflow: Option<Overflow>,
    /// The hub of several programs to push to.
    pub(crate) push: Option<Address>,
}

impl Wanted {
    /// What is done when the program is faster than the recorder: unless something else is said it waits for a file, so that the file has
    /// every event, and not for those who watch.
    pub(crate) fn overflow(&self, has_file: bool) -> Overflow {
        self.overflow.unwrap_or(if has_file { Overflow::Wait } else { Overflow::Drop })
    }
}

/// A variable that holds what it cannot mean.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Misset {
    variable: &'static str,
    reason: String,
    /// What comes of it.
    then: &'static str,
}

impl fmt::Display for Misset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.variable, self.reason, self.then)
    }
}

/// Reads the variables, as `variable` gives them. What one of them holds in vain does not take the others away.
pub(crate) fn read(variable: impl Fn(&str) -> Option<OsString>) -> (Wanted, Vec<Misset>) {
    let set = |name| variable(name).filter(|value| !value.is_empty());
    let record = set(RECORD).map(PathBuf::from);
    let mut missets = Vec::new();
    let no_page = "there is no live page";
    let listen = understood(LISTEN, set(LISTEN), address, no_page, &mut missets);
    let token = understood(TOKEN, set(TOKEN), text(parse_token), no_page, &mut missets);
    let files = [set(TLS_CERT), set(TLS_KEY)];
    let wants_tls = files.iter().any(Option::is_some);
    let tls = understood(TLS_CERT, wants_tls.then_some(files), tls, no_page, &mut missets);
    // Nobody is let in without the token that was wanted, and nothing is sent in the clear that was to be encrypted.
    let is_as_wanted = (token.is_some() || set(TOKEN).is_none()) && tls.is_some() == wants_tls;
    let listen = listen.filter(|_| is_as_wanted);
    let allow_hosts = set(ALLOW_HOST).map(names).unwrap_or_default();
    let kept = "all of the recording is kept";
    let bytes = understood(KEEP_BYTES, set(KEEP_BYTES), text(parse_keep_bytes), kept, &mut missets);
    let time = understood(KEEP, set(KEEP), text(parse_time), kept, &mut missets);
    let usual = "it waits where there is a file, and drops events where there is none";
    let overflow = understood(OVERFLOW, set(OVERFLOW), text(overflow), usual, &mut missets);
    let push = set(PUSH_VARIABLE);
    let push = understood(PUSH_VARIABLE, push, text(Address::parse), "nothing is pushed", &mut missets);
    let keep = Keep { bytes, time };
    (Wanted { listen, token, allow_hosts, tls, record, keep, overflow, push }, missets)
}

fn understood<V, T>(
    variable: &'static str,
    value: Option<V>,
    parse: impl FnOnce(V) -> Result<T, String>,
    then: &'static str,
    missets: &mut Vec<Misset>,
) -> Option<T> {
    value.map(parse).transpose().unwrap_or_else(|reason| {
        missets.push(Misset { variable, reason, then });
        None
    })
}

fn text<T>(parse: impl FnOnce(&str) -> Result<T, String>) -> impl FnOnce(OsString) -> Result<T, String> {
    |value| parse(&value.to_string_lossy())
}

fn parse_token(text: &str) -> Result<Token, String> {
    Token::new(text).map_err(|error| error.to_string())
}

fn tls(files: [Option<OsString>; 2]) -> Result<TlsFiles, String> {
    match files.map(|file| file.map(PathBuf::from)) {
        [Some(certificate), Some(key)] => Ok(TlsFiles { certificate, key }),
        _ => Err(format!("a certificate and its key, in {TLS_KEY}, are of use together alone")),
    }
}

/// What stands between the commas. Whether they are names is up to the server.
fn names(value: OsString) -> Vec<String> {
    let names = value.to_string_lossy();
    names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn overflow(text: &str) -> Result<Overflow, String> {
    match text {
        "wait" => Ok(Overflow::Wait),
        "drop" => Ok(Overflow::Drop),
        _ => Err(format!("{text:?} is neither wait nor drop")),
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
    use std::time::Duration;

    use super::*;

    fn check(listen: &str, record: &str, keep: [&str; 2]) -> Result<Wanted, Vec<String>> {
        let (wanted, missets) = read(|name| match name {
            LISTEN => Some(listen.into()),
            RECORD => Some(record.into()),
            KEEP_BYTES => Some(keep[0].into()),
            KEEP => Some(keep[1].into()),
            _ => None,
        });
        if missets.is_empty() { Ok(wanted) } else { Err(missets.iter().map(ToString::to_string).collect()) }
    }

    #[test]
    fn nothing_set_asks_for_nothing() {
        assert_eq!(read(|_| None), (Wanted::default(), Vec::new()));
        assert_eq!(check("", "", ["", ""]), Ok(Wanted::default()));
    }

    #[test]
    fn an_address_a_file_and_what_it_keeps_are_read() {
        let listen = Some(SocketAddr::from(([127, 0, 0, 1], 7791)));
        let record = Some(PathBuf::from("a b.vram"));
        let keep = Keep { bytes: Some(1 << 30), time: Some(Duration::from_secs(3600)) };
        let expected = Wanted { listen, record, keep, ..Wanted::default() };
        assert_eq!(check("127.0.0.1:7791", "a b.vram", ["1G", "1h"]), Ok(expected));
    }

    #[test]
    fn nobody_is_let_in_without_the_token_that_was_wanted() {
        let check = |token: &str| {
            read(|name| match name {
                LISTEN => Some("127.0.0.1:7791".into()),
                TOKEN => Some(token.into()),
                _ => None,
            })
        };
        let (wanted, _) = check("a/secret");
        assert_eq!((wanted.token, wanted.listen.is_some()), (Token::new("a/secret").ok(), true));
        let (wanted, missets) = check("a secret");
        assert_eq!((wanted.token, wanted.listen), (None, None));
        let [said] = missets.as_slice() else { panic!("{missets:?}") };
        let said = said.to_string();
        assert!(said.starts_with("VRAMSCOPE_TOKEN: a token is") && said.ends_with("; there is no live page"), "{said}");
    }

    #[test]
    fn a_page_is_served_by_other_names_and_encrypted_or_not_at_all() {
        let check = |names: &str, files: [&str; 2]| {
            let (wanted, missets) = read(|name| match name {
                LISTEN => Some("127.0.0.1:7791".into()),
                ALLOW_HOST => Some(names.into()),
                TLS_CERT => Some(files[0].into()),
                TLS_KEY => Some(files[1].into()),
                _ => None,
            });
            let said: Vec<_> = missets.iter().map(ToString::to_string).collect();
            (wanted.listen.is_some(), wanted.allow_hosts, wanted.tls, said)
        };
        let names = || vec!["gpu1.example.org".to_owned(), "hub".to_owned()];
        let files = TlsFiles { certificate: "a.pem".into(), key: "a.key".into() };
        assert_eq!(check("", ["", ""]), (true, vec![], None, vec![]));
        assert_eq!(check("gpu1.example.org, hub,", ["a.pem", "a.key"]), (true, names(), Some(files), vec![]));
        for files in [["a.pem", ""], ["", "a.key"]] {
            let (is_served, _, tls, said) = check("", files);
            assert_eq!((is_served, tls), (false, None));
            let meant = "VRAMSCOPE_TLS_CERT: a certificate and its key, in VRAMSCOPE_TLS_KEY, are of use together alone; \
                         there is no live page";
            assert_eq!(said, [meant]);
        }
    }

    #[test]
    fn a_program_waits_for_a_file_alone_unless_something_else_is_said() {
        let check = |value: &str, with_file: Overflow, without: Overflow, expected: &[&str]| {
            let (wanted, missets) = read(|name| (name == OVERFLOW).then(|| value.into()));
            assert_eq!([wanted.overflow(true), wanted.overflow(false)], [with_file, without], "{value}");
            assert_eq!(missets.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
        };
        check("", Overflow::Wait, Overflow::Drop, &[]);
        check("wait", Overflow::Wait, Overflow::Wait, &[]);
        check("drop", Overflow::Drop, Overflow::Drop, &[]);
        let said = "VRAMSCOPE_OVERFLOW: \"block\" is neither wait nor drop; it waits where there is a file, and drops \
                    events where there is none";
        check("block", Overflow::Wait, Overflow::Drop, &[said]);
    }

    #[test]
    fn the_hub_to_push_to_is_read_and_its_token_not_shown() {
        let check = |url: &str| read(|name| (name == PUSH_VARIABLE).then(|| url.into()));
        let (wanted, missets) = check("ws://127.0.0.1:7791/?token=secret");
        assert_eq!((wanted.push, missets), (Address::parse("http://127.0.0.1:7791/?token=secret").ok(), Vec::new()));
        let (wanted, missets) = check("ftp://127.0.0.1/?token=secret");
        let [said] = missets.as_slice() else { panic!("{missets:?}") };
        let said = said.to_string();
        assert!(said.starts_with("VRAMSCOPE_PUSH: not an address") && said.ends_with("; nothing is pushed"), "{said}");
        assert!(wanted.push.is_none() && !said.contains("secret"), "{said}");
    }

    #[test]
    fn what_means_nothing_is_named_and_the_file_is_still_wanted() {
        let said = check("7791", "", ["much", "1h"]).expect_err("no address and no size");
        let [listen, bytes] = said.as_slice() else { panic!("{said:?}") };
        assert!(listen.starts_with("VRAMSCOPE_LISTEN: \"7791\" is not an address such as 127.0.0.1:7791"), "{listen}");
        assert!(listen.ends_with("; there is no live page"), "{listen}");
        let meant = "VRAMSCOPE_KEEP_BYTES: \"much\" is not a size such as 500M or 2GiB; all of the recording is kept";
        assert_eq!(bytes, meant);
        let odd = OsString::from_vec(vec![b'a', 0xff]);
        let (wanted, missets) = read(|name| [LISTEN, RECORD].contains(&name).then(|| odd.clone()));
        assert_eq!(wanted, Wanted { record: Some(PathBuf::from(odd)), ..Wanted::default() });
        let [said] = missets.as_slice() else { panic!("{missets:?}") };
        let meant = "VRAMSCOPE_LISTEN: \"a\\xFF\" is not an address such as 127.0.0.1:7791; there is no live page";
        assert_eq!(said.to_string(), meant);
    }
}
