//! `vramscope report`: a recording on one page, without a browser.

use std::path::PathBuf;

use clap::Args;
use vramscope_trace::DeviceId;
use vramscope_viewer::report::Report;

use crate::failure::{Failure, Outcome};
use crate::input::Input;
use crate::output::{Output, not_the_input};
use crate::screen;
use crate::units;

/// Arguments of `report`.
#[derive(Args, Debug)]
pub(crate) struct ReportOptions {
    /// A recording: .vram, a PyTorch snapshot (.pickle, .json) or an RMM log (.csv); each also with .gz or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The picture to write: OUT.svg or OUT.png
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// The one GPU to report on [default: all of them]
    #[arg(long, value_name = "N")]
    device: Option<u16>,
    /// Replace paths, names and other texts by placeholders; numbers and structure stay
    #[arg(long)]
    redact: bool,
}

/// Draws the report, and says what came of it.
pub(crate) fn run(options: &ReportOptions) -> Outcome {
    let ending = options.output.extension().unwrap_or_default().to_ascii_lowercase();
    let is_svg = ending == "svg";
    if !is_svg && ending != "png" {
        return Err(Failure::file(&options.output, "a report is a picture; let the name end in .svg or .png"));
    }
    not_the_input(&options.file, &options.output)?;
    let input = Input::open(&options.file)?.redacted(options.redact);
    let name = input.name();
    let recording = input.recording()?;
    let failed = |error| Failure::file(&options.file, error);
    let report = Report::new(&recording, &name, options.device.map(DeviceId)).map_err(failed)?;
    let bytes = if is_svg { report.svg().into_bytes() } else { report.png().map_err(failed)? };
    let mut output = Output::create(&options.output)?;
    output.goes_on_signal()?;
    output.write(&bytes).map_err(|error| Failure::file(&options.output, error))?;
    output.finish()?;
    screen::note(format_args!("{}: {}", options.output.display(), units::bytes(bytes.len() as u64)));
    Ok(())
}
