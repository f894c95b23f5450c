//! A recording held in memory: its chunks, still compressed, and what is needed to find the way in them.

use std::collections::BTreeMap;

use crate::buckets::Slice;
use crate::chunk::{ChunkKind, ChunkReader, Packed};
use crate::decoder::{Context, Visitor, each_event};
use crate::error::FormatError;
use crate::event::{Annotation, DeviceId, Event, EventKind};
use crate::info::Info;
use crate::pack::Unpacker;
use crate::replay::Replay;
use crate::series::{Column, Series, slice_end};
use crate::site::{Definition, Definitions};
use crate::state::{Block, MemorySample, MemoryState, Segment};

/// Bytes of memory that a recording may take while it is open; more is refused. Hostile bytes can promise a great deal.
const MEMORY_LIMIT: usize = 3 << 30;
/// Unpacked bytes after which the memory taken is counted again.
const CHECK_EVERY_BYTES: usize = 4 << 20;
/// Columns of a timeline are exact while fewer events than this many a column are in view; beyond, a bucket of the series is
/// narrower than a column anyway.
const EXACT_EVENTS_PER_COLUMN: u64 = 32;

/// A chunk of events or a full state.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) packed: Packed,
    /// The time of the last event up to here; never goes back.
    pub(crate) end_ns: u64,
}

/// The parts of a recording that grow as chunks come.
#[derive(Debug, Default)]
struct Head {
    info: Info,
    annotations: Vec<Annotation>,
    /// Whether some annotation came behind one of a later time.
    out_of_order: bool,
    state: MemoryState,
    /// Events taken in; those known to be lost do not count.
    events: u64,
    start_ns: Option<u64>,
    series: BTreeMap<DeviceId, Series>,
    lost: u64,
    text_bytes: usize,
}

/// A recording, growing as its bytes come.
#[derive(Debug, Default)]
pub struct Recording {
    reader: ChunkReader,
    context: Context,
    head: Head,
    /// Chunks of events, in order.
    pub(crate) event_chunks: Vec<Stored>,
    /// Chunks of full states, in order.
    pub(crate) state_chunks: Vec<Stored>,
    first_event: Option<u64>,
    stored_bytes: usize,
    unchecked_bytes: usize,
}

/// What annotations are ordered by.
fn in_time(annotation: &Annotation) -> (u64, u64) {
    (annotation.time_ns, annotation.at_event)
}

impl Visitor for Head {
    fn info(&mut self, info: Info) {
        self.info = info;
    }

    fn define(&mut self, definition: &Definition) {
        self.text_bytes += size_of::<Definition>();
        if let Definition::String(text) = definition {
            self.text_bytes += text.len();
        }
    }

    fn full_state(&mut self, state: MemoryState) {
        self.lost = self.lost.saturating_add(state.event().saturating_sub(self.state.event()));
        self.start_ns.get_or_insert(state.time_ns());
        self.state = state;
        let (event, time_ns) = (self.state.event(), self.state.time_ns());
        for (id, device) in self.state.devices() {
            let counters = device.counters();
            let series = self
                .series
                .entry(id)
                .and_modify(|series| series.push(event, time_ns, counters))
                .or_insert_with(|| Series::new(event, counters));
            if let Some(sample) = device.sample() {
                series.push_sample(event, time_ns, counters, sample);
            }
        }
    }

    fn event(&mut self, event: Event) {
        self.start_ns.get_or_insert(event.time_ns);
        self.state.apply(&event);
        self.events += 1;
        let number = self.state.event();
        match event.kind {
            EventKind::Mark { stage, name, .. } => {
                let at_event = number - 1;
                self.annotation(Annotation { device: event.device, time_ns: event.time_ns, at_event, stage, name });
            }
            EventKind::Gap { lost } => self.lost = self.lost.saturating_add(lost),
            _ => {}
        }
        let time_ns = self.state.time_ns();
        let counters = self.state.device(event.device).map(|device| device.counters()).unwrap_or_default();
        let series = self.series.entry(event.device).or_default();
        series.push(number, time_ns, counters);
        if let EventKind::MemorySample { used_by_context, used_by_others, free } = event.kind {
            series.push_sample(number, time_ns, counters, MemorySample { used_by_context, used_by_others, free });
        }
    }

    fn annotation(&mut self, annotation: Annotation) {
        self.out_of_order |= self.annotations.last().is_some_and(|last| in_time(last) > in_time(&annotation));
        self.annotations.push(annotation);
    }
}

impl Recording {
    /// A recording before its first byte.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes of the recording, cut anywhere.
    ///
    /// # Errors
    /// Where the bytes are not a recording; what came before stays usable.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        self.reader.push(bytes);
        let result = self.take_chunks();
        // Once for all the chunks, and not where each annotation stands: there may be very many, in the worst order.
        if std::mem::take(&mut self.head.out_of_order) {
            self.head.annotations.sort_by_key(in_time);
        }
        if let Err(error) = &result {
            self.reader.fail(error.clone());
        }
        result
    }

    fn take_chunks(&mut self) -> Result<(), FormatError> {
        while let Some(packed) = self.reader.next_chunk()? {
            self.take(packed)?;
        }
        Ok(())
    }

    fn take(&mut self, packed: Packed) -> Result<(), FormatError> {
        if self.first_event.is_none() && matches!(packed.kind, ChunkKind::State | ChunkKind::Events) {
            self.first_event = Some(packed.first_event);
            // What came before a newcomer's first state is not lost: it was never asked for.
            self.head.state = MemoryState { event: packed.first_event, ..MemoryState::default() };
        }
        self.context.read(&packed, &mut self.head)?;
        self.check_memory(&packed)?;
        let list = match packed.kind {
            ChunkKind::Events => &mut self.event_chunks,
            ChunkKind::State => &mut self.state_chunks,
            _ => return Ok(()),
        };
        self.stored_bytes += packed.size_in_memory();
        list.push(Stored { packed, end_ns: self.head.state.time_ns() });
        Ok(())
    }

    fn check_memory(&mut self, packed: &Packed) -> Result<(), FormatError> {
        // Counting takes a walk over all devices, so it is done once in so many bytes, whatever they were.
        self.unchecked_bytes += packed.size_unpacked();
        if self.unchecked_bytes < CHECK_EVERY_BYTES {
            return Ok(());
        }
        self.unchecked_bytes = 0;
        let head = &self.head;
        let state: usize = (head.state.devices())
            .map(|(_, device)| {
                device.blocks().len() * size_of::<Block>() + device.segments().len() * size_of::<Segment>()
            })
            .sum();
        let series: usize = head.series.values().map(Series::size_in_memory).sum();
        let annotations = head.annotations.len() * size_of::<Annotation>();
        // A replay that looks at the last moment holds the state once more.
        if self.stored_bytes + 2 * state + series + annotations + head.text_bytes > MEMORY_LIMIT {
            return Err(
                packed.error(format!("the recording takes more than {} GiB of memory up to here", MEMORY_LIMIT >> 30))
            );
        }
        Ok(())
    }

    /// Says whether the bytes may end here.
    ///
    /// # Errors
    /// If they end inside a chunk; what came before is usable.
    pub fn finish(&self) -> Result<(), FormatError> {
        self.reader.finish()
    }

    /// What the recording says of itself.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.head.info
    }

    /// Everything defined so far.
    #[must_use]
    pub fn definitions(&self) -> &Definitions {
        &self.context.definitions
    }

    /// Annotations and the marks among the events, in order of time.
    #[must_use]
    pub fn annotations(&self) -> &[Annotation] {
        &self.head.annotations
    }

    /// The first moment that is known.
    #[must_use]
    pub fn first_event(&self) -> u64 {
        self.first_event.unwrap_or(0)
    }

    /// The last moment that is known.
    #[must_use]
    pub fn end_event(&self) -> u64 {
        self.head.state.event()
    }

    /// The number of the first event that is not before `number`; those between are known to be missing. `None` where none follows.
    #[must_use]
    pub fn next_event(&self, number: u64) -> Option<u64> {
        let end = |stored: &Stored| stored.packed.first_event.saturating_add(u64::from(stored.packed.events));
        let chunk = self.event_chunks.partition_point(|stored| end(stored) <= number);
        self.event_chunks.get(chunk).map(|stored| stored.packed.first_event.max(number))
    }

    /// How many events there are. Those known to be missing do not count.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.head.events
    }

    /// How many events are known to be missing.
    #[must_use]
    pub fn lost_events(&self) -> u64 {
        self.head.lost
    }

    /// The time of the first moment.
    #[must_use]
    pub fn start_ns(&self) -> u64 {
        self.head.start_ns.unwrap_or(0)
    }

    /// The time of the last moment.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.head.state.time_ns()
    }

    /// The memory state at the last moment.
    #[must_use]
    pub fn end_state(&self) -> &MemoryState {
        &self.head.state
    }

    /// The devices, by number.
    pub fn devices(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.head.state.devices().map(|(id, _)| id)
    }

    /// A device's counters over time.
    #[must_use]
    pub fn series(&self, device: DeviceId) -> Option<&Series> {
        self.head.series.get(&device)
    }

    /// A device's counters over `width` equal slices of time: exact where few events are in view, else to within 16 events.
    #[must_use]
    pub fn columns(&self, device: DeviceId, from_ns: u64, to_ns: u64, width: usize) -> Vec<Column> {
        let Some(series) = self.series(device) else { return vec![Column::default(); width] };
        let (first, last) = (self.event_at_time(from_ns), self.event_at_time(to_ns));
        if last - first > EXACT_EVENTS_PER_COLUMN * width as u64 {
            return series.columns(from_ns, to_ns, width);
        }
        self.exact_columns(device, (first, last), (from_ns, to_ns), width)
            .unwrap_or_else(|_| series.columns(from_ns, to_ns, width))
    }

    fn exact_columns(
        &self,
        device: DeviceId,
        (first, last): (u64, u64),
        (from_ns, to_ns): (u64, u64),
        width: usize,
    ) -> Result<Vec<Column>, FormatError> {
        let counters = |state: &MemoryState| state.device(device).map(|device| device.counters()).unwrap_or_default();
        let mut columns = Vec::with_capacity(width);
        let mut replay = Replay::new();
        let state = replay.seek(self, first)?;
        let mut column = Column::still(state.event(), counters(state));
        replay.walk(self, last, |state| {
            while columns.len() < width && state.time_ns() > slice_end(from_ns, to_ns, width, columns.len()) {
                columns.push(column);
                column = Column::still(column.event, column.last);
            }
            column.extend(&Column::still(state.event(), counters(state)));
        })?;
        while columns.len() < width {
            columns.push(column);
            column = Column::still(column.event, column.last);
        }
        Ok(columns)
    }

    /// The last moment whose time is at most `time_ns`; the first moment where all are later.
    #[must_use]
    pub fn event_at_time(&self, time_ns: u64) -> u64 {
        let chunk = self.event_chunks.partition_point(|stored| stored.end_ns <= time_ns);
        let Some(stored) = self.event_chunks.get(chunk) else { return self.end_event() };
        let mut number = stored.packed.first_event;
        let mut later = false;
        // A chunk is decoded without error once, when it is taken in.
        let _ = each_event(&stored.packed, &mut Unpacker::default(), |event| {
            later |= event.time_ns > time_ns;
            number += u64::from(!later);
        });
        number
    }
}
