//! `vramscope import`: any input file to a recording.

use std::path::PathBuf;

use clap::Args;

use crate::failure::{Failure, Outcome};
use crate::input::Input;
use crate::output::{Output, not_the_input};
use crate::screen;
use crate::units;

/// Arguments of `import`.
#[derive(Args, Debug)]
pub(crate) struct ImportOptions {
    /// A PyTorch snapshot (.pickle, .json), an RMM log (.csv) or a .vram; each also with .gz or .zst
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// The recording to write
    #[arg(short, long, value_name = "OUT.vram")]
    output: PathBuf,
    /// Replace paths, names and other texts by placeholders; numbers and structure stay
    #[arg(long)]
    redact: bool,
}

/// Converts, and says what came of it.
pub(crate) fn run(options: &ImportOptions) -> Outcome {
    let input = Input::open(&options.input)?.redacted(options.redact);
    // A snapshot has more in it than becomes of it, and a recording has names; otherwise it is only made whole.
    if input.is_foreign() || options.redact {
        not_the_input(&options.input, &options.output)?;
    }
    let mut output = Output::create(&options.output)?;
    output.goes_on_signal()?;
    let mut bytes = 0;
    let events = input.convert(|piece| {
        bytes += piece.len() as u64;
        output.write(piece).map_err(|error| Failure::file(&options.output, error))
    })?;
    output.finish()?;
    let events = units::counted(events, "event", "events");
    screen::note(format_args!("{}: {events} in {}", options.output.display(), units::bytes(bytes)));
    Ok(())
}
