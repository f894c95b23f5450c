//! The memory state at any moment of a recording.

use std::collections::BTreeMap;

use crate::chunk::ChunkKind;
use crate::decoder::{Wrong, each_event, unpack_events, unpack_state};
use crate::error::FormatError;
use crate::event::Event;
use crate::event_code::EventColumns;
use crate::newborn::Newborn;
use crate::pack::Unpacker;
use crate::recording::{Recording, Stored};
use crate::state::MemoryState;

/// A place in a recording. Going forward a little applies events; any other move begins at the nearest full state.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    state: Option<MemoryState>,
    /// The chunk that was needed last, unpacked, so that steps and hovers do that once.
    columns: Option<(u64, EventColumns)>,
    /// The events of the chunk in which one was asked for last, with the number of the first.
    events: Option<(u64, Vec<Event>)>,
    newborn: Newborn,
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
    /// If a chunk cannot be read: it is not here, or not any more what it was when the recording was opened.
    pub fn seek(&mut self, recording: &Recording, event: u64) -> Result<&MemoryState, FormatError> {
        let target = event.clamp(recording.first_event(), recording.end_event());
        if target == recording.end_event() {
            self.state = Some(recording.end_state().clone());
            return Ok(self.state());
        }
        let states = recording.state_chunks.partition_point(|stored| stored.first_event <= target);
        let state_chunk = states.checked_sub(1).map(|index| &recording.state_chunks[index]);
        let base = state_chunk.map_or(recording.first_event(), |stored| stored.first_event);
        // At a full state itself the state on hand may be the one before a gap was mended.
        let reusable = base + u64::from(state_chunk.is_some())..=target;
        let near = self.state.as_ref().is_some_and(|state| reusable.contains(&state.event()));
        if !near {
            self.state = Some(match state_chunk {
                Some(stored) => unpack_state(&*recording.chunk(stored)?, &mut self.unpacker)?,
                None => MemoryState { event: base, ..MemoryState::default() },
            });
        }
        self.advance::<false>(recording, target, |_| {})?;
        Ok(self.state())
    }

    /// Goes from the moment `from` to the moment `to` by way of every event between, and of no full state that says nothing new. That is what
    /// an analysis of a whole recording costs before it has looked at anything.
    ///
    /// # Errors
    /// If a chunk cannot be read, see [`seek`](Self::seek).
    pub fn play(&mut self, recording: &Recording, from: u64, to: u64) -> Result<&MemoryState, FormatError> {
        self.seek(recording, from)?;
        self.advance::<false>(recording, to.clamp(self.state().event(), recording.end_event()), |_| {})?;
        Ok(self.state())
    }

    /// Applies the events up to `target`, and adopts the full states on the way; `each` sees the state after every event, or where they are
    /// not told apart (`APART`) after both of a block that is freed. Of what it sees only the counters are whole: blocks that are gone again soon
    /// may be left out.
    pub(crate) fn advance<const APART: bool>(
        &mut self,
        recording: &Recording,
        target: u64,
        mut each: impl FnMut(&MemoryState),
    ) -> Result<(), FormatError> {
        let mut state = self.state.take().unwrap_or_default();
        let mut states = recording.state_chunks.partition_point(|stored| stored.first_event <= state.event);
        while state.event < target {
            let until = recording.state_chunks.get(states).map_or(target, |stored| stored.first_event.min(target));
            while state.event < until {
                let Some(stored) = chunk_with(recording, state.event) else { break };
                let end = until.min(stored.end_event());
                self.unpack(recording, stored)?;
                let Some((_, columns)) = &self.columns else { break };
                advance_in::<APART>(columns, stored.first_event, &mut self.newborn, &mut state, end, &mut each)
                    .map_err(|wrong| wrong.at(stored.offset()))?;
            }
            match recording.state_chunks.get(states) {
                Some(stored) if stored.first_event <= target => {
                    if stored.is_news || state.event < stored.first_event {
                        state = unpack_state(&*recording.chunk(stored)?, &mut self.unpacker)?;
                        each(&state);
                    }
                    states += 1;
                }
                // Neither events nor a state lead on: the target lies in a hole, and this is its edge.
                _ => break,
            }
        }
        self.state = Some(state);
        Ok(())
    }

    /// Goes over a chunk of events or a full state that follows where this is, by its own bytes. After an error in a chunk of events it is
    /// nowhere.
    ///
    /// # Errors
    /// If the chunk cannot be read, see [`seek`](Self::seek), or its events do not go with what was before.
    pub(crate) fn take(&mut self, recording: &Recording, stored: &Stored) -> Result<(), FormatError> {
        if stored.kind == ChunkKind::State {
            let found = unpack_state(&*recording.chunk(stored)?, &mut self.unpacker)?;
            let leads_here = self.state.as_ref().is_some_and(|state| state.event == stored.first_event);
            if stored.is_news || !leads_here {
                self.state = Some(found);
            }
            return Ok(());
        }
        let before = MemoryState { event: stored.first_event, ..MemoryState::default() };
        let mut state = self.state.take().unwrap_or(before);
        let columns = unpack_events(&*recording.chunk(stored)?, &mut self.unpacker)?;
        let wrong = |wrong: Wrong| wrong.at(stored.offset());
        let newborn = &mut self.newborn;
        advance_in::<false>(&columns, stored.first_event, newborn, &mut state, stored.end_event(), &mut |_| {})
            .map_err(wrong)?;
        self.state = Some(state);
        Ok(())
    }

    /// Unpacks a chunk of events, if that is not the one at hand.
    fn unpack(&mut self, recording: &Recording, stored: &Stored) -> Result<(), FormatError> {
        if self.columns.as_ref().is_none_or(|(first, _)| *first != stored.first_event) {
            let columns = unpack_events(&*recording.chunk(stored)?, &mut self.unpacker)?;
            self.columns = Some((stored.first_event, columns));
        }
        Ok(())
    }

    /// The events of the chunk that holds event `number`.
    fn load(&mut self, recording: &Recording, number: u64) -> Result<Option<(u64, &[Event])>, FormatError> {
        let holds = |first: u64, count: usize| number >= first && number - first < count as u64;
        if !self.events.as_ref().is_some_and(|(first, events)| holds(*first, events.len())) {
            let Some(stored) = chunk_with(recording, number) else { return Ok(None) };
            let mut events = Vec::with_capacity(stored.events as usize);
            each_event(&*recording.chunk(stored)?, &mut self.unpacker, |event| events.push(event))?;
            self.events = Some((stored.first_event, events));
        }
        Ok(self.events.as_ref().map(|(first, events)| (*first, events.as_slice())))
    }

    /// The event with this number, the first being 0; `None` where the recording has none.
    ///
    /// # Errors
    /// If a chunk cannot be read, see [`seek`](Self::seek).
    pub fn event(&mut self, recording: &Recording, number: u64) -> Result<Option<Event>, FormatError> {
        Ok(self.load(recording, number)?.map(|(first, events)| events[(number - first) as usize]))
    }
}

/// Applies the events of a chunk from the state's moment to the moment `until`.
fn advance_in<const APART: bool>(
    columns: &EventColumns,
    first: u64,
    newborn: &mut Newborn,
    state: &mut MemoryState,
    until: u64,
    each: &mut impl FnMut(&MemoryState),
) -> Result<(), Wrong> {
    let mut operations = columns.operations()?;
    let mut number = first;
    newborn.begin(columns.fits());
    while number < until {
        let Some(operation) = operations.next_operation()? else { break };
        let after = number + operation.events();
        let are_two = after - number == 2;
        if number >= state.event && after <= until && !(APART && are_two) {
            newborn.apply(state, &operation)?;
            each(state);
        } else if number >= state.event {
            newborn.apply_first(state, &operation)?;
            each(state);
            if after <= until {
                newborn.apply_second(state, &operation)?;
                each(state);
            }
        } else if after > state.event {
            // The state's moment lies between the two events that it stands for.
            newborn.apply_second(state, &operation)?;
            each(state);
        } else {
            newborn.pass(&operation);
        }
        number = after;
    }
    newborn.settle(state)?;
    Ok(())
}

/// The chunk that holds event `number`.
fn chunk_with(recording: &Recording, number: u64) -> Option<&Stored> {
    let index = recording.event_chunks.partition_point(|stored| stored.first_event <= number).checked_sub(1)?;
    recording.event_chunks.get(index).filter(|stored| number < stored.end_event())
}
