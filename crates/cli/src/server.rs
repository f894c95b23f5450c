//! Starts the page's server for `demo`, `view` and `serve`, and opens the browser.

use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use clap::Args;
use vramscope_collector::{ANY_HOST, DEFAULT_PORT, ServedContent, Server, ServerOptions, StartError, TlsFiles, Token};

use crate::error::{CommandError, Result};
use crate::terminal;

/// Environment variable for the access token. Lists of the machine's processes show command lines,
/// but not this variable.
const TOKEN_VARIABLE: &str = "VRAMSCOPE_TOKEN";

/// The stream on which a command prints the address of its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnnounceOn {
    /// As the first line on stdout.
    Stdout,
    /// On stderr, because stdout belongs to the program that the command runs.
    Stderr,
}

/// Options of commands that serve the page: address, token, host names, TLS and browser.
#[derive(Args, Debug)]
pub(crate) struct ServerArguments {
    /// Listen on this address, HOST:PORT; port 0 picks a free port [default: 127.0.0.1:7791, or the
    /// next free port]
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    listen: Option<SocketAddr>,
    /// Access token that clients must send [default: $VRAMSCOPE_TOKEN; random if other machines can
    /// reach the address]
    #[arg(long)]
    token: Option<String>,
    /// Accept requests for this host name too, such as a proxy's; repeatable. '*' accepts every
    /// name and requires the token for everything
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Serve HTTPS with this certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Open the page in a browser [default: on a terminal with a desktop]
    #[arg(long, overrides_with = "no_open")]
    open: bool,
    /// Do not open a browser
    #[arg(long)]
    no_open: bool,
}

/// Parses the address of `--listen`; resolves a host name to its first address.
fn parse_address(text: &str) -> std::result::Result<SocketAddr, String> {
    let expected = "expected an address such as 127.0.0.1:7791";
    let mut addresses = text.to_socket_addrs().map_err(|error| format!("{expected}: {error}"))?;
    addresses.next().ok_or_else(|| expected.to_owned())
}

/// Returns the token from the `argument` of `--token` or else from the environment `variable`;
/// `None` without both. Errors do not repeat the value, because it may be a mistyped secret.
fn parse_token(argument: Option<&str>, variable: Option<OsString>) -> Result<Option<Token>> {
    let (text, source) = match (argument, variable) {
        (Some(text), _) => (text.to_owned(), "--token"),
        (None, Some(text)) if !text.is_empty() => (text.to_string_lossy().into_owned(), TOKEN_VARIABLE),
        (None, _) => return Ok(None),
    };
    Token::new(text).map(Some).map_err(|error| CommandError::new(format_args!("{source}: {error}")))
}

/// Returns the access token from the `argument` of `--token` or else from the environment; `None`
/// without both.
pub(crate) fn access_token(argument: Option<&str>) -> Result<Option<Token>> {
    parse_token(argument, std::env::var_os(TOKEN_VARIABLE))
}

impl ServerArguments {
    /// Starts the page's server as the options say; it serves `content`.
    pub(crate) fn start(&self, content: ServedContent) -> Result<Server> {
        let token = access_token(self.token.as_deref())?;
        let files = self.tls_cert.clone().zip(self.tls_key.clone());
        let tls = files.map(|(certificate, key)| TlsFiles { certificate, key });
        let (listen, allow_hosts) = (self.listen, self.allow_host.clone());
        let options = ServerOptions { listen, token, allow_hosts, tls, ..ServerOptions::default() };
        Server::start(options, content).map_err(|error| match error {
            StartError::Host(_) => CommandError::new(format_args!("--allow-host: {error}")),
            StartError::Io(..) => CommandError::new(format_args!("{error}: choose another address with --listen")),
            error => CommandError::new(error),
        })
    }

    /// Returns true if an option is about the page: its address, who may open it, or the browser.
    pub(crate) fn asks_for_page(&self) -> bool {
        let Self { listen, token, allow_host, tls_cert, open, .. } = self;
        listen.is_some() || token.is_some() || !allow_host.is_empty() || tls_cert.is_some() || *open
    }

    /// Returns true if the user gave an access token, by `--token` or in the environment.
    pub(crate) fn has_token(&self) -> Result<bool> {
        Ok(access_token(self.token.as_deref())?.is_some())
    }

    /// Prints the server's address, warns about who can reach it, and opens the browser if wanted.
    pub(crate) fn announce(&self, server: &Server, output: AnnounceOn) -> Result {
        self.announce_at(server, output, "")
    }

    /// Prints and opens the address of one page of the server, as [`announce`](Self::announce)
    /// does. `page` is the page's query and begins with a question mark.
    pub(crate) fn announce_at(&self, server: &Server, output: AnnounceOn, page: &str) -> Result {
        let url = address_of(server, page);
        print_address(output, "listening", &url)?;
        self.warn_and_open(server, &url)
    }

    /// Prints the server's address and the address of the fleet page, and opens the fleet page,
    /// as [`announce`](Self::announce) does.
    #[cfg(feature = "fleet")]
    pub(crate) fn announce_with_fleet(&self, server: &Server, output: AnnounceOn) -> Result {
        let fleet = address_of(server, "?fleet");
        print_address(output, "listening", &server.url())?;
        print_address(output, "fleet page", &fleet)?;
        self.warn_and_open(server, &fleet)
    }

    /// Warns about the port and about who can reach the server, and opens an address in the browser
    /// if wanted.
    fn warn_and_open(&self, server: &Server, url: &str) -> Result {
        let requested_port = self.listen.map_or(DEFAULT_PORT, |address| address.port());
        let port = server.address().port();
        if requested_port != 0 && port != requested_port {
            terminal::message(format_args!("port {requested_port} is in use; listening on port {port} instead"));
        }
        let is_loopback = server.address().ip().is_loopback();
        if !is_loopback && self.tls_cert.is_none() {
            terminal::message(
                "warning: listening on a public address without TLS; the token is sent unencrypted (use --tls-cert)",
            );
        }
        let has_named_hosts = !self.allow_host.is_empty() && !self.allow_host.iter().any(|name| name == ANY_HOST);
        if is_loopback && has_named_hosts && !self.has_token()? {
            terminal::message(
                "warning: everyone who reaches the proxy can watch; set VRAMSCOPE_TOKEN or --token to require a token",
            );
        }
        if self.wants_browser() && !open_browser(url) {
            terminal::message("cannot open a browser; open the address above in a browser on this machine");
        }
        Ok(())
    }

    /// Returns true if the page should be opened in a browser: with `--open`, or on a terminal with
    /// a desktop unless `--no-open` is given.
    fn wants_browser(&self) -> bool {
        self.open || (!self.no_open && cfg!(feature = "browser") && terminal::is_interactive() && has_desktop())
    }
}

/// Returns the address of a page of the server; `page` is empty or begins with a question mark.
fn address_of(server: &Server, page: &str) -> String {
    let mut url = server.url();
    // The address already has parameters if it has the token.
    match page.strip_prefix('?') {
        Some(parameters) if url.contains('?') => url = format!("{url}&{parameters}"),
        _ => url.push_str(page),
    }
    url
}

/// Prints an address with its name.
fn print_address(output: AnnounceOn, name: &str, url: &str) -> Result {
    match output {
        AnnounceOn::Stdout => terminal::print(&format!("{name}: {url}\n"))?,
        AnnounceOn::Stderr => terminal::message(format_args!("{name}: {url}")),
    }
    Ok(())
}

/// Returns true if this session has a desktop on which a browser can appear.
fn has_desktop() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    cfg!(any(windows, target_os = "macos")) || is_set("DISPLAY") || is_set("WAYLAND_DISPLAY")
}

/// Asks the desktop to show the address in a browser. Returns false if that failed.
#[cfg(feature = "browser")]
fn open_browser(url: &str) -> bool {
    opener::open_browser(url).is_ok()
}

/// Returns false: this build cannot open a browser.
#[cfg(not(feature = "browser"))]
fn open_browser(_url: &str) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_token_overrides_the_environment() {
        let check =
            |argument: Option<&str>, variable: Option<&str>, expected: std::result::Result<Option<&str>, &str>| {
                let token = parse_token(argument, variable.map(OsString::from)).map_err(|error| error.to_string());
                match (token, expected) {
                    (Ok(token), Ok(expected)) => assert_eq!(token.as_ref().map(Token::secret), expected),
                    (Err(message), Err(expected)) => {
                        assert!(message.starts_with(expected) && !message.contains("a b"), "{message}");
                    }
                    (token, expected) => panic!("{token:?} is not {expected:?}"),
                }
            };
        check(None, None, Ok(None));
        check(None, Some(""), Ok(None));
        check(None, Some("abc"), Ok(Some("abc")));
        check(Some("def"), Some("abc"), Ok(Some("def")));
        check(Some("a b"), None, Err("--token: "));
        check(None, Some("a b"), Err("VRAMSCOPE_TOKEN: "));
        check(Some(""), Some("abc"), Err("--token: "));
    }
}
