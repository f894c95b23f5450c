//! What is kept of a recording as its chunks go by: the state at the end, counters over time, marks, and what went wrong.

use std::collections::BTreeMap;

use crate::decoder::Visitor;
use crate::event::{Annotation, DeviceId, Event, EventKind};
use crate::event_code::Operation;
use crate::info::Info;
use crate::series::Series;
use crate::site::Definition;
use crate::state::{Block, MemorySample, MemoryState, Segment};

/// Something that went wrong while a program was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incident {
    /// The GPU it concerns; the lowest where it concerns all.
    pub device: DeviceId,
    /// It happened after the first so many events.
    pub at_event: u64,
    /// When.
    pub time_ns: u64,
    /// What.
    pub kind: IncidentKind,
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncidentKind {
    /// A request could not be served.
    OutOfMemory {
        /// Bytes asked for, after rounding.
        requested: u64,
    },
    /// Events are missing.
    Gap {
        /// How many.
        lost: u64,
    },
}

/// The parts of a recording that grow as chunks come.
#[derive(Debug, Default)]
pub(super) struct Overview {
    pub(super) info: Info,
    pub(super) annotations: Vec<Annotation>,
    /// Whether some annotation came behind one of a later time.
    out_of_order: bool,
    pub(super) incidents: Vec<Incident>,
    pub(super) state: MemoryState,
    /// Events taken in; those known to be lost do not count.
    pub(super) events: u64,
    pub(super) start_ns: Option<u64>,
    pub(super) series: BTreeMap<DeviceId, Series>,
    pub(super) lost: u64,
    text_bytes: usize,
    /// Whether the last full state was another than what came before led to.
    pub(super) state_is_news: bool,
}

/// What annotations are ordered by.
fn in_time(annotation: &Annotation) -> (u64, u64) {
    (annotation.time_ns, annotation.at_event)
}

impl Overview {
    /// Puts annotations in order, once for many chunks and not where each stands: there may be very many, in the worst order.
    pub(super) fn sort_annotations(&mut self) {
        if std::mem::take(&mut self.out_of_order) {
            self.annotations.sort_by_key(in_time);
        }
    }

    /// Bytes of memory that it takes. That takes a walk over all devices.
    pub(super) fn size_in_memory(&self) -> usize {
        let state: usize = (self.state.devices())
            .map(|(_, device)| {
                device.blocks().len() * size_of::<Block>() + device.segments().len() * size_of::<Segment>()
            })
            .sum();
        let series: usize = self.series.values().map(Series::size_in_memory).sum();
        let annotations = self.annotations.len() * size_of::<Annotation>();
        let incidents = self.incidents.len() * size_of::<Incident>();
        // A replay that looks at the last moment holds the state once more.
        2 * state + series + annotations + incidents + self.text_bytes
    }

    /// Takes the counters of a device after an event.
    #[inline]
    fn note(&mut self, device: DeviceId) {
        let counters = self.state.device(device).map(|device| device.counters()).unwrap_or_default();
        let series = self.series.entry(device).or_default();
        series.push(self.state.event(), self.state.time_ns(), counters);
    }
}

impl Visitor for Overview {
    fn info(&mut self, info: Info) {
        self.info = info;
    }

    fn define(&mut self, definition: &Definition) {
        self.text_bytes += size_of::<Definition>();
        if let Definition::String(text) = definition {
            self.text_bytes += text.len();
        }
    }

    fn full_state(&mut self, state: MemoryState) {
        let lost = state.event().saturating_sub(self.state.event());
        self.lost = self.lost.saturating_add(lost);
        self.start_ns.get_or_insert(state.time_ns());
        if lost > 0 {
            let device = state.devices().next().map(|(id, _)| id).unwrap_or_default();
            let kind = IncidentKind::Gap { lost };
            let (at_event, time_ns) = (self.state.event(), self.state.time_ns());
            self.incidents.push(Incident { device, at_event, time_ns, kind });
        }
        self.state_is_news = state != self.state;
        self.state = state;
        let (event, time_ns) = (self.state.event(), self.state.time_ns());
        for (id, device) in self.state.devices() {
            let counters = device.counters();
            let series = self
                .series
                .entry(id)
                .and_modify(|series| series.push(event, time_ns, counters))
                .or_insert_with(|| Series::new(event, counters));
            if let Some(sample) = device.sample() {
                series.push_sample(event, time_ns, counters, sample);
            }
        }
    }

    fn event(&mut self, event: Event) {
        self.start_ns.get_or_insert(event.time_ns);
        self.state.apply(&event);
        self.events += 1;
        self.note(event.device);
        let at_event = self.state.event() - 1;
        let Event { device, time_ns, kind } = event;
        let mut incident = |kind| self.incidents.push(Incident { device, at_event, time_ns, kind });
        match kind {
            EventKind::Mark { stage, name, .. } => {
                self.annotation(Annotation { device, time_ns, at_event, stage, name });
            }
            EventKind::Gap { lost } => {
                self.lost = self.lost.saturating_add(lost);
                incident(IncidentKind::Gap { lost });
            }
            EventKind::OutOfMemory { requested, .. } => incident(IncidentKind::OutOfMemory { requested }),
            EventKind::MemorySample { used_by_context, used_by_others, free } => {
                let counters = self.state.device(device).map(|device| device.counters()).unwrap_or_default();
                let time_ns = self.state.time_ns();
                let sample = MemorySample { used_by_context, used_by_others, free };
                let series = self.series.entry(device).or_default();
                series.push_sample(self.state.event(), time_ns, counters, sample);
            }
            _ => {}
        }
    }

    #[inline]
    fn operation(&mut self, operation: &Operation) {
        operation.each(|event| match event.kind {
            // Nearly all, of which there is nothing to note but the counters.
            EventKind::BlockAllocated { .. } | EventKind::FreeRequested { .. } | EventKind::FreeCompleted { .. } => {
                self.start_ns.get_or_insert(event.time_ns);
                self.state.apply(&event);
                self.events += 1;
                self.note(event.device);
            }
            _ => self.event(event),
        });
    }

    fn annotation(&mut self, annotation: Annotation) {
        self.out_of_order |= self.annotations.last().is_some_and(|last| in_time(last) > in_time(&annotation));
        self.annotations.push(annotation);
    }
}
