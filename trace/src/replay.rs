//! The memory state at any moment of a recording.

use std::collections::BTreeMap;

use crate::decoder::{each_event, unpack_state};
use crate::error::FormatError;
use crate::event::Event;
use crate::pack::Unpacker;
use crate::recording::Recording;
use crate::state::MemoryState;

/// A place in a recording. Going forward a little applies events; any other move begins at the nearest full state.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    state: Option<MemoryState>,
    /// The events of the chunk that was needed last, with the number of the first, so that steps and hovers decode it once.
    chunk: Option<(u64, Vec<Event>)>,
    unpacker: Unpacker,
}

static NOTHING: MemoryState = MemoryState { event: 0, time_ns: 0, devices: BTreeMap::new() };

impl Replay {
    /// A replay that has not been anywhere.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The state where the last seek went.
    #[must_use]
    pub fn state(&self) -> &MemoryState {
        self.state.as_ref().unwrap_or(&NOTHING)
    }

    /// Goes to the moment after the first `event` events, or to the nearest that the recording knows.
    ///
    /// # Errors
    /// If a chunk cannot be read, which a [`Recording`] that took it in rules out.
    pub fn seek(&mut self, recording: &Recording, event: u64) -> Result<&MemoryState, FormatError> {
        let target = event.clamp(recording.first_event(), recording.end_event());
        if target == recording.end_event() {
            self.state = Some(recording.end_state().clone());
            return Ok(self.state());
        }
        let state_chunk =
            recording.state_chunks.partition_point(|stored| stored.packed.first_event <= target).checked_sub(1);
        let base =
            state_chunk.map_or(recording.first_event(), |index| recording.state_chunks[index].packed.first_event);
        // At a full state itself the state on hand may be the one before a gap was mended.
        let reusable = base + u64::from(state_chunk.is_some())..=target;
        let near = self.state.as_ref().is_some_and(|state| reusable.contains(&state.event()));
        if !near {
            self.state = Some(match state_chunk {
                Some(index) => unpack_state(&recording.state_chunks[index].packed, &mut self.unpacker)?,
                None => MemoryState { event: base, ..MemoryState::default() },
            });
        }
        self.walk(recording, target, |_| {})?;
        Ok(self.state())
    }

    /// Applies the events up to `target`, and adopts the full states on the way; `each` sees the state after every one.
    pub(crate) fn walk(
        &mut self,
        recording: &Recording,
        target: u64,
        mut each: impl FnMut(&MemoryState),
    ) -> Result<(), FormatError> {
        let mut state = self.state.take().unwrap_or_default();
        let mut states = recording.state_chunks.partition_point(|stored| stored.packed.first_event <= state.event);
        while state.event < target {
            let until =
                recording.state_chunks.get(states).map_or(target, |stored| stored.packed.first_event.min(target));
            while state.event < until {
                let Some((first, events)) = self.load(recording, state.event)? else { break };
                let from = (state.event - first) as usize;
                let to = events.len().min((until - first) as usize);
                for event in &events[from..to] {
                    state.apply(event);
                    each(&state);
                }
            }
            match recording.state_chunks.get(states) {
                Some(stored) if stored.packed.first_event <= target => {
                    state = unpack_state(&stored.packed, &mut self.unpacker)?;
                    each(&state);
                    states += 1;
                }
                // Neither events nor a state lead on: the target lies in a hole, and this is its edge.
                _ => break,
            }
        }
        self.state = Some(state);
        Ok(())
    }

    /// The events of the chunk that holds event `number`.
    fn load(&mut self, recording: &Recording, number: u64) -> Result<Option<(u64, &[Event])>, FormatError> {
        let holds = |first: u64, count: usize| number >= first && number - first < count as u64;
        if !self.chunk.as_ref().is_some_and(|(first, events)| holds(*first, events.len())) {
            let index = recording.event_chunks.partition_point(|stored| stored.packed.first_event <= number);
            let Some(stored) = index.checked_sub(1).and_then(|index| recording.event_chunks.get(index)) else {
                return Ok(None);
            };
            if !holds(stored.packed.first_event, stored.packed.events as usize) {
                return Ok(None);
            }
            let mut events = Vec::with_capacity(stored.packed.events as usize);
            each_event(&stored.packed, &mut self.unpacker, |event| events.push(event))?;
            self.chunk = Some((stored.packed.first_event, events));
        }
        Ok(self.chunk.as_ref().map(|(first, events)| (*first, events.as_slice())))
    }

    /// The event with this number, the first being 0; `None` where the recording has none.
    ///
    /// # Errors
    /// If a chunk cannot be read, which a [`Recording`] that took it in rules out.
    pub fn event(&mut self, recording: &Recording, number: u64) -> Result<Option<Event>, FormatError> {
        Ok(self.load(recording, number)?.map(|(first, events)| events[(number - first) as usize]))
    }
}
