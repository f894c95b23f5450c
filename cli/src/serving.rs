//! What `demo` and `view` share: starting the server, saying where, and opening a browser.

use std::net::{SocketAddr, ToSocketAddrs};
use std::process::{Command, Stdio};

use clap::Args;
use vramscope_collector::{Content, DEFAULT_PORT, Server, ServerOptions, StartError};

use crate::failure::{Failure, Outcome};
use crate::screen;

/// Where to serve, and whether to show it.
#[derive(Args, Debug)]
pub(crate) struct ServeOptions {
    /// Address to listen on, HOST:PORT; port 0 is any free one [default: 127.0.0.1:7791, or the next free port]
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    listen: Option<SocketAddr>,
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

impl ServeOptions {
    /// Starts the server.
    pub(crate) fn start(&self, content: Content) -> Outcome<Server> {
        Server::start(ServerOptions { listen: self.listen, ..ServerOptions::default() }, content).map_err(|error| {
            match error {
                StartError::NotLoopback(_) => Failure::new(format_args!("--listen: {error}")),
                StartError::Io(..) => Failure::new(error),
            }
        })
    }

    /// Says where it listens, in the first line on stdout, and shows the page where that is wanted.
    pub(crate) fn announce(&self, server: &Server) -> Outcome {
        screen::print(&format!("listening: {}\n", server.url()))?;
        let port = server.address().port();
        if self.listen.is_none() && port != DEFAULT_PORT {
            screen::note(format_args!("port {DEFAULT_PORT} is taken, so this is {port}"));
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
