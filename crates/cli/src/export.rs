//! `vramscope export`: a recording in other tools' formats.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use vramscope_formats::export::{self, ExportError, Progress};
use vramscope_trace::Recording;

use crate::failure::{Failure, Outcome};
use crate::html;
use crate::input::Input;
use crate::interrupt;
use crate::output::{Output, not_the_input};
use crate::screen;
use crate::units;

/// Arguments of `export`.
#[derive(Args, Debug)]
pub(crate) struct ExportOptions {
    /// A recording: .vram, a PyTorch snapshot (.pickle, .json) or an RMM log (.csv); each also with .gz or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The format to write
    #[arg(long, value_enum)]
    to: Format,
    /// The file to write; for tensorboard a folder
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
    /// One file with the viewer and the recording in it, that any browser opens: OUT.html
    Html,
    /// A trace for ui.perfetto.dev
    Perfetto,
    /// Scalars for TensorBoard: an event file in the folder OUT
    Tensorboard,
    /// Two tables: the events in OUT.csv, the lifetimes of allocations in OUT.lifetimes.csv
    Csv,
    /// The same two tables for DuckDB, Polars or Spark
    Parquet,
}

/// Writes a recording in one format.
enum Writer {
    /// To one file.
    File(fn(&Recording, &mut dyn Write, Progress<'_>) -> Result<(), ExportError>),
    /// To one file in a folder, which has to have this name.
    InFolder(fn(&Recording) -> String, fn(&Recording, &mut dyn Write, Progress<'_>) -> Result<(), ExportError>),
    /// To two files, the events first.
    Tables(fn(&Recording, &mut Counted, &mut Counted, Progress<'_>) -> Result<(), ExportError>),
}

impl Format {
    /// What writes it to a file of this name; none where it is made of the recording's own bytes.
    fn writer(self, path: &Path) -> Outcome<Option<Writer>> {
        let ending = path.extension().unwrap_or_default().to_ascii_lowercase();
        Ok(Some(match self {
            Self::MemoryViz if ending == "pickle" || ending == "pkl" => Writer::File(export::memory_viz_pickle),
            Self::MemoryViz if ending == "json" => Writer::File(export::memory_viz_json),
            Self::MemoryViz => {
                let what = "a snapshot is a pickle or JSON; let the name end in .pickle, .pkl or .json";
                return Err(Failure::file(path, what));
            }
            Self::Html => return Ok(None),
            Self::Perfetto => Writer::File(export::perfetto),
            Self::Tensorboard => Writer::InFolder(export::tensorboard_file_name, export::tensorboard),
            Self::Csv => Writer::Tables(|recording, events, lifetimes, progress| {
                export::csv(recording, events, lifetimes, progress)
            }),
            Self::Parquet => Writer::Tables(|recording, events, lifetimes, progress| {
                export::parquet(recording, events, lifetimes, progress)
            }),
        }))
    }
}

impl Writer {
    /// The files that it writes for `output`.
    fn paths(&self, recording: &Recording, output: &Path) -> Outcome<Vec<PathBuf>> {
        Ok(match self {
            Self::File(_) => vec![output.to_owned()],
            Self::InFolder(name, _) => {
                fs::create_dir_all(output).map_err(|error| Failure::file(output, error))?;
                vec![output.join(name(recording))]
            }
            Self::Tables(_) => vec![output.to_owned(), lifetimes_beside(output)],
        })
    }

    fn write(&self, recording: &Recording, outputs: &mut [Counted], progress: Progress<'_>) -> Result<(), ExportError> {
        match (self, outputs) {
            (Self::File(write) | Self::InFolder(_, write), [output]) => write(recording, output, progress),
            (Self::Tables(write), [events, lifetimes]) => write(recording, events, lifetimes, progress),
            _ => unreachable!("there is an output for each of the writer's paths"),
        }
    }
}

/// `run.csv` becomes `run.lifetimes.csv`.
fn lifetimes_beside(events: &Path) -> PathBuf {
    let mut name = events.file_stem().unwrap_or_default().to_owned();
    name.push(".lifetimes");
    if let Some(ending) = events.extension() {
        name.push(".");
        name.push(ending);
    }
    events.with_file_name(name)
}

/// Exports, and says what came of it.
pub(crate) fn run(options: &ExportOptions) -> Outcome {
    let writer = options.to.writer(&options.output)?;
    not_the_input(&options.file, &options.output)?;
    let input = Input::open(&options.file)?.redacted(options.redact);
    let Some(writer) = writer else { return html::export(input, &options.output) };
    let recording = input.recording()?;
    let paths = writer.paths(&recording, &options.output)?;
    paths.iter().try_for_each(|path| not_the_input(&options.file, path))?;
    let create = |path: &PathBuf| Ok(Counted { output: Output::create(path)?, bytes: 0 });
    let mut outputs = paths.iter().map(create).collect::<Outcome<Vec<_>>>()?;
    let temporary: Vec<_> = outputs.iter().map(|output| output.output.temporary().to_owned()).collect();
    interrupt::exit_on_signal(move || {
        for temporary in &temporary {
            // Gone already where the signal came late.
            let _ = fs::remove_file(temporary);
        }
    })?;
    let bar = screen::progress(options.output.display().to_string());
    let mut progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    let written = writer.write(&recording, &mut outputs, &mut progress);
    bar.finish_and_clear();
    written.map_err(|error| match error {
        ExportError::Output(error) => Failure::file(&options.output, error),
        error => Failure::file(&options.file, error),
    })?;
    let events = units::counted(recording.events(), "event", "events");
    for (Counted { output, bytes }, path) in outputs.into_iter().zip(paths) {
        output.finish()?;
        screen::note(format_args!("{}: {events} in {}", path.display(), units::bytes(bytes)));
    }
    Ok(())
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
