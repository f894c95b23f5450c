//! Where a pool's events go on their way into the recording.

use vramscope_trace::{Definition, Event, EventKind, MemoryState, Sink, SiteId};

/// Hands events on without the sites that the pool gave them, and without the pool's definitions.
///
/// PyTorch does not tell an allocator where in the program a request came from, and the line of this library that passes a request on
/// would say nothing. Without definitions, the pools of several devices can share a recording although each numbers its own.
#[derive(Debug)]
pub(crate) struct Unsited<S>(pub(crate) S);

impl<S: Sink> Sink for Unsited<S> {
    #[inline]
    fn event(&mut self, event: &Event) {
        let mut event = *event;
        match &mut event.kind {
            EventKind::SegmentAllocated { site, .. }
            | EventKind::SegmentFreed { site, .. }
            | EventKind::SegmentMapped { site, .. }
            | EventKind::SegmentUnmapped { site, .. }
            | EventKind::BlockAllocated { site, .. }
            | EventKind::FreeRequested { site, .. }
            | EventKind::FreeCompleted { site, .. }
            | EventKind::OutOfMemory { site, .. } => *site = SiteId(0),
            EventKind::MemorySample { .. } | EventKind::Mark { .. } | EventKind::Gap { .. } => {}
        }
        self.0.event(&event);
    }

    fn define(&mut self, _: &Definition) {}

    fn full_state(&mut self, state: &MemoryState) {
        self.0.full_state(state);
    }
}
