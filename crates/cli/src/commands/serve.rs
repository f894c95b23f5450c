//! `vramscope serve`: collects the recordings of several processes and shows them together.

use std::path::PathBuf;

use clap::Args;
use vramscope_collector::{Aggregator, Content, Controls, FileError, Hub, Outputs, PUSH_VARIABLE};
use vramscope_trace::{ByteSize, Count};

use crate::error::{CommandError, Result};
use crate::retention::RetentionArguments;
use crate::server::ServerArguments;
use crate::signals::Interrupts;
use crate::terminal;

/// Text after the options in `vramscope serve --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope serve --record all.vram
  VRAMSCOPE_PUSH=ws://127.0.0.1:7791/ vramscope demo --listen 127.0.0.1:0

Every process with VRAMSCOPE_PUSH in its environment pushes its recording to this server.";

/// Arguments of `vramscope serve`: the file to record to, and the server.
#[derive(Args, Debug)]
pub(crate) struct ServeArguments {
    /// Also write the merged recording to this file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[command(flatten)]
    retention: RetentionArguments,
    #[command(flatten)]
    server: ServerArguments,
}

/// Merges the recordings that processes push, and serves the page, until the command is
/// interrupted.
pub(crate) fn run(arguments: &ServeArguments) -> Result {
    arguments.retention.require_file(arguments.record.as_deref())?;
    let interrupts = Interrupts::listen()?;
    let (hub, aggregator) = (Hub::default(), Aggregator::new());
    // Starts everything that can fail before it replaces an earlier recording.
    let controls = Controls::default();
    aggregator.offer_recording(&controls, &hub, PathBuf::new());
    let content =
        Content { aggregator: Some(aggregator.clone()), controls: Some(controls), ..Content::live(hub.clone()) };
    let server = arguments.server.start(content)?;
    let mut outputs = Outputs { hub: Some(hub), ..Outputs::default() };
    if let Some(path) = &arguments.record {
        outputs.file = Some(arguments.retention.create(path)?);
        outputs.on_file_error = Some(Box::new(|error| {
            terminal::message(format_args!("{error}; the file ends here, the live view continues"));
        }));
    }
    aggregator.begin(outputs).map_err(|error| CommandError::new(format_args!("cannot start merging: {error}")))?;
    arguments.server.announce(&server)?;
    let url = server.url();
    // A random token that only protects commands is left out: the next server has another one, and
    // the processes may outlive this server.
    let is_open = !arguments.server.has_token()? && server.address().ip().is_loopback();
    let address = url.split('?').next().unwrap_or_default().replacen("http", "ws", 1);
    // The token is printed once, in the address above.
    let token = if is_open { "" } else { "?token=… (the token above)" };
    terminal::message(format_args!("set {PUSH_VARIABLE}={address}{token} for each process to show here"));

    interrupts.wait();
    // Viewers receive the rest and the end of the recording before the server stops.
    let summary = aggregator.stop().unwrap_or_default();
    drop(server);
    match (&arguments.record, summary.file_error) {
        (_, Some(FileError { name, error })) => {
            Err(CommandError::new(format_args!("{name}: the recording is incomplete: {error}")))
        }
        (Some(path), None) => {
            let events = Count(summary.events).of("event", "events");
            terminal::message(format_args!("{}: {events}, {}", path.display(), ByteSize(summary.bytes)));
            Ok(())
        }
        (None, None) => Ok(()),
    }
}
