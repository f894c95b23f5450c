//! `vramscope view`: serves the page for complete recordings.

use std::path::{Path, PathBuf};
use std::{io, process, thread};

use clap::Args;
use vramscope_collector::{RecordingBytes, ServedContent, ServedRecording, page_address};

#[cfg(feature = "fleet")]
use crate::archive;
use crate::error::{CommandError, Result};
use crate::escape::escape_controls;
use crate::input::Input;
use crate::server::{AnnounceOn, ServerArguments};
use crate::signals::Interrupts;
use crate::terminal;

/// Text after the options in `vramscope view --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope view run.vram
  vramscope view before.pickle after.pickle.zst --no-open
  vramscope view s3://bucket/run";

/// Maximum number of recordings whose addresses are printed; the page lists all.
const MAX_PRINTED: usize = 100;

/// Arguments of `vramscope view`: the recordings and the server.
#[derive(Args, Debug)]
pub(crate) struct ViewArguments {
    /// Recordings (.vram, or .html exports), PyTorch snapshots (.pickle, .json) or RMM logs (.csv);
    /// each also with .gz or .zst. Or an archive: s3://BUCKET/RUN, gs://, az:// or file:///FOLDER
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Stop when stdin is closed, as it is when the process that started this one has ended
    #[arg(long)]
    until_stdin_closes: bool,
    #[command(flatten)]
    server: ServerArguments,
}

/// Serves the page for recordings until the command is interrupted.
pub(crate) fn run(arguments: &ViewArguments) -> Result {
    let mut files = Vec::new();
    for path in &arguments.files {
        files.extend(open(path)?);
    }
    let names: Vec<_> = files.iter().map(|file| file.name.clone()).collect();
    let interrupts = Interrupts::listen()?;
    let server = arguments.server.start(ServedContent::files(files))?;
    arguments.server.announce(&server, AnnounceOn::Stdout)?;
    if names.len() > 1 {
        // Prints the address without the token. The first address has it, and the browser keeps it.
        let url = server.url();
        let root = url.split('?').next().unwrap_or_default();
        for (number, name) in names.iter().enumerate().take(MAX_PRINTED) {
            terminal::print(&format!("{}: {root}{}\n", escape_controls(name), page_address(number, name)))?;
        }
        if names.len() > MAX_PRINTED {
            terminal::print(&format!("{} more: {root}\n", names.len() - MAX_PRINTED))?;
        }
    }
    if arguments.until_stdin_closes {
        exit_when_stdin_closes()?;
    }
    interrupts.wait();
    Ok(())
}

/// Ends the process when its stdin is closed. `view` has no output that could be incomplete.
fn exit_when_stdin_closes() -> Result {
    let wait = || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        process::exit(0);
    };
    let thread = thread::Builder::new().name("vramscope-stdin".into()).spawn(wait);
    thread.map(drop).map_err(|error| CommandError::new(format_args!("cannot wait for stdin: {error}")))
}

/// Opens a file or an archive for the server.
fn open(path: &Path) -> Result<Vec<ServedRecording>> {
    #[cfg(feature = "fleet")]
    if let Some(url) = path.to_str().filter(|url| archive::is_address(url)) {
        return archive::open_recordings(url);
    }
    Ok(vec![open_file(path)?])
}

/// Opens a file for the server: an uncompressed recording is served from the disk, any other file
/// is imported into memory. Both end with an index, so that the page can open them by ranges.
fn open_file(path: &Path) -> Result<ServedRecording> {
    let input = Input::open(path)?;
    let name = format!("{}.vram", input.name());
    let (bytes, events) = match input.stored_recording()? {
        Some(stored) => stored,
        None => {
            let mut bytes = Vec::new();
            let events = input.write_recording(|part| {
                bytes.extend_from_slice(part);
                Ok(())
            })?;
            (RecordingBytes::from_vec(bytes), events)
        }
    };
    Ok(ServedRecording { name, bytes, events: Some(events) })
}
