//! `vramscope serve`: several programs on one page, and in one recording.

use std::path::PathBuf;

use clap::Args;
use vramscope_collector::{Content, Controls, FileError, Gather, Hub, Outputs, PUSH_VARIABLE};

use crate::failure::{Failure, Outcome};
use crate::file::FileOptions;
use crate::interrupt::Interrupts;
use crate::screen;
use crate::serving::ServeOptions;
use crate::units;

/// Arguments of `serve`.
#[derive(Args, Debug)]
pub(crate) struct ServeArguments {
    /// Write the recording of all to a file, too
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[command(flatten)]
    file: FileOptions,
    #[command(flatten)]
    serve: ServeOptions,
}

/// Takes what is pushed, and serves it, until it is interrupted.
pub(crate) fn run(options: &ServeArguments) -> Outcome {
    if options.record.is_none() && !options.file.keep().is_everything() {
        return Err(Failure::new("--keep and --keep-bytes say how much a file keeps; name it with --record"));
    }
    let interrupts = Interrupts::listen()?;
    let (hub, gather) = (Hub::default(), Gather::new(|sentence| screen::note(sentence)));
    // What can fail comes first, so that a mistake costs no earlier recording.
    let controls = Controls::default();
    gather.offer_recording(&controls, &hub, PathBuf::new());
    let content = Content { gather: Some(gather.clone()), controls: Some(controls), ..Content::live(hub.clone()) };
    let server = options.serve.start(content)?;
    let mut outputs = Outputs { hub: Some(hub), ..Outputs::default() };
    if let Some(path) = &options.record {
        outputs.file = Some(options.file.create(path)?);
        outputs.on_file_error = Some(Box::new(|error| {
            screen::note(format_args!("{error}; the file ends here, the live view goes on"));
        }));
    }
    gather.begin(outputs).map_err(|error| Failure::new(format_args!("the hub: {error}")))?;
    options.serve.announce(&server)?;
    let url = server.url();
    // A token that was made for commands alone is another one the next time, and the programs may be there for longer than this hub.
    let is_open = !options.serve.has_token()? && server.address().ip().is_loopback();
    let address = url.split('?').next().unwrap_or_default().replacen("http", "ws", 1);
    // It was said once, in the address above, and is said nowhere else.
    let token = if is_open { "" } else { "?token=… (the token above)" };
    screen::note(format_args!("programs with {PUSH_VARIABLE}={address}{token} in their environment are shown here"));

    interrupts.wait();
    // Whoever watches is given the rest and told that it is the end; then the server may go.
    let summary = gather.stop().unwrap_or_default();
    drop(server);
    match (&options.record, summary.file_error) {
        (_, Some(FileError { name, error })) => Err(Failure::new(format_args!("{name}: not all was written: {error}"))),
        (Some(path), None) => {
            let events = units::counted(summary.events, "event", "events");
            screen::note(format_args!("{}: {events} in {}", path.display(), units::bytes(summary.bytes)));
            Ok(())
        }
        (None, None) => Ok(()),
    }
}
