//! `vramscope report`: draws a recording, or two side by side, as a picture.

use std::path::{Path, PathBuf};

use vramscope_report::{ComparisonReport, RecordingReport};
use vramscope_trace::{ByteSize, DeviceId, Recording};

use crate::error::{CommandError, Result};
use crate::input::Input;
use crate::number::parse_whole;
use crate::output::{Output, refuse_input_as_output};
use crate::terminal;
use clap::Args;

/// Text after the options in `vramscope report --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope report run.vram -o run.svg
  vramscope report run.vram -o gpu0.png --device 0
  vramscope report before.vram after.vram -o both.svg";

/// Arguments of `vramscope report`: one recording or two, the picture to write and the device.
#[derive(Args, Debug)]
pub(crate) struct ReportArguments {
    /// Recording (.vram, or an .html export), PyTorch snapshot (.pickle, .json), profiler trace or
    /// memory timeline (.json), or RMM log (.csv); each also with .gz or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Second recording: draw the memory over time of both side by side, on one scale
    #[arg(value_name = "OTHER")]
    other: Option<PathBuf>,
    /// Picture to write: OUT.svg or OUT.png
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Report on this device only [default: all; of two recordings, the first of each]
    #[arg(long, value_name = "N", value_parser = parse_whole::<u16>)]
    device: Option<u16>,
    /// Replace names of functions, files, scopes, marks, devices and the program by placeholders
    #[cfg(feature = "export")]
    #[arg(long)]
    redact: bool,
}

/// Reads a recording and returns it with its name.
fn open(path: &Path, arguments: &ReportArguments) -> Result<(Recording, String)> {
    refuse_input_as_output(path, &arguments.output)?;
    let input = Input::open(path)?;
    #[cfg(feature = "export")]
    let input = input.with_redaction(arguments.redact);
    let name = input.name();
    Ok((input.into_recording()?, name))
}

/// Draws the recordings as an SVG or PNG picture and prints the picture's size in bytes.
pub(crate) fn run(arguments: &ReportArguments) -> Result {
    let extension = arguments.output.extension().unwrap_or_default().to_ascii_lowercase();
    let is_svg = extension == "svg";
    if !is_svg && extension != "png" {
        return Err(CommandError::file(&arguments.output, "the name of a picture must end in .svg or .png: change -o"));
    }
    let device = arguments.device.map(DeviceId);
    let (recording, name) = open(&arguments.file, arguments)?;
    let input_error = |error| CommandError::file(&arguments.file, error);
    let bytes = if let Some(other) = &arguments.other {
        let (other_recording, other_name) = open(other, arguments)?;
        let both = [(&recording, name.as_str()), (&other_recording, other_name.as_str())];
        let report = ComparisonReport::new(both, device)
            .map_err(|(error, index)| CommandError::file(if index == 0 { &arguments.file } else { other }, error))?;
        if is_svg { report.svg().into_bytes() } else { report.png() }
    } else {
        let report = RecordingReport::new(&recording, &name, device).map_err(input_error)?;
        if is_svg { report.svg().into_bytes() } else { report.png().map_err(input_error)? }
    };
    Output::write_file(&arguments.output, &bytes)?;
    terminal::message(format_args!("{}: {}", arguments.output.display(), ByteSize(bytes.len() as u64)));
    Ok(())
}
