//! The memory state at any moment of a recording.

use std::collections::BTreeMap;

use super::checkpoints::Checkpoints;
use super::recording_data::Recording;
use super::stored_chunk::StoredChunk;
use crate::chunk::ChunkKind;
use crate::chunk_local_blocks::ChunkLocalBlocks;
use crate::compression::Decompressor;
use crate::decoder::{ChunkEntry, EventsError, decompress_events, decompress_state, each_entry_of};
use crate::error::FormatError;
use crate::event::{DeviceId, Event, Relabel};
use crate::event_codec::{EventColumns, EventReader};
use crate::memory_state::MemoryState;

/// A position in a recording, with the memory state at that moment.
///
/// Moving forward a little applies events; any other move starts from the nearest full state before
/// the target. The state always equals the result of applying every event from the start.
///
/// ```
/// use vramscope_trace::{
///     DeviceId, Encoder, Event, EventKind, PoolKey, Recording, RecordingInfo, Replay, Sink, SiteId,
///     StreamId,
/// };
///
/// let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
/// let mut encoder = Encoder::new(&RecordingInfo::default());
/// for kind in [
///     EventKind::SegmentAllocated { address: 0, size: 2 << 20, stream, pool, site },
///     EventKind::SegmentFreed { address: 0, size: 2 << 20, site },
/// ] {
///     encoder.event(&Event { device: DeviceId(0), time_ns: 0, kind });
/// }
/// encoder.flush();
/// let mut recording = Recording::new();
/// for chunk in encoder.take_output() {
///     recording.push(&chunk.bytes)?;
/// }
///
/// let mut replay = Replay::new();
/// for (moment, reserved) in [(0, 0), (1, 2 << 20), (2, 0)] {
///     let device = replay.seek(&recording, moment)?.device(DeviceId(0));
///     assert_eq!(device.map_or(0, |device| device.counters().reserved), reserved);
/// }
/// # Ok::<(), vramscope_trace::FormatError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Replay {
    state: Option<MemoryState>,
    /// The chunks used last, decompressed, for reuse by small steps. The newest is last; each has
    /// its byte offset in the recording.
    columns: Vec<(u64, EventColumns)>,
    /// The events of the last chunk used by [`event`](Self::event), with the index of the first.
    events: Option<(u64, Vec<Event>)>,
    /// The relabels of the chunk in `events`, each with the index of the event that follows.
    relabels: Vec<(u64, Relabel)>,
    /// Whether the state contains relabels that follow its moment, because that was the last moment
    /// of the recording. The replay cannot continue from it then.
    has_later_relabels: bool,
    local_blocks: ChunkLocalBlocks,
    decompressor: Decompressor,
    checkpoints: Checkpoints,
    /// Whether states that the replay passes become checkpoints: not before its second seek,
    /// because the first one should be fast.
    offers_checkpoints: bool,
}

/// The events and relabels of a chunk: the index of the first event (from 0), the events, and each
/// relabel with the index of the event that follows.
type ChunkEntries<'a> = (u64, &'a [Event], &'a [(u64, Relabel)]);

/// Maximum number of bytes of decompressed chunks that a replay with checkpoints keeps; a larger
/// chunk is kept alone.
const MAX_COLUMN_BYTES: usize = 16 << 20;

/// The state that a replay returns before its first seek: no memory, at moment 0.
static EMPTY_STATE: MemoryState = MemoryState { event: 0, time_ns: 0, devices: BTreeMap::new() };

impl Replay {
    /// Creates a replay without a position.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a replay of one device, without a position: its states lack all other devices.
    ///
    /// Applying an event of another device takes a fraction of the time.
    #[must_use]
    pub fn of_device(device: DeviceId) -> Self {
        Self { local_blocks: ChunkLocalBlocks::of_device(device), ..Self::default() }
    }

    /// Keeps some of the states that the replay passes, far from full states, so that moving back
    /// applies fewer events. They take about 64 MB of memory, or the memory of one state if that is
    /// more. The chunks used last are kept, too.
    #[must_use]
    pub fn with_checkpoints(self) -> Self {
        Self { checkpoints: Checkpoints::new(), ..self }
    }

    /// Returns the device that the replay was made for; `None` if its states have all devices.
    #[must_use]
    pub fn device(&self) -> Option<DeviceId> {
        self.local_blocks.only_device()
    }

    /// Returns the memory state at the replay's current moment; an empty state before the first
    /// seek.
    #[must_use]
    pub fn state(&self) -> &MemoryState {
        self.state.as_ref().unwrap_or(&EMPTY_STATE)
    }

    /// Moves to the moment after the first `event` events, or the nearest moment that the recording
    /// has, and returns its state.
    ///
    /// # Errors
    /// If a chunk cannot be read: it was not [supplied](Recording::supply), or the file changed.
    pub fn seek(&mut self, recording: &Recording, event: u64) -> Result<&MemoryState, FormatError> {
        let target = event.clamp(recording.first_event(), recording.end_event());
        let only = self.local_blocks.only_device();
        if target == recording.end_event() {
            self.state = Some(recording.copy_end_state(only, &mut self.decompressor)?);
            self.has_later_relabels = recording.has_correction_at(target);
            return Ok(self.state());
        }
        if std::mem::take(&mut self.has_later_relabels) {
            self.state = None;
        }
        let states = recording.state_chunks.partition_point(|stored| stored.first_event <= target);
        let state_chunk = states.checked_sub(1).map(|index| &recording.state_chunks[index]);
        let base = state_chunk.map_or(recording.first_event(), |stored| stored.first_event);
        // A current state at the moment of a full state may be the state before a gap, so it is not
        // reused.
        let reusable = base + u64::from(state_chunk.is_some())..=target;
        self.checkpoints.drop_before(recording.first_event());
        self.offers_checkpoints = self.state.is_some();
        let checkpoint = self.checkpoints.last_in(&reusable);
        let near = self.state.as_ref().map(MemoryState::event).filter(|event| reusable.contains(event));
        if let Some(checkpoint) = checkpoint.filter(|checkpoint| near < Some(checkpoint.event)) {
            self.state = Some(checkpoint.clone());
        } else if near.is_none() {
            self.state = Some(match state_chunk {
                Some(stored) => decompress_state(&*recording.chunk(stored)?, &mut self.decompressor, only)?,
                None => MemoryState { event: base, ..MemoryState::default() },
            });
        }
        self.advance::<false>(recording, target, |_| {})?;
        Ok(self.state())
    }

    /// Moves from the moment `from` to the moment `to` through every event between, and returns the
    /// state there. Full states that equal the current state are skipped.
    ///
    /// An analysis that visits every event of a recording takes at least as long as this call.
    ///
    /// # Errors
    /// If a chunk cannot be read, see [`seek`](Self::seek).
    pub fn play(&mut self, recording: &Recording, from: u64, to: u64) -> Result<&MemoryState, FormatError> {
        self.seek(recording, from)?;
        self.advance::<false>(recording, to.clamp(self.state().event(), recording.end_event()), |_| {})?;
        Ok(self.state())
    }

    /// Applies the events up to the moment `target` and adopts the full states on the way.
    ///
    /// `each` receives the state after every operation; with `EVERY_EVENT`, also between the two
    /// events of a free that is requested and completed at once. Only the counters of this state
    /// are complete: blocks that the current chunk allocated may be missing.
    pub(super) fn advance<const EVERY_EVENT: bool>(
        &mut self,
        recording: &Recording,
        target: u64,
        mut each: impl FnMut(&MemoryState),
    ) -> Result<(), FormatError> {
        let only = self.local_blocks.only_device();
        let mut state = self.state.take().unwrap_or_default();
        let mut states = recording.state_chunks.partition_point(|stored| stored.first_event <= state.event);
        while state.event < target {
            let until = recording.state_chunks.get(states).map_or(target, |stored| stored.first_event.min(target));
            while state.event < until {
                let Some(stored) = recording.chunk_of_event(state.event) else { break };
                let end = until.min(stored.end_event());
                self.load_columns(recording, stored)?;
                let Some((_, columns)) = self.columns.last() else { break };
                let (moments, local_blocks) = ((stored.first_event, end), &mut self.local_blocks);
                advance_in_chunk::<EVERY_EVENT>(columns, moments, local_blocks, &mut state, &mut each)
                    .map_err(|error| error.in_chunk_at(stored.offset()))?;
                if self.offers_checkpoints {
                    let before = states.checked_sub(1).and_then(|index| recording.state_chunks.get(index));
                    let base = before.map_or(recording.first_event(), |stored| stored.first_event);
                    self.checkpoints.offer(&state, base);
                }
            }
            match recording.state_chunks.get(states) {
                Some(stored) if stored.first_event <= target => {
                    if stored.is_correction || state.event < stored.first_event {
                        state = decompress_state(&*recording.chunk(stored)?, &mut self.decompressor, only)?;
                        each(&state);
                    }
                    states += 1;
                }
                // The target is in a gap; this is the last moment before it.
                _ => break,
            }
        }
        self.state = Some(state);
        Ok(())
    }

    /// Applies the chunk of events or the full state that follows the current moment. After an
    /// error in a chunk of events, the replay has no position.
    ///
    /// # Errors
    /// If the chunk cannot be read (see [`seek`](Self::seek)), or its events contradict the state.
    pub(super) fn apply_chunk(&mut self, recording: &Recording, stored: &StoredChunk) -> Result<(), FormatError> {
        if stored.kind == ChunkKind::State {
            let only = self.local_blocks.only_device();
            let state = decompress_state(&*recording.chunk(stored)?, &mut self.decompressor, only)?;
            let follows = self.state.as_ref().is_some_and(|state| state.event == stored.first_event);
            if stored.is_correction || !follows {
                self.state = Some(state);
            }
            return Ok(());
        }
        let before = MemoryState { event: stored.first_event, ..MemoryState::default() };
        let mut state = self.state.take().unwrap_or(before);
        let columns = decompress_events(&*recording.chunk(stored)?, &mut self.decompressor)?;
        let (moments, local_blocks) = ((stored.first_event, stored.end_event()), &mut self.local_blocks);
        advance_in_chunk::<false>(&columns, moments, local_blocks, &mut state, &mut |_| {})
            .map_err(|error| error.in_chunk_at(stored.offset()))?;
        self.state = Some(state);
        Ok(())
    }

    /// Makes a chunk of events the last one in `self.columns`; decompresses it unless it is there.
    fn load_columns(&mut self, recording: &Recording, stored: &StoredChunk) -> Result<(), FormatError> {
        let known = self.columns.iter().rposition(|(offset, _)| *offset == stored.offset());
        let newest = match known {
            Some(index) if index + 1 == self.columns.len() => return Ok(()),
            Some(index) => self.columns.remove(index).1,
            None => decompress_events(&*recording.chunk(stored)?, &mut self.decompressor)?,
        };
        let max_bytes = if self.checkpoints.are_kept() { MAX_COLUMN_BYTES } else { 0 };
        let mut bytes: usize = self.columns.iter().map(|(_, columns)| columns.memory_bytes()).sum();
        while !self.columns.is_empty() && bytes + newest.memory_bytes() > max_bytes {
            bytes -= self.columns.remove(0).1.memory_bytes();
        }
        self.columns.push((stored.offset(), newest));
        Ok(())
    }

    /// Returns the events of the chunk that contains the event with index `index` (from 0), and the
    /// index of the chunk's first event; `None` if no chunk contains the event.
    ///
    /// To visit all events, this takes less time than [`event`](Self::event) for each.
    ///
    /// # Errors
    /// If the chunk cannot be read, see [`seek`](Self::seek).
    pub fn load_events(&mut self, recording: &Recording, index: u64) -> Result<Option<(u64, &[Event])>, FormatError> {
        Ok(self.load_entries(recording, index)?.map(|(first, events, _)| (first, events)))
    }

    /// Returns what [`load_events`](Self::load_events) returns, and the relabels of the chunk, each
    /// with the index of the event with which it takes effect.
    pub(super) fn load_entries(
        &mut self,
        recording: &Recording,
        index: u64,
    ) -> Result<Option<ChunkEntries<'_>>, FormatError> {
        let holds = |first: u64, count: usize| index >= first && index - first < count as u64;
        if !self.events.as_ref().is_some_and(|(first, events)| holds(*first, events.len())) {
            let Some(stored) = recording.chunk_of_event(index) else { return Ok(None) };
            let mut events = Vec::with_capacity(stored.events as usize);
            self.load_columns(recording, stored)?;
            self.relabels.clear();
            if let Some((_, columns)) = self.columns.last() {
                let relabels = &mut self.relabels;
                let read = each_entry_of(columns, |entry| match entry {
                    ChunkEntry::Event(event) => events.push(*event),
                    ChunkEntry::Relabel(relabel) => {
                        relabels.push((stored.first_event + events.len() as u64, *relabel));
                    }
                });
                read.map_err(|error| error.in_chunk_at(stored.offset()))?;
            }
            self.events = Some((stored.first_event, events));
        }
        Ok(self.events.as_ref().map(|(first, events)| (*first, events.as_slice(), self.relabels.as_slice())))
    }

    /// Returns the last moment whose time is at most `time_ns` nanoseconds, like
    /// [`Recording::event_at_time`], without decompressing the chunk used last again.
    pub fn event_at_time(&mut self, recording: &Recording, time_ns: u64) -> u64 {
        let Some(stored) = recording.chunk_at_time(time_ns) else { return recording.end_event() };
        let mut moment = stored.first_event;
        let mut later = false;
        // The chunk was decoded without error before, when it was added.
        if self.load_columns(recording, stored).is_ok()
            && let Some((_, columns)) = self.columns.last()
        {
            let _ = each_entry_of(columns, |entry| {
                if let ChunkEntry::Event(event) = entry {
                    later |= event.time_ns > time_ns;
                    moment += u64::from(!later);
                }
            });
        }
        moment
    }

    /// Returns the event with index `index` (from 0), or `None` if the recording lacks it.
    ///
    /// # Errors
    /// If a chunk cannot be read, see [`seek`](Self::seek).
    pub fn event(&mut self, recording: &Recording, index: u64) -> Result<Option<Event>, FormatError> {
        Ok(self.load_events(recording, index)?.map(|(first, events)| events[(index - first) as usize]))
    }

    /// Returns the relabels that take effect with the event with index `index` (from 0): the
    /// relabels between the previous event and this one, in order.
    ///
    /// # Errors
    /// If a chunk cannot be read, see [`seek`](Self::seek).
    pub fn relabels_before(&mut self, recording: &Recording, index: u64) -> Result<Vec<Relabel>, FormatError> {
        let (_, _, relabels) = self.load_entries(recording, index)?.unwrap_or_default();
        let from = relabels.partition_point(|(before, _)| *before < index);
        let relabels = relabels[from..].iter().take_while(|(before, _)| *before == index);
        Ok(relabels.map(|&(_, relabel)| relabel).collect())
    }
}

/// Applies the events and relabels of a chunk from the state's moment to the moment `until`. The
/// chunk's first event has index `first` in the recording; `each` sees the state after every
/// operation.
fn advance_in_chunk<const EVERY_EVENT: bool>(
    columns: &EventColumns,
    (first, until): (u64, u64),
    local_blocks: &mut ChunkLocalBlocks,
    state: &mut MemoryState,
    each: &mut impl FnMut(&MemoryState),
) -> Result<(), EventsError> {
    let mut operations = columns.operations();
    local_blocks.begin(columns.is_consistent());
    let mut index = first;
    loop {
        index = apply_operations::<EVERY_EVENT>(&mut operations, (index, until), local_blocks, state, each)?;
        let Some(relabel) = operations.take_relabel().filter(|_| index < until) else { break };
        if index >= state.event && local_blocks.only_device().is_none_or(|only| only == relabel.device) {
            local_blocks.relabel(state, &relabel)?;
            each(state);
        }
    }
    local_blocks.flush(state)?;
    Ok(())
}

/// Applies the next operations of a chunk, from the event with index `index` in the recording up to
/// the moment `until` or the next relabel. Returns the index of the next event.
// Handling relabels in this loop made replay 9 to 24% slower, because the compiler could not keep
// the reader's fields in registers.
fn apply_operations<const EVERY_EVENT: bool>(
    operations: &mut EventReader<'_>,
    (mut index, until): (u64, u64),
    local_blocks: &mut ChunkLocalBlocks,
    state: &mut MemoryState,
    each: &mut impl FnMut(&MemoryState),
) -> Result<u64, EventsError> {
    let only = local_blocks.only_device();
    while index < until {
        let Some(operation) = operations.next_operation()? else { break };
        let after = index + operation.event_count();
        let is_two_events = after - index == 2;
        if only.is_some_and(|only| operation.device() != only) {
            local_blocks.pass(state, operation, (index, until), each);
        } else if index >= state.event && after <= until && !(EVERY_EVENT && is_two_events) {
            local_blocks.apply(state, &operation)?;
            each(state);
        } else if index >= state.event {
            local_blocks.apply_free_request(state, &operation)?;
            each(state);
            if after <= until {
                local_blocks.apply_free_completion(state, &operation)?;
                each(state);
            }
        } else if after > state.event {
            // The state's moment is between the two events of the operation.
            local_blocks.apply_free_completion(state, &operation)?;
            each(state);
        } else {
            local_blocks.skip(&operation);
        }
        index = after;
    }
    Ok(index)
}
