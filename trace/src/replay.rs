//! The memory state at any moment of a recording.

use std::collections::BTreeMap;

use crate::decoder::{each_event, unpack_events, unpack_state};
use crate::error::FormatError;
use crate::event::Event;
use crate::event_code::{EventColumns, Operation};
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
        self.advance(recording, target, |state, operation, until| match *operation {
            // Nobody looks at what is between the two.
            Operation::Freed { device, address, completed_ns, requested_ns, .. } if state.event + 2 <= until => {
                state.apply_freed(device, address, requested_ns.max(completed_ns));
            }
            _ => operation.each(|event| {
                if state.event < until {
                    state.apply(&event);
                }
            }),
        })?;
        Ok(self.state())
    }

    /// Applies the events up to `target`, and adopts the full states on the way; `each` sees the state after every one.
    pub(crate) fn walk(
        &mut self,
        recording: &Recording,
        target: u64,
        mut each: impl FnMut(&MemoryState),
    ) -> Result<(), FormatError> {
        self.advance(recording, target, |state, operation, until| {
            operation.each(|event| {
                if state.event < until {
                    state.apply(&event);
                    each(state);
                }
            });
        })?;
        each(self.state());
        Ok(())
    }

    /// Gives the operations up to `target` to `apply`, which applies their events to the state, but none from a moment on that it is told;
    /// adopts the full states on the way. The first operation may begin before the state's moment: its events count down to it.
    fn advance(
        &mut self,
        recording: &Recording,
        target: u64,
        mut apply: impl FnMut(&mut MemoryState, &Operation, u64),
    ) -> Result<(), FormatError> {
        let mut state = self.state.take().unwrap_or_default();
        let mut states = recording.state_chunks.partition_point(|stored| stored.first_event <= state.event);
        while state.event < target {
            let until = recording.state_chunks.get(states).map_or(target, |stored| stored.first_event.min(target));
            while state.event < until {
                let Some(stored) = chunk_with(recording, state.event) else { break };
                self.advance_in(recording, stored, &mut state, until, &mut apply)?;
            }
            match recording.state_chunks.get(states) {
                Some(stored) if stored.first_event <= target => {
                    if stored.is_news || state.event < stored.first_event {
                        state = unpack_state(&*recording.chunk(stored)?, &mut self.unpacker)?;
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

    /// Does that within one chunk of events.
    fn advance_in(
        &mut self,
        recording: &Recording,
        stored: &Stored,
        state: &mut MemoryState,
        until: u64,
        apply: &mut impl FnMut(&mut MemoryState, &Operation, u64),
    ) -> Result<(), FormatError> {
        let first = stored.first_event;
        // Events that were asked for are at hand one by one.
        if let Some((_, events)) = self.events.as_ref().filter(|(number, _)| *number == first) {
            let (from, to) = ((state.event - first) as usize, (until - first) as usize);
            for event in &events[from..to.min(events.len())] {
                apply(state, &Operation::Event(*event), until);
            }
            return Ok(());
        }
        let packed;
        let columns = match &self.columns {
            Some((number, columns)) if *number == first => columns,
            _ => {
                packed = recording.chunk(stored)?;
                &self.columns.insert((first, unpack_events(&packed, &mut self.unpacker)?)).1
            }
        };
        let wrong = |error| crate::decoder::misplaced_at(stored.offset(), &error);
        let mut operations = columns.operations().map_err(wrong)?;
        let mut number = first;
        while number < until {
            let Some(operation) = operations.next_operation().map_err(wrong)? else { break };
            let count = operation.events();
            if number >= state.event {
                apply(state, &operation, until);
            } else if number + count > state.event {
                // The state's moment lies between the two events that it stands for.
                let mut at = number;
                operation.each(|event| {
                    if at == state.event {
                        apply(state, &Operation::Event(event), until);
                    }
                    at += 1;
                });
            }
            number += count;
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

/// The chunk that holds event `number`.
fn chunk_with(recording: &Recording, number: u64) -> Option<&Stored> {
    let index = recording.event_chunks.partition_point(|stored| stored.first_event <= number).checked_sub(1)?;
    recording.event_chunks.get(index).filter(|stored| number < stored.end_event())
}
