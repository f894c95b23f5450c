//! A recording's bytes into events, one after the other.

use std::collections::VecDeque;

use crate::chunk::{ChunkKind, ChunkReader, Packed};
use crate::definition_code::{DefinitionCounts, read_annotations, read_definitions};
use crate::error::FormatError;
use crate::event::{Annotation, Event};
use crate::event_code::{EventColumns, EventReader};
use crate::info::Info;
use crate::newborn::Misfit;
use crate::pack::Unpacker;
use crate::site::{Definition, Definitions};
use crate::state::MemoryState;
use crate::state_code::read_state;
use crate::varint::Malformed;

/// One thing that a recording says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// What the recording says of itself.
    Info(Info),
    /// A definition.
    Define(Definition),
    /// The whole memory state after [`MemoryState::event`] events. Where that is more than came before, the events between are lost.
    FullState(Box<MemoryState>),
    /// The next event.
    Event(Event),
    /// An annotation; its own fields say where it stands.
    Annotation(Annotation),
}

/// The parts of a chunk, as they are met.
pub(crate) trait Visitor {
    fn info(&mut self, info: Info);
    fn define(&mut self, definition: &Definition);
    fn full_state(&mut self, state: MemoryState);
    fn event(&mut self, event: Event);
    /// The events of a chunk. `fits` is what the chunk says of all of them.
    ///
    /// # Errors
    /// Where that is not so, if the visitor finds out.
    fn events(&mut self, fits: bool, operations: &mut EventReader<'_>) -> Result<(), Wrong> {
        let _ = fits;
        while let Some(operation) = operations.next_operation()? {
            operation.each(|event| self.event(event));
        }
        Ok(())
    }
    fn annotation(&mut self, annotation: Annotation);
}

/// What must be remembered from chunk to chunk.
#[derive(Debug, Default)]
pub(crate) struct Context {
    pub(crate) definitions: Definitions,
    counts: DefinitionCounts,
    unpacker: Unpacker,
    /// The number of the next event, once the first chunk that says so was met.
    pub(crate) next_event: Option<u64>,
}

/// What is wrong in the payload of the chunk at `offset`.
pub(crate) fn misplaced_at(offset: u64, error: &Malformed) -> FormatError {
    FormatError::new(offset, format!("in this chunk, {} bytes into its payload: {}", error.at, error.what))
}

fn misplaced(packed: &Packed, error: &Malformed) -> FormatError {
    misplaced_at(packed.offset, error)
}

/// Unpacks a chunk of events.
pub(crate) fn unpack_events(packed: &Packed, unpacker: &mut Unpacker) -> Result<EventColumns, FormatError> {
    let payload = packed.payload(unpacker)?;
    EventColumns::read(payload.reader(), packed.events, unpacker).map_err(|error| misplaced(packed, &error))
}

/// What is wrong with the events of a chunk.
#[derive(Debug)]
pub(crate) enum Wrong {
    Malformed(Malformed),
    /// The chunk says that all of them fit, and one does not.
    Misfit,
}

impl From<Malformed> for Wrong {
    fn from(error: Malformed) -> Self {
        Self::Malformed(error)
    }
}

impl From<Misfit> for Wrong {
    fn from(Misfit: Misfit) -> Self {
        Self::Misfit
    }
}

impl Wrong {
    /// What to say of it, in the chunk at `offset`.
    pub(crate) fn at(&self, offset: u64) -> FormatError {
        match self {
            Self::Malformed(error) => misplaced_at(offset, error),
            Self::Misfit => FormatError::new(
                offset,
                "this chunk says that its events fit what was known of memory, and one does not",
            ),
        }
    }
}

/// Calls `each` with the events of a chunk.
pub(crate) fn each_event(
    packed: &Packed,
    unpacker: &mut Unpacker,
    mut each: impl FnMut(Event),
) -> Result<(), FormatError> {
    let columns = unpack_events(packed, unpacker)?;
    let wrong = |error| misplaced(packed, &error);
    let mut operations = columns.operations().map_err(wrong)?;
    while let Some(operation) = operations.next_operation().map_err(wrong)? {
        operation.each(&mut each);
    }
    Ok(())
}

/// Reads a chunk of a full state.
pub(crate) fn unpack_state(packed: &Packed, unpacker: &mut Unpacker) -> Result<MemoryState, FormatError> {
    let payload = packed.payload(unpacker)?;
    let state = read_state(payload.reader(), unpacker).map_err(|error| misplaced(packed, &error))?;
    if state.event != packed.first_event {
        return Err(packed.error("a full state of another moment than its chunk says"));
    }
    Ok(state)
}

impl Context {
    /// Takes one chunk apart.
    pub(crate) fn read(&mut self, packed: &Packed, visitor: &mut impl Visitor) -> Result<(), FormatError> {
        let wrong = |error| misplaced(packed, &error);
        match packed.kind {
            ChunkKind::Head => {
                let info = serde_json::from_slice(packed.payload(&mut self.unpacker)?.bytes());
                visitor
                    .info(info.map_err(|error| packed.error(format!("the head is not what it should be: {error}")))?);
            }
            ChunkKind::Definitions => {
                let payload = packed.payload(&mut self.unpacker)?;
                let each = |definition: &Definition| visitor.define(definition);
                let (counts, definitions) = (&mut self.counts, &mut self.definitions);
                read_definitions(payload.reader(), &mut self.unpacker, counts, definitions, each).map_err(wrong)?;
            }
            ChunkKind::Annotations => {
                let payload = packed.payload(&mut self.unpacker)?;
                let each = |annotation| visitor.annotation(annotation);
                read_annotations(payload.reader(), &mut self.unpacker, each).map_err(wrong)?;
            }
            ChunkKind::State => {
                self.check_order(packed, true)?;
                visitor.full_state(unpack_state(packed, &mut self.unpacker)?);
                self.next_event = Some(packed.first_event);
            }
            // They say nothing that the others do not.
            ChunkKind::Index | ChunkKind::End => {}
            ChunkKind::Events => {
                self.check_order(packed, false)?;
                let columns = unpack_events(packed, &mut self.unpacker)?;
                let mut operations = columns.operations().map_err(wrong)?;
                let read = visitor.events(columns.fits(), &mut operations);
                read.map_err(|error| error.at(packed.offset))?;
                self.next_event = Some(packed.first_event + u64::from(packed.events));
            }
        }
        Ok(())
    }

    /// Bytes that were unpacked so far.
    pub(crate) fn unpacked_bytes(&self) -> u64 {
        self.unpacker.unpacked_bytes()
    }

    fn check_order(&self, packed: &Packed, may_skip: bool) -> Result<(), FormatError> {
        let next = self.next_event.unwrap_or(if may_skip { packed.first_event } else { 0 });
        let first = packed.first_event;
        if first < next || (first > next && !may_skip) {
            return Err(
                packed.error(format!("a chunk that begins with event {first}, where event {next} should follow"))
            );
        }
        Ok(())
    }
}

/// Takes a recording's bytes, cut anywhere, and gives what they say; however they are cut, it is the same.
#[derive(Debug, Default)]
pub struct Decoder {
    chunks: ChunkReader,
    context: Context,
    items: VecDeque<Item>,
}

impl Visitor for VecDeque<Item> {
    fn info(&mut self, info: Info) {
        self.push_back(Item::Info(info));
    }
    fn define(&mut self, definition: &Definition) {
        self.push_back(Item::Define(definition.clone()));
    }
    fn full_state(&mut self, state: MemoryState) {
        self.push_back(Item::FullState(Box::new(state)));
    }
    fn event(&mut self, event: Event) {
        self.push_back(Item::Event(event));
    }
    fn annotation(&mut self, annotation: Annotation) {
        self.push_back(Item::Annotation(annotation));
    }
}

impl Decoder {
    /// A decoder before the first byte.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.chunks.push(bytes);
    }

    /// The next item; `None` until more bytes come.
    ///
    /// # Errors
    /// Where the bytes are not a recording; from then on always the same error. Items before it come first.
    pub fn next_item(&mut self) -> Result<Option<Item>, FormatError> {
        loop {
            if let Some(item) = self.items.pop_front() {
                return Ok(Some(item));
            }
            let Some(packed) = self.chunks.next_chunk()? else { return Ok(None) };
            if let Err(error) = self.context.read(&packed, &mut self.items) {
                self.chunks.fail(error);
            }
            // They are among the items, and here nobody asks for them again.
            self.context.definitions = Definitions::default();
        }
    }

    /// Says whether the bytes may end here.
    ///
    /// # Errors
    /// If they end inside a chunk; what came before is whole.
    pub fn finish(&self) -> Result<(), FormatError> {
        self.chunks.finish()
    }
}
