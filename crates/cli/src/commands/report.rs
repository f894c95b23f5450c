//! `vramscope report`: draws a recording as a picture.

use std::path::PathBuf;

use clap::Args;
use vramscope_trace::{ByteSize, DeviceId};
use vramscope_viewer::report::Report;

use crate::error::{CommandError, Result};
use crate::input::Input;
use crate::number::parse_whole;
use crate::output::{Output, refuse_input_as_output};
use crate::terminal;

/// Text after the options in `vramscope report --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope report run.vram -o run.svg
  vramscope report run.vram -o gpu0.png --device 0";

/// Arguments of `vramscope report`: the recording, the picture to write and the device.
#[derive(Args, Debug)]
pub(crate) struct ReportArguments {
    /// Recording (.vram, or an .html export), PyTorch snapshot (.pickle, .json) or RMM log (.csv);
    /// each also with .gz or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Picture to write: OUT.svg or OUT.png
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Report on this device only [default: all]
    #[arg(long, value_name = "N", value_parser = parse_whole::<u16>)]
    device: Option<u16>,
    /// Replace names of functions, files, scopes, marks, devices and the program by placeholders
    #[cfg(feature = "export")]
    #[arg(long)]
    redact: bool,
}

/// Draws a recording as an SVG or PNG picture and prints the picture's size in bytes.
pub(crate) fn run(arguments: &ReportArguments) -> Result {
    let extension = arguments.output.extension().unwrap_or_default().to_ascii_lowercase();
    let is_svg = extension == "svg";
    if !is_svg && extension != "png" {
        return Err(CommandError::file(&arguments.output, "the name of a picture must end in .svg or .png: change -o"));
    }
    refuse_input_as_output(&arguments.file, &arguments.output)?;
    let input = Input::open(&arguments.file)?;
    #[cfg(feature = "export")]
    let input = input.with_redaction(arguments.redact);
    let name = input.name();
    let recording = input.into_recording()?;
    let input_error = |error| CommandError::file(&arguments.file, error);
    let report = Report::new(&recording, &name, arguments.device.map(DeviceId)).map_err(input_error)?;
    let bytes = if is_svg { report.svg().into_bytes() } else { report.png().map_err(input_error)? };
    Output::write_file(&arguments.output, &bytes)?;
    terminal::message(format_args!("{}: {}", arguments.output.display(), ByteSize(bytes.len() as u64)));
    Ok(())
}
