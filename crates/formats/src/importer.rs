//! Imports a file whose bytes arrive in pieces, in little memory.

use std::ops::ControlFlow;

use vramscope_trace::{RecordingInfo, Sink};

use crate::conversion::{import_whole, write_snapshot};
use crate::decompress::Unpacked;
use crate::error::ReadError;
use crate::html::recording_in_html;
use crate::limits::Limits;
use crate::progress::{ImportPhase, ImportProgress, ProgressReporter};
use crate::sniff::{InputFormat, is_pickle, sniff};
use crate::summary::ImportSummary;
use crate::torch::pickle::PickleReader;
use crate::torch::snapshot::Snapshot;
use crate::unpack::Unpacker;

/// Unpacks and reads a file of any supported format while its bytes arrive.
///
/// A pickle is read while it arrives, and its bytes are dropped: a snapshot of 4 million entries
/// takes 170 MB of memory instead of 400 MB. The bytes of other formats are kept until they are
/// complete.
///
/// ```
/// use vramscope_formats::{ImportedFile, Importer, Limits, ignore_progress};
/// use vramscope_trace::NullSink;
///
/// # fn main() -> Result<(), vramscope_formats::ReadError> {
/// let mut importer = Importer::new(&Limits::default(), None);
/// importer.push(b"Thread,Time,Action,Pointer,Size,Stream\n1,12:00:00.5,allocate,")?;
/// importer.push(b"0x7f00,256,0x0\n")?;
/// let file = importer.finish()?;
/// let (_, summary) = file.write("log.csv", &mut ignore_progress, |_| NullSink)?;
/// assert_eq!(summary.events, 2);
/// # Ok(())
/// # }
/// ```
pub struct Importer {
    limits: Limits,
    /// Length of the file in bytes, if known.
    total_bytes: Option<u64>,
    unpacker: Unpacker,
    content: UnpackedContent,
    progress: ImportProgress,
}

/// The unpacked content of a file that is arriving: read as a pickle, or kept as bytes.
enum UnpackedContent {
    /// A pickle, read as it arrives.
    Pickle(Box<PickleReader>),
    /// Any other file, or too few bytes to recognize a pickle.
    Bytes(Vec<u8>),
}

impl Importer {
    /// Starts at the first byte of a file; `total_bytes` is its length, if known.
    #[must_use]
    pub fn new(limits: &Limits, total_bytes: Option<u64>) -> Self {
        Self {
            limits: *limits,
            total_bytes,
            unpacker: Unpacker::new(limits),
            content: UnpackedContent::Bytes(Vec::new()),
            progress: ImportProgress::default(),
        }
    }

    /// Unpacks and reads the next bytes of the file. The work is proportional to the unpacked
    /// bytes.
    ///
    /// # Errors
    /// If the file is damaged, or reading it takes more than the limits allow.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), ReadError> {
        let mut rest = bytes;
        loop {
            let unpacked = self.unpacker.unpack(&mut rest, self.content.buffer_mut())?;
            self.content.read(&self.limits)?;
            if unpacked == Unpacked::All {
                break;
            }
        }
        self.progress.read_bytes += bytes.len() as u64;
        let phase = match &self.content {
            UnpackedContent::Pickle(reader) => {
                self.progress.entries = reader.entries();
                ImportPhase::Reading
            }
            UnpackedContent::Bytes(_) => ImportPhase::Receiving,
        };
        self.progress.advance(phase, self.progress.read_bytes, self.total_bytes.unwrap_or(0));
        Ok(())
    }

    /// Returns the progress of the import.
    #[must_use]
    pub fn progress(&self) -> ImportProgress {
        self.progress
    }

    /// Returns the file's content, after its last byte has arrived.
    ///
    /// # Errors
    /// If the file is damaged or cut off, or reading it takes more than the limits allow.
    pub fn finish(mut self) -> Result<ImportedFile, ReadError> {
        self.unpacker.finish(self.content.buffer_mut())?;
        self.content.read(&self.limits)?;
        let content = match self.content {
            UnpackedContent::Pickle(reader) => FileContent::Snapshot(Box::new(reader.finish()?)),
            UnpackedContent::Bytes(bytes) => {
                let bytes = recording_in_html(&bytes, &self.limits)?.unwrap_or(bytes);
                FileContent::Bytes(sniff(&bytes), bytes)
            }
        };
        Ok(ImportedFile { limits: self.limits, progress: self.progress, content })
    }
}

impl UnpackedContent {
    /// Returns the buffer to which the next unpacked bytes must be appended.
    fn buffer_mut(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Pickle(reader) => reader.buffer_mut(),
            Self::Bytes(bytes) => bytes,
        }
    }

    /// Reads the bytes that were appended to the buffer, if the file is a pickle.
    fn read(&mut self, limits: &Limits) -> Result<(), ReadError> {
        if let Self::Bytes(bytes) = self
            && is_pickle(bytes)
        {
            let mut reader = Box::new(PickleReader::new(limits));
            *reader.buffer_mut() = std::mem::take(bytes);
            *self = Self::Pickle(reader);
        }
        match self {
            Self::Pickle(reader) => reader.run(),
            Self::Bytes(_) => Ok(()),
        }
    }
}

/// A file that has arrived completely: a recording, or another tool's format to convert to one.
pub struct ImportedFile {
    limits: Limits,
    progress: ImportProgress,
    content: FileContent,
}

/// The content of a complete file: a snapshot that was read, or unpacked bytes.
enum FileContent {
    /// A pickled snapshot.
    Snapshot(Box<Snapshot>),
    /// The unpacked bytes of any other file, and their format if it is known.
    Bytes(Option<InputFormat>, Vec<u8>),
}

impl ImportedFile {
    /// Returns the format of the file, or `None` if it is unknown or the file is empty.
    #[must_use]
    pub fn format(&self) -> Option<InputFormat> {
        match &self.content {
            FileContent::Snapshot(_) => Some(InputFormat::TorchPickle),
            FileContent::Bytes(format, _) => *format,
        }
    }

    /// Returns the unpacked bytes of the file; empty for a pickle, whose bytes were dropped.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        match self.content {
            FileContent::Snapshot(_) => Vec::new(),
            FileContent::Bytes(_, bytes) => bytes,
        }
    }

    /// Passes the events of the file to the sink that `begin` creates, as [`import()`] does.
    ///
    /// The sink receives events in order, beginning after about half of the import's time, so that
    /// the recording can be shown from its beginning while the rest is converted.
    ///
    /// [`import()`]: crate::import()
    ///
    /// # Errors
    /// If the file is a recording, of unknown format or damaged, reading it takes more than the
    /// limits allow, or `progress` stops the import.
    pub fn write<S: Sink>(
        self,
        name: &str,
        progress: &mut dyn FnMut(&ImportProgress) -> ControlFlow<()>,
        begin: impl FnOnce(&RecordingInfo) -> S,
    ) -> Result<(S, ImportSummary), ReadError> {
        let mut reporter = ProgressReporter::new(self.progress, progress);
        match self.content {
            FileContent::Snapshot(snapshot) => write_snapshot(*snapshot, name, &mut reporter, begin),
            FileContent::Bytes(format, bytes) => import_whole(&bytes, format, name, &self.limits, &mut reporter, begin),
        }
    }
}
