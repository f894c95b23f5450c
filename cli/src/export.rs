//! `vramscope export`: a recording in other tools' formats.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use vramscope_formats::export::{self, ExportError, Progress};
use vramscope_trace::Recording;

use crate::failure::{Failure, Outcome};
use crate::input::Input;
use crate::interrupt;
use crate::output::Output;
use crate::screen;
use crate::units;

/// Arguments of `export`.
#[derive(Args, Debug)]
pub(crate) struct ExportOptions {
    /// A recording (.vram) or a PyTorch snapshot (.pickle, .json); each also with .gz or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The format to write
    #[arg(long, value_enum)]
    to: Format,
    /// The file to write
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Replace paths, names and other texts by placeholders; numbers and structure stay
    #[arg(long)]
    redact: bool,
}

/// What can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A PyTorch memory snapshot, for PyTorch's memory_viz: OUT.pickle (or .pkl) or OUT.json
    MemoryViz,
}

/// Writes a recording in one format.
type Writer = fn(&Recording, &mut dyn Write, Progress<'_>) -> Result<(), ExportError>;

impl Format {
    /// What writes it to a file of this name.
    fn writer(self, path: &Path) -> Outcome<Writer> {
        let ending = path.extension().unwrap_or_default().to_ascii_lowercase();
        match self {
            Self::MemoryViz if ending == "pickle" || ending == "pkl" => Ok(export::memory_viz_pickle),
            Self::MemoryViz if ending == "json" => Ok(export::memory_viz_json),
            Self::MemoryViz => {
                Err(Failure::file(path, "a snapshot is a pickle or JSON; let the name end in .pickle, .pkl or .json"))
            }
        }
    }
}

/// Exports, and says what came of it.
pub(crate) fn run(options: &ExportOptions) -> Outcome {
    let writer = options.to.writer(&options.output)?;
    if is_same_file(&options.file, &options.output) {
        return Err(Failure::file(&options.output, "is the input, which would be lost; give the output another name"));
    }
    let recording = Input::open(&options.file)?.redacted(options.redact).recording()?;
    let mut output = Counted { output: Output::create(&options.output)?, bytes: 0 };
    let temporary = output.output.temporary().to_owned();
    interrupt::exit_on_signal(move || {
        // Gone already where the signal came late.
        let _ = std::fs::remove_file(&temporary);
    })?;
    let bar = screen::progress(options.output.display().to_string());
    let mut progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    let written = writer(&recording, &mut output, &mut progress);
    bar.finish_and_clear();
    written.map_err(|error| match error {
        ExportError::Output(error) => Failure::file(&options.output, error),
        error => Failure::file(&options.file, error),
    })?;
    let Counted { output, bytes } = output;
    output.finish()?;
    let events = units::counted(recording.events(), "event", "events");
    screen::note(format_args!("{}: {events} in {}", options.output.display(), units::bytes(bytes)));
    Ok(())
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// An output that counts what is written to it.
struct Counted {
    output: Output,
    bytes: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write(bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
