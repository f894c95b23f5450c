//! Input files, known by what is in them.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use vramscope_formats::export::{self, Redactor};
use vramscope_formats::{self as formats, Limits, Source};
use vramscope_trace::{
    Annotation, Damage, Definition, Encoder, Event, FORMAT_NAME, FORMAT_VERSION, FormatError, Info, MemoryState,
    ReadAt, Recording, Sink,
};

use crate::failure::{Failure, Outcome};
use crate::relay::{Opening, relay};
use crate::screen;
use crate::units;

/// Endings of the names of files that can be read, which say nothing about the recording.
const ENDINGS: [&str; 6] = [".gz", ".zst", ".pickle", ".json", ".csv", ".vram"];
/// Events between two looks at what the encoder has ready.
const EVENTS_PER_PIECE: u32 = 1024;

/// Bytes by which it is known what a file is; no header of a log is longer.
const HEAD_BYTES: u64 = 1 << 16;
/// Bytes of a recording that are copied at once.
const PIECE_BYTES: u64 = 1 << 20;

/// A file that was unpacked and recognized.
pub(crate) struct Input {
    path: PathBuf,
    content: Content,
    /// Whether the file is the recording itself, and not one that is packed.
    is_plain: bool,
    redacts: bool,
}

/// A way to open a recording of so many bytes.
type Open = fn(Arc<dyn ReadAt>, u64, &mut dyn FnMut(u64, u64)) -> Result<(Recording, Option<FormatError>), FormatError>;

/// What is in a file.
enum Content {
    /// A recording of so many bytes, which is read where it is wanted.
    Recording(Arc<dyn ReadAt>, u64),
    /// What another tool wrote, as a whole.
    Foreign(Source, Vec<u8>),
}

/// A file that is read where it is wanted.
struct OnDisk(Mutex<File>);

impl ReadAt for OnDisk {
    fn read_at(&self, range: Range<u64>) -> Result<Vec<u8>, String> {
        // A place is looked for anew each time, so whoever panicked left nothing behind.
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = vec![0; usize::try_from(range.end - range.start).map_err(|error| error.to_string())?];
        let read = file.seek(SeekFrom::Start(range.start)).and_then(|_| file.read_exact(&mut bytes));
        read.map(|()| bytes).map_err(|error| error.to_string())
    }
}

/// A file's name without the endings that only say how it is stored.
pub(crate) fn name_of(path: &Path) -> String {
    let file_name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    let mut name = &*file_name;
    while let Some(shorter) =
        ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)).filter(|name| !name.is_empty())
    {
        name = shorter;
    }
    name.to_owned()
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
    /// Opens the file at `path`. A recording is read when it is wanted, anything else at once.
    pub(crate) fn open(path: &Path) -> Outcome<Self> {
        let failed = |error| Failure::file(path, error);
        let limits = Limits::default();
        let mut file = File::open(path).map_err(failed)?;
        let mut packed = Vec::new();
        file.by_ref().take(HEAD_BYTES).read_to_end(&mut packed).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_file() && formats::sniff(&packed) == Some(Source::Trace) {
            let content = Content::Recording(Arc::new(OnDisk(Mutex::new(file))), metadata.len());
            return Ok(Self { path: path.to_owned(), content, is_plain: true, redacts: false });
        }
        if !may_be_input(&packed) {
            // It is not read to its end, which may be far.
            return Err(unknown(path, &packed));
        }
        read(file, &mut packed, limits.max_unpacked_bytes).map_err(|what| Failure::file(path, what))?;
        let unpacked = match formats::unpack(&packed, &limits).map_err(|error| Failure::file(path, error))? {
            Cow::Owned(bytes) => Some(bytes),
            Cow::Borrowed(_) => None,
        };
        let bytes = unpacked.unwrap_or(packed);
        let content = match formats::sniff(&bytes) {
            None => return Err(unknown(path, &bytes)),
            Some(Source::Trace) => {
                let len = bytes.len() as u64;
                Content::Recording(Arc::new(bytes), len)
            }
            Some(source) => Content::Foreign(source, bytes),
        };
        Ok(Self { path: path.to_owned(), content, is_plain: false, redacts: false })
    }

    /// The same without its names, where that is wanted: everything made of it has placeholders for them.
    pub(crate) fn redacted(self, redacts: bool) -> Self {
        Self { redacts, ..self }
    }

    /// Whether another tool wrote it.
    pub(crate) fn is_foreign(&self) -> bool {
        matches!(self.content, Content::Foreign(..))
    }

    /// What it is.
    pub(crate) fn format(&self) -> Format {
        match &self.content {
            Content::Recording(..) | Content::Foreign(Source::Trace, _) => {
                Format { name: FORMAT_NAME, version: Some(FORMAT_VERSION) }
            }
            Content::Foreign(Source::TorchPickle, bytes) => {
                Format { name: "pytorch-pickle", version: bytes.get(1).map(|&protocol| protocol.into()) }
            }
            Content::Foreign(Source::TorchJson, _) => Format { name: "pytorch-json", version: None },
            Content::Foreign(Source::RmmLog, _) => Format { name: "rmm-csv", version: None },
        }
    }

    /// The file's name without the endings that only say how it is stored.
    pub(crate) fn name(&self) -> String {
        if self.redacts {
            return "recording".to_owned();
        }
        name_of(&self.path)
    }

    /// Gives the recording that it is, or becomes when imported, to `take`, piece by piece, with an index at its end. Returns the number
    /// of its events.
    pub(crate) fn convert(self, mut take: impl FnMut(&[u8]) -> Outcome) -> Outcome<u64> {
        let (source, len) = match &self.content {
            Content::Foreign(_, bytes) => return self.import(bytes, take),
            Content::Recording(source, len) => (Arc::clone(source), *len),
        };
        // All of it, for what is damaged is not to be copied.
        let (recording, whole) =
            self.open_recording(&source, len, |source, len, progress| Recording::read_through(source, len, progress))?;
        let mut pieces = (0..whole).step_by(PIECE_BYTES as usize).map(|at| {
            let read = source.read_at(at..whole.min(at + PIECE_BYTES));
            read.map_err(|what| FormatError { offset: at, what })
        });
        let failed = |error| Failure::file(&self.path, error);
        if self.redacts {
            let redacted = export::redact(recording.info(), pieces, |info: &_| Pieces::new(info, take));
            return redacted.map_err(failed)?.finish();
        }
        pieces.try_for_each(|piece| take(&piece.map_err(failed)?))?;
        let has_index = whole == len && matches!(Recording::open_by_index(&source, len), Ok(Some(_)));
        if !has_index {
            recording.index().iter().try_for_each(|chunk| take(&chunk.bytes))?;
        }
        Ok(recording.events())
    }

    /// How many bytes of the file are a recording, and the index that is to stand behind them, nothing where one stands there; `None` where the
    /// file is something else, or one that is packed.
    pub(crate) fn stored(&self) -> Outcome<Option<(u64, Vec<u8>)>> {
        let Content::Recording(source, len) = &self.content else { return Ok(None) };
        if !self.is_plain {
            return Ok(None);
        }
        let (recording, whole) =
            self.open_recording(source, *len, |source, len, progress| Recording::open(source, len, progress))?;
        Ok(Some((whole, recording.index().into_iter().flat_map(|chunk| chunk.bytes).collect())))
    }

    /// The recording that it is, or becomes when imported, to be read as a whole: without what is damaged in the middle of it, of which
    /// this tells.
    pub(crate) fn recording(self) -> Outcome<Recording> {
        let path = self.path.clone();
        let mut recording = self.recording_by_index()?;
        let bar = screen::progress(name_of(&path));
        let damage = recording.leave_out_damaged(|done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        if let Some(Damage { first, events }) = damage {
            let events = units::counted(events, "event is", "events are");
            screen::note(Failure::file(&path, format_args!("{first}; {events} left out, and lost")));
        }
        Ok(recording)
    }

    /// The recording that it is, or becomes when imported, of which no more is read than its index where it has one.
    pub(crate) fn recording_by_index(self) -> Outcome<Recording> {
        match &self.content {
            Content::Recording(source, len) if !self.redacts => {
                return self
                    .open_recording(source, *len, |source, len, progress| Recording::open(source, len, progress))
                    .map(|(recording, _)| recording);
            }
            _ => {}
        }
        let mut recording = Recording::new();
        let path = self.path.clone();
        self.convert(|piece| recording.push(piece).map_err(|error| Failure::file(&path, error)))?;
        Ok(recording)
    }

    /// Opens a recording, and says how much of the file is whole.
    fn open_recording(&self, source: &Arc<dyn ReadAt>, len: u64, open: Open) -> Outcome<(Recording, u64)> {
        let bar = screen::progress(name_of(&self.path));
        let opened = open(Arc::clone(source), len, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        // Without the first chunk there is nothing to show.
        let (recording, damage) = opened.map_err(|error| Failure::file(&self.path, error))?;
        if let Some(damage) = &damage {
            screen::note(Failure::file(&self.path, damage));
        }
        let whole = if damage.is_some() { recording.taken_bytes() } else { len };
        Ok((recording, whole))
    }

    fn import(&self, bytes: &[u8], take: impl FnMut(&[u8]) -> Outcome) -> Outcome<u64> {
        let file_name = self.path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        let bar = screen::progress(file_name.clone().into_owned());
        let mut progress = |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        };
        let tell = |opening: Opening| {
            let begin = |info: &_| opening.begin(info);
            formats::import(bytes, &file_name, &Limits::default(), &mut progress, begin).map(|(_, imported)| imported)
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

/// Whether a file that begins like this may be one that can be read. Before a text there may be what says nothing.
fn may_be_input(head: &[u8]) -> bool {
    let is_preface = |&byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'#' | 0xef);
    formats::is_packed(head) || formats::sniff(head).is_some() || head.first().is_some_and(is_preface)
}

/// A file that is none of those that can be read, by how it begins.
fn unknown(path: &Path, head: &[u8]) -> Failure {
    let what = if head.is_empty() {
        "the file is empty"
    } else {
        "neither a vramscope recording nor a PyTorch snapshot nor an RMM log"
    };
    Failure::file(path, format_args!("at byte 0: {what}"))
}

/// Reads the rest of a file, up to a limit for all of it.
fn read(file: File, bytes: &mut Vec<u8>, limit: u64) -> Result<(), String> {
    let rest = (limit + 1).saturating_sub(bytes.len() as u64);
    file.take(rest).read_to_end(bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > limit {
        return Err(format!("at byte {limit}: the file goes on, and more is not read"));
    }
    Ok(())
}

/// Encodes events, and passes the recording on as it is made, so that little of it is held.
struct Pieces<F> {
    encoder: Encoder,
    /// What the index is made of; none where the recording outgrows what a reader takes in.
    passed: Option<Recording>,
    take: F,
    outcome: Outcome,
    waiting: u32,
}

impl<F: FnMut(&[u8]) -> Outcome> Pieces<F> {
    fn new(info: &Info, take: F) -> Self {
        let encoder = Encoder::new(info);
        Self { encoder, passed: Some(Recording::passing_by(None)), take, outcome: Ok(()), waiting: 0 }
    }

    fn pass_on(&mut self) {
        self.waiting = 0;
        for chunk in self.encoder.take_output() {
            self.passed.take_if(|passed| passed.push(&chunk.bytes).is_err());
            if self.outcome.is_ok() {
                self.outcome = (self.take)(&chunk.bytes);
            }
        }
    }

    fn finish(mut self) -> Outcome<u64> {
        self.encoder.flush();
        self.pass_on();
        for chunk in self.passed.iter().flat_map(Recording::index) {
            if self.outcome.is_ok() {
                self.outcome = (self.take)(&chunk.bytes);
            }
        }
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
