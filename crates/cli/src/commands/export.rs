//! `vramscope export`: writes a recording in another tool's format.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use vramscope_formats::export::{self, ExportError, Progress};
use vramscope_page::standalone;
use vramscope_trace::{ByteSize, Count, Recording};

use crate::error::{CommandError, Result};
use crate::input::Input;
use crate::output::{Output, compression_extension, display_name, is_stdout, refuse_input_as_output};
use crate::terminal;

/// Text after the options in `vramscope export --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope export run.vram --to html -o run.html
  vramscope export run.vram --to csv -o events.csv.gz
  vramscope export run.vram --to memory-viz -o snapshot.pickle --redact";

/// Arguments of `vramscope export`: the recording, the format and the output.
#[derive(Args, Debug)]
pub(crate) struct ExportArguments {
    /// Recording (.vram, or an .html export), PyTorch snapshot (.pickle, .json), profiler trace or
    /// memory timeline (.json), or RMM log (.csv); each also with .gz or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Format to write
    #[arg(long, value_enum, value_name = "FORMAT")]
    to: Format,
    /// File to write, for tensorboard a folder; compressed if the name ends in .gz or .zst; - is
    /// standard output
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Replace names of functions, files, scopes, marks, devices and the program by placeholders
    #[arg(long)]
    redact: bool,
}

/// Values of `export --to`: the formats in which a recording can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// PyTorch memory snapshot for memory_viz: OUT.pickle (or .pkl) or OUT.json
    MemoryViz,
    /// Viewer and recording in one file that any browser opens: OUT.html
    Html,
    /// Trace for ui.perfetto.dev
    Perfetto,
    /// Scalars for TensorBoard: an event file in the folder OUT
    Tensorboard,
    /// Two tables: events in OUT.csv, lifetimes in OUT.lifetimes.csv
    Csv,
    /// The two tables for DuckDB, Polars or Spark
    #[cfg(feature = "parquet")]
    Parquet,
}

/// A function that writes a whole recording to one file.
type WriteFile = fn(&Recording, &mut dyn Write, Progress<'_>) -> std::result::Result<(), ExportError>;
/// A function that writes a recording's events to one file and its lifetimes to another.
type WriteTables = fn(&Recording, &mut Output, &mut Output, Progress<'_>) -> std::result::Result<(), ExportError>;

/// The writer of a format: for one file, for one file in a folder, or for two tables.
enum Writer {
    File(WriteFile),
    /// Writes one file of the returned name in the folder of the output.
    FileInFolder(fn(&Recording) -> String, WriteFile),
    Tables(WriteTables),
}

impl Format {
    /// Returns the writer for the output `path`, whose extension selects the variant of some
    /// formats; `None` for HTML, which embeds the recording.
    fn writer(self, path: &Path) -> Result<Option<Writer>> {
        if is_stdout(path) && matches!(self, Self::Tensorboard) {
            return Err(CommandError::new(
                "--to tensorboard writes into a folder, not to standard output: name a folder with -o",
            ));
        }
        if is_stdout(path) && self.writes_tables() {
            return Err(CommandError::new(
                "this format has two files, which standard output cannot take: name the first with -o",
            ));
        }
        Ok(Some(match self {
            Self::MemoryViz => match extension(path).as_str() {
                "pickle" | "pkl" => Writer::File(export::memory_viz_pickle),
                "json" => Writer::File(export::memory_viz_json),
                _ => {
                    let what = "the name of a PyTorch snapshot must end in .pickle, .pkl or .json: change -o";
                    return Err(CommandError::file(path, what));
                }
            },
            Self::Html => return Ok(None),
            Self::Perfetto => Writer::File(export::perfetto),
            Self::Tensorboard => Writer::FileInFolder(export::tensorboard_file_name, export::tensorboard),
            Self::Csv => Writer::Tables(|recording, events, lifetimes, progress| {
                export::csv(recording, events, lifetimes, progress)
            }),
            #[cfg(feature = "parquet")]
            Self::Parquet => Writer::Tables(|recording, events, lifetimes, progress| {
                export::parquet(recording, events, lifetimes, progress)
            }),
        }))
    }

    /// Returns true for formats with two files, tables of events and of lifetimes; false for
    /// formats with one file.
    fn writes_tables(self) -> bool {
        match self {
            Self::Csv => true,
            #[cfg(feature = "parquet")]
            Self::Parquet => true,
            _ => false,
        }
    }
}

/// Returns a path's extension in lower case, the one before `.gz` or `.zst`: `csv` for
/// `run.CSV.gz`.
fn extension(path: &Path) -> String {
    let name = if compression_extension(path).is_some() { path.with_extension("") } else { path.to_owned() };
    name.extension().unwrap_or_default().to_ascii_lowercase().to_string_lossy().into_owned()
}

impl Writer {
    /// Returns the files to write, in the order that [`write`](Self::write) takes them. If the
    /// output is a folder, creates it.
    fn paths(&self, recording: &Recording, output: &Path) -> Result<Vec<PathBuf>> {
        Ok(match self {
            Self::File(_) => vec![output.to_owned()],
            Self::FileInFolder(name, _) => {
                fs::create_dir_all(output)
                    .map_err(|error| CommandError::file(output, format_args!("cannot create this folder: {error}")))?;
                vec![output.join(name(recording))]
            }
            Self::Tables(_) => vec![output.to_owned(), lifetimes_path(output)],
        })
    }

    /// Writes the recording to `outputs`, which were opened for [`paths`](Self::paths) in its
    /// order.
    fn write(
        &self,
        recording: &Recording,
        outputs: &mut [Output],
        progress: Progress<'_>,
    ) -> std::result::Result<(), ExportError> {
        match (self, outputs) {
            (Self::File(write) | Self::FileInFolder(_, write), [output]) => write(recording, output, progress),
            (Self::Tables(write), [events, lifetimes]) => write(recording, events, lifetimes, progress),
            _ => unreachable!("paths() returns one path for each output"),
        }
    }
}

/// Returns the path of the table of lifetimes for the path of the table of events:
/// `run.lifetimes.csv.gz` for `run.csv.gz`.
fn lifetimes_path(events: &Path) -> PathBuf {
    let name = events.file_name().unwrap_or_default().to_string_lossy();
    let uncompressed = compression_extension(events).map_or(name.len(), |extension| name.len() - extension.len() - 1);
    let dot = name[..uncompressed].rfind('.').filter(|&dot| dot > 0).unwrap_or(uncompressed);
    events.with_file_name(format!("{}.lifetimes{}", &name[..dot], &name[dot..]))
}

/// Writes the page with the input's recording in it as one HTML file, and prints the page's size.
fn write_page(input: Input, output: &Path) -> Result {
    let name = format!("{}.vram", input.name());
    let mut recording = Vec::new();
    let events = input.write_recording(|part| {
        recording.extend_from_slice(part);
        Ok(())
    })?;
    let page = standalone(vramscope_page::files(), &name, &recording).map_err(CommandError::new)?;
    let bytes = Output::write_file(output, page.as_bytes())?;
    let events = Count(events).of("event", "events");
    let file = format!("{}: {events}, {}", display_name(output), ByteSize(bytes));
    if bytes == page.len() as u64 {
        terminal::message(format_args!("{file}, of which the recording has {}", ByteSize(recording.len() as u64)));
    } else {
        terminal::message(file);
    }
    Ok(())
}

/// Exports the recording and prints the size of each file.
pub(crate) fn run(arguments: &ExportArguments) -> Result {
    let writer = arguments.to.writer(&arguments.output)?;
    refuse_input_as_output(&arguments.file, &arguments.output)?;
    let input = Input::open(&arguments.file)?.with_redaction(arguments.redact);
    let Some(writer) = writer else { return write_page(input, &arguments.output) };
    let recording = input.into_recording()?;
    let paths = writer.paths(&recording, &arguments.output)?;
    paths.iter().try_for_each(|path| refuse_input_as_output(&arguments.file, path))?;
    let mut outputs = Output::create_all(&paths)?;
    let bar = terminal::progress_bar(display_name(&arguments.output));
    let mut progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    let written = writer.write(&recording, &mut outputs, &mut progress);
    bar.finish_and_clear();
    written.map_err(|error| match error {
        ExportError::Output(error) => CommandError::file(&arguments.output, error),
        error => CommandError::file(&arguments.file, error),
    })?;
    let events = Count(recording.events()).of("event", "events");
    for (output, path) in outputs.into_iter().zip(paths) {
        let bytes = output.finish()?;
        terminal::message(format_args!("{}: {events}, {}", display_name(&path), ByteSize(bytes)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_path_is_derived_from_events_path() {
        for (events, lifetimes) in [
            ("a/run.csv", "a/run.lifetimes.csv"),
            ("run.csv.gz", "run.lifetimes.csv.gz"),
            ("run.1.csv.zst", "run.1.lifetimes.csv.zst"),
            ("run", "run.lifetimes"),
            (".csv", ".csv.lifetimes"),
        ] {
            assert_eq!(lifetimes_path(Path::new(events)), Path::new(lifetimes));
        }
        assert_eq!(extension(Path::new("a.PICKLE.gz")), "pickle");
    }
}
