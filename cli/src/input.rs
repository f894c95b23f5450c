//! Input files, known by what is in them.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use vramscope_formats::export::{self, Redactor};
use vramscope_formats::{self as formats, Limits, Source};
use vramscope_trace::{
    Annotation, Definition, Encoder, Event, FORMAT_NAME, FORMAT_VERSION, Info, MemoryState, Recording, Sink,
};

use crate::failure::{Failure, Outcome};
use crate::relay::{Opening, relay};
use crate::screen;

/// Endings of the names of files that can be read, which say nothing about the recording.
const ENDINGS: [&str; 6] = [".gz", ".zst", ".pickle", ".json", ".csv", ".vram"];
/// Events between two looks at what the encoder has ready.
const EVENTS_PER_PIECE: u32 = 1024;

/// A file that was read, unpacked and recognized.
#[derive(Debug)]
pub(crate) struct Input {
    path: PathBuf,
    bytes: Vec<u8>,
    source: Source,
    redacts: bool,
}

/// What format a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its version, where it has one.
    pub(crate) version: Option<u16>,
}

impl Input {
    /// Reads the file at `path`.
    pub(crate) fn open(path: &Path) -> Outcome<Self> {
        let limits = Limits::default();
        let packed = read(path, limits.max_unpacked_bytes)?;
        let unpacked = match formats::unpack(&packed, &limits).map_err(|error| Failure::file(path, error))? {
            Cow::Owned(bytes) => Some(bytes),
            Cow::Borrowed(_) => None,
        };
        let bytes = unpacked.unwrap_or(packed);
        let what = if bytes.is_empty() {
            "the file is empty"
        } else {
            "neither a vramscope recording nor a PyTorch snapshot nor an RMM log"
        };
        let source = formats::sniff(&bytes).ok_or_else(|| Failure::file(path, format_args!("at byte 0: {what}")))?;
        Ok(Self { path: path.to_owned(), bytes, source, redacts: false })
    }

    /// The same without its names, where that is wanted: everything made of it has placeholders for them.
    pub(crate) fn redacted(self, redacts: bool) -> Self {
        Self { redacts, ..self }
    }

    /// Whether another tool wrote it.
    pub(crate) fn is_foreign(&self) -> bool {
        self.source != Source::Trace
    }

    /// What it is.
    pub(crate) fn format(&self) -> Format {
        match self.source {
            Source::Trace => Format { name: FORMAT_NAME, version: Some(FORMAT_VERSION) },
            Source::TorchPickle => {
                Format { name: "pytorch-pickle", version: self.bytes.get(1).map(|&protocol| protocol.into()) }
            }
            Source::TorchJson => Format { name: "pytorch-json", version: None },
            Source::RmmLog => Format { name: "rmm-csv", version: None },
        }
    }

    /// The file's name without the endings that only say how it is stored.
    pub(crate) fn name(&self) -> String {
        if self.redacts {
            return "recording".to_owned();
        }
        let file_name = self.path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        let mut name = &*file_name;
        while let Some(shorter) =
            ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)).filter(|name| !name.is_empty())
        {
            name = shorter;
        }
        name.to_owned()
    }

    /// Gives the recording that it is, or becomes when imported, to `take`, piece by piece. Returns the number of its events.
    pub(crate) fn convert(self, mut take: impl FnMut(&[u8]) -> Outcome) -> Outcome<u64> {
        if self.is_foreign() {
            return self.import(take);
        }
        let (recording, whole) = self.check()?;
        if self.redacts {
            let begin = |info: &_| Pieces::new(info, take);
            let redacted = export::redact(&self.bytes[..whole], begin);
            return redacted.map_err(|error| Failure::file(&self.path, error))?.map_or(Ok(0), Pieces::finish);
        }
        take(&self.bytes[..whole])?;
        Ok(recording.events())
    }

    /// The recording that it is, or becomes when imported.
    pub(crate) fn recording(self) -> Outcome<Recording> {
        if !self.is_foreign() && !self.redacts {
            return self.check().map(|(recording, _)| recording);
        }
        let mut recording = Recording::new();
        let path = self.path.clone();
        self.convert(|piece| recording.push(piece).map_err(|error| Failure::file(&path, error)))?;
        Ok(recording)
    }

    /// Reads a recording, and says how much of the file is whole.
    fn check(&self) -> Outcome<(Recording, usize)> {
        let mut recording = Recording::new();
        recording.push(&self.bytes).map_err(|error| Failure::file(&self.path, error))?;
        match recording.finish() {
            Ok(()) => Ok((recording, self.bytes.len())),
            // The head is the first chunk; without it there is nothing to show.
            Err(cut) if cut.offset == 0 || recording.info() == &Default::default() => {
                Err(Failure::file(&self.path, cut))
            }
            Err(cut) => {
                screen::note(Failure::file(&self.path, &cut));
                let whole = usize::try_from(cut.offset).unwrap_or(usize::MAX).min(self.bytes.len());
                Ok((recording, whole))
            }
        }
    }

    fn import(&self, take: impl FnMut(&[u8]) -> Outcome) -> Outcome<u64> {
        let file_name = self.path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        let bar = screen::progress(file_name.clone().into_owned());
        let mut progress = |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        };
        let tell = |opening: Opening| {
            let begin = |info: &_| opening.begin(info);
            formats::import(&self.bytes, &file_name, &Limits::default(), &mut progress, begin)
                .map(|(_, imported)| imported)
        };
        let begin = |info: &_| Pieces::new(info, take);
        let (imported, pieces) = if self.redacts {
            let (imported, redactor) = relay(tell, |info| Redactor::new(info, begin));
            (imported, redactor.map(Redactor::into_inner))
        } else {
            relay(tell, begin)
        };
        bar.finish_and_clear();
        let imported = imported.map_err(|error| Failure::file(&self.path, error))?;
        for note in imported.notes {
            screen::note(format_args!("{file_name}: {note}"));
        }
        pieces.map_or(Ok(0), Pieces::finish)
    }
}

fn read(path: &Path, limit: u64) -> Outcome<Vec<u8>> {
    let failed = |error| Failure::file(path, error);
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > limit {
        return Err(Failure::file(path, format_args!("at byte {limit}: the file goes on, and more is not read")));
    }
    Ok(bytes)
}

/// Encodes events, and passes the recording on as it is made, so that little of it is held.
struct Pieces<F> {
    encoder: Encoder,
    take: F,
    outcome: Outcome,
    waiting: u32,
}

impl<F: FnMut(&[u8]) -> Outcome> Pieces<F> {
    fn new(info: &Info, take: F) -> Self {
        Self { encoder: Encoder::new(info), take, outcome: Ok(()), waiting: 0 }
    }

    fn pass_on(&mut self) {
        self.waiting = 0;
        for chunk in self.encoder.take_output() {
            if self.outcome.is_ok() {
                self.outcome = (self.take)(&chunk.bytes);
            }
        }
    }

    fn finish(mut self) -> Outcome<u64> {
        self.encoder.flush();
        self.pass_on();
        self.outcome.map(|()| self.encoder.state().event())
    }
}

impl<F: FnMut(&[u8]) -> Outcome> Sink for Pieces<F> {
    fn event(&mut self, event: &Event) {
        self.encoder.event(event);
        self.waiting += 1;
        if self.waiting == EVENTS_PER_PIECE {
            self.pass_on();
        }
    }
    fn define(&mut self, definition: &Definition) {
        self.encoder.define(definition);
    }
    fn annotation(&mut self, annotation: &Annotation) {
        self.encoder.annotation(annotation);
    }
    fn full_state(&mut self, state: &MemoryState) {
        // A recording that begins late or has lost events keeps its numbers.
        self.encoder.skip_to(state.event());
        self.encoder.full_state(state);
    }
}
