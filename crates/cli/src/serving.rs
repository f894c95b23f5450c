//! What `demo`, `view` and `serve` share: starting the server, saying where, and opening a browser.

use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::Args;
use vramscope_collector::{Content, DEFAULT_PORT, Server, ServerOptions, StartError, TlsFiles, Token};

use crate::failure::{Failure, Outcome};
use crate::screen;

/// The token, for those who do not want it to be seen among a machine's processes.
const TOKEN: &str = "VRAMSCOPE_TOKEN";

/// Where to serve, for whom, and whether to show it.
#[derive(Args, Debug)]
pub(crate) struct ServeOptions {
    /// Address to listen on, HOST:PORT; port 0 is any free one [default: 127.0.0.1:7791, or the next free port]
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    listen: Option<SocketAddr>,
    /// What whoever asks for anything must say [default: $VRAMSCOPE_TOKEN; else one is made where other machines reach the address]
    #[arg(long)]
    token: Option<String>,
    /// Another name by which browsers reach the page, such as that of a proxy
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Certificate to serve HTTPS with, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Open the page in a browser [default: in a terminal on a machine with a screen]
    #[arg(long, overrides_with = "no_open")]
    open: bool,
    /// Do not open a browser
    #[arg(long)]
    no_open: bool,
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let wrong = |why: String| format!("{text:?} is not an address such as 127.0.0.1:7791{why}");
    let mut addresses = text.to_socket_addrs().map_err(|error| wrong(format!(": {error}")))?;
    addresses.next().ok_or_else(|| wrong(String::new()))
}

/// The token that is wanted. What was given in its place is not repeated: it is a secret all the same.
fn parse_token(given: Option<&str>, variable: Option<OsString>) -> Outcome<Option<Token>> {
    let (text, source) = match (given, variable) {
        (Some(text), _) => (text.to_owned(), "--token"),
        (None, Some(text)) if !text.is_empty() => (text.to_string_lossy().into_owned(), TOKEN),
        (None, _) => return Ok(None),
    };
    Token::new(text).map(Some).map_err(|error| Failure::new(format_args!("{source}: {error}")))
}

/// The token that is wanted, from the command line or else from the environment.
pub(crate) fn given_token(given: Option<&str>) -> Outcome<Option<Token>> {
    parse_token(given, std::env::var_os(TOKEN))
}

impl ServeOptions {
    /// Starts the server.
    pub(crate) fn start(&self, content: Content) -> Outcome<Server> {
        let token = given_token(self.token.as_deref())?;
        let files = self.tls_cert.clone().zip(self.tls_key.clone());
        let tls = files.map(|(certificate, key)| TlsFiles { certificate, key });
        let (listen, allow_hosts) = (self.listen, self.allow_host.clone());
        let options = ServerOptions { listen, token, allow_hosts, tls, ..ServerOptions::default() };
        Server::start(options, content).map_err(|error| match error {
            StartError::Host(_) => Failure::new(format_args!("--allow-host: {error}")),
            error => Failure::new(error),
        })
    }

    /// Whether a token was given.
    pub(crate) fn has_token(&self) -> Outcome<bool> {
        Ok(given_token(self.token.as_deref())?.is_some())
    }

    /// Says where it listens, in the first line on stdout, and shows the page where that is wanted.
    pub(crate) fn announce(&self, server: &Server) -> Outcome {
        screen::print(&format!("listening: {}\n", server.url()))?;
        let asked = self.listen.map_or(DEFAULT_PORT, |address| address.port());
        let port = server.address().port();
        if asked != 0 && port != asked {
            screen::note(format_args!("port {asked} is taken, so this is {port}"));
        }
        if !server.address().ip().is_loopback() && self.tls_cert.is_none() {
            screen::note(
                "other machines can reach this; without --tls-cert, what is sent can be read on the way, the token too",
            );
        }
        let is_behind_proxy = server.address().ip().is_loopback() && !self.allow_host.is_empty();
        if is_behind_proxy && given_token(self.token.as_deref())?.is_none() {
            screen::note(
                "whoever comes through a proxy may watch; VRAMSCOPE_TOKEN or --token wants a token of everyone",
            );
        }
        if self.wants_browser() && !open_browser(&server.url()) {
            screen::note("found no browser to open; the address above is for any browser on this machine");
        }
        Ok(())
    }

    fn wants_browser(&self) -> bool {
        self.open || (!self.no_open && screen::is_interactive() && has_screen())
    }
}

fn has_screen() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    cfg!(any(windows, target_os = "macos")) || is_set("DISPLAY") || is_set("WAYLAND_DISPLAY")
}

/// Asks the desktop to show the address; says whether it could be asked.
fn open_browser(url: &str) -> bool {
    let mut command = if cfg!(windows) {
        let mut command = Command::new("cmd");
        command.args(["/C", "start", ""]);
        command
    } else {
        Command::new(if cfg!(target_os = "macos") { "open" } else { "xdg-open" })
    };
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_from_the_command_line_or_else_from_the_environment() {
        let check = |given: Option<&str>, variable: Option<&str>, expected: Result<Option<&str>, &str>| {
            let token = parse_token(given, variable.map(OsString::from)).map_err(|error| error.to_string());
            match (token, expected) {
                (Ok(token), Ok(expected)) => assert_eq!(token.as_ref().map(Token::secret), expected),
                (Err(said), Err(expected)) => assert!(said.starts_with(expected) && !said.contains("a b"), "{said}"),
                (token, expected) => panic!("{token:?} is not {expected:?}"),
            }
        };
        check(None, None, Ok(None));
        check(None, Some(""), Ok(None));
        check(None, Some("abc"), Ok(Some("abc")));
        check(Some("def"), Some("abc"), Ok(Some("def")));
        check(Some("a b"), None, Err("--token: a token is"));
        check(None, Some("a b"), Err("VRAMSCOPE_TOKEN: a token is"));
        check(Some(""), Some("abc"), Err("--token: a token is"));
    }
}
