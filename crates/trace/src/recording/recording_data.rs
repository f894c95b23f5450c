//! The recording: its chunks, still compressed, and the overview needed to use them.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::overview::{Incident, Overview};
use super::packed_end::PackedEnd;
use super::stored_chunk::{ReadAt, StoredChunk};
use super::trim_progress::TrimProgress;
use crate::chunk::{ChunkKind, PackedChunk};
use crate::chunk_reader::ChunkReader;
use crate::compression::Decompressor;
use crate::counter_series::CounterSeries;
use crate::decoder::DecodeContext;
use crate::error::FormatError;
use crate::event::{Annotation, DeviceId};
use crate::info::RecordingInfo;
use crate::memory_state::MemoryState;
use crate::metrics::MetricsSeries;
use crate::site::Definitions;

/// Maximum memory, in bytes, that an open recording may occupy; adding a chunk that exceeds it is
/// an error. Hostile files could need far more.
const MEMORY_LIMIT: usize = if cfg!(target_arch = "wasm32") { 1 << 30 } else { 3 << 30 };
/// Number of bytes that a recording decompresses before it computes its memory again, to compare it
/// with [`MEMORY_LIMIT`].
const CHECK_EVERY_BYTES: u64 = 4 << 20;
/// Maximum memory, in bytes, for chunks that the caller [supplied](Recording::supply). A chunk that
/// would exceed it first drops all supplied chunks, which are then missing again.
const MAX_SUPPLIED_BYTES: usize = 256 << 20;

/// An opened recording: its chunks, and an overview for immediate use.
///
/// The overview has metadata, definitions, counters and metrics over time, annotations, incidents
/// and the state at the end. [`Replay`](crate::Replay) computes the state at any other moment.
///
/// There are three ways to open one:
/// - [`new`](Self::new) and [`push`](Self::push): pushes all bytes, in any pieces, also of a live
///   recording that grows. The compressed chunks stay in memory.
/// - [`open`](Self::open): reads from a [`ReadAt`], such as a file, with the index at its end if
///   there is one. Chunks are read again when needed.
/// - [`RecordingOpener`](crate::RecordingOpener): for callers that fetch bytes asynchronously. They
///   then fetch the byte ranges that [`missing`](Self::missing) returns and pass the bytes to
///   [`supply`](Self::supply).
///
/// ```
/// use vramscope_trace::{DeviceId, Encoder, Event, EventKind, Recording, RecordingInfo, Sink};
///
/// let info = RecordingInfo { source: "train.py".to_owned(), ..RecordingInfo::default() };
/// let mut encoder = Encoder::new(&info);
/// encoder.event(&Event { device: DeviceId(0), time_ns: 5, kind: EventKind::Gap { lost: 3 } });
/// encoder.flush();
///
/// let mut recording = Recording::new();
/// for chunk in encoder.take_output() {
///     recording.push(&chunk.bytes)?;
/// }
/// assert_eq!(recording.info().source, "train.py");
/// assert_eq!((recording.events(), recording.lost_events(), recording.end_ns()), (1, 3, 5));
/// # Ok::<(), vramscope_trace::FormatError>(())
/// ```
#[derive(Debug, Default)]
pub struct Recording {
    pub(super) reader: ChunkReader,
    pub(super) context: DecodeContext,
    pub(super) overview: Overview,
    /// The state at the end if it is decoded on first use; `overview.state` then has its moment and
    /// time, but no devices.
    pub(super) packed_end: Option<PackedEnd>,
    /// The positions of all chunks, in order.
    pub(super) chunks: Vec<StoredChunk>,
    /// Chunks with at least one event, in order; not chunks that only have relabels.
    pub(super) event_chunks: Vec<StoredChunk>,
    /// Chunks of full states, in order.
    pub(super) state_chunks: Vec<StoredChunk>,
    /// Reads chunks that are not in memory; `None` if the caller supplies them or all are in
    /// memory.
    pub(super) source: Option<Arc<dyn ReadAt>>,
    /// Whether chunks are dropped from memory once the overview contains them.
    pub(super) drops_chunks: bool,
    pub(super) first_event: Option<u64>,
    /// Memory taken by chunks and their positions.
    pub(super) chunk_bytes: usize,
    /// Sum of uncompressed and decompressed bytes when memory was last checked.
    pub(super) checked_bytes: u64,
    /// Bytes of all chunks before compression as a whole.
    pub(super) uncompressed_bytes: u64,
    /// Whether it was opened by its index.
    pub(super) is_indexed: bool,
    /// Whether the marks of an indexed recording have been added to the annotations.
    pub(super) lists_marks: bool,
    /// Header chunks, definitions, annotations, and relabels without events, to be decoded again by
    /// a rebuild.
    pub(super) other_chunks: Vec<PackedChunk>,
    /// Byte offset in the recording of the end of the last chunk that was added.
    pub(super) complete_bytes: u64,
    /// Whether the overview contains part of a damaged chunk and could not be rebuilt.
    pub(super) is_incomplete: bool,
    /// The progress of dropping the oldest part, if in progress.
    pub(super) trim: Option<TrimProgress>,
}

impl Recording {
    /// Creates an empty recording that keeps its chunks in memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty recording that keeps only the overview and the positions of its chunks, not
    /// the chunks of events and full states.
    ///
    /// Chunks are read again from `source`, which reads the whole recording. Without a source,
    /// seeking to a moment other than the end is an error.
    #[must_use]
    pub fn overview_only(source: Option<Arc<dyn ReadAt>>) -> Self {
        Self { source, drops_chunks: true, ..Self::default() }
    }

    /// Adds the next bytes of the recording, which may be split anywhere.
    ///
    /// # Errors
    /// If the bytes are not a recording, or it takes too much memory. Chunks added before stay
    /// usable; every later call returns the same error.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        self.reader.push(bytes);
        let result = self.add_complete_chunks();
        self.overview.sort_annotations();
        if let Err(error) = &result {
            self.reader.fail(error.clone());
            self.rebuild();
        }
        result
    }

    /// Removes the effect of a chunk that turned out to be damaged: creates the overview again from
    /// the chunks before it.
    fn rebuild(&mut self) {
        let (source, drops_chunks) = (self.source.clone(), self.drops_chunks);
        let mut fresh = Self { source, drops_chunks, reader: std::mem::take(&mut self.reader), ..Self::default() };
        let mut other_chunks = std::mem::take(&mut self.other_chunks).into_iter();
        let result = self.chunks.iter().try_for_each(|position| match self.listed(position) {
            Some(stored) => fresh.add_chunk(self.chunk(stored)?.into_owned()),
            None => other_chunks.next().map_or(Ok(()), |packed| fresh.add_chunk(packed)),
        });
        if result.is_ok() {
            fresh.overview.sort_annotations();
            *self = fresh;
        } else {
            // The chunks cannot be read again: there is no source, or the file is gone.
            self.reader = fresh.reader;
            self.is_incomplete = true;
        }
    }

    /// Adds all chunks whose bytes have been pushed completely; stops at the first error.
    fn add_complete_chunks(&mut self) -> Result<(), FormatError> {
        while let Some(packed) = self.reader.next_chunk()? {
            self.add_chunk(packed)?;
        }
        Ok(())
    }

    /// Decodes a chunk, and adds its contents to the overview and its position to the lists of
    /// chunks.
    fn add_chunk(&mut self, packed: PackedChunk) -> Result<(), FormatError> {
        if self.first_event.is_none() && matches!(packed.kind, ChunkKind::State | ChunkKind::Events) {
            self.first_event = Some(packed.first_event);
            // Events before the first full state of a late viewer are not lost: it never requested
            // them.
            self.overview.state = MemoryState { event: packed.first_event, ..MemoryState::default() };
        }
        self.context.read(&packed, &mut self.overview)?;
        self.uncompressed_bytes += packed.uncompressed_len() as u64;
        self.check_memory(&packed)?;
        let range = packed.offset..packed.offset + packed.len() as u64;
        let position = StoredChunk {
            kind: packed.kind,
            first_event: packed.first_event,
            events: packed.events,
            end_ns: self.overview.state.time_ns(),
            range,
            packed: None,
            is_correction: packed.kind == ChunkKind::State && self.overview.state_is_correction,
        };
        let list = match packed.kind {
            // A chunk without events only has relabels, which the next chunk of events repeats.
            ChunkKind::Events if packed.events > 0 => Some(&mut self.event_chunks),
            ChunkKind::State => Some(&mut self.state_chunks),
            _ => None,
        };
        if let Some(list) = list {
            let packed = (!self.drops_chunks).then_some(packed);
            self.chunk_bytes += size_of::<StoredChunk>() + packed.as_ref().map_or(0, PackedChunk::memory_bytes);
            list.push(StoredChunk { packed, ..position.clone() });
        } else {
            self.chunk_bytes += packed.memory_bytes();
            self.other_chunks.push(packed);
        }
        self.complete_bytes = position.range.end;
        self.chunk_bytes += size_of::<StoredChunk>();
        self.chunks.push(position);
        Ok(())
    }

    /// Returns an error at `packed`, the chunk added last, if the recording exceeds
    /// [`MEMORY_LIMIT`].
    pub(super) fn check_memory(&mut self, packed: &PackedChunk) -> Result<(), FormatError> {
        // Computing the size visits all devices, so it is only done every `CHECK_EVERY_BYTES`.
        let bytes = self.uncompressed_bytes + self.context.decompressed_bytes();
        if bytes - self.checked_bytes < CHECK_EVERY_BYTES {
            return Ok(());
        }
        self.checked_bytes = bytes;
        if self.chunk_bytes + self.overview.memory_bytes() > MEMORY_LIMIT {
            return Err(
                packed.error(format!("the recording up to here takes more than {} GiB of memory", MEMORY_LIMIT >> 30))
            );
        }
        Ok(())
    }

    /// Returns the memory that the chunks, the overview and the definitions occupy, in bytes.
    #[must_use]
    pub fn total_memory_bytes(&self) -> usize {
        self.chunk_bytes + self.overview.memory_bytes() + self.context.definitions.memory_bytes()
    }

    /// Checks that the bytes so far end at the end of a chunk.
    ///
    /// # Errors
    /// If they end inside a chunk. Chunks added before are usable.
    pub fn finish(&self) -> Result<(), FormatError> {
        if self.is_indexed { Ok(()) } else { self.reader.finish() }
    }

    /// Returns the length of the recording up to the end of its last complete chunk, in bytes. The
    /// [index](Self::index) belongs there.
    #[must_use]
    pub fn complete_bytes(&self) -> u64 {
        self.complete_bytes
    }

    /// Returns the entry of a chunk in the list of chunks of events or of full states; `None` if it
    /// is in neither list.
    pub(super) fn listed(&self, position: &StoredChunk) -> Option<&StoredChunk> {
        let list = match position.kind {
            ChunkKind::Events if position.events > 0 => &self.event_chunks,
            ChunkKind::State => &self.state_chunks,
            _ => return None,
        };
        list.get(list.partition_point(|stored| stored.range.start < position.range.start))
    }

    /// Returns the chunk that `stored` refers to, from memory or read from the source.
    pub(super) fn chunk<'a>(&self, stored: &'a StoredChunk) -> Result<Cow<'a, PackedChunk>, FormatError> {
        stored.chunk(self.source.as_deref())
    }

    /// Returns the byte ranges of the chunks that seeking to the moment `event` needs and that are
    /// not in memory. Without a [`ReadAt`], the caller must [`supply`](Self::supply) them.
    #[must_use]
    pub fn missing(&self, event: u64) -> Vec<Range<u64>> {
        let target = event.clamp(self.first_event(), self.end_event());
        self.missing_between(target, target)
    }

    /// Returns the byte ranges of the chunks that playing from the moment `from` to the moment `to`
    /// needs and that are not in memory.
    #[must_use]
    pub fn missing_between(&self, from: u64, to: u64) -> Vec<Range<u64>> {
        if self.source.is_some() || from == self.end_event() {
            return Vec::new();
        }
        let state = self.state_chunks.partition_point(|stored| stored.first_event <= from).checked_sub(1);
        let base = state.map_or(self.first_event(), |state| self.state_chunks[state].first_event);
        let states = self.state_chunks[state.unwrap_or(0)..].iter().take_while(|stored| stored.first_event <= to);
        let first = self.event_chunks.partition_point(|stored| stored.end_event() <= base);
        let events = self.event_chunks[first..].iter().take_while(|stored| stored.first_event <= to);
        let absent = states.chain(events).filter(|stored| stored.packed.is_none());
        absent.map(|stored| stored.range.clone()).collect()
    }

    /// Adds the bytes of one [missing](Self::missing) range, which begins at `offset`.
    ///
    /// # Errors
    /// If they are not the chunk that the index lists there.
    pub fn supply(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FormatError> {
        if self.chunk_bytes > MAX_SUPPLIED_BYTES {
            self.chunk_bytes = 0;
            for stored in self.state_chunks.iter_mut().chain(&mut self.event_chunks) {
                stored.packed = None;
            }
        }
        for list in [&mut self.state_chunks, &mut self.event_chunks] {
            let at = list.partition_point(|stored| stored.range.start < offset);
            if let Some(stored) = list.get_mut(at).filter(|stored| stored.range.start == offset) {
                let packed = stored.parse(bytes)?;
                self.chunk_bytes += packed.memory_bytes();
                stored.packed = Some(packed);
                return Ok(());
            }
        }
        Err(FormatError::new(offset, "no chunk begins at this offset"))
    }

    /// Returns the recording's metadata, from its last header chunk.
    #[must_use]
    pub fn info(&self) -> &RecordingInfo {
        &self.overview.info
    }

    /// Returns all strings, frames, stacks and sites that the recording defines.
    #[must_use]
    pub fn definitions(&self) -> &Definitions {
        &self.context.definitions
    }

    /// Returns the annotations and the marks, sorted by time. A recording that was opened by its
    /// index lists marks only after [`read_marks`](Self::read_marks) or
    /// [`add_marks`](Self::add_marks).
    #[must_use]
    pub fn annotations(&self) -> &[Annotation] {
        &self.overview.annotations
    }

    /// Returns the out-of-memory events and gaps, in the order of their moments.
    #[must_use]
    pub fn incidents(&self) -> &[Incident] {
        &self.overview.incidents
    }

    /// Returns the first moment with a known state: 0, unless the reader joined a live recording
    /// late or the oldest part of the recording was dropped.
    #[must_use]
    pub fn first_event(&self) -> u64 {
        self.first_event.unwrap_or(0)
    }

    /// Returns the last moment of the recording: the number of its events, lost ones included.
    #[must_use]
    pub fn end_event(&self) -> u64 {
        self.overview.state.event()
    }

    /// Returns the index (from 0) of the first recorded event at or after index `index`, or `None`
    /// if no event follows. The events in between are missing.
    #[must_use]
    pub fn next_event(&self, index: u64) -> Option<u64> {
        let chunk = self.event_chunks.partition_point(|stored| stored.end_event() <= index);
        self.event_chunks.get(chunk).map(|stored| stored.first_event.max(index))
    }

    /// Returns the chunk that contains the event with index `index` (from 0), or `None` if the
    /// event is missing.
    pub(super) fn chunk_of_event(&self, index: u64) -> Option<&StoredChunk> {
        let chunk = self.event_chunks.partition_point(|stored| stored.end_event() <= index);
        self.event_chunks.get(chunk).filter(|stored| stored.first_event <= index)
    }

    /// Returns true if the recording has a full state at the moment `moment` that differs from the
    /// state that the events before it lead to, or if that is the last moment and relabels follow
    /// the last event.
    ///
    /// A caller that applies events one by one must continue from that state.
    #[must_use]
    pub fn has_correction_at(&self, moment: u64) -> bool {
        let state = self.state_chunks.partition_point(|stored| stored.first_event < moment);
        let states = self.state_chunks[state..].iter().take_while(|stored| stored.first_event == moment);
        states.into_iter().any(|stored| stored.is_correction)
            || self.overview.ends_with_relabel && moment == self.end_event()
    }

    /// Returns the first moment from `moment` on at which the recording has a full state or ends.
    /// [`has_correction_at`](Self::has_correction_at) is false for moments before it.
    #[must_use]
    pub fn next_full_state(&self, moment: u64) -> u64 {
        let state = self.state_chunks.partition_point(|stored| stored.first_event < moment);
        let end = self.end_event();
        self.state_chunks.get(state).map_or(end, |stored| stored.first_event.min(end))
    }

    /// Returns the end of the last chunk in bytes if relabels follow the last event, else 0. It
    /// increases with each chunk of relabels.
    pub(crate) fn last_relabels_end(&self) -> u64 {
        if self.overview.ends_with_relabel { self.complete_bytes } else { 0 }
    }

    /// Returns the number of recorded events, without lost ones.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.overview.events
    }

    /// Returns the number of missing events: events that were never recorded, and events that were
    /// recorded but not sent to this reader ([`skipped_events`](Self::skipped_events)).
    #[must_use]
    pub fn lost_events(&self) -> u64 {
        self.overview.lost
    }

    /// Returns the number of events that were recorded but not sent to this reader, because the
    /// server sent a later full state instead. [`lost_events`](Self::lost_events) includes them.
    #[must_use]
    pub fn skipped_events(&self) -> u64 {
        self.overview.skipped
    }

    /// Returns the time of the first event or full state, in nanoseconds since the recording's time
    /// 0.
    #[must_use]
    pub fn start_ns(&self) -> u64 {
        self.overview.start_ns.unwrap_or(0)
    }

    /// Returns the time of the last moment, in nanoseconds since the recording's time 0.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.overview.state.time_ns()
    }

    /// Returns the memory state at the recording's last moment.
    ///
    /// A recording opened by its index decodes it in the first call. If that fails, this state has
    /// no devices, and [`Replay::seek`](crate::Replay::seek) to the last moment returns the error.
    #[must_use]
    pub fn end_state(&self) -> &MemoryState {
        self.packed_end.as_ref().and_then(PackedEnd::state).unwrap_or(&self.overview.state)
    }

    /// Returns the memory state at the recording's last moment, unless it would have to be decoded.
    #[must_use]
    pub fn known_end_state(&self) -> Option<&MemoryState> {
        self.packed_end.as_ref().map_or(Some(&self.overview.state), PackedEnd::known_state)
    }

    /// Returns a copy of the memory state at the last moment: of all devices, or with `only` of one
    /// device.
    pub(super) fn copy_end_state(
        &self,
        only: Option<DeviceId>,
        decompressor: &mut Decompressor,
    ) -> Result<MemoryState, FormatError> {
        let state = match (self.known_end_state(), &self.packed_end) {
            (None, Some(packed)) => return packed.decode(only, decompressor),
            (state, _) => state.unwrap_or(&self.overview.state),
        };
        let Some(device) = only else { return Ok(state.clone()) };
        let mut copy = MemoryState { event: state.event, time_ns: state.time_ns, ..MemoryState::default() };
        if let Some(memory) = state.device(device) {
            copy.devices.insert(device, memory.clone());
        }
        Ok(copy)
    }

    /// Returns the ids of all devices in the recording, in ascending order.
    pub fn devices(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.overview.device_histories.keys().copied()
    }

    /// Returns a device's byte counters over time, or `None` if the recording lacks the device.
    #[must_use]
    pub fn series(&self, device: DeviceId) -> Option<&CounterSeries> {
        self.overview.device_histories.get(&device).map(|history| &history.series)
    }

    /// Returns a device's metrics over time, or `None` if the recording lacks the device.
    #[must_use]
    pub fn metrics(&self, device: DeviceId) -> Option<&MetricsSeries> {
        self.overview.device_histories.get(&device).map(|history| &history.metrics)
    }
}
