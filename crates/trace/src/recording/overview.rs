//! The overview of a recording, updated as chunks are decoded: the state at the end, counters and
//! metrics over time, annotations and incidents.

use std::collections::BTreeMap;

use crate::chunk_local_blocks::ChunkLocalBlocks;
use crate::counter_series::CounterSeries;
use crate::counters::{Counters, MemorySample};
use crate::decoder::{ChunkVisitor, EventsError};
use crate::event::{Annotation, DeviceId, Event, EventKind, Relabel};
use crate::event_codec::{EventReader, FreedBlock, Operation};
use crate::info::RecordingInfo;
use crate::memory_state::MemoryState;
use crate::metrics::{Churn, MetricsSeries};
use crate::segment::{Block, Segment};
use crate::site::Definition;
use crate::sort::sort_by_key;

/// An out-of-memory event or a gap, with its moment and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incident {
    /// The device; for a gap that concerns all devices, the first device.
    pub device: DeviceId,
    /// The moment before it: it followed the first `at_event` events.
    pub at_event: u64,
    /// Nanoseconds since the recording's time 0.
    pub time_ns: u64,
    /// What happened.
    pub kind: IncidentKind,
}

/// The kind of an [`Incident`]: an out-of-memory event, with the requested bytes, or a gap, with
/// the number of missing events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncidentKind {
    /// A request failed after every retry.
    OutOfMemory {
        /// Requested size in bytes, after rounding.
        requested: u64,
    },
    /// Events are missing.
    Gap {
        /// Number of missing events.
        lost: u64,
    },
}

/// The counters and metrics of one device over the whole recording.
#[derive(Clone, Debug, Default)]
pub(super) struct DeviceHistory {
    pub(super) series: CounterSeries,
    pub(super) metrics: MetricsSeries,
    /// Number of events that `metrics` has not received yet.
    unreported_events: u64,
    /// Number and bytes of the allocations that `metrics` has not received yet.
    unreported_churn: Churn,
}

impl DeviceHistory {
    /// Creates the history of a device from the parts that an index stored.
    pub(super) fn from_index(series: CounterSeries, metrics: MetricsSeries) -> Self {
        Self { series, metrics, ..Self::default() }
    }

    /// Adds `events` to the number of the device's events not yet passed to `metrics`. Returns true
    /// if `metrics` needs the memory state at this moment; false if it can wait for more events.
    #[inline]
    fn count(&mut self, events: u64) -> bool {
        self.unreported_events += events;
        self.unreported_events >= self.metrics.events_until_next()
    }

    /// Passes the events counted since the last report, and the memory state after them, to
    /// `metrics`.
    fn report_metrics(&mut self, state: &MemoryState, device: DeviceId) {
        if let Some(device) = state.device(device) {
            let (events, churn) =
                (std::mem::take(&mut self.unreported_events), std::mem::take(&mut self.unreported_churn));
            self.metrics.events(events, churn, (state.event(), state.time_ns()), device);
        }
    }

    /// Returns the memory that the history occupies, in bytes.
    fn memory_bytes(&self) -> usize {
        self.series.memory_bytes() + self.metrics.memory_bytes()
    }
}

/// The data of an open recording that is available without reading chunks again: metadata, end
/// state, histories of the devices, annotations and incidents.
#[derive(Debug, Default)]
pub(super) struct Overview {
    pub(super) info: RecordingInfo,
    pub(super) annotations: Vec<Annotation>,
    /// Whether the annotations are unsorted: one follows an annotation of a later time.
    needs_sorting: bool,
    pub(super) incidents: Vec<Incident>,
    pub(super) state: MemoryState,
    /// Number of recorded events, without lost ones.
    pub(super) events: u64,
    pub(super) start_ns: Option<u64>,
    pub(super) device_histories: BTreeMap<DeviceId, DeviceHistory>,
    /// Number of lost events.
    pub(super) lost: u64,
    /// Number of lost events that this reader was not sent, because a later full state replaced
    /// them.
    pub(super) skipped: u64,
    pub(super) text_bytes: usize,
    local_blocks: ChunkLocalBlocks,
    /// Whether the metrics of some device need the memory state at this moment.
    metrics_are_due: bool,
    /// Whether the last full state differs from the state that the events before it lead to.
    pub(super) state_is_correction: bool,
    /// Whether a relabel follows the last event. `state` contains it, and the chunk with the next
    /// event repeats it.
    pub(super) ends_with_relabel: bool,
}

/// Returns the sort key of an annotation: by time, then by moment.
fn annotation_order(annotation: &Annotation) -> (u64, u64) {
    (annotation.time_ns, annotation.at_event)
}

impl Overview {
    /// Sorts the annotations by time. Called once after many chunks, because sorting after every
    /// chunk would be slow for annotations in descending order.
    pub(super) fn sort_annotations(&mut self) {
        if std::mem::take(&mut self.needs_sorting) {
            sort_by_key(&mut self.annotations, annotation_order);
        }
    }

    /// Adds an annotation. The caller must call [`sort_annotations`](Self::sort_annotations)
    /// afterwards.
    pub(super) fn add_annotation(&mut self, annotation: Annotation) {
        self.needs_sorting |=
            self.annotations.last().is_some_and(|last| annotation_order(last) > annotation_order(&annotation));
        self.annotations.push(annotation);
    }

    /// Returns the memory that the overview occupies, in bytes. Visits all devices.
    pub(super) fn memory_bytes(&self) -> usize {
        let state: usize = (self.state.devices())
            .map(|(_, device)| {
                device.blocks().len() * size_of::<Block>() + device.segments().len() * size_of::<Segment>()
            })
            .sum();
        let device_histories: usize = self.device_histories.values().map(DeviceHistory::memory_bytes).sum();
        let annotations = self.annotations.len() * size_of::<Annotation>();
        let incidents = self.incidents.len() * size_of::<Incident>();
        // A replay at the last moment has a copy of the state.
        2 * state + device_histories + annotations + incidents + self.text_bytes
    }

    /// Adds an event to the histories, annotations and incidents, after the event was applied to
    /// the end state.
    #[inline]
    fn record_applied(&mut self, event: &Event) {
        let &Event { device, time_ns, kind } = event;
        self.start_ns.get_or_insert(time_ns);
        self.events += 1;
        let counters = self.state.counters(device);
        let history = self.device_histories.entry(device).or_default();
        history.series.push(self.state.event(), self.state.time_ns(), counters);
        if let EventKind::BlockAllocated { size, .. } = kind {
            history.unreported_churn.add(size);
        }
        self.metrics_are_due |= history.count(1);
        match kind {
            // The most frequent events, which need nothing more.
            EventKind::BlockAllocated { .. } | EventKind::FreeRequested { .. } | EventKind::FreeCompleted { .. } => {}
            _ => self.record_other(event, counters),
        }
    }

    /// Updates the metrics of all devices that have had enough events since their last update.
    #[cold]
    fn report_due_metrics(&mut self) {
        for (&id, history) in &mut self.device_histories {
            if history.count(0) {
                history.report_metrics(&self.state, id);
            }
        }
    }

    /// Adds a mark, gap, out-of-memory event or memory sample to the lists and histories; other
    /// events change nothing. `counters` are the device's after the event.
    fn record_other(&mut self, event: &Event, counters: Counters) {
        let &Event { device, time_ns, kind } = event;
        let at_event = self.state.event() - 1;
        let mut incident = |kind| self.incidents.push(Incident { device, at_event, time_ns, kind });
        match kind {
            EventKind::Mark { stage, name, .. } => {
                self.add_annotation(Annotation { device, time_ns, at_event, stage, name });
            }
            EventKind::Gap { lost } => {
                self.lost = self.lost.saturating_add(lost);
                incident(IncidentKind::Gap { lost });
            }
            EventKind::OutOfMemory { requested, .. } => incident(IncidentKind::OutOfMemory { requested }),
            EventKind::MemorySample { used_by_context, used_by_others, free } => {
                let time_ns = self.state.time_ns();
                let sample = MemorySample { used_by_context, used_by_others, free };
                let history = self.device_histories.entry(device).or_default();
                history.series.push_sample(self.state.event(), time_ns, counters, sample);
            }
            _ => {}
        }
    }
}

impl ChunkVisitor for Overview {
    fn info(&mut self, info: RecordingInfo) {
        self.info = info;
    }

    fn define(&mut self, definition: &Definition) {
        self.text_bytes += size_of::<Definition>();
        if let Definition::String(text) = definition {
            self.text_bytes += text.len();
        }
    }

    fn replace_state(&mut self, state: MemoryState) {
        let lost = state.event().saturating_sub(self.state.event());
        self.lost = self.lost.saturating_add(lost);
        self.skipped = self.skipped.saturating_add(lost);
        self.start_ns.get_or_insert(state.time_ns());
        if lost > 0 {
            let device = state.devices().next().map(|(id, _)| id).unwrap_or_default();
            let kind = IncidentKind::Gap { lost };
            let (at_event, time_ns) = (self.state.event(), self.state.time_ns());
            self.incidents.push(Incident { device, at_event, time_ns, kind });
        }
        self.state_is_correction = std::mem::take(&mut self.ends_with_relabel) || state != self.state;
        self.state = state;
        let (event, time_ns) = (self.state.event(), self.state.time_ns());
        for (id, device) in self.state.devices() {
            let counters = device.counters();
            let history = self
                .device_histories
                .entry(id)
                .and_modify(|history| history.series.push(event, time_ns, counters))
                .or_insert_with(|| DeviceHistory {
                    series: CounterSeries::new(event, counters),
                    ..DeviceHistory::default()
                });
            if let Some(sample) = device.sample() {
                history.series.push_sample(event, time_ns, counters, sample);
            }
        }
    }

    fn event(&mut self, event: Event) {
        self.state.apply(&event);
        self.record_applied(&event);
    }

    fn events(&mut self, is_consistent: bool, operations: &mut EventReader<'_>) -> Result<(), EventsError> {
        let mut local_blocks = std::mem::take(&mut self.local_blocks);
        local_blocks.begin(is_consistent);
        let has_events = operations.event_count() > 0;
        self.ends_with_relabel &= !has_events;
        loop {
            let Some(operation) = operations.next_operation()? else {
                let Some(relabel) = operations.take_relabel() else { break };
                local_blocks.relabel(&mut self.state, &relabel)?;
                self.ends_with_relabel |= !has_events;
                continue;
            };
            match operation {
                Operation::Freed { block: FreedBlock { device, time_ns, .. }, .. } if is_consistent => {
                    self.start_ns.get_or_insert(time_ns);
                    let before = self.state.counters(device);
                    let requested_ns = time_ns.max(self.state.time_ns());
                    local_blocks.apply(&mut self.state, &operation)?;
                    self.events += 2;
                    let after = self.state.counters(device);
                    let history = self.device_histories.entry(device).or_default();
                    let between = Counters { allocated: after.allocated, ..before };
                    history.series.push(self.state.event() - 1, requested_ns, between);
                    history.series.push(self.state.event(), self.state.time_ns(), after);
                    self.metrics_are_due |= history.count(2);
                }
                _ if is_consistent => {
                    local_blocks.apply(&mut self.state, &operation)?;
                    operation.for_each_event(|event| self.record_applied(&event));
                }
                _ => operation.for_each_event(|event| self.event(event)),
            }
            if std::mem::take(&mut self.metrics_are_due) {
                local_blocks.flush(&mut self.state)?;
                self.report_due_metrics();
            }
        }
        local_blocks.flush(&mut self.state)?;
        self.local_blocks = local_blocks;
        Ok(())
    }

    fn relabel(&mut self, relabel: Relabel) {
        self.state.relabel(&relabel);
    }

    fn annotation(&mut self, annotation: Annotation) {
        self.add_annotation(annotation);
    }
}
