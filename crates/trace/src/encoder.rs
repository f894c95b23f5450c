//! Encodes events into the chunks of a recording.

use crate::chunk::{Chunk, ChunkKind, preamble};
use crate::compression::Compressor;
use crate::definition_codec::{DefinitionWriter, put_annotations};
use crate::event::{Annotation, Event, EventKind, Relabel};
use crate::event_codec::{EventWriter, PlacedRelabel};
use crate::info::RecordingInfo;
use crate::memory_state::MemoryState;
use crate::sink::Sink;
use crate::site::Definition;
use crate::state_codec::{is_readable, put_state};

/// Number of events at which the encoder completes a chunk. Seeking decodes part of a chunk, so
/// fewer events make seeking faster and files larger.
pub(crate) const EVENTS_PER_CHUNK: u32 = 16_384;
/// Minimum number of events between two full states that the encoder writes. Seeking applies about
/// this many events at most. States with many blocks are written less often, so that states stay a
/// small share of the recording.
pub(crate) const EVENTS_PER_STATE: u64 = 16_384;
/// Uncompressed bytes of definitions at which the encoder completes their chunk, far below what a
/// reader accepts.
const DEFINITION_BYTES_PER_CHUNK: usize = 256 << 10;
/// Number of annotations at which the encoder completes their chunk, far below what a reader
/// accepts.
const ANNOTATIONS_PER_CHUNK: usize = 16_384;
/// Number of relabels at which the encoder completes their chunk, far below what a reader accepts.
const RELABELS_PER_CHUNK: usize = 16_384;
/// Maximum length of a text that the encoder stores, in bytes. Longer texts are truncated, so that
/// a reader accepts their chunk.
const MAX_TEXT_LEN: usize = 64 << 10;

/// Encodes events, definitions and annotations into the [`Chunk`]s of a recording.
///
/// Receives events as a [`Sink`]. It applies every event to its own memory state and writes a full
/// state at intervals, so that readers can start there. Complete chunks are collected until
/// [`take_output`](Self::take_output) returns them; [`flush`](Self::flush) completes the open
/// chunks. [`Decoder`](crate::Decoder) shows a round trip.
#[derive(Clone, Debug)]
pub struct Encoder {
    state: MemoryState,
    events: EventWriter,
    first_event: u64,
    definitions: DefinitionWriter,
    annotations: Vec<Annotation>,
    /// The relabels since the last event before the open chunk, in order.
    relabels: Vec<PlacedRelabel>,
    /// Number of elements of `relabels`, from the first on, that a chunk without events already
    /// contains.
    written_relabels: usize,
    /// The moment of the last full state.
    last_state: u64,
    /// Number of inconsistencies that the state had counted at the beginning of the open chunk.
    inconsistencies_before: u64,
    output: Vec<Chunk>,
    compressor: Compressor,
    payload: Vec<u8>,
}

/// Creates a header chunk with the preamble before it; `moment` is the number of events before the
/// chunk. Texts longer than [`MAX_TEXT_LEN`] are truncated.
fn header_chunk(info: &RecordingInfo, moment: u64, compressor: &mut Compressor) -> Chunk {
    let mut info = info.clone();
    let names = info.devices.iter_mut().flat_map(|device| [&mut device.name, &mut device.process]);
    for text in
        [&mut info.source, &mut info.writer, &mut info.alloc_conf, &mut info.source_settings].into_iter().chain(names)
    {
        text.truncate(truncated(text).len());
    }
    let json = serde_json::to_vec(&info).expect("strings and numbers always serialize");
    let mut chunk = Chunk::new(ChunkKind::Header, moment, 0, &json, compressor);
    chunk.bytes.splice(0..0, preamble());
    chunk
}

/// Returns the start of a text, up to the last whole character within [`MAX_TEXT_LEN`] bytes.
fn truncated(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT_LEN);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl Encoder {
    /// Creates an encoder; the output contains the header chunk at once.
    #[must_use]
    pub fn new(info: &RecordingInfo) -> Self {
        let mut compressor = Compressor::default();
        Self {
            state: MemoryState::default(),
            events: EventWriter::default(),
            first_event: 0,
            definitions: DefinitionWriter::default(),
            annotations: Vec::new(),
            relabels: Vec::new(),
            written_relabels: 0,
            last_state: 0,
            inconsistencies_before: 0,
            output: vec![header_chunk(info, 0, &mut compressor)],
            compressor,
            payload: Vec::new(),
        }
    }

    /// Writes another header chunk with new metadata, for example because a device was added.
    ///
    /// It replaces the earlier one for the whole recording.
    pub fn update_info(&mut self, info: &RecordingInfo) {
        self.flush();
        self.output.push(header_chunk(info, self.first_event, &mut self.compressor));
    }

    /// Completes the open chunks, so that the output contains everything received so far.
    pub fn flush(&mut self) {
        self.close_definitions();
        self.close_annotations();
        self.close_events();
        self.write_relabels();
    }

    /// Returns the complete chunks since the last call, in order.
    ///
    /// The concatenated bytes of all chunks are the recording.
    pub fn take_output(&mut self) -> Vec<Chunk> {
        std::mem::take(&mut self.output)
    }

    /// Marks the events before the one with index `event` (from 0) as lost, so that this event
    /// comes next. Does nothing if the encoder is already there or ahead.
    ///
    /// A [full state](Sink::replace_state) must come next.
    pub fn skip_to(&mut self, event: u64) {
        self.flush();
        self.state.event = self.state.event.max(event);
        self.first_event = self.state.event;
    }

    /// Returns the memory state after all events received so far.
    #[must_use]
    pub fn state(&self) -> &MemoryState {
        &self.state
    }

    /// Turns `payload` into a chunk of the given kind and appends the chunk to the output. The
    /// chunk has `events` events, the first with index `first_event` (from 0) in the recording.
    fn output(&mut self, kind: ChunkKind, first_event: u64, events: u32) {
        self.output.push(Chunk::new(kind, first_event, events, &self.payload, &mut self.compressor));
        self.payload.clear();
    }

    /// Writes the present memory state as a full state, unless it is too large for readers. The
    /// state contains the relabels after the last event, so later chunks do not repeat them.
    fn write_state(&mut self) {
        self.last_state = self.state.event;
        if !is_readable(&self.state) {
            // Readers accept no state of this size. Seeking is slower without it.
            return;
        }
        // The relabels tell a reader that the state differs from the state that the events lead to.
        self.write_relabels();
        self.forget_relabels();
        put_state(&mut self.payload, &self.state, Some(&mut self.compressor));
        self.output(ChunkKind::State, self.state.event, 0);
    }

    /// Forgets the relabels after the last event, because a full state contains or replaces them.
    fn forget_relabels(&mut self) {
        self.relabels.clear();
        self.written_relabels = 0;
    }

    /// Writes the relabels after the last event as a chunk without events, so that readers have
    /// them before the next event. Does nothing while a chunk is open.
    fn write_relabels(&mut self) {
        if self.events.count() > 0 || self.written_relabels == self.relabels.len() {
            return;
        }
        self.close_definitions();
        let new = (self.written_relabels as u64, &self.relabels[self.written_relabels..]);
        self.events.finish(&mut self.payload, true, new, &mut self.compressor);
        self.written_relabels = self.relabels.len();
        self.output(ChunkKind::Events, self.first_event, 0);
    }

    /// Writes the definitions received since the last chunk of definitions as a chunk, if there are
    /// any.
    fn close_definitions(&mut self) {
        if self.definitions.len() > 0 {
            self.definitions.finish(&mut self.payload, &mut self.compressor);
            self.output(ChunkKind::Definitions, self.first_event, 0);
        }
    }

    /// Writes the annotations received since the last chunk of annotations as a chunk, if there are
    /// any, after the definitions that they refer to.
    fn close_annotations(&mut self) {
        if !self.annotations.is_empty() {
            // Annotations refer to strings, which must be defined before.
            self.close_definitions();
            put_annotations(&mut self.payload, &self.annotations, &mut self.compressor);
            self.annotations.clear();
            self.output(ChunkKind::Annotations, self.first_event, 0);
        }
    }

    /// Writes the pending events as a chunk, if there are any. A full state follows if the last one
    /// was at least [`EVENTS_PER_STATE`] events ago.
    fn close_events(&mut self) {
        let count = self.events.count();
        if count > 0 {
            self.close_definitions();
            let inconsistencies = self.inconsistencies();
            let is_consistent = std::mem::replace(&mut self.inconsistencies_before, inconsistencies) == inconsistencies
                && inconsistencies < u64::MAX;
            let before_events = self.relabels.partition_point(|placed| placed.position < count);
            let relabels = (0, &self.relabels[..before_events]);
            self.events.finish(&mut self.payload, is_consistent, relabels, &mut self.compressor);
            self.output(ChunkKind::Events, self.first_event, count);
            self.relabels.drain(..before_events);
            self.relabels.iter_mut().for_each(|placed| placed.position = 0);
            self.written_relabels = 0;
            self.first_event = self.state.event;
            let blocks: usize = self.state.devices().map(|(_, device)| device.blocks().len()).sum();
            if self.state.event - self.last_state >= EVENTS_PER_STATE.max(4 * blocks as u64) {
                self.write_state();
            }
        }
    }

    /// Returns how many contradictions between events and memory state all devices have counted.
    fn inconsistencies(&self) -> u64 {
        self.state.devices().fold(0, |sum, (_, device)| sum.saturating_add(device.inconsistencies()))
    }

    /// Returns the index (from 0), in the open chunk, of the event that allocated the block that
    /// `event` frees; `None` if `event` is no free or the block is older than the chunk.
    fn allocation_offset(&self, event: &Event) -> Option<u64> {
        match event.kind {
            EventKind::FreeRequested { address, .. } | EventKind::FreeCompleted { address, .. } => {
                let block = self.state.device(event.device)?.block(address)?;
                block.since_event.checked_sub(self.first_event)
            }
            _ => None,
        }
    }
}

impl Sink for Encoder {
    fn event(&mut self, event: &Event) {
        let allocation_offset = self.allocation_offset(event);
        self.events.put(event, allocation_offset);
        self.state.apply(event);
        if self.events.count() == EVENTS_PER_CHUNK {
            self.close_events();
        }
    }

    fn define(&mut self, definition: &Definition) {
        match definition {
            Definition::String(text) if text.len() > MAX_TEXT_LEN => {
                self.definitions.put(&Definition::String(truncated(text).to_owned()));
            }
            _ => self.definitions.put(definition),
        }
        if self.definitions.len() >= DEFINITION_BYTES_PER_CHUNK {
            self.close_definitions();
        }
    }

    fn annotation(&mut self, annotation: &Annotation) {
        self.annotations.push(*annotation);
        if self.annotations.len() == ANNOTATIONS_PER_CHUNK {
            self.close_annotations();
        }
    }

    fn relabel(&mut self, relabel: &Relabel) {
        match self.state.device(relabel.device).map(|device| device.block(relabel.address)) {
            // Unchanged, or a device without memory.
            None => return,
            Some(Some(block)) if block.site == relabel.site => return,
            Some(Some(_)) => {}
            // The relabel contradicts the state; the chunk's events may still be consistent.
            Some(None) => self.inconsistencies_before = self.inconsistencies_before.saturating_add(1),
        }
        self.state.relabel(relabel);
        self.events.separate();
        self.relabels.push(PlacedRelabel { position: self.events.count(), relabel: *relabel });
        if self.relabels.len() >= RELABELS_PER_CHUNK {
            self.flush();
            if self.relabels.len() >= RELABELS_PER_CHUNK {
                // All these relabels follow the last event.
                self.write_state();
            }
        }
    }

    fn replace_state(&mut self, state: &MemoryState) {
        self.flush();
        self.forget_relabels();
        let event = self.state.event;
        self.state = state.clone();
        self.state.event = event;
        self.inconsistencies_before = self.inconsistencies();
        self.write_state();
    }
}
