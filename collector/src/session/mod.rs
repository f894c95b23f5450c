//! The recording of a whole process, for a library that is loaded into a program it does not know.
//!
//! A Rust program sets up its recording with [`Monitor::builder`](crate::Monitor::builder). A
//! library inside a Python process is set up by environment variables instead, and gets no call at
//! the process's end. This module has the functions and types that these libraries share:
//!
//! - [`read_recording_options`] reads the environment variables.
//! - [`serve`] and [`serve_hub`] serve the live page.
//! - [`ProcessRecording`] records to a file, viewers and a server.
//! - [`LateFile`] is a file that begins while the recording is in progress.
//! - [`lifecycle`] detects exit and fork, [`stderr_log`] prints messages for the user.

mod late_file;
pub mod lifecycle;
mod options;
mod recording;
pub mod stderr_log;

use std::net::SocketAddr;
use std::sync::Arc;

pub use late_file::LateFile;
pub use options::{OptionError, RecordingOptions, read_recording_options};
pub use recording::ProcessRecording;

use crate::controls::Controls;
use crate::hub::Hub;
use crate::server::{ServedContent, Server, ServerOptions, StartError};

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
    match start_server(&hub, address, options, controls) {
        Ok(server) => {
            log(&format!("listening: {}", server.url()));
            log_differences(&server, address, options, log);
            (Some(hub), Some(server))
        }
        Err(error) => {
            log(&format!("{error}; the page is not served"));
            (None, None)
        }
    }
}

/// Starts the page's server at `address` for the live recording in `hub`. Logs if another port is
/// used because the one of `address` is in use, and who can reach the page.
///
/// # Errors
/// If the address cannot be listened on, or an option is invalid.
pub fn serve_hub(
    hub: &Hub,
    address: SocketAddr,
    options: &RecordingOptions,
    controls: &Controls,
    log: &Log,
) -> Result<Server, StartError> {
    let server = start_server(hub, address, options, controls)?;
    log_differences(&server, address, options, log);
    Ok(server)
}

/// Starts the page's server at `address` for the live recording in `hub`.
fn start_server(
    hub: &Hub,
    address: SocketAddr,
    options: &RecordingOptions,
    controls: &Controls,
) -> Result<Server, StartError> {
    let content = ServedContent { controls: Some(controls.clone()), ..ServedContent::live(hub.clone()) };
    Server::start(server_options(address, options), content)
}

/// Returns the options of the page's server at `address`.
fn server_options(address: SocketAddr, options: &RecordingOptions) -> ServerOptions {
    let RecordingOptions { token, allow_hosts, tls, .. } = options;
    let (token, allow_hosts, tls) = (token.clone(), allow_hosts.clone(), tls.clone());
    ServerOptions { listen: Some(address), token, allow_hosts, tls, ..ServerOptions::default() }
}

/// Logs if the server listens on another port than the one of `address`, and if everyone who
/// reaches the page through a proxy can watch.
fn log_differences(server: &Server, address: SocketAddr, options: &RecordingOptions, log: &Log) {
    let (requested_port, port) = (address.port(), server.address().port());
    if requested_port != 0 && port != requested_port {
        log(&format!("port {requested_port} is in use; listening on port {port} instead"));
    }
    let has_named_hosts = !options.allow_hosts.is_empty() && !server_options(address, options).allows_any_host();
    if options.token.is_none() && has_named_hosts && server.address().ip().is_loopback() {
        log("warning: everyone who reaches the proxy can watch; set VRAMSCOPE_TOKEN to require a token");
    }
}
