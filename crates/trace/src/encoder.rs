//! Events into a recording's chunks.

use crate::chunk::{Chunk, ChunkKind, preamble};
use crate::definition_code::{DefinitionWriter, put_annotations};
use crate::event::{Annotation, Event, EventKind};
use crate::event_code::EventWriter;
use crate::info::Info;
use crate::pack::Packer;
use crate::sink::Sink;
use crate::site::Definition;
use crate::state::MemoryState;
use crate::state_code::{is_readable, put_state};

/// Events of a full chunk. A seek decodes part of one, so fewer make seeking faster and files larger.
pub(crate) const EVENTS_PER_CHUNK: u32 = 16_384;
/// Events between two full states, so that a seek applies no more than these; and as many more as a large state has blocks, so
/// that states never take more than a small share of the bytes.
pub(crate) const EVENTS_PER_STATE: u64 = 16_384;
/// Bytes of definitions of a full chunk. Far below what a reader takes.
const BYTES_PER_CHUNK: usize = 256 << 10;
/// Annotations of a full chunk; likewise.
const ANNOTATIONS_PER_CHUNK: usize = 16_384;
/// The longest text that is kept; the rest of a longer one is cut off, so that its chunk stays within what a reader takes.
const MAX_TEXT_LEN: usize = 64 << 10;

/// Turns events, definitions and annotations into chunks. It keeps the memory state as it goes, and writes it out now and then,
/// so that a reader can begin there.
#[derive(Clone, Debug)]
pub struct Encoder {
    state: MemoryState,
    events: EventWriter,
    first_event: u64,
    definitions: DefinitionWriter,
    annotations: Vec<Annotation>,
    last_state: u64,
    /// Misfits at the beginning of the open chunk.
    misfits_before: u64,
    output: Vec<Chunk>,
    packer: Packer,
    payload: Vec<u8>,
}

fn head(info: &Info, moment: u64, packer: &mut Packer) -> Chunk {
    let mut info = info.clone();
    let names = info.devices.iter_mut().flat_map(|device| [&mut device.name, &mut device.process]);
    for text in
        [&mut info.source, &mut info.writer, &mut info.alloc_conf, &mut info.source_settings].into_iter().chain(names)
    {
        text.truncate(shortened(text).len());
    }
    let json = serde_json::to_vec(&info).expect("plain strings and numbers always serialize");
    let mut chunk = Chunk::pack(ChunkKind::Head, moment, 0, &json, packer);
    chunk.bytes.splice(0..0, preamble());
    chunk
}

/// As much of a text as a recording keeps.
fn shortened(text: &str) -> &str {
    let mut end = text.len().min(MAX_TEXT_LEN);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl Encoder {
    /// Begins a recording; its head is in the output at once.
    #[must_use]
    pub fn new(info: &Info) -> Self {
        let mut packer = Packer::default();
        Self {
            state: MemoryState::default(),
            events: EventWriter::default(),
            first_event: 0,
            definitions: DefinitionWriter::default(),
            annotations: Vec::new(),
            last_state: 0,
            misfits_before: 0,
            output: vec![head(info, 0, &mut packer)],
            packer,
            payload: Vec::new(),
        }
    }

    /// Says anew what the recording says of itself, because more is known: another device, say. It holds for all of the recording.
    pub fn head(&mut self, info: &Info) {
        self.flush();
        self.output.push(head(info, self.first_event, &mut self.packer));
    }

    /// Closes the open chunks, so that everything taken so far is in the output.
    pub fn flush(&mut self) {
        self.close_definitions();
        self.close_annotations();
        self.close_events();
    }

    /// The complete chunks since the last call, in order. The bytes of all of them, one behind the other, are the recording.
    pub fn take_output(&mut self) -> Vec<Chunk> {
        std::mem::take(&mut self.output)
    }

    /// Goes on with event number `event`, where that lies ahead: those between are lost, or were never asked for. A
    /// [full state](Sink::full_state) must come next.
    pub fn skip_to(&mut self, event: u64) {
        self.flush();
        self.state.event = self.state.event.max(event);
        self.first_event = self.state.event;
    }

    /// The memory state after everything taken so far.
    #[must_use]
    pub fn state(&self) -> &MemoryState {
        &self.state
    }

    /// Makes a chunk of the payload.
    fn output(&mut self, kind: ChunkKind, first_event: u64, events: u32) {
        self.output.push(Chunk::pack(kind, first_event, events, &self.payload, &mut self.packer));
        self.payload.clear();
    }

    fn write_state(&mut self) {
        self.last_state = self.state.event;
        if !is_readable(&self.state) {
            // Seeking is slow then.
            return;
        }
        put_state(&mut self.payload, &self.state, Some(&mut self.packer));
        self.output(ChunkKind::State, self.state.event, 0);
    }

    fn close_definitions(&mut self) {
        if self.definitions.len() > 0 {
            self.definitions.finish(&mut self.payload, &mut self.packer);
            self.output(ChunkKind::Definitions, self.first_event, 0);
        }
    }

    fn close_annotations(&mut self) {
        if !self.annotations.is_empty() {
            // The names must be known before they are used.
            self.close_definitions();
            put_annotations(&mut self.payload, &self.annotations, &mut self.packer);
            self.annotations.clear();
            self.output(ChunkKind::Annotations, self.first_event, 0);
        }
    }

    fn close_events(&mut self) {
        let count = self.events.count();
        if count > 0 {
            self.close_definitions();
            let misfits = self.misfits();
            let fits = std::mem::replace(&mut self.misfits_before, misfits) == misfits && misfits < u64::MAX;
            self.events.finish(&mut self.payload, fits, &mut self.packer);
            self.output(ChunkKind::Events, self.first_event, count);
            self.first_event = self.state.event;
            let blocks: usize = self.state.devices().map(|(_, device)| device.blocks().len()).sum();
            if self.state.event - self.last_state >= EVENTS_PER_STATE.max(4 * blocks as u64) {
                self.write_state();
            }
        }
    }

    /// Events and states that contradicted what was known, so far.
    fn misfits(&self) -> u64 {
        self.state.devices().fold(0, |sum, (_, device)| sum.saturating_add(device.misfits()))
    }

    /// How many events of the open chunk came before the one that allocated the block that an event frees.
    fn allocated_by(&self, event: &Event) -> Option<u64> {
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
        let allocated_by = self.allocated_by(event);
        self.events.put(event, allocated_by);
        self.state.apply(event);
        if self.events.count() == EVENTS_PER_CHUNK {
            self.close_events();
        }
    }

    fn define(&mut self, definition: &Definition) {
        let short = match definition {
            Definition::String(text) if text.len() > MAX_TEXT_LEN => {
                Some(Definition::String(shortened(text).to_owned()))
            }
            _ => None,
        };
        let definition = short.as_ref().unwrap_or(definition);
        self.definitions.put(definition);
        if self.definitions.len() >= BYTES_PER_CHUNK {
            self.close_definitions();
        }
    }

    fn annotation(&mut self, annotation: &Annotation) {
        self.annotations.push(*annotation);
        if self.annotations.len() == ANNOTATIONS_PER_CHUNK {
            self.close_annotations();
        }
    }

    fn full_state(&mut self, state: &MemoryState) {
        self.flush();
        let event = self.state.event;
        self.state = state.clone();
        self.state.event = event;
        self.misfits_before = self.misfits();
        self.write_state();
    }
}
