//! What a file is, found out while its bytes come.

use vramscope_formats::{Limits, Source, import, sniff, unpack};
use vramscope_trace::{Annotation, Definition, Encoder, Event, FormatError, Info, MemoryState, Recording, Sink};

/// Events of an import between two looks at what the encoder has ready.
const EVENTS_PER_PIECE: u32 = 4096;

/// What file names end with that are saved under another.
const ENDINGS: [&str; 7] = [".vram", ".pickle", ".pkl", ".json", ".csv", ".gz", ".zst"];
/// Bytes of a recording up to which it is read as a whole, whatever index it has: counters over time are finer then, and nothing is waited for
/// later. That many are a million events, which take the page 0.15 s; of twice as many it would be felt.
pub const READ_WHOLE_UP_TO: u64 = 1 << 20;
/// Letters of a saved file's name.
const LONGEST_NAME: usize = 100;

/// A file whose bytes are coming.
pub struct Opening {
    name: String,
    taken: Taken,
}

/// What has come so far.
enum Taken {
    /// The beginning of a recording of our own, taken in at once, piece by piece.
    Recording(Box<Growing>),
    /// Anything else, which is read when it is whole.
    Bytes(Vec<u8>),
}

/// A recording, and the error that ended it, once there is one.
#[derive(Default)]
struct Growing {
    recording: Recording,
    error: Option<FormatError>,
}

impl Growing {
    fn push(&mut self, bytes: &[u8]) {
        if self.error.is_none() {
            self.error = self.recording.push(bytes).err();
        }
    }

    fn finish(self) -> Result<Opened, String> {
        let Self { recording, error } = self;
        let warning = error.or_else(|| recording.finish().err()).map(|error| error.to_string());
        match warning {
            Some(warning) if recording.end_event() == recording.first_event() => Err(warning),
            warning => Ok(Opened { recording, warning, notes: Vec::new(), converted: Vec::new() }),
        }
    }
}

/// A recording, and what there is to say of the file behind it.
#[derive(Debug)]
pub struct Opened {
    /// The recording; whole, or what comes before the error.
    pub recording: Recording,
    /// What is wrong with the file, and where.
    pub warning: Option<String>,
    /// What a person should know of what was read.
    pub notes: Vec<String>,
    /// The recording's bytes, where the file's own are others: it was packed, or something else was converted.
    pub converted: Vec<Vec<u8>>,
}

impl From<Recording> for Opened {
    fn from(recording: Recording) -> Self {
        Self { recording, warning: None, notes: Vec::new(), converted: Vec::new() }
    }
}

/// Whether a file that begins with `bytes` is a recording of our own as it is, which can have an index.
#[must_use]
pub fn is_recording(bytes: &[u8]) -> bool {
    sniff(bytes) == Some(Source::Trace)
}

/// The name under which the recording of something called `source` is saved.
#[must_use]
pub fn saved_name(source: &str) -> String {
    let mut stem = source.trim();
    while let Some(shorter) = ENDINGS.iter().find_map(|ending| stem.strip_suffix(ending)) {
        stem = shorter;
    }
    let letter = |letter: char| if letter.is_control() || r#"/\:*?"<>|"#.contains(letter) { '_' } else { letter };
    let stem: String = stem.chars().take(LONGEST_NAME).map(letter).collect();
    let stem = stem.trim_matches(['.', ' ']);
    format!("{}.vram", if stem.is_empty() { "recording" } else { stem })
}

impl Opening {
    /// A file called `name`, before its first byte.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), taken: Taken::Bytes(Vec::new()) }
    }

    /// Takes the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        match &mut self.taken {
            Taken::Recording(growing) => growing.push(bytes),
            Taken::Bytes(so_far) => {
                so_far.extend_from_slice(bytes);
                if sniff(so_far) == Some(Source::Trace) {
                    let mut growing = Box::new(Growing::default());
                    growing.push(so_far);
                    self.taken = Taken::Recording(growing);
                }
            }
        }
    }

    /// The recording that the file is, or becomes when it is imported.
    ///
    /// # Errors
    /// Where there is nothing to be shown: what is wrong with the file, and where in it.
    pub fn finish(self) -> Result<Opened, String> {
        let bytes = match self.taken {
            Taken::Recording(growing) => return growing.finish(),
            Taken::Bytes(bytes) if bytes.is_empty() => return Err("the file is empty".to_owned()),
            Taken::Bytes(bytes) => bytes,
        };
        let limits = Limits::default();
        let bytes = unpack(&bytes, &limits).map_err(|error| error.to_string())?;
        match sniff(&bytes) {
            Some(Source::Trace) => {
                let mut growing = Growing::default();
                growing.push(&bytes);
                Ok(Opened { converted: vec![bytes.into_owned()], ..growing.finish()? })
            }
            Some(Source::TorchPickle | Source::TorchJson | Source::RmmLog) => {
                import_snapshot(&bytes, &self.name, &limits)
            }
            None => {
                Err("neither a vramscope recording nor a PyTorch memory snapshot nor an RMM log, as it begins (byte 0)"
                    .to_owned())
            }
        }
    }
}

fn import_snapshot(bytes: &[u8], name: &str, limits: &Limits) -> Result<Opened, String> {
    let (into, imported) =
        import(bytes, name, limits, &mut |_, _| {}, IntoRecording::new).map_err(|error| error.to_string())?;
    let (recording, converted) = into.finish().map_err(|error| error.to_string())?;
    Ok(Opened { recording, warning: None, notes: imported.notes, converted })
}

/// A sink that makes a recording of what it is given.
struct IntoRecording {
    encoder: Encoder,
    growing: Growing,
    pieces: Vec<Vec<u8>>,
    events: u32,
}

impl IntoRecording {
    fn new(info: &Info) -> Self {
        Self { encoder: Encoder::new(info), growing: Growing::default(), pieces: Vec::new(), events: 0 }
    }

    fn take_output(&mut self) {
        for chunk in self.encoder.take_output() {
            self.growing.push(&chunk.bytes);
            self.pieces.push(chunk.bytes);
        }
    }

    fn finish(mut self) -> Result<(Recording, Vec<Vec<u8>>), FormatError> {
        self.encoder.flush();
        self.take_output();
        match self.growing.error {
            Some(error) => Err(error),
            None => Ok((self.growing.recording, self.pieces)),
        }
    }
}

impl Sink for IntoRecording {
    fn event(&mut self, event: &Event) {
        self.encoder.event(event);
        self.events += 1;
        if self.events == EVENTS_PER_PIECE {
            self.events = 0;
            self.take_output();
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
    fn saved_names_are_names() {
        let check = |source: &str, expected: &str| assert_eq!(saved_name(source), expected);
        check("gpt.pickle.zst", "gpt.vram");
        check("run.3.vram", "run.3.vram");
        check("", "recording.vram");
        check(".vram", "recording.vram");
        check("../../etc/passwd", "_.._etc_passwd.vram");
        check("python train.py <img>", "python train.py _img_.vram");
        check(&"é".repeat(300), &format!("{}.vram", "é".repeat(100)));
    }
}
