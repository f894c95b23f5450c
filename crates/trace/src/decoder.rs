//! Decodes the bytes of a recording into events and other items, in order.

use std::collections::VecDeque;

use crate::chunk::{ChunkKind, PackedChunk};
use crate::chunk_local_blocks::InconsistentEvent;
use crate::chunk_reader::ChunkReader;
use crate::compression::Decompressor;
use crate::definition_codec::{DefinitionCounts, read_annotations, read_definitions};
use crate::error::FormatError;
use crate::event::{Annotation, DeviceId, Event, Relabel};
use crate::event_codec::{EventColumns, EventReader, PlacedRelabel};
use crate::info::RecordingInfo;
use crate::memory_state::MemoryState;
use crate::site::{Definition, Definitions};
use crate::state_codec::read_state;
use crate::varint::PayloadError;

/// One item of a decoded recording: an event, a definition, a full state, metadata, an annotation
/// or a relabel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodedItem {
    /// The header chunk: metadata about the program and its devices. A later one replaces it.
    Info(RecordingInfo),
    /// A definition, before the first event that refers to it.
    Define(Definition),
    /// A full state after [`MemoryState::event`] events. If that is more than the number of events
    /// decoded so far, the events in between are lost.
    FullState(Box<MemoryState>),
    /// The next event.
    Event(Event),
    /// An annotation; [`Annotation::at_event`] is the moment it belongs to.
    Annotation(Annotation),
    /// A block's new site, which takes effect with the next event.
    Relabel(Relabel),
}

/// A receiver of the contents of chunks as they are decoded, in the order of the recording.
pub(crate) trait ChunkVisitor {
    /// Receives the metadata of a header chunk. It replaces the metadata of an earlier header
    /// chunk.
    fn info(&mut self, info: RecordingInfo);
    /// Receives a definition (string, frame, stack or site) that no earlier chunk had.
    fn define(&mut self, definition: &Definition);
    /// Receives a full state, which replaces the memory state that the events led to.
    fn replace_state(&mut self, state: MemoryState);
    /// Receives the next event of the recording.
    fn event(&mut self, event: Event);
    /// Receives the events and relabels of a chunk; by default passes each to
    /// [`event`](Self::event) or [`relabel`](Self::relabel). `is_consistent` is true if the writer
    /// marked the chunk as free of events that contradict the memory state.
    ///
    /// # Errors
    /// If the events cannot be decoded, or one contradicts the memory state although
    /// `is_consistent` is true.
    fn events(&mut self, is_consistent: bool, operations: &mut EventReader<'_>) -> Result<(), EventsError> {
        let _ = is_consistent;
        loop {
            while let Some(operation) = operations.next_operation()? {
                operation.for_each_event(|event| self.event(event));
            }
            let Some(relabel) = operations.take_relabel() else { return Ok(()) };
            self.relabel(relabel);
        }
    }
    /// Receives a relabel: the new site of a block, which takes effect with the next event.
    fn relabel(&mut self, relabel: Relabel);
    /// Receives an annotation: a named moment that is not an event.
    fn annotation(&mut self, annotation: Annotation);
}

/// Data from earlier chunks that decoding a chunk needs: definitions, and the index of the next
/// event.
#[derive(Debug, Default)]
pub(crate) struct DecodeContext {
    pub(crate) definitions: Definitions,
    /// Number of definitions of each kind that were decoded so far.
    counts: DefinitionCounts,
    decompressor: Decompressor,
    /// Index of the next event; `None` before the first chunk of events or full state.
    pub(crate) next_event: Option<u64>,
    /// The relabels since the last event, from chunks without events. The chunk with the next event
    /// repeats them.
    relabels_since_event: Vec<PlacedRelabel>,
}

/// Decompresses the columns of a chunk of events, without decoding the events.
pub(crate) fn decompress_events(
    packed: &PackedChunk,
    decompressor: &mut Decompressor,
) -> Result<EventColumns, FormatError> {
    let payload = packed.payload(decompressor)?;
    let columns = EventColumns::read(payload.reader(), packed.events, decompressor);
    columns.map_err(|error| error.in_chunk_at(packed.offset))
}

/// The error for the events of a chunk: they cannot be decoded, or one contradicts the memory state
/// although the writer marked the chunk as consistent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EventsError {
    #[error("invalid chunk, {0}")]
    Payload(#[from] PayloadError),
    /// The chunk is marked as consistent, and an event contradicts the state.
    #[error("damaged chunk: it is marked as consistent, but an event contradicts the memory state")]
    Inconsistent(#[from] InconsistentEvent),
}

impl EventsError {
    /// Returns this error for users, about the chunk at byte `offset` of the recording.
    pub(crate) fn in_chunk_at(&self, offset: u64) -> FormatError {
        FormatError::new(offset, self.to_string())
    }
}

/// An item of a chunk of events: an event or a relabel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChunkEntry<'a> {
    /// An event.
    Event(&'a Event),
    /// A relabel, which takes effect with the next event.
    Relabel(&'a Relabel),
}

/// Decodes a chunk of events and calls `each` with every event and relabel, in order.
pub(crate) fn each_entry(
    packed: &PackedChunk,
    decompressor: &mut Decompressor,
    each: impl FnMut(ChunkEntry<'_>),
) -> Result<(), FormatError> {
    let columns = decompress_events(packed, decompressor)?;
    each_entry_of(&columns, each).map_err(|error| error.in_chunk_at(packed.offset))
}

/// Calls `each` with every event and relabel of a decompressed chunk, in order.
pub(crate) fn each_entry_of(columns: &EventColumns, mut each: impl FnMut(ChunkEntry<'_>)) -> Result<(), PayloadError> {
    let mut operations = columns.operations();
    loop {
        while let Some(operation) = operations.next_operation()? {
            operation.for_each_event(|event| each(ChunkEntry::Event(&event)));
        }
        let Some(relabel) = operations.take_relabel() else { return Ok(()) };
        each(ChunkEntry::Relabel(&relabel));
    }
}

/// Decompresses and decodes a chunk with a full state: all devices, or with `only` one device.
pub(crate) fn decompress_state(
    packed: &PackedChunk,
    decompressor: &mut Decompressor,
    only: Option<DeviceId>,
) -> Result<MemoryState, FormatError> {
    let payload = packed.payload(decompressor)?;
    let state = read_state(payload.reader(), decompressor, only).map_err(|error| error.in_chunk_at(packed.offset))?;
    if state.event != packed.first_event {
        return Err(packed.error("full state of another moment than the chunk's header says"));
    }
    Ok(state)
}

impl DecodeContext {
    /// Decodes one chunk and passes its contents to `visitor`. Returns an error if the chunk is
    /// damaged or does not follow the chunks before it.
    pub(crate) fn read(&mut self, packed: &PackedChunk, visitor: &mut impl ChunkVisitor) -> Result<(), FormatError> {
        let in_chunk = |error: PayloadError| error.in_chunk_at(packed.offset);
        match packed.kind {
            ChunkKind::Header => {
                let info = serde_json::from_slice(packed.payload(&mut self.decompressor)?.bytes());
                let invalid = |error: serde_json::Error| {
                    FormatError::caused_by(packed.offset, format!("invalid header chunk: {error}"), error.into())
                };
                visitor.info(info.map_err(invalid)?);
            }
            ChunkKind::Definitions => {
                let payload = packed.payload(&mut self.decompressor)?;
                let each = |definition: &Definition| visitor.define(definition);
                let (counts, definitions) = (&mut self.counts, &mut self.definitions);
                read_definitions(payload.reader(), &mut self.decompressor, counts, definitions, each)
                    .map_err(in_chunk)?;
            }
            ChunkKind::Annotations => {
                let payload = packed.payload(&mut self.decompressor)?;
                let each = |annotation| visitor.annotation(annotation);
                read_annotations(payload.reader(), &mut self.decompressor, each).map_err(in_chunk)?;
            }
            ChunkKind::State => {
                self.check_order(packed, true)?;
                visitor.replace_state(decompress_state(packed, &mut self.decompressor, None)?);
                self.next_event = Some(packed.first_event);
                self.relabels_since_event.clear();
            }
            // The other chunks contain everything that the index contains.
            ChunkKind::Index | ChunkKind::End => {}
            ChunkKind::Events => {
                self.check_order(packed, false)?;
                let columns = decompress_events(packed, &mut self.decompressor)?;
                let mut operations = columns.operations();
                let repeated = columns.relabels().repeated(packed.events > 0, &mut self.relabels_since_event);
                operations.skip_relabels(
                    repeated.ok_or_else(|| packed.error("relabels differ from those of an earlier chunk"))?,
                );
                let read = visitor.events(columns.is_consistent(), &mut operations);
                read.map_err(|error| error.in_chunk_at(packed.offset))?;
                self.next_event = Some(packed.first_event + u64::from(packed.events));
            }
        }
        Ok(())
    }

    /// Returns how many bytes this context has decompressed so far.
    pub(crate) fn decompressed_bytes(&self) -> u64 {
        self.decompressor.decompressed_bytes()
    }

    /// Returns an error unless the chunk begins with the event that follows the chunks decoded so
    /// far. If `may_skip` is true (for full states), it may also begin with a later event.
    fn check_order(&self, packed: &PackedChunk, may_skip: bool) -> Result<(), FormatError> {
        let next = self.next_event.unwrap_or(if may_skip { packed.first_event } else { 0 });
        let first = packed.first_event;
        if first < next || (first > next && !may_skip) {
            return Err(packed.error(format!("chunk begins with event index {first}, but index {next} should follow")));
        }
        Ok(())
    }
}

/// Decodes the bytes of a recording into [`DecodedItem`]s.
///
/// The bytes may be split anywhere; the items do not depend on how.
///
/// ```
/// use vramscope_trace::{DecodedItem, Decoder, DeviceId, Encoder, Event, EventKind, RecordingInfo, Sink};
///
/// let gap = Event { device: DeviceId(0), time_ns: 5, kind: EventKind::Gap { lost: 3 } };
/// let mut encoder = Encoder::new(&RecordingInfo::default());
/// encoder.event(&gap);
/// encoder.flush();
///
/// let mut decoder = Decoder::new();
/// let mut items = Vec::new();
/// for chunk in encoder.take_output() {
///     decoder.push(&chunk.bytes);
///     while let Some(item) = decoder.next_item()? {
///         items.push(item);
///     }
/// }
/// assert_eq!(items, [DecodedItem::Info(RecordingInfo::default()), DecodedItem::Event(gap)]);
/// decoder.finish()?;
/// # Ok::<(), vramscope_trace::FormatError>(())
/// ```
#[derive(Debug, Default)]
pub struct Decoder {
    chunks: ChunkReader,
    context: DecodeContext,
    items: VecDeque<DecodedItem>,
}

impl ChunkVisitor for VecDeque<DecodedItem> {
    fn info(&mut self, info: RecordingInfo) {
        self.push_back(DecodedItem::Info(info));
    }
    fn define(&mut self, definition: &Definition) {
        self.push_back(DecodedItem::Define(definition.clone()));
    }
    fn replace_state(&mut self, state: MemoryState) {
        self.push_back(DecodedItem::FullState(Box::new(state)));
    }
    fn event(&mut self, event: Event) {
        self.push_back(DecodedItem::Event(event));
    }
    fn annotation(&mut self, annotation: Annotation) {
        self.push_back(DecodedItem::Annotation(annotation));
    }
    fn relabel(&mut self, relabel: Relabel) {
        self.push_back(DecodedItem::Relabel(relabel));
    }
}

impl Decoder {
    /// Creates a decoder that expects the first byte of a recording.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the next bytes of the recording, for later calls of [`next_item`](Self::next_item).
    pub fn push(&mut self, bytes: &[u8]) {
        self.chunks.push(bytes);
    }

    /// Returns the next item of the recording, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// If the bytes are not a recording. All items before the error are returned first; every later
    /// call returns the same error.
    pub fn next_item(&mut self) -> Result<Option<DecodedItem>, FormatError> {
        loop {
            if let Some(item) = self.items.pop_front() {
                return Ok(Some(item));
            }
            let Some(packed) = self.chunks.next_chunk()? else { return Ok(None) };
            if let Err(error) = self.context.read(&packed, &mut self.items) {
                self.chunks.fail(error);
            }
            // The returned items contain the definitions; keeping them here too would only take
            // memory.
            self.context.definitions = Definitions::default();
        }
    }

    /// Checks that the bytes so far end at the end of a chunk.
    ///
    /// # Errors
    /// If they end inside a chunk. The items decoded before are valid.
    pub fn finish(&self) -> Result<(), FormatError> {
        self.chunks.finish()
    }
}
