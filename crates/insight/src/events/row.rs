//! Rows of the list of events.

use vramscope_trace::{
    AnnotationStage, Block, ByteSize, Count, Definitions, DeviceId, Event, EventKind, EventType, PoolKey, Recording,
    Replay, SiteId, StreamId,
};

use super::error::EventListError;
use super::freed_blocks::{FreedBlocks, freed_allocation};
use crate::history::History;

/// One event as the list shows it. Values that an event does not have are `None`. A free has size,
/// requested size, stream and pool of the freed block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventRow {
    /// Event number, from 1.
    pub number: u64,
    /// The event; `None` if it was not recorded.
    pub event: Option<Event>,
    /// Address of the first byte of the block or segment.
    pub address: Option<u64>,
    /// Size in bytes of the block or segment.
    pub size: Option<u64>,
    /// Requested size in bytes.
    pub requested: Option<u64>,
    /// Stream.
    pub stream: Option<StreamId>,
    /// Pool.
    pub pool: Option<PoolKey>,
    /// Where the event was caused; `None` for kinds without a site.
    pub site: Option<SiteId>,
    /// Where the freed block was allocated; `None` for events that free none, or an unknown one.
    pub freed_site: Option<SiteId>,
    /// Age of the freed block in events, from the first moment at which it is known to exist.
    pub age_events: Option<u64>,
    /// Age of the freed block in nanoseconds.
    pub age_ns: Option<u64>,
    /// Facts without a column: the name of a mark, free memory, lost events.
    pub text: String,
}

impl EventRow {
    /// Creates the row of an event. `freed` is the block that the event frees, as it was before.
    #[must_use]
    pub fn new(number: u64, event: Event, freed: Option<&Block>, definitions: &Definitions) -> Self {
        let mut row = Self { site: event.kind.site(), text: text(&event, definitions), number, ..Self::default() };
        row.event = Some(event);
        match event.kind {
            EventKind::SegmentAllocated { address, size, stream, pool, .. }
            | EventKind::SegmentMapped { address, size, stream, pool, .. } => {
                (row.address, row.size, row.stream, row.pool) = (Some(address), Some(size), Some(stream), Some(pool));
            }
            EventKind::SegmentFreed { address, size, .. } | EventKind::SegmentUnmapped { address, size, .. } => {
                (row.address, row.size) = (Some(address), Some(size));
            }
            EventKind::BlockAllocated { address, size, requested, stream, pool, .. } => {
                (row.address, row.size, row.requested) = (Some(address), Some(size), Some(requested));
                (row.stream, row.pool) = (Some(stream), Some(pool));
            }
            EventKind::FreeRequested { address, .. } | EventKind::FreeCompleted { address, .. } => {
                row.address = Some(address);
                if let Some(block) = freed {
                    (row.size, row.requested) = (Some(block.size), Some(block.requested));
                    (row.stream, row.pool, row.freed_site) = (Some(block.stream), Some(block.pool), Some(block.site));
                    row.age_events = Some(number.saturating_sub(block.since_event.saturating_add(1)));
                    row.age_ns = Some(event.time_ns.saturating_sub(block.since_ns));
                }
            }
            EventKind::OutOfMemory { requested, stream, .. } => {
                (row.requested, row.stream) = (Some(requested), Some(stream));
            }
            EventKind::Mark { address, .. } => row.address = Some(address).filter(|&address| address != 0),
            EventKind::MemorySample { .. } | EventKind::Gap { .. } => {}
        }
        row
    }

    /// Returns the name of the event's type, in lower case; `not recorded` without an event.
    #[must_use]
    pub fn kind_name(&self) -> &'static str {
        self.event_type().map_or("not recorded", EventType::name)
    }

    /// Returns the event's type, or `None` if it was not recorded.
    #[must_use]
    pub fn event_type(&self) -> Option<EventType> {
        self.event.map(|event| event.kind.event_type())
    }

    /// Returns the event's time in nanoseconds since the recording's time 0, or `None` if it was
    /// not recorded.
    #[must_use]
    pub fn time_ns(&self) -> Option<u64> {
        self.event.map(|event| event.time_ns)
    }

    /// Returns the event's device, or `None` if it was not recorded.
    #[must_use]
    pub fn device(&self) -> Option<DeviceId> {
        self.event.map(|event| event.device)
    }
}

/// Returns the facts of an event that have no column.
fn text(event: &Event, definitions: &Definitions) -> String {
    match event.kind {
        EventKind::OutOfMemory { device_free, .. } => format!("{} free on the device", ByteSize(device_free)),
        EventKind::MemorySample { used_by_context, used_by_others, free } => format!(
            "{} outside the pool, {} in other processes, {} free",
            ByteSize(used_by_context),
            ByteSize(used_by_others),
            ByteSize(free)
        ),
        EventKind::Mark { stage, name, .. } => {
            let name = definitions.string(name);
            match stage {
                AnnotationStage::Instant => name.to_owned(),
                AnnotationStage::Begin => format!("begin {name}"),
                AnnotationStage::End => format!("end {name}"),
            }
        }
        EventKind::Gap { lost } => format!("{} lost", Count(lost).of("event", "events")),
        _ => String::new(),
    }
}

/// Returns the rows of the events with these numbers, in their order; a number that the recording
/// lacks has a row without an event.
///
/// With `history`, the blocks that events free are looked up there. Without it they are followed by
/// `replay`, which is fast if the numbers follow each other.
///
/// # Errors
/// If a chunk is not loaded or cannot be read.
pub fn event_rows(
    recording: &Recording,
    replay: &mut Replay,
    history: Option<&History>,
    numbers: impl IntoIterator<Item = u64>,
) -> Result<Vec<EventRow>, EventListError> {
    let mut blocks = FreedBlocks::default();
    let row = |number: u64| {
        let Some(index) = number.checked_sub(1) else { return Ok(EventRow { number, ..EventRow::default() }) };
        let failed = |error| EventListError::reading(recording, index, index, error);
        let Some(event) = replay.event(recording, index).map_err(failed)? else {
            return Ok(EventRow { number, ..EventRow::default() });
        };
        let freed = match (history, event.kind) {
            (Some(history), EventKind::FreeRequested { address, .. } | EventKind::FreeCompleted { address, .. }) => {
                freed_allocation(history, event.device, address, index)
            }
            (Some(_), _) => None,
            (None, _) => blocks.visit(recording, replay, index, &event).map_err(failed)?,
        };
        Ok(EventRow::new(number, event, freed.as_ref(), recording.definitions()))
    };
    numbers.into_iter().map(row).collect()
}

/// Returns the rows of up to `count` events from the number `from` on, including events that were
/// not recorded.
///
/// # Errors
/// If a chunk is not loaded or cannot be read; the error names all byte ranges to load for the
/// window.
pub fn window(
    recording: &Recording,
    replay: &mut Replay,
    history: Option<&History>,
    from: u64,
    count: usize,
) -> Result<Vec<EventRow>, EventListError> {
    let first = from.max(recording.first_event().saturating_add(1));
    let end = from.saturating_add(count as u64).min(recording.end_event().saturating_add(1));
    let rows = event_rows(recording, replay, history, first..end);
    rows.map_err(|error| match error {
        EventListError::NotLoaded { .. } => {
            EventListError::NotLoaded { missing: recording.missing_between(first - 1, end.saturating_sub(2)) }
        }
        damaged => damaged,
    })
}
