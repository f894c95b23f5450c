//! The address of a run at a broker, as a user writes it.

use std::fmt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use vramscope_collector::AddressError;

use crate::subjects;

/// Default port of a NATS server, for an address without a port.
const DEFAULT_PORT: u16 = 4222;
/// Maximum number of servers in one address; more are an error.
const MAX_SERVERS: usize = 16;

/// When a process sends its events to the broker: on request, or always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PushMode {
    /// Events are sent while a server requests them.
    #[default]
    OnDemand,
    /// All events are sent, from the start of the process.
    All,
}

/// How a client identifies itself to the broker.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) enum Credentials {
    /// The client does not identify itself.
    #[default]
    Anonymous,
    /// A token.
    Token(String),
    /// A user's name and password.
    User(String, String),
    /// A credentials file with a user's JWT and seed.
    UserFile(PathBuf),
    /// A file with the seed of an NKey.
    NkeyFile(PathBuf),
}

/// Files for TLS, in PEM format; each is optional.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// CA certificates, which replace those of the system.
    pub(crate) ca: Option<PathBuf>,
    /// The client's certificate and its key.
    pub(crate) client: Option<(PathBuf, PathBuf)>,
}

/// The address of a run at a NATS server or cluster:
/// `nats://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…]/RUN[?OPTION=VALUE&…]`.
///
/// `tls://` instead of `nats://` requires TLS. A user's name without a password is a token. The
/// options:
///
/// | option | value |
/// | --- | --- |
/// | `creds` | credentials file of a user, as `nsc` writes it |
/// | `nkey` | file with the seed of an NKey |
/// | `ca` | CA certificates (PEM), which replace those of the system |
/// | `cert`, `key` | the client's certificate and its key (PEM) |
/// | `push` | events on `demand` of a server (default), or `all` from the start |
///
/// Processes replace `{rank}` in the paths of `creds`, `nkey`, `cert` and `key` by their rank.
///
/// Neither `{}` nor `{:?}` shows secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct FleetAddress {
    pub(crate) is_tls: bool,
    /// `HOST:PORT` of each server.
    pub(crate) servers: Vec<String>,
    pub(crate) run: String,
    pub(crate) credentials: Credentials,
    pub(crate) tls: TlsFiles,
    pub(crate) mode: PushMode,
}

impl FleetAddress {
    /// Parses an address.
    ///
    /// # Errors
    /// If the scheme is neither `nats` nor `tls`, host or run are missing or invalid, or an option
    /// is unknown. The error never contains secrets.
    pub fn parse(url: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| AddressError::new("expected nats://HOST:PORT/RUN"))?;
        let is_tls = match scheme.to_ascii_lowercase().as_str() {
            "nats" => false,
            "tls" => true,
            _ => return Err(AddressError::new("the scheme must be nats or tls")),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, run) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.rsplit_once('@').map_or((None, authority), |(user, hosts)| (Some(user), hosts));
        let servers = hosts.split(',').map(parse_server).collect::<Result<Vec<_>, _>>()?;
        if servers.len() > MAX_SERVERS {
            return Err(AddressError::new(format_args!("more than {MAX_SERVERS} servers")));
        }
        let run = run.trim_end_matches('/');
        if !subjects::is_run_name(run) {
            let most = subjects::MAX_RUN_CHARS;
            let reason = format_args!("the path must be the name of a run: 1 to {most} letters, digits, - and _");
            return Err(AddressError::new(reason));
        }
        let credentials = user.map_or(Ok(Credentials::Anonymous), parse_user)?;
        let (run, tls, mode) = (run.to_owned(), TlsFiles::default(), PushMode::default());
        let mut address = Self { is_tls, servers, run, credentials, tls, mode };
        address.read_options(query)?;
        Ok(address)
    }

    /// Parses the options after the question mark of an address and stores them.
    fn read_options(&mut self, query: &str) -> Result<(), AddressError> {
        let (mut certificate, mut key) = (None, None);
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let value = decode(value)?;
            let file = || PathBuf::from(value.clone());
            match name {
                "creds" => self.set_credentials(Credentials::UserFile(file()))?,
                "nkey" => self.set_credentials(Credentials::NkeyFile(file()))?,
                "ca" => self.tls.ca = Some(file()),
                "cert" => certificate = Some(file()),
                "key" => key = Some(file()),
                "push" if value == "all" => self.mode = PushMode::All,
                "push" if value == "demand" => self.mode = PushMode::OnDemand,
                "push" => return Err(AddressError::new("push must be all or demand")),
                _ => return Err(AddressError::new("unknown option; known are creds, nkey, ca, cert, key and push")),
            }
        }
        self.tls.client = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(AddressError::new("cert and key belong together")),
        };
        Ok(())
    }

    /// Returns the address with `{rank}` in the paths of key and certificate files replaced by the
    /// rank, or by `none` without a rank. So one address can be used for all ranks of a program.
    pub(crate) fn for_rank(&self, rank: Option<u32>) -> Self {
        let rank = subjects::rank_name(rank);
        let expand = |path: &PathBuf| PathBuf::from(path.to_string_lossy().replace("{rank}", &rank));
        let credentials = match &self.credentials {
            Credentials::UserFile(path) => Credentials::UserFile(expand(path)),
            Credentials::NkeyFile(path) => Credentials::NkeyFile(expand(path)),
            other => other.clone(),
        };
        let client = self.tls.client.as_ref().map(|(certificate, key)| (expand(certificate), expand(key)));
        Self { credentials, tls: TlsFiles { client, ..self.tls.clone() }, ..self.clone() }
    }

    /// Sets the credentials; fails if the address has some already.
    fn set_credentials(&mut self, credentials: Credentials) -> Result<(), AddressError> {
        if self.credentials != Credentials::Anonymous {
            return Err(AddressError::new("more than one of user, creds and nkey"));
        }
        self.credentials = credentials;
        Ok(())
    }

    /// Returns the name of the run.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.run
    }
}

/// Parses `HOST`, `HOST:PORT` or `[IPV6]:PORT` and adds the default port.
fn parse_server(host: &str) -> Result<String, AddressError> {
    let invalid = || AddressError::new("each server must be HOST or HOST:PORT");
    // The colons of an IPv6 address are inside brackets.
    let name_end = host.rfind(']').map_or(0, |bracket| bracket + 1);
    let (name, port) = match host[name_end..].split_once(':') {
        Some((rest, port)) => (&host[..name_end + rest.len()], port.parse().map_err(|_| invalid())?),
        None => (host, DEFAULT_PORT),
    };
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    if name.is_empty() || !name.chars().all(is_allowed) {
        return Err(invalid());
    }
    Ok(format!("{name}:{port}"))
}

/// Parses the part of an address before `@`: `USER:PASSWORD` or a token.
fn parse_user(user: &str) -> Result<Credentials, AddressError> {
    Ok(match user.split_once(':') {
        Some((name, password)) => Credentials::User(decode(name)?, decode(password)?),
        None => Credentials::Token(decode(user)?),
    })
}

/// Decodes percent-encoded text (`%XX`); fails if the result is not Unicode.
pub(crate) fn decode(text: &str) -> Result<String, AddressError> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| AddressError::new("it is not Unicode text after percent-decoding"))
}

impl fmt::Display for FleetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", if self.is_tls { "tls" } else { "nats" }, self.servers.join(","), self.run)
    }
}

impl fmt::Debug for FleetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FleetAddress({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> FleetAddress {
        FleetAddress::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn address_names_servers_and_run() {
        let check = |url: &str, shown: &str| assert_eq!(parsed(url).to_string(), shown);
        check("nats://broker/run-1", "nats://broker:4222/run-1");
        check("nats://10.0.0.1:4223/run/", "nats://10.0.0.1:4223/run");
        check("tls://a,b:1,[::1]:2/r", "tls://a:4222,b:1,[::1]:2/r");
        check("NATS://[::1]/r", "nats://[::1]:4222/r");
        assert_eq!(parsed("nats://a/r").run(), "r");
    }

    #[test]
    fn credentials_are_read_and_never_shown() {
        let check = |url: &str, expected: Credentials| {
            let address = parsed(url);
            assert!(address.credentials == expected, "{url}");
            for text in [address.to_string(), format!("{address:?}")] {
                assert!(!text.contains("secret") && !text.contains("file"), "{text}");
            }
        };
        check("nats://a/r", Credentials::Anonymous);
        check("nats://secret@a/r", Credentials::Token("secret".to_owned()));
        check("nats://me:se%2Fcret%40@a/r", Credentials::User("me".to_owned(), "se/cret@".to_owned()));
        check("nats://a/r?creds=/file", Credentials::UserFile("/file".into()));
        check("tls://a/r?nkey=/file&push=all", Credentials::NkeyFile("/file".into()));
    }

    #[test]
    fn options_are_read() {
        let address = parsed("tls://a/r?ca=ca.pem&cert=c.pem&key=k.pem&push=all");
        assert_eq!(address.mode, PushMode::All);
        assert_eq!(address.tls.ca, Some("ca.pem".into()));
        assert_eq!(address.tls.client, Some(("c.pem".into(), "k.pem".into())));
        for url in ["nats://a/r", "nats://a/r?push=demand"] {
            assert_eq!(parsed(url).mode, PushMode::OnDemand);
        }
    }

    #[test]
    fn ranks_have_keys_of_their_own() {
        let address = parsed("tls://a/r?nkey=/keys/program-{rank}.nk&cert={rank}.pem&key=k{rank}.pem");
        let third = address.for_rank(Some(3));
        assert!(third.credentials == Credentials::NkeyFile("/keys/program-3.nk".into()));
        assert_eq!(third.tls.client, Some(("3.pem".into(), "k3.pem".into())));
        assert!(address.for_rank(None).credentials == Credentials::NkeyFile("/keys/program-none.nk".into()));
        let shared = parsed("nats://a/r?creds=/all.creds");
        assert!(shared.for_rank(Some(3)) == shared);
    }

    #[test]
    fn invalid_addresses_are_refused_without_their_secrets() {
        for url in [
            "broker/run",
            "http://secret@a/r",
            "nats://secret@/r",
            "nats://secret@a",
            "nats://secret@a/",
            "nats://secret@a/two/parts",
            "nats://secret@a/run.1",
            "nats://secret@a:port/r",
            "nats://secret@a b/r",
            "nats://secret@a/r?password=secret",
            "nats://secret@a/r?creds=file",
            "nats://a/r?creds=secret&nkey=secret",
            "nats://a/r?cert=secret",
            "nats://a/r?push=secret",
            "nats://a/r?ca=%ff",
            &format!("nats://{}/r", ["a"; MAX_SERVERS + 1].join(",")),
        ] {
            let error = FleetAddress::parse(url).map(|address| address.to_string()).expect_err(url).to_string();
            assert!(error.starts_with("not an address: ") && !error.contains("secret"), "{url}: {error}");
        }
    }
}
