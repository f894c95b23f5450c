//! Opens input files of every supported format, recognized by their content.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use vramscope_collector::RecordingBytes;
#[cfg(feature = "export")]
use vramscope_formats::export;
use vramscope_formats::{self as formats, ImportedFile, Importer, InputFormat, Limits};
#[cfg(feature = "export")]
use vramscope_trace::Redactor;
use vramscope_trace::{Count, Damage, FORMAT_NAME, FORMAT_VERSION, FormatError, ReadAt, Recording};

use crate::convert::ChunkWriter;
use crate::error::{CommandError, Result};
use crate::item_channel::{PendingSender, read_on_thread};
use crate::operation::Operation;

/// Extensions of input files, which are removed from a file's name to get the recording's name.
const EXTENSIONS: [&str; 7] = [".gz", ".zst", ".pickle", ".json", ".csv", ".html", ".vram"];
/// Number of bytes read to recognize a file's format; longer than any header line of a log.
const HEAD_BYTES: u64 = 1 << 16;
/// Size in bytes of the pieces in which another tool's file is read.
const PIECE_BYTES: usize = 1 << 20;
/// Number of steps of the progress bar of an import.
const PROGRESS_STEPS: u64 = 1000;
/// Size in bytes of the pieces in which a recording is copied.
const COPY_BYTES: u64 = 1 << 20;

/// A recognized and decompressed input file.
pub(crate) struct Input {
    path: PathBuf,
    content: InputContent,
    /// True if the file itself is the recording, without compression.
    is_plain: bool,
    redact: bool,
    /// The operation that shows the progress of reading, and that can cancel it.
    operation: Operation,
}

/// A function that opens a recording from a source of the given length in bytes. It reports
/// progress as (bytes read, total bytes), and returns the recording and the damage in it, if any.
type OpenRecording = fn(
    Arc<dyn ReadAt>,
    u64,
    &mut dyn FnMut(u64, u64),
) -> std::result::Result<(Recording, Option<FormatError>), FormatError>;

/// An opened recording, the number of intact bytes at its start, and the damage after them, if any.
struct OpenedRecording {
    recording: Recording,
    intact: u64,
    damage: Option<FormatError>,
}

/// A file's content: a recording, read as needed, or another tool's format, in memory.
enum InputContent {
    /// A recording and its length in bytes. Only the parts that are needed are read.
    Recording(Arc<dyn ReadAt>, u64),
    /// Another tool's format, in memory, read as far as possible.
    Foreign(InputFormat, Box<ImportedFile>),
}

/// A file of which any range can be read, from several threads.
struct SeekableFile(Mutex<File>);

impl ReadAt for SeekableFile {
    fn read_at(&self, range: Range<u64>) -> std::io::Result<Vec<u8>> {
        // Every read seeks first, so the file is usable even if another thread panicked.
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = vec![0; usize::try_from(range.end - range.start).map_err(std::io::Error::other)?];
        let read = file.seek(SeekFrom::Start(range.start)).and_then(|_| file.read_exact(&mut bytes));
        read.map(|()| bytes)
    }
}

/// A source of bytes that fails once an operation is cancelled.
struct CancellableSource {
    source: Arc<dyn ReadAt>,
    operation: Operation,
}

impl ReadAt for CancellableSource {
    fn read_at(&self, range: Range<u64>) -> std::io::Result<Vec<u8>> {
        self.operation.check().map_err(|error| std::io::Error::other(error.to_string()))?;
        self.source.read_at(range)
    }
}

/// Reads the events of the recording at `path`, leaves damaged chunks out and reports them.
pub(crate) fn skip_damaged(recording: &mut Recording, path: &Path, operation: &Operation) -> Result {
    let bar = operation.stage(format!("Checking {}", recording_name(path)));
    let damage = recording.skip_damaged(|done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    if let Some(Damage { first, events }) = damage {
        let events = Count(events).of("event is", "events are");
        operation.message(CommandError::file(path, format_args!("{first}; {events} lost")));
    }
    operation.check()
}

/// Returns a file's name without the extensions of input files: `run` for `run.pickle.gz`.
pub(crate) fn recording_name(path: &Path) -> String {
    let file_name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    let mut name = &*file_name;
    while let Some(shorter) =
        EXTENSIONS.iter().find_map(|extension| name.strip_suffix(extension)).filter(|name| !name.is_empty())
    {
        name = shorter;
    }
    name.to_owned()
}

/// An input's file format, as `info` shows it; `version` is `None` for formats without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct Format {
    pub(crate) name: &'static str,
    pub(crate) version: Option<u16>,
}

impl Input {
    /// Opens the file at `path`. An uncompressed recording is read as needed, any other file at
    /// once.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| open_error(path, &error))?;
        Self::from_file(file, path, Limits::default(), Operation::on_terminal())
    }

    /// Recognizes an open file. `path` is its name for messages and reports.
    pub(crate) fn from_file(mut file: File, path: &Path, limits: Limits, operation: Operation) -> Result<Self> {
        let io_error = |error| open_error(path, &error);
        let metadata = file.metadata().map_err(io_error)?;
        if metadata.is_dir() {
            return Err(CommandError::file(path, "is a directory; name a file"));
        }
        let mut packed = Vec::new();
        file.by_ref().take(HEAD_BYTES).read_to_end(&mut packed).map_err(io_error)?;
        if metadata.is_file() && formats::sniff(&packed) == Some(InputFormat::Recording) {
            let source = Arc::new(SeekableFile(Mutex::new(file)));
            return Ok(Self::from_source(source, metadata.len(), true, path, operation));
        }
        // The files of an archive are found once all of it is in memory.
        let is_large_archive = formats::is_archive(&packed) && metadata.len() > limits.max_unpacked_bytes;
        if !may_be_input(&packed) || is_large_archive {
            // The error comes before the rest is read, which could take long.
            return Err(unknown_format(path, &packed));
        }
        let imported = read_file(&packed, file, metadata.len(), path, &limits, &operation)?;
        let content = match imported.format() {
            None => return Err(unknown_format(path, &imported.into_bytes())),
            Some(InputFormat::Recording) => {
                let bytes = imported.into_bytes();
                let len = bytes.len() as u64;
                return Ok(Self::from_source(Arc::new(bytes), len, false, path, operation));
            }
            Some(format) => InputContent::Foreign(format, Box::new(imported)),
        };
        Ok(Self { path: path.to_owned(), content, is_plain: false, redact: false, operation })
    }

    /// Recognizes the bytes of a recording. `path` is its name for messages and reports.
    #[cfg(feature = "mcp")]
    pub(crate) fn from_recording_bytes(bytes: Vec<u8>, path: &Path, operation: Operation) -> Result<Self> {
        if formats::sniff(&bytes) != Some(InputFormat::Recording) {
            return Err(unknown_format(path, &bytes));
        }
        let len = bytes.len() as u64;
        Ok(Self::from_source(Arc::new(bytes), len, false, path, operation))
    }

    /// Returns the input with a recording of `len` bytes, which is read as needed.
    fn from_source(source: Arc<dyn ReadAt>, len: u64, is_plain: bool, path: &Path, operation: Operation) -> Self {
        let source = Arc::new(CancellableSource { source, operation: operation.clone() });
        let content = InputContent::Recording(source, len);
        Self { path: path.to_owned(), content, is_plain, redact: false, operation }
    }

    /// Sets whether placeholders replace the names of files, functions, marks and the program in
    /// everything made from this input.
    #[cfg(feature = "export")]
    pub(crate) fn with_redaction(self, redact: bool) -> Self {
        Self { redact, ..self }
    }

    /// Returns true if the file has another tool's format, false if it contains a recording.
    pub(crate) fn is_foreign(&self) -> bool {
        matches!(self.content, InputContent::Foreign(..))
    }

    /// Returns the file's format.
    pub(crate) fn format(&self) -> Format {
        match &self.content {
            InputContent::Recording(..) | InputContent::Foreign(InputFormat::Recording, _) => {
                Format { name: FORMAT_NAME, version: Some(FORMAT_VERSION) }
            }
            InputContent::Foreign(InputFormat::TorchPickle, file) => {
                Format { name: "pytorch-pickle", version: file.pickle_protocol().map(u16::from) }
            }
            InputContent::Foreign(InputFormat::TorchJson, _) => Format { name: "pytorch-json", version: None },
            InputContent::Foreign(InputFormat::KinetoTrace, _) => Format { name: "kineto-json", version: None },
            InputContent::Foreign(InputFormat::MemoryTimeline, _) => Format { name: "pytorch-timeline", version: None },
            InputContent::Foreign(InputFormat::RmmLog, _) => Format { name: "rmm-csv", version: None },
            InputContent::Foreign(InputFormat::BufferTable, _) => Format { name: "buffers-csv", version: None },
        }
    }

    /// Returns the recording's name: the file's name without extensions, or a placeholder if
    /// redacted.
    pub(crate) fn name(&self) -> String {
        if self.redact { "recording".to_owned() } else { recording_name(&self.path) }
    }

    /// Converts the input to a recording that ends with an index and passes the recording's bytes
    /// to `write`, in parts. Returns the number of events.
    pub(crate) fn write_recording(self, mut write: impl FnMut(&[u8]) -> Result) -> Result<u64> {
        let (source, len) = match self.content {
            InputContent::Foreign(_, file) => {
                return import(*file, &self.path, self.redact, &self.operation, write);
            }
            InputContent::Recording(ref source, len) => (Arc::clone(source), len),
        };
        // Reads every chunk, because damaged ones must not be copied.
        let OpenedRecording { recording, intact, .. } =
            self.open_recording(&source, len, |source, len, progress| Recording::read_through(source, len, progress))?;
        let mut parts = (0..intact).step_by(COPY_BYTES as usize).map(|start| {
            let read = source.read_at(start..intact.min(start + COPY_BYTES));
            read.map_err(|error| FormatError::read_failed(start, error))
        });
        let format_error = |error| CommandError::file(&self.path, error);
        #[cfg(feature = "export")]
        if self.redact {
            let redacted = export::redact(recording.info(), parts, |info: &_| ChunkWriter::new(info, write));
            return redacted.map_err(format_error)?.finish();
        }
        parts.try_for_each(|part| write(&part.map_err(format_error)?))?;
        let has_index = intact == len && matches!(Recording::open_by_index(&source, len), Ok(Some(_)));
        if !has_index {
            recording.index().iter().try_for_each(|chunk| write(&chunk.bytes))?;
        }
        Ok(recording.events())
    }

    /// Returns the bytes of an uncompressed recording for the server to read from its file, as far
    /// as they are intact, and the number of events; `None` for compressed files and other formats.
    pub(crate) fn stored_recording(&self) -> Result<Option<(RecordingBytes, u64)>> {
        let InputContent::Recording(source, len) = &self.content else { return Ok(None) };
        if !self.is_plain {
            return Ok(None);
        }
        let OpenedRecording { recording, intact, .. } =
            self.open_recording(source, *len, |source, len, progress| Recording::open(source, len, progress))?;
        let index = recording.index().into_iter().flat_map(|chunk| chunk.bytes).collect();
        let file = File::open(&self.path).map_err(|error| CommandError::file(&self.path, error))?;
        Ok(Some((RecordingBytes::from_file(file, intact, index), recording.events())))
    }

    /// Returns the unpacked bytes of a table of buffers to place, or the input back if it is
    /// another format.
    pub(crate) fn into_buffer_table(self) -> std::result::Result<Vec<u8>, Self> {
        match self.content {
            InputContent::Foreign(InputFormat::BufferTable, file) => Ok(file.into_bytes()),
            content => Err(Self { content, ..self }),
        }
    }

    /// Returns the input as a recording whose every event can be read, importing other formats.
    /// Damaged chunks are left out and reported.
    pub(crate) fn into_recording(self) -> Result<Recording> {
        let mut recording = self.into_recording_without_marks()?;
        recording.read_marks();
        Ok(recording)
    }

    /// Returns the input as a recording, as [`into_recording`](Self::into_recording) does, but may
    /// leave marks out of its annotations, because listing marks takes a pass through all events.
    pub(crate) fn into_recording_without_marks(self) -> Result<Recording> {
        let (path, operation) = (self.path.clone(), self.operation.clone());
        let (mut recording, _) = self.into_indexed_recording()?;
        skip_damaged(&mut recording, &path, &operation)?;
        Ok(recording)
    }

    /// Returns the input as a recording, importing other formats. Returns and reports the damage
    /// found while opening it. The events of a recording with an index are not read yet.
    pub(crate) fn into_indexed_recording(self) -> Result<(Recording, Option<FormatError>)> {
        match &self.content {
            InputContent::Recording(source, len) if !self.redact => {
                return self
                    .open_recording(source, *len, |source, len, progress| Recording::open(source, len, progress))
                    .map(|opened| (opened.recording, opened.damage));
            }
            _ => {}
        }
        let mut recording = Recording::new();
        let path = self.path.clone();
        self.write_recording(|part| recording.push(part).map_err(|error| CommandError::file(&path, error)))?;
        Ok((recording, None))
    }

    /// Opens a recording of `len` bytes with the function `open`, shows progress and reports
    /// damage.
    fn open_recording(&self, source: &Arc<dyn ReadAt>, len: u64, open: OpenRecording) -> Result<OpenedRecording> {
        let bar = self.operation.stage(format!("Opening {}", recording_name(&self.path)));
        let opened = open(Arc::clone(source), len, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        // A recording whose header chunk is damaged is an error, because no device is known.
        let (recording, damage) = opened.map_err(|error| CommandError::file(&self.path, error))?;
        if let Some(damage) = &damage {
            self.operation.message(CommandError::file(&self.path, damage));
        }
        let intact = if damage.is_some() { recording.complete_bytes() } else { len };
        Ok(OpenedRecording { recording, intact, damage })
    }
}

/// Reads and unpacks a file that begins with `head`, in pieces. A snapshot or a trace is read as it
/// arrives, so that its text need not fit into memory.
fn read_file(
    head: &[u8],
    mut file: File,
    len: u64,
    path: &Path,
    limits: &Limits,
    operation: &Operation,
) -> Result<ImportedFile> {
    let bar = operation.stage(format!("Reading {}", recording_name(path)));
    bar.set_length(PROGRESS_STEPS);
    let read_error = |error: formats::ReadError| CommandError::file(path, error);
    let mut importer = Importer::new(limits, Some(len));
    importer.push(head).map_err(read_error)?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        operation.check()?;
        let count = match file.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(open_error(path, &error)),
        };
        importer.push(&piece[..count]).map_err(read_error)?;
        bar.set_position((importer.progress().fraction * PROGRESS_STEPS as f64) as u64);
    }
    bar.finish_and_clear();
    importer.finish().map_err(read_error)
}

/// Converts another tool's file to a recording and passes its bytes to `write`. `path` is its name
/// for messages and in the recording. Returns the number of events.
fn import(
    file: ImportedFile,
    path: &Path,
    redact: bool,
    operation: &Operation,
    write: impl FnMut(&[u8]) -> Result,
) -> Result<u64> {
    let file_name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    let bar = operation.stage(format!("Importing {file_name}"));
    bar.set_length(PROGRESS_STEPS);
    let mut progress = |progress: &formats::ImportProgress| {
        bar.set_position((progress.fraction * PROGRESS_STEPS as f64) as u64);
        if operation.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let read = |pending: PendingSender| {
        let begin = |info: &_| pending.begin(info);
        file.write(&file_name, &mut progress, begin).map(|(_, imported)| imported)
    };
    let make_writer = |info: &_| ChunkWriter::new(info, write);
    #[cfg(feature = "export")]
    let (imported, writer) = if redact {
        let (imported, redactor) = read_on_thread(read, |info| export::redactor(info, make_writer));
        (imported, redactor.map(Redactor::into_inner))
    } else {
        read_on_thread(read, make_writer)
    };
    #[cfg(not(feature = "export"))]
    let (imported, writer) = read_on_thread(read, make_writer);
    bar.finish_and_clear();
    let imported = imported.map_err(|error| CommandError::file(path, error))?;
    for note in &imported.info.import_notes {
        operation.message(format_args!("{file_name}: {note}"));
    }
    writer.map_or(Ok(0), |mut writer| {
        if !redact {
            writer.add_notes(&imported.info);
        }
        writer.finish()
    })
}

/// Returns true if a supported file may begin with `head`. Text formats may begin with blanks, a
/// comment or a byte order mark.
fn may_be_input(head: &[u8]) -> bool {
    let is_text_prefix = |&byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'#' | 0xef);
    formats::is_packed(head) || formats::sniff(head).is_some() || head.first().is_some_and(is_text_prefix)
}

/// Returns the error for a file that cannot be opened or read, with a remedy if the cause is known.
fn open_error(path: &Path, error: &io::Error) -> CommandError {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => ": check the path",
        io::ErrorKind::PermissionDenied => ": you need permission to read the file",
        _ => "",
    };
    CommandError::file(path, format_args!("{error}{remedy}"))
}

/// Returns the error for a file of no supported format that begins with `head`.
fn unknown_format(path: &Path, head: &[u8]) -> CommandError {
    let name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    CommandError::file(path, format_args!("at byte 0: {}", formats::unsupported_file(head, &name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recording_names_have_no_extensions() {
        for (file, name) in [
            ("a/run.vram", "run"),
            ("run.pickle.zst", "run"),
            ("run.html", "run"),
            ("run.html.gz", "run"),
            ("run.3.vram", "run.3"),
            (".html", ".html"),
        ] {
            assert_eq!(recording_name(Path::new(file)), name);
        }
    }
}
