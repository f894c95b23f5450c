//! Recognizes and reads a file while its bytes arrive.

use vramscope_formats::{InputFormat, Limits, import, sniff, unpack};
use vramscope_trace::{
    Annotation, Definition, Encoder, Event, FormatError, MemoryState, Recording, RecordingInfo, Sink,
};

/// Number of imported events after which the encoded bytes are decoded into the recording.
const EVENTS_PER_READ: u32 = 4096;

/// File name extensions that are removed before `.vram` is appended to a saved recording's name.
const EXTENSIONS: [&str; 8] = [".vram", ".html", ".pickle", ".pkl", ".json", ".csv", ".gz", ".zst"];
/// Size in bytes up to which recordings are read completely, even if they have an index: counters
/// over time are then exact, and nothing is fetched later. A million events take the page 0.15 s;
/// twice as many would be noticeable.
pub const READ_WHOLE_UP_TO: u64 = 1 << 20;
/// Longest saved file name without its extension, in characters; a longer name is cut.
const MAX_NAME_CHARS: usize = 100;

/// Why a file cannot be shown: it is empty, of unknown format, damaged, or cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// There are no bytes.
    #[error("the file is empty; save or copy it again")]
    Empty,
    /// The first bytes are of no known format.
    #[error("not a vramscope recording, an HTML export of one, a PyTorch memory snapshot or an RMM log (at byte 0)")]
    UnknownFormat,
    /// The recording is damaged before its first event.
    #[error(transparent)]
    Damaged(#[from] FormatError),
    /// The snapshot or log cannot be converted.
    #[error("{0}")]
    Import(String),
}

/// Reads a file of any supported format whose bytes arrive in pieces.
pub struct FileLoader {
    name: String,
    received: Received,
}

/// The bytes of a file received so far: a recording, decoded as it arrives, or the bytes of any
/// other file.
enum Received {
    /// The beginning of a recording, decoded as it arrives.
    Recording(Box<PartialRecording>),
    /// Any other file, which is read once it is complete.
    Bytes(Vec<u8>),
}

/// A recording decoded as its bytes arrive, up to the first error in it.
#[derive(Default)]
struct PartialRecording {
    recording: Recording,
    error: Option<FormatError>,
}

impl PartialRecording {
    /// Decodes the next bytes; ignores them after an error.
    fn push(&mut self, bytes: &[u8]) {
        if self.error.is_none() {
            self.error = self.recording.push(bytes).err();
        }
    }

    /// Returns the recording after its last byte. An error becomes a warning if events precede it,
    /// and is returned otherwise.
    fn finish(self) -> Result<LoadedFile, LoadError> {
        let Self { recording, error } = self;
        let error = error.or_else(|| recording.finish().err());
        match error {
            Some(error) if recording.end_event() == recording.first_event() => Err(error.into()),
            error => {
                let warning = error.map(|error| error.to_string());
                Ok(LoadedFile { recording, warning, notes: Vec::new(), converted: Vec::new() })
            }
        }
    }
}

/// A recording read from a file, with the error that ended reading, notes, and the recording's
/// bytes if the file was converted.
#[derive(Debug)]
pub struct LoadedFile {
    /// The recording, up to the error if there is one.
    pub recording: Recording,
    /// The error in the file, with its position.
    pub warning: Option<String>,
    /// Facts about an imported file that the user should know.
    pub notes: Vec<String>,
    /// The recording's bytes, if the file was compressed or converted.
    pub converted: Vec<Vec<u8>>,
}

impl From<Recording> for LoadedFile {
    fn from(recording: Recording) -> Self {
        Self { recording, warning: None, notes: Vec::new(), converted: Vec::new() }
    }
}

/// Returns true if `bytes`, the start of a file, begin with an uncompressed recording's magic
/// number: only such a file may have an index and be read in parts. False for too few bytes.
#[must_use]
pub fn is_recording(bytes: &[u8]) -> bool {
    sniff(bytes) == Some(InputFormat::Recording)
}

/// Returns the file name under which to save the recording of `source`, a file or a program:
/// `run.vram` for `run.pickle.gz`.
#[must_use]
pub fn saved_name(source: &str) -> String {
    let mut stem = source.trim();
    while let Some(shorter) = EXTENSIONS.iter().find_map(|extension| stem.strip_suffix(extension)) {
        stem = shorter;
    }
    let replace = |c: char| if c.is_control() || r#"/\:*?"<>|"#.contains(c) { '_' } else { c };
    let stem: String = stem.chars().take(MAX_NAME_CHARS).map(replace).collect();
    let stem = stem.trim_matches(['.', ' ']);
    format!("{}.vram", if stem.is_empty() { "recording" } else { stem })
}

impl FileLoader {
    /// Creates a loader for the file called `name`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), received: Received::Bytes(Vec::new()) }
    }

    /// Adds the next bytes of the file.
    pub fn push(&mut self, bytes: &[u8]) {
        match &mut self.received {
            Received::Recording(recording) => recording.push(bytes),
            Received::Bytes(so_far) => {
                so_far.extend_from_slice(bytes);
                if sniff(so_far) == Some(InputFormat::Recording) {
                    let mut recording = Box::new(PartialRecording::default());
                    recording.push(so_far);
                    self.received = Received::Recording(recording);
                }
            }
        }
    }

    /// Returns the recording after the file's last byte, importing other formats.
    ///
    /// # Errors
    /// If the file has no usable content; the error says why and at which byte.
    pub fn finish(self) -> Result<LoadedFile, LoadError> {
        let bytes = match self.received {
            Received::Recording(recording) => return recording.finish(),
            Received::Bytes(bytes) if bytes.is_empty() => return Err(LoadError::Empty),
            Received::Bytes(bytes) => bytes,
        };
        let limits = Limits::default();
        let bytes = unpack(&bytes, &limits).map_err(|error| LoadError::Import(error.to_string()))?;
        match sniff(&bytes) {
            Some(InputFormat::Recording) => {
                let mut recording = PartialRecording::default();
                recording.push(&bytes);
                Ok(LoadedFile { converted: vec![bytes.into_owned()], ..recording.finish()? })
            }
            Some(InputFormat::TorchPickle | InputFormat::TorchJson | InputFormat::RmmLog) => {
                import_file(&bytes, &self.name, &limits)
            }
            None => Err(LoadError::UnknownFormat),
        }
    }
}

/// Converts a complete file of another format, called `name`, to a recording.
fn import_file(bytes: &[u8], name: &str, limits: &Limits) -> Result<LoadedFile, LoadError> {
    let imported = import(bytes, name, limits, &mut |_, _| {}, RecordingSink::new);
    let (sink, imported) = imported.map_err(|error| LoadError::Import(error.to_string()))?;
    let (recording, converted) = sink.finish()?;
    Ok(LoadedFile { recording, warning: None, notes: imported.notes, converted })
}

/// A sink that encodes imported events as a recording's bytes, for saving, and decodes them into a
/// recording, for showing.
struct RecordingSink {
    encoder: Encoder,
    recording: PartialRecording,
    chunks: Vec<Vec<u8>>,
    /// Events since the encoder's output was read.
    events: u32,
}

impl RecordingSink {
    fn new(info: &RecordingInfo) -> Self {
        Self { encoder: Encoder::new(info), recording: PartialRecording::default(), chunks: Vec::new(), events: 0 }
    }

    /// Decodes the finished chunks of the encoder into the recording, and keeps their bytes.
    fn read_output(&mut self) {
        for chunk in self.encoder.take_output() {
            self.recording.push(&chunk.bytes);
            self.chunks.push(chunk.bytes);
        }
    }

    /// Returns the recording and its bytes, chunk by chunk.
    fn finish(mut self) -> Result<(Recording, Vec<Vec<u8>>), FormatError> {
        self.encoder.flush();
        self.read_output();
        match self.recording.error {
            Some(error) => Err(error),
            None => Ok((self.recording.recording, self.chunks)),
        }
    }
}

impl Sink for RecordingSink {
    fn event(&mut self, event: &Event) {
        self.encoder.event(event);
        self.events += 1;
        if self.events == EVENTS_PER_READ {
            self.events = 0;
            self.read_output();
        }
    }

    fn define(&mut self, definition: &Definition) {
        self.encoder.define(definition);
    }

    fn annotation(&mut self, annotation: &Annotation) {
        self.encoder.annotation(annotation);
    }

    fn full_state(&mut self, state: &MemoryState) {
        self.encoder.full_state(state);
    }
}

#[cfg(test)]
mod tests {
    use super::saved_name;

    #[test]
    fn saved_names_are_valid_file_names() {
        let check = |source: &str, expected: &str| assert_eq!(saved_name(source), expected);
        check("gpt.pickle.zst", "gpt.vram");
        check("run.3.vram", "run.3.vram");
        check("run.html", "run.vram");
        check("", "recording.vram");
        check(".vram", "recording.vram");
        check("../../etc/passwd", "_.._etc_passwd.vram");
        check("python train.py <img>", "python train.py _img_.vram");
        check(&"é".repeat(300), &format!("{}.vram", "é".repeat(100)));
    }
}
