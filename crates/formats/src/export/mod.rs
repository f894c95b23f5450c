//! A recording in other tools' formats, and without the names in it.
//!
//! A writer is a function of a [`Recording`], a [`Write`](io::Write) and a [`Progress`]. It holds no more of the recording than its
//! memory state at one moment: what it needs of the events it takes from a [`walk`], and it writes as it goes. Names it gets from
//! [`frames`] and the recording's definitions as they are; who wants none in the output exports a recording that went through a
//! [`Redactor`], so that no writer has to know of it.

mod csv;
mod follow;
mod memory_viz;
mod parquet;
mod perfetto;
mod redact;
mod table;
mod tensorboard;
mod words;

use std::fmt;
use std::io;

use vramscope_trace::{Event, FormatError, MemoryState, Recording, Replay, SiteId};

pub use self::csv::csv;
pub use self::memory_viz::{memory_viz_json, memory_viz_pickle};
pub use self::parquet::parquet;
pub use self::perfetto::perfetto;
pub use self::redact::{Redactor, redact};
pub use self::tensorboard::{tensorboard, tensorboard_file_name};

/// Told how much is done, of how much.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Events between two reports of progress.
const PROGRESS_EVENTS: u64 = 1 << 16;

/// Why a recording could not be written in another format.
#[derive(Debug)]
pub enum ExportError {
    /// Its bytes could not be read.
    Recording(FormatError),
    /// The output could not be written.
    Output(io::Error),
    /// It holds something that the format has no place for; in words that follow on nothing.
    Unfit(String),
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recording(error) => write!(f, "in the recording, {error}"),
            Self::Output(error) => error.fmt(f),
            Self::Unfit(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for ExportError {}

impl From<FormatError> for ExportError {
    fn from(error: FormatError) -> Self {
        Self::Recording(error)
    }
}

impl From<io::Error> for ExportError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Calls `visit` with every event in order, each with its number and the memory state before it. Events known to be missing are
/// skipped: the state behind them is the full state that follows. Memory is bounded by that of one state and one chunk.
///
/// # Errors
/// If a chunk cannot be read, and whatever `visit` returns.
pub fn walk<E: From<FormatError>>(
    recording: &Recording,
    progress: Progress<'_>,
    mut visit: impl FnMut(&MemoryState, u64, &Event) -> Result<(), E>,
) -> Result<(), E> {
    let total = recording.events();
    let mut replay = Replay::new();
    // Events are applied here and not sought one by one: a seek costs a good part of a chunk, however near it goes.
    let mut state = MemoryState::default();
    let mut number = recording.first_event();
    let mut done = 0;
    while let Some(next) = recording.next_event(number) {
        let Some(event) = replay.event(recording, next)? else {
            number = next + 1;
            continue;
        };
        if done == 0 || next != number || recording.is_news(next) {
            state = replay.seek(recording, next)?.clone();
        }
        visit(&state, next, &event)?;
        state.apply(&event);
        number = next + 1;
        done += 1;
        if done % PROGRESS_EVENTS == 0 {
            progress(done, total);
        }
    }
    progress(total, total);
    Ok(())
}

/// A source location in words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NamedFrame<'a> {
    /// The function.
    pub function: &'a str,
    /// The file; empty where it is not known.
    pub file: &'a str,
    /// The line, from 1; 0 where it is not known.
    pub line: u32,
}

/// The frames of a site, innermost first. Its scope and category are in `recording.definitions().site(site)`.
pub fn frames(recording: &Recording, site: SiteId) -> impl Iterator<Item = NamedFrame<'_>> + '_ {
    let definitions = recording.definitions();
    definitions.stack(definitions.site(site).stack).map(|frame| NamedFrame {
        function: definitions.string(frame.function),
        file: definitions.string(frame.file),
        line: frame.line,
    })
}
