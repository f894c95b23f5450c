//! `vramscope import`: converts any input file to a recording.

use std::io::Write as _;
use std::path::PathBuf;

use clap::Args;
use vramscope_trace::{ByteSize, Count};

use crate::error::{CommandError, Result};
use crate::input::Input;
use crate::output::{Output, display_name, refuse_input_as_output};
use crate::terminal;

/// Text after the options in `vramscope import --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope import snapshot.pickle -o run.vram
  vramscope import rmm-log.csv.gz -o run.vram.zst
  vramscope import snapshot.pickle -o - | ssh laptop 'cat > run.vram'";

/// Arguments of `vramscope import`: the input and the recording to write.
#[derive(Args, Debug)]
pub(crate) struct ImportArguments {
    /// PyTorch snapshot (.pickle, .json), RMM log (.csv) or recording (.vram, or an .html export);
    /// each also with .gz or .zst
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// Recording to write; compressed if the name ends in .gz or .zst; - is standard output
    #[arg(short, long, value_name = "OUT.vram")]
    output: PathBuf,
    /// Replace names of functions, files, scopes, marks, devices and the program by placeholders
    #[cfg(feature = "export")]
    #[arg(long)]
    redact: bool,
}

/// Converts the input to a recording with an index, and prints the number of events and bytes.
pub(crate) fn run(arguments: &ImportArguments) -> Result {
    let input = Input::open(&arguments.input)?;
    #[cfg(feature = "export")]
    let input = input.with_redaction(arguments.redact);
    #[cfg(feature = "export")]
    let redact = arguments.redact;
    #[cfg(not(feature = "export"))]
    let redact = false;
    // A recording may be repaired in place; other inputs contain more than their recording.
    if input.is_foreign() || redact {
        refuse_input_as_output(&arguments.input, &arguments.output)?;
    }
    let mut output = Output::create_removed_on_signal(&arguments.output)?;
    let events = input
        .write_recording(|part| output.write_all(part).map_err(|error| CommandError::file(&arguments.output, error)))?;
    let bytes = output.finish()?;
    let events = Count(events).of("event", "events");
    terminal::message(format_args!("{}: {events}, {}", display_name(&arguments.output), ByteSize(bytes)));
    Ok(())
}
