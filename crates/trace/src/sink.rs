//! Where events go.

use crate::event::{Annotation, Event};
use crate::site::Definition;
use crate::state::MemoryState;

/// Takes events in the order in which they happened. Implementations: [`Null`], [`Memory`], the [`Encoder`](crate::Encoder), and the
/// collector's queue.
pub trait Sink {
    /// The next event.
    fn event(&mut self, event: &Event);
    /// A definition, before the first event that uses it.
    fn define(&mut self, definition: &Definition) {
        let _ = definition;
    }
    /// An annotation that stands after the events taken so far.
    fn annotation(&mut self, annotation: &Annotation) {
        let _ = annotation;
    }
    /// From here on memory is as `state` says: before the first event, and after a gap.
    fn full_state(&mut self, state: &MemoryState) {
        let _ = state;
    }
}

/// Takes events and forgets them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Null;

impl Sink for Null {
    fn event(&mut self, _: &Event) {}
}

/// Keeps everything it is given.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// The events.
    pub events: Vec<Event>,
    /// The definitions.
    pub definitions: Vec<Definition>,
    /// The annotations.
    pub annotations: Vec<Annotation>,
    /// The full states, with the number of events taken before each.
    pub states: Vec<(usize, MemoryState)>,
}

impl Sink for Memory {
    fn event(&mut self, event: &Event) {
        self.events.push(*event);
    }
    fn define(&mut self, definition: &Definition) {
        self.definitions.push(definition.clone());
    }
    fn annotation(&mut self, annotation: &Annotation) {
        self.annotations.push(*annotation);
    }
    fn full_state(&mut self, state: &MemoryState) {
        self.states.push((self.events.len(), state.clone()));
    }
}
