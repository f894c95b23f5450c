//! The trait that receives events, and two simple implementations.

use crate::event::{Annotation, Event, Relabel};
use crate::memory_state::MemoryState;
use crate::site::Definition;

/// A receiver of events in the order in which they happened.
///
/// Implemented by [`NullSink`], [`MemorySink`], [`Encoder`](crate::Encoder) and the collector's
/// ring buffer. Only [`event`](Self::event) is required; by default, the other methods pass their
/// argument on to [`inner_sink`](Self::inner_sink), which most sinks do not have.
pub trait Sink {
    /// Receives the next event of the recorded program.
    fn event(&mut self, event: &Event);
    /// Receives a definition (string, frame, stack or site), before the first event that refers to
    /// it.
    fn define(&mut self, definition: &Definition) {
        if let Some(sink) = self.inner_sink() {
            sink.define(definition);
        }
    }
    /// Receives an annotation, which belongs after the events received so far.
    fn annotation(&mut self, annotation: &Annotation) {
        if let Some(sink) = self.inner_sink() {
            sink.annotation(annotation);
        }
    }
    /// Receives a new site for a live block, after the definition of the site. It takes effect
    /// between the events received before and after it.
    fn relabel(&mut self, relabel: &Relabel) {
        if let Some(sink) = self.inner_sink() {
            sink.relabel(relabel);
        }
    }
    /// Receives a full state, which replaces the memory state that the events led to.
    ///
    /// It comes before the first event if memory was in use by then, and after a gap.
    fn replace_state(&mut self, state: &MemoryState) {
        if let Some(sink) = self.inner_sink() {
            sink.replace_state(state);
        }
    }
    /// Returns the sink to which this one passes everything but events unchanged; `None` if it
    /// passes nothing on.
    fn inner_sink(&mut self) -> Option<&mut dyn Sink> {
        None
    }
}

/// A sink that discards everything, for a pool that is not recorded.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullSink;

impl Sink for NullSink {
    fn event(&mut self, _: &Event) {}
}

/// A sink that keeps everything in vectors, for tests and small conversions.
#[derive(Clone, Debug, Default)]
pub struct MemorySink {
    /// All events, in order.
    pub events: Vec<Event>,
    /// All definitions, in order.
    pub definitions: Vec<Definition>,
    /// All annotations, in the order received.
    pub annotations: Vec<Annotation>,
    /// All relabels, each with the number of events received before it.
    pub relabels: Vec<(usize, Relabel)>,
    /// All full states, each with the number of events received before it.
    pub states: Vec<(usize, MemoryState)>,
}

impl Sink for MemorySink {
    fn event(&mut self, event: &Event) {
        self.events.push(*event);
    }
    fn define(&mut self, definition: &Definition) {
        self.definitions.push(definition.clone());
    }
    fn annotation(&mut self, annotation: &Annotation) {
        self.annotations.push(*annotation);
    }
    fn relabel(&mut self, relabel: &Relabel) {
        self.relabels.push((self.events.len(), *relabel));
    }
    fn replace_state(&mut self, state: &MemoryState) {
        self.states.push((self.events.len(), state.clone()));
    }
}
