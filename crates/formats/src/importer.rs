//! Imports a file whose bytes arrive in pieces, in little memory.

use std::ops::ControlFlow;

use vramscope_trace::{ByteSize, RecordingInfo, Sink};

use crate::contained::contained_file;
use crate::conversion::{import_whole, write_snapshot};
use crate::decompress::Unpacked;
use crate::error::ReadError;
use crate::kineto::{self, KinetoReader};
use crate::limits::Limits;
use crate::progress::{ImportPhase, ImportProgress, ProgressReporter};
use crate::sniff::{InputFormat, is_pickle, sniff};
use crate::summary::ImportSummary;
use crate::torch::pickle::PickleReader;
use crate::torch::snapshot::Snapshot;
use crate::unpack::{MAX_NESTED, Unpacker, nested_too_deep};

/// Number of bytes within which a profiler trace is recognized, so that other files are not
/// searched again and again.
const MAX_TRACE_HEAD: usize = 1 << 18;

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
    /// The protocol of a pickle.
    pickle_protocol: Option<u8>,
    /// Number of archives or pages that may still be one inside of the other.
    nested: u32,
}

/// The unpacked content of a file that is arriving: read as a pickle, or kept as bytes.
enum UnpackedContent {
    /// A pickle, read as it arrives.
    Pickle(Box<PickleReader>),
    /// A profiler trace, read as it arrives.
    Trace(Box<KinetoReader>),
    /// Too few bytes to recognize one of these.
    Head(Vec<u8>),
    /// Any other file.
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
            content: UnpackedContent::Head(Vec::new()),
            progress: ImportProgress::default(),
            pickle_protocol: None,
            nested: MAX_NESTED,
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
            self.read_content()?;
            if unpacked == Unpacked::All {
                break;
            }
        }
        self.progress.read_bytes += bytes.len() as u64;
        let (phase, entries) = match &self.content {
            UnpackedContent::Pickle(reader) => (ImportPhase::Reading, reader.entries()),
            UnpackedContent::Trace(reader) => (ImportPhase::Reading, reader.entries()),
            UnpackedContent::Head(_) | UnpackedContent::Bytes(_) => (ImportPhase::Receiving, 0),
        };
        self.progress.entries = entries;
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
        self.read_content()?;
        let content = match self.content {
            UnpackedContent::Pickle(reader) => FileContent::Snapshot(Box::new(reader.finish()?)),
            UnpackedContent::Trace(reader) => FileContent::Trace(reader),
            UnpackedContent::Head(bytes) | UnpackedContent::Bytes(bytes) => {
                if let Some(inner) = contained_file(&bytes, &self.limits)? {
                    drop(bytes);
                    let nested = self.nested.checked_sub(1).ok_or_else(nested_too_deep)?;
                    let mut importer = Self { nested, ..Self::new(&self.limits, None) };
                    importer.push(&inner)?;
                    drop(inner);
                    return Ok(ImportedFile { progress: self.progress, ..importer.finish()? });
                }
                match sniff(&bytes) {
                    Some(InputFormat::KinetoTrace) => {
                        let mut reader = Box::new(KinetoReader::new(&self.limits));
                        *reader.buffer_mut() = bytes;
                        FileContent::Trace(reader)
                    }
                    format => FileContent::Bytes(format, bytes),
                }
            }
        };
        let Self { limits, progress, pickle_protocol, .. } = self;
        Ok(ImportedFile { limits, progress, content, pickle_protocol })
    }

    /// Reads the bytes that were appended to the buffer, if the file can be read as it arrives.
    fn read_content(&mut self) -> Result<(), ReadError> {
        if let UnpackedContent::Head(bytes) = &self.content
            && is_pickle(bytes)
        {
            self.pickle_protocol = bytes.get(1).copied();
        }
        self.content.read(&self.limits)
    }
}

impl UnpackedContent {
    /// Returns the buffer to which the next unpacked bytes must be appended.
    fn buffer_mut(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Pickle(reader) => reader.buffer_mut(),
            Self::Trace(reader) => reader.buffer_mut(),
            Self::Head(bytes) | Self::Bytes(bytes) => bytes,
        }
    }

    /// Reads the bytes that were appended to the buffer, if the file is a pickle or a trace.
    fn read(&mut self, limits: &Limits) -> Result<(), ReadError> {
        if let Self::Head(bytes) = self {
            let is_trace = kineto::is_trace(&bytes[..bytes.len().min(MAX_TRACE_HEAD)]);
            if is_pickle(bytes) {
                let mut reader = Box::new(PickleReader::new(limits));
                *reader.buffer_mut() = std::mem::take(bytes);
                *self = Self::Pickle(reader);
            } else if is_trace == Some(true) {
                let mut reader = Box::new(KinetoReader::new(limits));
                *reader.buffer_mut() = std::mem::take(bytes);
                *self = Self::Trace(reader);
            } else if bytes.len() > 1 && is_trace == Some(false) || bytes.len() >= MAX_TRACE_HEAD {
                *self = Self::Bytes(std::mem::take(bytes));
            }
        }
        match self {
            Self::Pickle(reader) => reader.run(),
            Self::Trace(reader) => reader.run(),
            Self::Head(bytes) | Self::Bytes(bytes) if bytes.len() as u64 > limits.max_unpacked_bytes => {
                let limit = ByteSize(limits.max_unpacked_bytes);
                let problem = format!("the file is longer than {limit}, the limit for this format");
                Err(ReadError::at(bytes.len(), problem))
            }
            Self::Head(_) | Self::Bytes(_) => Ok(()),
        }
    }
}

/// A file that has arrived completely: a recording, or another tool's format to convert to one.
pub struct ImportedFile {
    limits: Limits,
    progress: ImportProgress,
    content: FileContent,
    pickle_protocol: Option<u8>,
}

/// The content of a complete file: a snapshot that was read, or unpacked bytes.
enum FileContent {
    /// A pickled snapshot.
    Snapshot(Box<Snapshot>),
    /// A profiler trace.
    Trace(Box<KinetoReader>),
    /// The unpacked bytes of any other file, and their format if it is known.
    Bytes(Option<InputFormat>, Vec<u8>),
}

impl ImportedFile {
    /// Returns the format of the file, or `None` if it is unknown or the file is empty.
    #[must_use]
    pub fn format(&self) -> Option<InputFormat> {
        match &self.content {
            FileContent::Snapshot(_) => Some(InputFormat::TorchPickle),
            FileContent::Trace(_) => Some(InputFormat::KinetoTrace),
            FileContent::Bytes(format, _) => *format,
        }
    }

    /// Returns the protocol of a pickle; `None` for other formats.
    #[must_use]
    pub fn pickle_protocol(&self) -> Option<u8> {
        self.pickle_protocol
    }

    /// Returns the unpacked bytes of the file; empty for a pickle or a trace, whose bytes were
    /// dropped.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        match self.content {
            FileContent::Snapshot(_) | FileContent::Trace(_) => Vec::new(),
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
            FileContent::Trace(reader) => kineto::write(*reader, name, &mut reporter, begin),
            FileContent::Bytes(format, bytes) => import_whole(&bytes, format, name, &self.limits, &mut reporter, begin),
        }
    }
}
