//! The recording of a whole process, for a library that is loaded into a program it does not know.
//!
//! A Rust program sets up its recording with [`Monitor::builder`](crate::Monitor::builder). A
//! library inside a Python process is set up by environment variables instead, and gets no call at
//! the process's end. This module has what such libraries share:
//!
//! - [`read_recording_options`] reads the environment variables.
//! - [`serve`] serves the live page, [`ProcessRecording`] records to a file, viewers and a server.
//! - [`lifecycle`] detects exit and fork, [`stderr_log`] prints messages for the user.

pub mod lifecycle;
mod options;
mod recording;
pub mod stderr_log;

use std::net::SocketAddr;
use std::sync::Arc;

pub use options::{OptionError, RecordingOptions, read_recording_options};
pub use recording::ProcessRecording;

use crate::controls::Controls;
use crate::hub::Hub;
use crate::server::{Content, Server, ServerOptions};

/// A function that receives messages for the user, one line each. It is passed as an argument, so
/// that tests can collect them.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// Starts the page's server at `address` and logs its URL. Returns the server and the hub with the
/// live recording that it serves. If the server cannot start, logs the reason and returns neither.
pub fn serve(
    address: SocketAddr,
    options: &RecordingOptions,
    controls: &Controls,
    log: &Log,
) -> (Option<Hub>, Option<Server>) {
    let hub = Hub::default();
    let RecordingOptions { token, allow_hosts, tls, .. } = options;
    let (token, allow_hosts, tls) = (token.clone(), allow_hosts.clone(), tls.clone());
    let server_options = ServerOptions { listen: Some(address), token, allow_hosts, tls, ..ServerOptions::default() };
    let content = Content { controls: Some(controls.clone()), ..Content::live(hub.clone()) };
    let has_named_hosts = !options.allow_hosts.is_empty() && !server_options.allows_any_host();
    match Server::start(server_options, content) {
        Ok(server) => {
            log(&format!("listening: {}", server.url()));
            if options.token.is_none() && has_named_hosts && server.address().ip().is_loopback() {
                log("warning: everyone who reaches the proxy can watch; set VRAMSCOPE_TOKEN to require a token");
            }
            (Some(hub), Some(server))
        }
        Err(error) => {
            log(&format!("{error}; the page is not served"));
            (None, None)
        }
    }
}
