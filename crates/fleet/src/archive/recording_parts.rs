//! Divides the recording of a process into parts, each a complete recording.
//!
//! A part begins with the header, all definitions so far and the full state at its start, and
//! ends with an index, so that it can be opened without the other parts. Chunks of events are
//! copied, not encoded again, so each event is in exactly one part.

use std::collections::HashSet;
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use vramscope_trace::{Chunk, ChunkKind, Encoder, Recording, Sink as _};

use super::byte_budget::BudgetShare;
use super::manifest::RecordingPartEntry;
use super::spool::{Spool, SpooledObject};

/// Estimated memory that the stored hash of a definition chunk takes, in bytes.
const HASH_BYTES: usize = 64;

/// Limits of size and time at which a part ends, and of the memory for definitions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartLimits {
    /// Maximum size of a part, in bytes.
    pub(crate) bytes: u64,
    /// Maximum time between a part's first and last event, and maximum time for which it is open.
    pub(crate) duration: Duration,
    /// Maximum memory for the definitions of one process, in bytes. Further definitions are left
    /// out.
    pub(crate) definition_bytes: usize,
}

/// A complete part, and its entry for the manifest, still without a name.
#[derive(Debug)]
pub(crate) struct RecordingPart {
    pub(crate) object: SpooledObject,
    pub(crate) entry: RecordingPartEntry,
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
    /// The hashes of all definition chunks so far, by which repeated ones are recognized.
    definitions: HashSet<[u8; 32]>,
    /// This process's share of the limit on the memory for definitions of all processes.
    definition_memory: BudgetShare,
    /// True once the definitions exceeded a limit. Later ones are left out, because their numbers
    /// follow those of earlier ones.
    leaves_out_definitions: bool,
    /// The decoded content of the open part; without an open part, the state at the end of the
    /// recording so far.
    recording: Recording,
    open: Option<OpenPart>,
    /// The moment up to which the recording is archived already.
    archived_end: u64,
    /// True if relabels follow the last event. The next chunk of events repeats them, so no new
    /// part may begin here.
    ends_with_relabels: bool,
    /// Parts that were lost because their temporary files could not be written.
    lost_parts: u64,
}

impl RecordingParts {
    /// Creates the parts of a recording that is already archived up to the moment `archived_end`.
    pub(crate) fn new(limits: PartLimits, archived_end: u64, definition_memory: BudgetShare) -> Self {
        Self {
            limits,
            header: None,
            definitions: HashSet::new(),
            definition_memory,
            leaves_out_definitions: false,
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

    /// Adds whole chunks. Returns the parts that become complete.
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

    /// Ends and returns the open part if it has been open for the maximum time.
    pub(crate) fn take_overdue(&mut self) -> Option<RecordingPart> {
        let is_overdue = self.open.as_ref().is_some_and(|open| open.opened.elapsed() >= self.limits.duration);
        if is_overdue && !self.ends_with_relabels { self.finish_part() } else { None }
    }

    /// Returns about how many bytes of memory the recording takes since the open part's beginning.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.recording.total_memory_bytes()
    }

    /// Ends and returns the open part, if any, and drops its events from memory. Keeps the memory
    /// state at its end.
    pub(crate) fn finish_and_forget(&mut self) -> Option<RecordingPart> {
        if self.ends_with_relabels {
            return None;
        }
        let part = self.finish_part();
        if let Err(reason) = self.restart_recording(true) {
            tracing::warn!("a part of the archive stays in memory: {reason}");
        }
        part
    }

    /// Ends and returns the open part; `None` without one, or if its file cannot be written.
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
        let time_ms = |time_ns| recording.info().epoch_unix_ns.saturating_add(time_ns) / 1_000_000;
        let start_ns = recording.start_ns();
        let entry = RecordingPartEntry {
            object: object.entry((time_ms(start_ns), time_ms(recording.end_ns().max(start_ns)))),
            first_event: recording.first_event(),
            end_event: recording.end_event(),
            events: recording.events(),
            lost_events: recording.lost_events(),
            first_state: open.first_state,
        };
        Some(RecordingPart { object, entry })
    }

    /// Returns true if the open part has reached a limit of size or time and another may begin
    /// here.
    fn is_full(&self) -> bool {
        let Some(open) = &self.open else { return false };
        let span_ns = self.recording.end_ns().saturating_sub(self.recording.start_ns());
        let is_long = u128::from(span_ns) >= self.limits.duration.as_nanos();
        (open.spool.len() >= self.limits.bytes || is_long) && !self.ends_with_relabels
    }

    /// Adds a chunk to the open part. Begins a part if none is open and the chunk has events that
    /// are not archived yet.
    fn push_chunk(&mut self, chunk: &Chunk) -> Result<(), String> {
        let is_new = self.open.is_none() && chunk.first_event.saturating_add(chunk.events) > self.archived_end;
        match chunk.kind {
            // The index is left out, because its positions differ from those in the part.
            ChunkKind::Index | ChunkKind::End => return Ok(()),
            ChunkKind::Definitions if self.leaves_out_definitions => return Ok(()),
            ChunkKind::Header | ChunkKind::Definitions if self.is_repeated(chunk) => return Ok(()),
            // A part that begins with this full state needs no other one before it.
            ChunkKind::State if is_new => self.begin(false)?,
            ChunkKind::Events if is_new => self.begin(true)?,
            _ => {}
        }
        self.read(chunk)?;
        match chunk.kind {
            ChunkKind::Events => self.ends_with_relabels = chunk.events == 0,
            ChunkKind::State => self.ends_with_relabels = false,
            ChunkKind::Definitions => self.limit_definitions(),
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

    /// Decodes a chunk into `recording`.
    fn read(&mut self, chunk: &Chunk) -> Result<(), String> {
        self.recording.push(&chunk.bytes).map_err(|error| error.to_string())
    }

    /// Returns true for a header or definition chunk that was pushed before. A process repeats
    /// these chunks for readers that connect later.
    fn is_repeated(&mut self, chunk: &Chunk) -> bool {
        let hash = Sha256::digest(&chunk.bytes).into();
        match chunk.kind {
            ChunkKind::Header => self.header.replace(hash) == Some(hash),
            _ => !self.definitions.insert(hash),
        }
    }

    /// Sets `leaves_out_definitions` if the definitions so far exceed a limit on memory.
    fn limit_definitions(&mut self) {
        let bytes = self.recording.definitions().memory_bytes() + self.definitions.len() * HASH_BYTES;
        let fits = self.definition_memory.set(bytes) && bytes <= self.limits.definition_bytes;
        if !fits {
            let program = &self.recording.info().source;
            tracing::warn!("the archive leaves out further names and call stacks of {program:?}: too many");
            self.leaves_out_definitions = true;
        }
    }

    /// Drops the open part after a write error; the next one begins with the next events.
    fn lose_part(&mut self, error: &io::Error) {
        tracing::warn!("lost a part of the archive: cannot write a temporary file: {error}");
        self.lost_parts += 1;
        self.open = None;
        self.archived_end = self.recording.end_event();
    }

    /// Begins a part with the header, all definitions so far and, if `needs_state`, the full state
    /// at the end of the recording so far.
    fn begin(&mut self, needs_state: bool) -> Result<(), String> {
        let prefix = self.restart_recording(needs_state)?;
        let mut spool = Spool::new();
        for chunk in &prefix {
            spool = spool.and_then(|mut spool| spool.write_all(&chunk.bytes).map(|()| spool));
        }
        match spool {
            Ok(spool) => {
                let state = prefix.iter().find(|chunk| chunk.kind == ChunkKind::State);
                let first_state = state.map(|state| state.first_event);
                self.open = Some(OpenPart { spool, opened: Instant::now(), first_state });
            }
            Err(error) => self.lose_part(&error),
        }
        Ok(())
    }

    /// Replaces `recording` by one that consists of the header, all definitions so far and, if
    /// `needs_state`, the full state at its end. Returns the chunks of the new recording.
    fn restart_recording(&mut self, needs_state: bool) -> Result<Vec<Chunk>, String> {
        let mut encoder = Encoder::new(self.recording.info());
        self.recording.definitions().iter().for_each(|definition| encoder.define(&definition));
        let (moment, state) = (self.recording.end_event(), self.recording.end_state());
        let has_memory = moment > 0 || state.devices().next().is_some();
        if needs_state && has_memory {
            encoder.skip_to(moment);
            encoder.replace_state(state);
        }
        encoder.flush();
        let prefix = encoder.take_output();
        let has_state = prefix.iter().any(|chunk| chunk.kind == ChunkKind::State);
        if needs_state && has_memory && !has_state {
            return Err("memory has too many blocks for a full state".to_owned());
        }
        self.recording = Recording::overview_only(None);
        for chunk in &prefix {
            self.read(chunk)?;
        }
        Ok(prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::byte_budget::ByteBudget;
    use crate::archive::tests::harness::Program;

    /// Returns the recording that consists of all parts together.
    fn joined(parts: Vec<RecordingPart>) -> Recording {
        let mut recording = Recording::new();
        for mut part in parts {
            let bytes = part.object.read().expect("a temporary file");
            recording.push(&bytes).expect("parts can be concatenated");
        }
        recording
    }

    #[test]
    fn definitions_take_limited_memory_and_all_events_stay() {
        const LIMIT: usize = 2_000;
        let mut program = Program::new(1);
        let chunks = program.run(20_000);
        let bytes = program.bytes(chunks);
        assert!(program.recording().definitions().memory_bytes() > LIMIT);
        for (process_limit, all_limit) in [(LIMIT, usize::MAX), (usize::MAX, LIMIT)] {
            let duration = Duration::from_secs(600);
            let limits = PartLimits { bytes: 8 << 10, duration, definition_bytes: process_limit };
            let mut recording = RecordingParts::new(limits, 0, ByteBudget::new(all_limit).share());
            let mut parts = recording.push(&bytes).expect("valid chunks");
            parts.extend(recording.finish_part());
            assert!(parts.len() > 2);
            assert!(recording.definitions.len() * HASH_BYTES <= LIMIT);
            let joined = joined(parts);
            assert!((1..LIMIT).contains(&joined.definitions().memory_bytes()));
            assert_eq!(joined.events(), 20_000);
            assert_eq!(*joined.end_state(), program.end_state());
        }
    }

    #[test]
    fn part_that_ends_early_leaves_memory() {
        let mut program = Program::new(1);
        let limits = PartLimits { bytes: 64 << 20, duration: Duration::from_secs(600), definition_bytes: usize::MAX };
        let mut recording = RecordingParts::new(limits, 0, ByteBudget::new(usize::MAX).share());
        let mut parts = Vec::new();
        for _ in 0..3 {
            let chunks = program.run(20_000);
            parts.extend(recording.push(&program.bytes(chunks)).expect("valid chunks"));
            let before = recording.memory_bytes();
            parts.extend(recording.finish_and_forget());
            assert!(recording.memory_bytes() < before / 2, "{before}, then {}", recording.memory_bytes());
            assert!(recording.finish_and_forget().is_none());
        }
        assert_eq!(parts.len(), 3);
        let joined = joined(parts);
        assert_eq!((joined.events(), joined.lost_events()), (60_000, 0));
        assert_eq!(*joined.end_state(), program.end_state());
    }
}
