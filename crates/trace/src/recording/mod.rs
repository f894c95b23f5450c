//! A recording: its chunks, still compressed, and what is needed to find the way in them.
//!
//! A recording is either taken in as its bytes come ([`Recording::push`]) or opened by its index ([`Opening`]). In the first case its chunks
//! are kept, or, for one that is larger than memory, only where they are; in the second they are read when they are wanted, by a
//! [`ReadAt`] or by whoever asks [`Recording::missing`] first and then hands them in.

mod damage;
mod directory;
mod forget;
mod index;
mod opening;
mod overview;
mod timeline;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

pub use damage::Damage;
pub use directory::ReadAt;
use directory::Source;
pub(crate) use directory::Stored;
use forget::Forgetting;
pub use opening::Opening;
use overview::Overview;
pub use overview::{Incident, IncidentKind};

use crate::chunk::{ChunkKind, ChunkReader, Packed};
use crate::decoder::Context;
use crate::error::FormatError;
use crate::event::{Annotation, DeviceId};
use crate::info::Info;
use crate::metrics::MetricsSeries;
use crate::series::Series;
use crate::site::Definitions;
use crate::state::MemoryState;

/// Bytes of memory that a recording may take while it is open; more is refused. Hostile bytes can promise a great deal.
const MEMORY_LIMIT: usize = if cfg!(target_arch = "wasm32") { 1 << 30 } else { 3 << 30 };
/// Unpacked bytes after which the memory taken is counted again.
const CHECK_EVERY_BYTES: u64 = 4 << 20;
/// Bytes of chunks that are kept of those that were [supplied](Recording::supply).
const SUPPLIED_LIMIT: usize = 256 << 20;

/// A recording, growing as its bytes come.
#[derive(Debug, Default)]
pub struct Recording {
    reader: ChunkReader,
    context: Context,
    overview: Overview,
    /// All chunks, in order; only where they are.
    chunks: Vec<Stored>,
    /// Chunks of events, in order.
    pub(crate) event_chunks: Vec<Stored>,
    /// Chunks of full states, in order.
    pub(crate) state_chunks: Vec<Stored>,
    /// What reads chunks that are not held.
    source: Source,
    /// Whether chunks are dropped once they were looked at.
    passes_by: bool,
    first_event: Option<u64>,
    held_bytes: usize,
    checked_bytes: u64,
    /// Bytes of every chunk as it is before compression, but for what is packed within.
    raw_bytes: u64,
    /// Whether it was opened by its index.
    is_indexed: bool,
    /// Head, definitions and annotations, to be taken in again.
    others: Vec<Packed>,
    /// Where the last chunk that was taken in ends.
    taken_bytes: u64,
    /// A part of a chunk that is damaged was taken in, and could not be taken back.
    is_incomplete: bool,
    /// What stays, while the oldest part is being forgotten.
    forgetting: Option<Forgetting>,
}

impl Recording {
    /// A recording before its first byte, whose chunks are kept in memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A recording before its first byte, of which only an overview is kept, and where its chunks are. They are read again by `source`,
    /// the bytes of the whole, when a moment is looked at; without one that is an error.
    #[must_use]
    pub fn passing_by(source: Option<Arc<dyn ReadAt>>) -> Self {
        Self { source: Source(source), passes_by: true, ..Self::default() }
    }

    /// Opens the recording of `len` bytes that `source` reads: by its index, or where it has none by reading all of it, in pieces.
    /// `progress` is told how many bytes were read, of how many.
    ///
    /// # Errors
    /// Where the bytes are no recording from the first chunk on, or cannot be read. What ends inside a chunk, or is damaged behind the first
    /// one, is opened up to there: that is the second part of the answer.
    pub fn open(
        source: Arc<dyn ReadAt>,
        len: u64,
        progress: impl FnMut(u64, u64),
    ) -> Result<(Self, Option<FormatError>), FormatError> {
        match Self::open_by_index(&source, len)? {
            Some(recording) => Ok((recording, None)),
            None => Self::read_through(source, len, progress),
        }
    }

    /// Opens the recording of `len` bytes that `source` reads by its index; `None` where it has none.
    ///
    /// # Errors
    /// Where the bytes cannot be read.
    pub fn open_by_index(source: &Arc<dyn ReadAt>, len: u64) -> Result<Option<Self>, FormatError> {
        let mut opening = Opening::new(len);
        while let Some(range) = opening.wants() {
            let bytes = source.read_at(range.clone()).map_err(|error| FormatError::new(range.start, error))?;
            opening.supply(range.start, &bytes);
        }
        let source = Source(Some(Arc::clone(source)));
        Ok(opening.finish().map(|recording| Self { source, ..recording }))
    }

    /// Opens the recording of `len` bytes that `source` reads by reading all of it, in pieces, whatever index it has: every chunk is checked.
    ///
    /// # Errors
    /// See [`open`](Self::open).
    pub fn read_through(
        source: Arc<dyn ReadAt>,
        len: u64,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<(Self, Option<FormatError>), FormatError> {
        /// Bytes that are read at once.
        const PIECE: u64 = 1 << 20;
        let mut recording = Self::passing_by(Some(Arc::clone(&source)));
        let mut at = 0;
        let mut result = Ok(());
        while at < len && result.is_ok() {
            let end = len.min(at + PIECE);
            let piece = source.read_at(at..end).map_err(|error| FormatError::new(at, error))?;
            result = recording.push(&piece);
            at = end;
            progress(at, len);
        }
        match result.and_then(|()| recording.finish()) {
            Err(error) if recording.chunks.is_empty() => Err(error),
            result => Ok((recording, result.err())),
        }
    }

    /// Takes the next bytes of the recording, cut anywhere.
    ///
    /// # Errors
    /// Where the bytes are not a recording; what came before stays usable.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        self.reader.push(bytes);
        let result = self.take_chunks();
        self.overview.sort_annotations();
        if let Err(error) = &result {
            self.reader.fail(error.clone());
            self.take_back();
        }
        result
    }

    /// Undoes what was taken in of a chunk that turned out to be damaged, by taking in again what came before it.
    fn take_back(&mut self) {
        let (mut fresh, reader) = (Self { source: self.source.clone(), ..Self::default() }, &mut self.reader);
        std::mem::swap(&mut fresh.reader, reader);
        fresh.passes_by = self.passes_by;
        let mut others = std::mem::take(&mut self.others).into_iter();
        let taken = self.chunks.iter().try_for_each(|place| {
            let list = match place.kind {
                ChunkKind::Events => &self.event_chunks,
                ChunkKind::State => &self.state_chunks,
                _ => return others.next().map_or(Ok(()), |packed| fresh.take(packed)),
            };
            let at = list.partition_point(|stored| stored.range.start < place.range.start);
            let packed = list.get(at).map(|stored| stored.chunk(&self.source).map(Cow::into_owned));
            packed.map_or(Ok(()), |packed| fresh.take(packed?))
        });
        if taken.is_ok() {
            fresh.overview.sort_annotations();
            *self = fresh;
        } else {
            // Nothing reads it any more: this is a look in passing, or the file is gone.
            std::mem::swap(&mut fresh.reader, &mut self.reader);
            self.is_incomplete = true;
        }
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
            self.overview.state = MemoryState { event: packed.first_event, ..MemoryState::default() };
        }
        self.context.read(&packed, &mut self.overview)?;
        self.raw_bytes += packed.size_unpacked() as u64;
        self.check_memory(&packed)?;
        let range = packed.offset..packed.offset + packed.len() as u64;
        let place = Stored {
            kind: packed.kind,
            first_event: packed.first_event,
            events: packed.events,
            end_ns: self.overview.state.time_ns(),
            range,
            packed: None,
            is_news: packed.kind == ChunkKind::State && self.overview.state_is_news,
        };
        let list = match packed.kind {
            ChunkKind::Events => Some(&mut self.event_chunks),
            ChunkKind::State => Some(&mut self.state_chunks),
            _ => None,
        };
        if let Some(list) = list {
            let packed = (!self.passes_by).then_some(packed);
            self.held_bytes += size_of::<Stored>() + packed.as_ref().map_or(0, Packed::size_in_memory);
            list.push(Stored { packed, ..place.clone() });
        } else {
            self.held_bytes += packed.size_in_memory();
            self.others.push(packed);
        }
        self.taken_bytes = place.range.end;
        self.held_bytes += size_of::<Stored>();
        self.chunks.push(place);
        Ok(())
    }

    fn check_memory(&mut self, packed: &Packed) -> Result<(), FormatError> {
        // Counting takes a walk over all devices, so it is done once in so many bytes, whatever they were.
        let bytes = self.raw_bytes + self.context.unpacked_bytes();
        if bytes - self.checked_bytes < CHECK_EVERY_BYTES {
            return Ok(());
        }
        self.checked_bytes = bytes;
        if self.held_bytes + self.overview.size_in_memory() > MEMORY_LIMIT {
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
        if self.is_indexed { Ok(()) } else { self.reader.finish() }
    }

    /// Bytes up to the end of the last whole chunk that was taken in: where the [index](Self::index) is to stand.
    #[must_use]
    pub fn taken_bytes(&self) -> u64 {
        self.taken_bytes
    }

    /// The chunk that was found, from wherever it is.
    pub(crate) fn chunk<'a>(&self, stored: &'a Stored) -> Result<Cow<'a, Packed>, FormatError> {
        stored.chunk(&self.source)
    }

    /// The bytes that a look at the moment `event` takes and that are not here. They are to be [supplied](Self::supply), where there is no
    /// [`ReadAt`] to read them.
    #[must_use]
    pub fn missing(&self, event: u64) -> Vec<Range<u64>> {
        let target = event.clamp(self.first_event(), self.end_event());
        self.missing_between(target, target)
    }

    /// The bytes that a look at all moments from `from` to `to` takes and that are not here.
    #[must_use]
    pub fn missing_between(&self, from: u64, to: u64) -> Vec<Range<u64>> {
        if self.source.0.is_some() || from == self.end_event() {
            return Vec::new();
        }
        let state = self.state_chunks.partition_point(|stored| stored.first_event <= from).checked_sub(1);
        let base = state.map_or(self.first_event(), |state| self.state_chunks[state].first_event);
        let states = self.state_chunks[state.unwrap_or(0)..].iter().take_while(|stored| stored.first_event <= to);
        let first = self.event_chunks.partition_point(|stored| stored.end_event() <= base);
        let events = self.event_chunks[first..].iter().take_while(|stored| stored.first_event <= to);
        let away = states.chain(events).filter(|stored| stored.packed.is_none());
        away.map(|stored| stored.range.clone()).collect()
    }

    /// Takes bytes that were [missing](Self::missing), a range of them as a whole.
    ///
    /// # Errors
    /// Where they are not the chunk that the index says is there.
    pub fn supply(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FormatError> {
        if self.held_bytes > SUPPLIED_LIMIT {
            self.held_bytes = 0;
            for stored in self.state_chunks.iter_mut().chain(&mut self.event_chunks) {
                stored.packed = None;
            }
        }
        for list in [&mut self.state_chunks, &mut self.event_chunks] {
            let at = list.partition_point(|stored| stored.range.start < offset);
            if let Some(stored) = list.get_mut(at).filter(|stored| stored.range.start == offset) {
                let packed = stored.parse(bytes)?;
                self.held_bytes += packed.size_in_memory();
                stored.packed = Some(packed);
                return Ok(());
            }
        }
        Err(FormatError::new(offset, "no chunk begins here"))
    }

    /// What the recording says of itself.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.overview.info
    }

    /// Everything defined so far.
    #[must_use]
    pub fn definitions(&self) -> &Definitions {
        &self.context.definitions
    }

    /// Annotations and the marks among the events, in order of time.
    #[must_use]
    pub fn annotations(&self) -> &[Annotation] {
        &self.overview.annotations
    }

    /// What went wrong, in the order of events.
    #[must_use]
    pub fn incidents(&self) -> &[Incident] {
        &self.overview.incidents
    }

    /// The first moment that is known.
    #[must_use]
    pub fn first_event(&self) -> u64 {
        self.first_event.unwrap_or(0)
    }

    /// The last moment that is known.
    #[must_use]
    pub fn end_event(&self) -> u64 {
        self.overview.state.event()
    }

    /// The number of the first event that is not before `number`; those between are known to be missing. `None` where none follows.
    #[must_use]
    pub fn next_event(&self, number: u64) -> Option<u64> {
        let chunk = self.event_chunks.partition_point(|stored| stored.end_event() <= number);
        self.event_chunks.get(chunk).map(|stored| stored.first_event.max(number))
    }

    /// Whether a full state stands at the moment `number` that is not what the events before it lead to. Who applies events one by one goes on
    /// from there.
    #[must_use]
    pub fn is_news(&self, number: u64) -> bool {
        let state = self.state_chunks.partition_point(|stored| stored.first_event < number);
        self.state_chunks[state..].iter().take_while(|stored| stored.first_event == number).any(|stored| stored.is_news)
    }

    /// How many events there are. Those known to be missing do not count.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.overview.events
    }

    /// How many events are known to be missing.
    #[must_use]
    pub fn lost_events(&self) -> u64 {
        self.overview.lost
    }

    /// How many of the events that are known to be missing were made and left out on the way here: a full state of a later moment came
    /// instead. The others were never recorded.
    #[must_use]
    pub fn skipped_events(&self) -> u64 {
        self.overview.skipped
    }

    /// The time of the first moment.
    #[must_use]
    pub fn start_ns(&self) -> u64 {
        self.overview.start_ns.unwrap_or(0)
    }

    /// The time of the last moment.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.overview.state.time_ns()
    }

    /// The memory state at the last moment.
    #[must_use]
    pub fn end_state(&self) -> &MemoryState {
        &self.overview.state
    }

    /// The devices, by number.
    pub fn devices(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.overview.state.devices().map(|(id, _)| id)
    }

    /// A device's counters over time.
    #[must_use]
    pub fn series(&self, device: DeviceId) -> Option<&Series> {
        self.overview.courses.get(&device).map(|course| &course.series)
    }

    /// A device's metrics over time.
    #[must_use]
    pub fn metrics(&self, device: DeviceId) -> Option<&MetricsSeries> {
        self.overview.courses.get(&device).map(|course| &course.metrics)
    }
}
