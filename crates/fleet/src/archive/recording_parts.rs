//! Divides the recording of a process into parts, each a complete recording.
//!
//! A part begins with the header, all definitions so far and the full state at its start, and
//! ends with an index, so that it opens without the others. Chunks of events are copied, not
//! encoded again: the parts together have every event once.

use std::collections::HashSet;
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use vramscope_trace::{Chunk, ChunkKind, Encoder, Recording, Sink as _};

use super::spool::{Spool, SpooledObject};

/// When a part ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartLimits {
    /// Its size in bytes.
    pub(crate) bytes: u64,
    /// The time between its first and its last event, and the time for which it has been open.
    pub(crate) duration: Duration,
}

/// A complete part, and what the manifest says of it.
#[derive(Debug)]
pub(crate) struct RecordingPart {
    pub(crate) object: SpooledObject,
    pub(crate) first_event: u64,
    pub(crate) end_event: u64,
    pub(crate) events: u64,
    pub(crate) lost_events: u64,
    pub(crate) first_state: Option<u64>,
    /// When its content begins and ends, in nanoseconds since 1970.
    pub(crate) times_unix_ns: (u64, u64),
}

/// The part that is being written.
#[derive(Debug)]
struct OpenPart {
    spool: Spool,
    opened: Instant,
    first_state: Option<u64>,
}

/// The recording of one process, divided into parts.
#[derive(Debug)]
pub(crate) struct RecordingParts {
    limits: PartLimits,
    /// The hash of the newest header chunk.
    header: Option<[u8; 32]>,
    /// The hashes of all chunks of definitions.
    definitions: HashSet<[u8; 32]>,
    /// The content of the open part; without one, of the part that is archived already.
    recording: Recording,
    open: Option<OpenPart>,
    /// The moment up to which the recording is archived already.
    archived_end: u64,
    /// True if relabels follow the last event: the next chunk of events repeats them, so no part
    /// begins here.
    ends_with_relabels: bool,
    /// Parts that were lost because their temporary files could not be written.
    lost_parts: u64,
}

impl RecordingParts {
    /// Begins with a recording that is archived up to the moment `archived_end`.
    pub(crate) fn new(limits: PartLimits, archived_end: u64) -> Self {
        Self {
            limits,
            header: None,
            definitions: HashSet::new(),
            recording: Recording::overview_only(None),
            open: None,
            archived_end,
            ends_with_relabels: false,
            lost_parts: 0,
        }
    }

    /// Returns how many parts were lost since the last call, because their temporary files could
    /// not be written.
    pub(crate) fn take_lost_parts(&mut self) -> u64 {
        std::mem::take(&mut self.lost_parts)
    }

    /// Adds whole chunks. Returns the parts that they complete.
    ///
    /// # Errors
    /// If the bytes are not chunks that follow the earlier ones. The text says why.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<RecordingPart>, String> {
        let (mut at, mut complete) = (0, Vec::new());
        while at < bytes.len() {
            let chunk = Chunk::read(&bytes[at..], at as u64).map_err(|error| error.to_string())?;
            let chunk = chunk.ok_or("the bytes end inside a chunk")?;
            at += chunk.bytes.len();
            self.push_chunk(&chunk)?;
            if self.is_full() {
                complete.extend(self.finish_part());
            }
        }
        Ok(complete)
    }

    /// Ends the open part if it has been open for as long as allowed.
    pub(crate) fn take_overdue(&mut self) -> Option<RecordingPart> {
        let is_overdue = self.open.as_ref().is_some_and(|open| open.opened.elapsed() >= self.limits.duration);
        if is_overdue && !self.ends_with_relabels { self.finish_part() } else { None }
    }

    /// Ends the open part, if any.
    pub(crate) fn finish_part(&mut self) -> Option<RecordingPart> {
        let mut open = self.open.take()?;
        let recording = &self.recording;
        self.archived_end = recording.end_event();
        let index: Vec<u8> = recording.index().into_iter().flat_map(|chunk| chunk.bytes).collect();
        let object = match open.spool.write_all(&index).and_then(|()| open.spool.finish()) {
            Ok(object) => object,
            Err(error) => {
                self.lose_part(&error);
                return None;
            }
        };
        let time = |time_ns| recording.info().epoch_unix_ns.saturating_add(time_ns);
        Some(RecordingPart {
            object,
            first_event: recording.first_event(),
            end_event: recording.end_event(),
            events: recording.events(),
            lost_events: recording.lost_events(),
            first_state: open.first_state,
            times_unix_ns: (time(recording.start_ns()), time(recording.end_ns().max(recording.start_ns()))),
        })
    }

    fn is_full(&self) -> bool {
        let Some(open) = &self.open else { return false };
        let span_ns = self.recording.end_ns().saturating_sub(self.recording.start_ns());
        let is_long = u128::from(span_ns) >= self.limits.duration.as_nanos();
        (open.spool.len() >= self.limits.bytes || is_long) && !self.ends_with_relabels
    }

    fn push_chunk(&mut self, chunk: &Chunk) -> Result<(), String> {
        let is_new = self.open.is_none() && chunk.first_event.saturating_add(chunk.events) > self.archived_end;
        match chunk.kind {
            // Of another position than in the part.
            ChunkKind::Index | ChunkKind::End => return Ok(()),
            ChunkKind::Header | ChunkKind::Definitions if self.is_repeated(chunk) => return Ok(()),
            // A full state needs no other before it.
            ChunkKind::State if is_new => self.begin(false)?,
            ChunkKind::Events if is_new => self.begin(true)?,
            _ => {}
        }
        self.read(chunk)?;
        match chunk.kind {
            ChunkKind::Events => self.ends_with_relabels = chunk.events == 0,
            ChunkKind::State => self.ends_with_relabels = false,
            _ => {}
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        if chunk.kind == ChunkKind::State && open.first_state.is_none() {
            open.first_state = Some(chunk.first_event);
        }
        if let Err(error) = open.spool.write_all(&chunk.bytes) {
            self.lose_part(&error);
        }
        Ok(())
    }

    fn read(&mut self, chunk: &Chunk) -> Result<(), String> {
        self.recording.push(&chunk.bytes).map_err(|error| error.to_string())
    }

    /// Returns true for a header or definitions that were pushed before: a process repeats them for
    /// readers that come later.
    fn is_repeated(&mut self, chunk: &Chunk) -> bool {
        let hash = Sha256::digest(&chunk.bytes).into();
        match chunk.kind {
            ChunkKind::Header => self.header.replace(hash) == Some(hash),
            _ => !self.definitions.insert(hash),
        }
    }

    /// Drops the open part after a write error; the next one begins with the next events.
    fn lose_part(&mut self, error: &io::Error) {
        tracing::warn!("lost a part of the archive: cannot write a temporary file: {error}");
        self.lost_parts += 1;
        self.open = None;
        self.archived_end = self.recording.end_event();
    }

    /// Begins a part with the header and all definitions so far and, if it needs it, the full
    /// state at the present moment.
    fn begin(&mut self, needs_state: bool) -> Result<(), String> {
        let mut encoder = Encoder::new(self.recording.info());
        self.recording.definitions().iter().for_each(|definition| encoder.define(&definition));
        let (moment, state) = (self.recording.end_event(), self.recording.end_state());
        let has_memory = moment > 0 || state.devices().next().is_some();
        if needs_state && has_memory {
            encoder.skip_to(moment);
            encoder.full_state(state);
        }
        encoder.flush();
        let prefix = encoder.take_output();
        let has_state = prefix.iter().any(|chunk| chunk.kind == ChunkKind::State);
        if needs_state && has_memory && !has_state {
            return Err("memory has too many blocks for a full state".to_owned());
        }
        self.recording = Recording::overview_only(None);
        let mut spool = Spool::new();
        for chunk in &prefix {
            self.read(chunk)?;
            spool = spool.and_then(|mut spool| spool.write_all(&chunk.bytes).map(|()| spool));
        }
        match spool {
            Ok(spool) => {
                let first_state = has_state.then_some(moment);
                self.open = Some(OpenPart { spool, opened: Instant::now(), first_state });
            }
            Err(error) => self.lose_part(&error),
        }
        Ok(())
    }
}
