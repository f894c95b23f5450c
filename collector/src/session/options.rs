//! Reads the recording options from environment variables.

use std::ffi::OsString;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use crate::env::{REDACT_VARIABLE, is_redaction_set};
use crate::file::{Keep, parse_keep_bytes, parse_time};
use crate::process::Rank;
use crate::push::{PUSH_VARIABLE, PushAddress};
use crate::recorder::Overflow;
use crate::server::{TlsFiles, Token};

/// Environment variable with the address to serve the page on, such as `127.0.0.1:7791`; port 0
/// picks a free port. Unset: the page is not served.
const LISTEN: &str = "VRAMSCOPE_LISTEN";
/// Environment variable with the access token of the page. Unset: a random token is generated if
/// other machines can reach the page.
const TOKEN: &str = "VRAMSCOPE_TOKEN";
/// Environment variable with additional host names under which the page may be opened, separated by
/// commas.
const ALLOW_HOST: &str = "VRAMSCOPE_ALLOW_HOST";
/// Environment variable with the path of the certificate for serving the page over HTTPS.
const TLS_CERT: &str = "VRAMSCOPE_TLS_CERT";
/// Environment variable with the path of the private key of the page's HTTPS certificate.
const TLS_KEY: &str = "VRAMSCOPE_TLS_KEY";
/// Environment variable with the path of the file to write the recording to. Unset: no file is
/// written.
const RECORD: &str = "VRAMSCOPE_RECORD";
/// Environment variable with the largest size of the recording's file, such as `500M`: only the
/// newest part of the recording is kept. Unset: no limit.
const KEEP_BYTES: &str = "VRAMSCOPE_KEEP_BYTES";
/// Environment variable with how long a time the recording's file covers, such as `1h`: only the
/// newest part of the recording is kept. Unset: no limit.
const KEEP: &str = "VRAMSCOPE_KEEP";
/// Environment variable that says what happens when the program is faster than the recorder: `wait`
/// (the program waits) or `drop` (events are dropped and counted).
const OVERFLOW: &str = "VRAMSCOPE_OVERFLOW";

/// Where the recording goes, who may see it, and how much is kept: the values of the environment
/// variables. An empty variable counts as unset.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RecordingOptions {
    /// Address to serve the page on.
    pub listen: Option<SocketAddr>,
    /// Access token of the page.
    pub token: Option<Token>,
    /// Additional host names of the page.
    pub allow_hosts: Vec<String>,
    /// Certificate and key to serve the page over HTTPS with.
    pub tls: Option<TlsFiles>,
    /// File to write the recording to.
    pub record: Option<PathBuf>,
    /// How much of the recording the file keeps.
    pub keep: Keep,
    /// What happens when the program is faster than the recorder; `None` if the variable is unset.
    pub overflow: Option<Overflow>,
    /// Address of the server to push to.
    pub push: Option<PushAddress>,
    /// In a forked child, the rank of its parent; in other processes, no numbers. If the child's
    /// environment still has its parent's rank, the child is recorded without a rank.
    pub parent_rank: Rank,
    /// True to record without names; see [`Outputs::redact`](crate::Outputs::redact).
    pub redact: bool,
}

impl RecordingOptions {
    /// Returns whether the program waits or events are dropped when the program is faster than the
    /// recorder. If the user set neither, the program waits if there is a file (`has_file`), so
    /// that the file has every event, and otherwise events are dropped.
    pub fn overflow(&self, has_file: bool) -> Overflow {
        self.overflow.unwrap_or(if has_file { Overflow::Wait } else { Overflow::Drop })
    }

    /// Returns the options with a process id in the file's name: `run-1234.vram` for `run.vram`.
    /// Several processes cannot write one file.
    #[must_use]
    pub fn with_process_id(self, process_id: u32) -> Self {
        let with_id = |path: PathBuf| {
            let mut name = path.file_stem().unwrap_or_default().to_owned();
            name.push(format!("-{process_id}"));
            if let Some(extension) = path.extension() {
                name.push(".");
                name.push(extension);
            }
            path.with_file_name(name)
        };
        Self { record: self.record.map(with_id), ..self }
    }
}

/// An environment variable with an invalid value: the variable, why the value is invalid, and what
/// happens without it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {reason}; {consequence}")]
pub struct OptionError {
    variable: &'static str,
    reason: String,
    consequence: &'static str,
}

/// Reads the recording options from environment variables; `variable` returns the value of one. An
/// invalid value counts as unset and is returned as an error. With an invalid token, certificate or
/// key, the page is not served.
pub fn read_recording_options(variable: impl Fn(&str) -> Option<OsString>) -> (RecordingOptions, Vec<OptionError>) {
    let value = |name| variable(name).filter(|value| !value.is_empty());
    let record = value(RECORD).map(PathBuf::from);
    let mut errors = Vec::new();
    let no_page = "the page is not served";
    let listen = parse_value(LISTEN, value(LISTEN), parse_address, no_page, &mut errors);
    let token = parse_value(TOKEN, value(TOKEN), from_text(|text| Token::new(text)), no_page, &mut errors);
    let files = [value(TLS_CERT), value(TLS_KEY)];
    let wants_tls = files.iter().any(Option::is_some);
    let tls = parse_value(TLS_CERT, wants_tls.then_some(files), parse_tls, no_page, &mut errors);
    let is_protected = (token.is_some() || value(TOKEN).is_none()) && tls.is_some() == wants_tls;
    let listen = listen.filter(|_| is_protected);
    let allow_hosts = value(ALLOW_HOST).map(split_names).unwrap_or_default();
    let keep_all = "the whole recording is kept";
    let bytes = parse_value(KEEP_BYTES, value(KEEP_BYTES), from_text(parse_keep_bytes), keep_all, &mut errors);
    let time = parse_value(KEEP, value(KEEP), from_text(parse_time), keep_all, &mut errors);
    let default = "using the default: wait if there is a file, else drop events";
    let overflow = parse_value(OVERFLOW, value(OVERFLOW), from_text(parse_overflow), default, &mut errors);
    let no_push = "nothing is pushed";
    let push = parse_value(PUSH_VARIABLE, value(PUSH_VARIABLE), from_text(PushAddress::parse), no_push, &mut errors);
    let keep = Keep { bytes, time };
    let redact = is_redaction_set(variable(REDACT_VARIABLE).as_deref());
    let parent_rank = Rank::default();
    (RecordingOptions { listen, token, allow_hosts, tls, record, keep, overflow, push, parent_rank, redact }, errors)
}

/// Returns the parsed `value` of a variable; `None` if it is unset or invalid. For an invalid
/// value, adds an error to `errors`, with `consequence`: what happens without the variable.
fn parse_value<V, T>(
    variable: &'static str,
    value: Option<V>,
    parse: impl FnOnce(V) -> Result<T, String>,
    consequence: &'static str,
    errors: &mut Vec<OptionError>,
) -> Option<T> {
    value.map(parse).transpose().unwrap_or_else(|reason| {
        errors.push(OptionError { variable, reason, consequence });
        None
    })
}

/// Turns `parse`, which parses text, into a function that parses the value of an environment
/// variable. Bytes of the value that are not Unicode are replaced by `\u{fffd}` first.
fn from_text<T, E: fmt::Display>(
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> impl FnOnce(OsString) -> Result<T, String> {
    |value| parse(&value.to_string_lossy()).map_err(|error| error.to_string())
}

/// Returns the paths of the page's certificate and its key, `files` in this order; fails unless
/// both are set.
fn parse_tls(files: [Option<OsString>; 2]) -> Result<TlsFiles, String> {
    match files.map(|file| file.map(PathBuf::from)) {
        [Some(certificate), Some(key)] => Ok(TlsFiles { certificate, key }),
        _ => Err(format!("set both {TLS_CERT} and {TLS_KEY}")),
    }
}

/// Splits a list of host names at commas, without blanks and empty names. The names are not
/// checked.
fn split_names(value: OsString) -> Vec<String> {
    let names = value.to_string_lossy();
    names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Parses `wait` or `drop`; any other text fails with the reason in words.
fn parse_overflow(text: &str) -> Result<Overflow, String> {
    match text {
        "wait" => Ok(Overflow::Wait),
        "drop" => Ok(Overflow::Drop),
        _ => Err(format!("expected wait or drop, not {text:?}")),
    }
}

/// Resolves an address such as `127.0.0.1:7791` or `localhost:7791`. If a host name has several
/// addresses, the first one is used.
fn parse_address(value: OsString) -> Result<SocketAddr, String> {
    let expected = || format!("expected an address such as 127.0.0.1:7791, not {value:?}");
    let text = value.to_str().ok_or_else(expected)?;
    let mut addresses = text.to_socket_addrs().map_err(|error| format!("{}: {error}", expected()))?;
    addresses.next().ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;
    use std::time::Duration;

    use super::*;

    fn check(listen: &str, record: &str, keep: [&str; 2]) -> Result<RecordingOptions, Vec<String>> {
        let (options, errors) = read_recording_options(|name| match name {
            LISTEN => Some(listen.into()),
            RECORD => Some(record.into()),
            KEEP_BYTES => Some(keep[0].into()),
            KEEP => Some(keep[1].into()),
            _ => None,
        });
        if errors.is_empty() { Ok(options) } else { Err(errors.iter().map(ToString::to_string).collect()) }
    }

    #[test]
    fn process_id_is_in_the_name_of_the_file() {
        let check = |path: &str, expected: &str| {
            let options = RecordingOptions { record: Some(path.into()), ..RecordingOptions::default() };
            assert_eq!(options.with_process_id(12).record, Some(expected.into()));
        };
        check("runs.old/run.vram", "runs.old/run-12.vram");
        check("runs.old/run", "runs.old/run-12");
        assert_eq!(RecordingOptions::default().with_process_id(12), RecordingOptions::default());
    }

    #[test]
    fn unset_and_empty_variables_give_the_defaults() {
        assert_eq!(read_recording_options(|_| None), (RecordingOptions::default(), Vec::new()));
        assert_eq!(check("", "", ["", ""]), Ok(RecordingOptions::default()));
    }

    #[test]
    fn address_file_and_retention_are_read() {
        let listen = Some(SocketAddr::from(([127, 0, 0, 1], 7791)));
        let record = Some(PathBuf::from("a b.vram"));
        let keep = Keep { bytes: Some(1 << 30), time: Some(Duration::from_secs(3600)) };
        let expected = RecordingOptions { listen, record, keep, ..RecordingOptions::default() };
        assert_eq!(check("127.0.0.1:7791", "a b.vram", ["1G", "1h"]), Ok(expected));
    }

    #[test]
    fn page_is_not_served_with_an_invalid_token() {
        let check = |token: &str| {
            read_recording_options(|name| match name {
                LISTEN => Some("127.0.0.1:7791".into()),
                TOKEN => Some(token.into()),
                _ => None,
            })
        };
        let (options, _) = check("a/secret");
        assert_eq!((options.token, options.listen.is_some()), (Token::new("a/secret").ok(), true));
        let (options, errors) = check("a secret");
        assert_eq!((options.token, options.listen), (None, None));
        let [error] = errors.as_slice() else { panic!("{errors:?}") };
        let reason = Token::new("a secret").expect_err("tokens have no blanks");
        assert_eq!(error.to_string(), format!("VRAMSCOPE_TOKEN: {reason}; the page is not served"));
    }

    #[test]
    fn host_names_and_tls_are_read_and_incomplete_tls_serves_nothing() {
        let check = |names: &str, files: [&str; 2]| {
            let (options, errors) = read_recording_options(|name| match name {
                LISTEN => Some("127.0.0.1:7791".into()),
                ALLOW_HOST => Some(names.into()),
                TLS_CERT => Some(files[0].into()),
                TLS_KEY => Some(files[1].into()),
                _ => None,
            });
            let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
            (options.listen.is_some(), options.allow_hosts, options.tls, errors)
        };
        let names = || vec!["gpu1.example.org".to_owned(), "hub".to_owned()];
        let files = TlsFiles { certificate: "a.pem".into(), key: "a.key".into() };
        assert_eq!(check("", ["", ""]), (true, vec![], None, vec![]));
        assert_eq!(check("gpu1.example.org, hub,", ["a.pem", "a.key"]), (true, names(), Some(files), vec![]));
        for files in [["a.pem", ""], ["", "a.key"]] {
            let (is_served, _, tls, errors) = check("", files);
            assert_eq!((is_served, tls), (false, None));
            let expected =
                "VRAMSCOPE_TLS_CERT: set both VRAMSCOPE_TLS_CERT and VRAMSCOPE_TLS_KEY; the page is not served";
            assert_eq!(errors, [expected]);
        }
    }

    #[test]
    fn program_waits_by_default_only_for_a_file() {
        let check = |value: &str, with_file: Overflow, without: Overflow, expected: &[&str]| {
            let (options, errors) = read_recording_options(|name| (name == OVERFLOW).then(|| value.into()));
            assert_eq!([options.overflow(true), options.overflow(false)], [with_file, without], "{value}");
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
        };
        check("", Overflow::Wait, Overflow::Drop, &[]);
        check("wait", Overflow::Wait, Overflow::Wait, &[]);
        check("drop", Overflow::Drop, Overflow::Drop, &[]);
        let error = "VRAMSCOPE_OVERFLOW: expected wait or drop, not \"block\"; using the default: wait if there is \
                     a file, else drop events";
        check("block", Overflow::Wait, Overflow::Drop, &[error]);
    }

    #[test]
    fn push_address_is_read_and_its_token_not_shown() {
        let check = |url: &str| read_recording_options(|name| (name == PUSH_VARIABLE).then(|| url.into()));
        let (options, errors) = check("ws://127.0.0.1:7791/?token=secret");
        assert_eq!(
            (options.push, errors),
            (PushAddress::parse("http://127.0.0.1:7791/?token=secret").ok(), Vec::new())
        );
        let (options, errors) = check("ftp://127.0.0.1/?token=secret");
        let [error] = errors.as_slice() else { panic!("{errors:?}") };
        let error = error.to_string();
        assert!(error.starts_with("VRAMSCOPE_PUSH: ") && error.ends_with("; nothing is pushed"), "{error}");
        assert!(options.push.is_none() && !error.contains("secret"), "{error}");
    }

    #[test]
    fn invalid_values_are_reported_and_leave_the_others_in_effect() {
        let errors = check("7791", "", ["much", "1h"]).expect_err("neither an address nor a size");
        let [listen, bytes] = errors.as_slice() else { panic!("{errors:?}") };
        let expected = "VRAMSCOPE_LISTEN: expected an address such as 127.0.0.1:7791, not \"7791\"";
        assert!(listen.starts_with(expected), "{listen}");
        assert!(listen.ends_with("; the page is not served"), "{listen}");
        let reason = parse_keep_bytes("much").expect_err("not a size");
        assert_eq!(*bytes, format!("VRAMSCOPE_KEEP_BYTES: {reason}; the whole recording is kept"));
        let not_unicode = OsString::from_vec(vec![b'a', 0xff]);
        let (options, errors) =
            read_recording_options(|name| [LISTEN, RECORD].contains(&name).then(|| not_unicode.clone()));
        let record = Some(PathBuf::from(not_unicode));
        assert_eq!(options, RecordingOptions { record, ..RecordingOptions::default() });
        let [error] = errors.as_slice() else { panic!("{errors:?}") };
        let expected =
            "VRAMSCOPE_LISTEN: expected an address such as 127.0.0.1:7791, not \"a\\xFF\"; the page is not served";
        assert_eq!(error.to_string(), expected);
    }
}
