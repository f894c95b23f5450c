//! What is kept of a recording as its chunks go by: the state at the end, counters over time, marks, and what went wrong.

use std::collections::BTreeMap;

use crate::decoder::{Visitor, Wrong};
use crate::event::{Annotation, DeviceId, Event, EventKind};
use crate::event_code::{EventReader, Operation};
use crate::info::Info;
use crate::metrics::{Churn, MetricsSeries};
use crate::newborn::Newborn;
use crate::series::Series;
use crate::site::Definition;
use crate::state::{Block, Counters, MemorySample, MemoryState, Segment};

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

/// A device over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Course {
    pub(super) series: Series,
    pub(super) metrics: MetricsSeries,
    /// Events of which the metrics have not been told, and what they allocated.
    untold: u64,
    churn: Churn,
}

impl Course {
    /// One that was written down.
    pub(super) fn of(series: Series, metrics: MetricsSeries) -> Self {
        Self { series, metrics, ..Self::default() }
    }

    /// Counts events; says whether it is time to tell the metrics of them.
    #[inline]
    fn count(&mut self, events: u64) -> bool {
        self.untold += events;
        self.untold >= self.metrics.wait()
    }

    /// Tells the metrics.
    fn tell(&mut self, state: &MemoryState, device: DeviceId) {
        if let Some(device) = state.device(device) {
            let at = (state.event(), state.time_ns());
            self.metrics.events(std::mem::take(&mut self.untold), std::mem::take(&mut self.churn), at, device);
        }
    }

    fn size_in_memory(&self) -> usize {
        self.series.size_in_memory() + self.metrics.size_in_memory()
    }
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
    pub(super) courses: BTreeMap<DeviceId, Course>,
    pub(super) lost: u64,
    /// Those of them in whose place a full state came.
    pub(super) skipped: u64,
    pub(super) text_bytes: usize,
    newborn: Newborn,
    /// Whether it is time to tell some device's metrics.
    is_due: bool,
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
        let courses: usize = self.courses.values().map(Course::size_in_memory).sum();
        let annotations = self.annotations.len() * size_of::<Annotation>();
        let incidents = self.incidents.len() * size_of::<Incident>();
        // A replay that looks at the last moment holds the state once more.
        2 * state + courses + annotations + incidents + self.text_bytes
    }

    #[inline]
    fn counters(&self, device: DeviceId) -> Counters {
        self.state.device(device).map(|device| device.counters()).unwrap_or_default()
    }

    /// Takes note of an event that was applied.
    #[inline]
    fn took(&mut self, event: &Event) {
        let &Event { device, time_ns, kind } = event;
        self.start_ns.get_or_insert(time_ns);
        self.events += 1;
        let counters = self.counters(device);
        let course = self.courses.entry(device).or_default();
        course.series.push(self.state.event(), self.state.time_ns(), counters);
        if let EventKind::BlockAllocated { size, .. } = kind {
            course.churn.add(size);
        }
        self.is_due |= course.count(1);
        match kind {
            // Nearly all, of which there is nothing more to note.
            EventKind::BlockAllocated { .. } | EventKind::FreeRequested { .. } | EventKind::FreeCompleted { .. } => {}
            _ => self.took_other(event, counters),
        }
    }

    /// Tells the metrics of all devices for which it is time.
    #[cold]
    fn tell(&mut self) {
        for (&id, course) in self.courses.iter_mut().filter(|(_, course)| course.untold >= course.metrics.wait()) {
            course.tell(&self.state, id);
        }
    }

    fn took_other(&mut self, event: &Event, counters: Counters) {
        let &Event { device, time_ns, kind } = event;
        let at_event = self.state.event() - 1;
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
                let time_ns = self.state.time_ns();
                let sample = MemorySample { used_by_context, used_by_others, free };
                let course = self.courses.entry(device).or_default();
                course.series.push_sample(self.state.event(), time_ns, counters, sample);
            }
            _ => {}
        }
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
        self.skipped = self.skipped.saturating_add(lost);
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
            let course = self
                .courses
                .entry(id)
                .and_modify(|course| course.series.push(event, time_ns, counters))
                .or_insert_with(|| Course { series: Series::new(event, counters), ..Course::default() });
            if let Some(sample) = device.sample() {
                course.series.push_sample(event, time_ns, counters, sample);
            }
        }
    }

    fn event(&mut self, event: Event) {
        self.state.apply(&event);
        self.took(&event);
    }

    fn events(&mut self, fits: bool, operations: &mut EventReader<'_>) -> Result<(), Wrong> {
        let mut newborn = std::mem::take(&mut self.newborn);
        newborn.begin(fits);
        while let Some(operation) = operations.next_operation()? {
            match operation {
                Operation::Freed { device, requested_ns, .. } if fits => {
                    self.start_ns.get_or_insert(requested_ns);
                    let before = self.counters(device);
                    let requested_ns = requested_ns.max(self.state.time_ns());
                    newborn.apply(&mut self.state, &operation)?;
                    self.events += 2;
                    let after = self.counters(device);
                    let course = self.courses.entry(device).or_default();
                    let between = Counters { allocated: after.allocated, ..before };
                    course.series.push(self.state.event() - 1, requested_ns, between);
                    course.series.push(self.state.event(), self.state.time_ns(), after);
                    self.is_due |= course.count(2);
                }
                _ if fits => {
                    newborn.apply(&mut self.state, &operation)?;
                    operation.each(|event| self.took(&event));
                }
                _ => operation.each(|event| self.event(event)),
            }
            if std::mem::take(&mut self.is_due) {
                newborn.settle(&mut self.state)?;
                self.tell();
            }
        }
        newborn.settle(&mut self.state)?;
        self.newborn = newborn;
        Ok(())
    }

    fn annotation(&mut self, annotation: Annotation) {
        self.out_of_order |= self.annotations.last().is_some_and(|last| in_time(last) > in_time(&annotation));
        self.annotations.push(annotation);
    }
}
