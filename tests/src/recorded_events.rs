//! The events of a recorded training, for simulated ranks that repeat them.

use std::fs;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use vramscope_trace::{DecodedItem, Decoder, Definition, DeviceId, DeviceState, Event, EventKind, MemoryState};

use crate::fixtures::workspace_root;

/// The recording that is repeated: training with Adam, recorded from PyTorch on a GPU since the
/// allocator was empty.
pub(crate) const RECORDED_TRAINING: &str = "examples/pytorch/recordings/optimizers-adam.vram";

/// The events of a recording's first device. They begin and end with empty memory, so that they
/// can follow each other again and again.
#[derive(Debug)]
pub(crate) struct RecordedEvents {
    /// What the events refer to.
    pub(crate) definitions: Vec<Definition>,
    pub(crate) events: Vec<EventKind>,
}

impl RecordedEvents {
    /// Returns the events of a training with PyTorch, read once.
    ///
    /// # Panics
    /// Panics if the recording is missing or damaged.
    pub(crate) fn of_training() -> Arc<Self> {
        static EVENTS: OnceLock<Arc<RecordedEvents>> = OnceLock::new();
        Arc::clone(EVENTS.get_or_init(|| Arc::new(Self::read(&Path::new(workspace_root()).join(RECORDED_TRAINING)))))
    }

    fn read(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut decoder = Decoder::new();
        decoder.push(&bytes);
        let (mut definitions, mut events) = (Vec::new(), Vec::new());
        while let Some(item) = decoder.next_item().expect("the recording is valid") {
            match item {
                DecodedItem::Define(definition) => definitions.push(definition),
                DecodedItem::Event(event) if event.device == DeviceId(0) => events.push(event.kind),
                _ => {}
            }
        }
        events.extend(state_after(&events).device(DeviceId(0)).map(releases).unwrap_or_default());
        Self { definitions, events }
    }
}

/// Returns the memory after these events of a device that begins empty.
fn state_after<'e>(events: impl IntoIterator<Item = &'e EventKind>) -> MemoryState {
    let mut state = MemoryState::default();
    for kind in events {
        state.apply(&Event { device: DeviceId(0), time_ns: 0, kind: *kind });
    }
    state
}

/// Returns events that release what the device holds, as at the end of a training.
fn releases(device: &DeviceState) -> Vec<EventKind> {
    let blocks = device.blocks().flat_map(|block| {
        let (address, site) = (block.address, block.site);
        let requested = (!block.pending_free).then_some(EventKind::FreeRequested { address, site });
        requested.into_iter().chain([EventKind::FreeCompleted { address, site }])
    });
    let segments = device.segments().map(|segment| {
        let (address, size, site) = (segment.address, segment.size, segment.site);
        match segment.expandable {
            true => EventKind::SegmentUnmapped { address, size, site },
            false => EventKind::SegmentFreed { address, size, site },
        }
    });
    blocks.chain(segments).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_events_can_follow_each_other() {
        let recorded = RecordedEvents::of_training();
        let state = state_after(recorded.events.iter().chain(&recorded.events));
        let device = state.device(DeviceId(0)).expect("the device has events");
        assert_eq!((device.blocks().len(), device.segments().len(), device.inconsistencies()), (0, 0, 0));
        // More than a simulated rank does at its start.
        assert!(recorded.events.len() > 1000, "{} events", recorded.events.len());
    }
}
