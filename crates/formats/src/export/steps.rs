//! Visits a recording in event order, with the allocations that each event begins and ends, for the
//! exports that show lifetimes.
//!
//! The exports follow lifetimes with a [`LifetimeTracker`], not with the index
//! [`vramscope_trace::Lifetimes`], for two reasons:
//!
//! - Memory. The index takes 23 bytes per allocation and has no times, which would take another 8
//!   bytes per event: together 620 MB for a recording of 40 million events with 13 million
//!   allocations. The tracker keeps only the live blocks of one moment, at about 150 bytes each.
//! - Order. The exports write an allocation when it begins (Perfetto) or ends (tables); the index
//!   is not sorted by ends.
//!
//! For consistent histories both give equal lifetimes, which a test verifies
//! (`tests/it/export_tools/tables.rs`).

use std::collections::HashMap;

use vramscope_trace::{
    Annotation, Block, DeviceId, DeviceState, Event, EventKind, EventTime, Lifetime, LifetimeChange, LifetimeEnding,
    LifetimeTracker, MemoryState, Recording, Relabel, Replay,
};

use super::error::{ExportError, Progress, Result};
use super::walk::for_each_event_and_relabels;

/// A moment of a recording: its event number and its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    /// The event number: how many events precede the moment. The first event has number 1.
    pub(crate) event: u64,
    /// Nanoseconds since the recording's time 0.
    pub(crate) time_ns: u64,
}

impl Moment {
    /// Returns the moment after an event. `event` gives the event's index (from 0), which becomes
    /// the event number index + 1, and its time.
    fn after(event: EventTime) -> Self {
        Self { event: event.event.saturating_add(1), time_ns: event.time_ns }
    }
}

/// An allocation with the moments of its request, its free and its block's return to the pool, as
/// far as the export has read the recording.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExportedLifetime {
    /// Device of the block.
    pub(crate) device: DeviceId,
    /// The block, as it was allocated, but with the site of its last relabel.
    pub(crate) block: Block,
    /// The first moment at which it is allocated; `None` if it is older than the recording.
    pub(crate) allocated: Option<Moment>,
    /// The first known moment at which the program has freed it.
    pub(crate) freed: Option<Moment>,
    /// The first known moment at which its block has returned to its pool.
    pub(crate) completed: Option<Moment>,
}

/// One step of an export that walks a recording in event order: an allocation begins, is relabeled
/// or ends, an event happens, or an annotation is reached.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    /// An allocation begins.
    Began(&'a ExportedLifetime),
    /// An allocation, given with its new site, is relabeled at a time in nanoseconds.
    Relabeled(&'a ExportedLifetime, u64),
    /// An allocation ends, or the recording does.
    Ended(&'a ExportedLifetime, LifetimeEnding),
    /// An event was applied. Follows the allocations that it began or ended.
    Event {
        /// The moment after the event; its number is the event's number.
        moment: Moment,
        /// The event.
        event: Event,
        /// The block that the event frees, in its state before the event; `None` for other events.
        freed_block: Option<Block>,
        /// The state of the device after the event.
        after: &'a DeviceState,
    },
    /// An annotation, which is not an event.
    Annotation(&'a Annotation),
}

/// Calls `visit` with every allocation that begins or ends, every event and every annotation, in
/// the order of events. Memory is bounded by one state, one chunk and the annotations.
///
/// # Errors
/// If a chunk cannot be read, and any error of `visit`.
pub(crate) fn for_each_step(
    recording: &Recording,
    progress: Progress<'_>,
    mut visit: impl FnMut(Step<'_>) -> Result,
) -> Result {
    let mut annotations = Annotations::new(recording);
    let mut lifetimes = LifetimeSteps::new(recording);
    let mut pending: Option<PendingEvent> = None;
    for_each_event_and_relabels(recording, progress, |before: &MemoryState, index, event, relabels| {
        let is_consecutive = pending.is_some_and(|last| last.time.event + 1 == index);
        if let Some(last) = pending.take() {
            report_event(&mut lifetimes, recording, is_consecutive.then_some(before), last, &mut visit)?;
        }
        if !is_consecutive || recording.has_correction_at(index) {
            lifetimes.apply_full_state(before, &mut visit)?;
        }
        annotations.report_before(index, event, &mut visit)?;
        relabels.iter().try_for_each(|relabel| lifetimes.relabel(index, relabel, &mut visit))?;
        let time = EventTime { event: index, time_ns: before.time_ns().max(event.time_ns) };
        let freed_block = lifetimes.freed_block(event);
        lifetimes.event(time, event, &mut visit)?;
        pending = Some(PendingEvent { time, event: *event, freed_block });
        Ok::<(), ExportError>(())
    })?;
    let end = recording.end_state();
    let is_consecutive = pending.is_some_and(|last| last.time.event + 1 == recording.end_event());
    if let Some(last) = pending {
        report_event(&mut lifetimes, recording, is_consecutive.then_some(end), last, &mut visit)?;
    }
    if !is_consecutive || recording.has_correction_at(recording.end_event()) {
        lifetimes.apply_full_state(end, &mut visit)?;
    }
    annotations.report_rest(&mut visit)?;
    lifetimes.finish(&mut visit)
}

/// The moments at which a live block was allocated or freed, if no event but only a full state
/// showed that.
#[derive(Clone, Copy, Debug, Default)]
struct MomentsFromState {
    allocated: Option<Moment>,
    freed: Option<Moment>,
}

/// Tracks the allocations of a recording and reports each when it begins and ends, with moments.
///
/// A change by an event gets the event number after that event. A change that only a full state
/// shows gets at most the event number of that state.
struct LifetimeSteps {
    tracker: LifetimeTracker,
    /// Open allocations with changes that only a full state showed, by device and address.
    from_state: HashMap<(DeviceId, u64), MomentsFromState>,
}

impl LifetimeSteps {
    fn new(recording: &Recording) -> Self {
        Self { tracker: LifetimeTracker::new(recording.first_event()), from_state: HashMap::new() }
    }

    /// Returns the block that a free event frees, as it was allocated; `None` for other events and
    /// unknown blocks.
    fn freed_block(&self, event: &Event) -> Option<Block> {
        match event.kind {
            EventKind::FreeRequested { address, .. } | EventKind::FreeCompleted { address, .. } => {
                self.tracker.open_at(event.device, address).map(|lifetime| lifetime.block)
            }
            _ => None,
        }
    }

    /// Applies the next event and reports the allocations that it begins or ends to `visit`. `time`
    /// is the event's index (from 0) and time.
    fn event(&mut self, time: EventTime, event: &Event, visit: &mut impl StepVisitor) -> Result {
        let Self { tracker, from_state } = self;
        tracker.event(time, event, &mut |change| report_change(from_state, change, Moment::after(time), visit))
    }

    /// Applies a relabel before the event with index `index` (from 0), and reports it to `visit` if
    /// it changes a site.
    fn relabel(&mut self, index: u64, relabel: &Relabel, visit: &mut impl StepVisitor) -> Result {
        let Self { tracker, from_state } = self;
        let time = EventTime { event: index, time_ns: relabel.time_ns };
        tracker.relabel(time, relabel, &mut |change| report_change(from_state, change, Moment::after(time), visit))
    }

    /// Adjusts the live allocations to a full state, and reports to `visit` the allocations that
    /// this begins or ends.
    fn apply_full_state(&mut self, state: &MemoryState, visit: &mut impl StepVisitor) -> Result {
        let Self { tracker, from_state } = self;
        let moment = Moment { event: state.event(), time_ns: state.time_ns() };
        tracker.replace_state(state, &mut |change| report_change(from_state, change, moment, visit))?;
        for (id, device) in state.devices() {
            for block in device.blocks().filter(|block| block.pending_free) {
                let freed = tracker.open_at(id, block.address).and_then(|lifetime| lifetime.freed);
                // A free by an event has a smaller index than the state's moment, so it cannot be
                // mistaken for this one.
                if freed.is_some_and(|freed| freed.event == moment.event) {
                    from_state.entry((id, block.address)).or_default().freed = Some(moment);
                }
            }
        }
        Ok(())
    }

    /// Adjusts the live allocations of a device to `after`, its state after the event at `time`, if
    /// their number shows that the event contradicted the history. Reports the differences to
    /// `visit`.
    fn verify(
        &mut self,
        time: EventTime,
        device: DeviceId,
        after: &DeviceState,
        visit: &mut impl StepVisitor,
    ) -> Result {
        let Self { tracker, from_state } = self;
        tracker.verify(time, device, after, &mut |change| report_change(from_state, change, Moment::after(time), visit))
    }

    /// Reports the allocations that are still open at the end of the recording to `visit`, as
    /// ended.
    fn finish(self, visit: &mut impl StepVisitor) -> Result {
        let Self { tracker, mut from_state } = self;
        tracker.finish(&mut |change| report_change(&mut from_state, change, Moment::default(), visit))
    }
}

/// Reports the begin or the end of an allocation to `visit`. `moment` is the first moment after the
/// change; it is not used for allocations that are live at the end of the recording. `from_state`
/// holds the moments of live allocations that only a full state showed.
fn report_change(
    from_state: &mut HashMap<(DeviceId, u64), MomentsFromState>,
    change: LifetimeChange<'_>,
    moment: Moment,
    visit: &mut impl StepVisitor,
) -> Result {
    match change {
        LifetimeChange::Began(lifetime) => {
            let known = MomentsFromState {
                allocated: lifetime.allocated.filter(|_| !lifetime.start_observed).map(|time| {
                    let after = Moment::after(time);
                    Moment { event: after.event.min(moment.event), ..after }
                }),
                freed: lifetime.freed.map(|_| moment),
            };
            if known.allocated.is_some() || known.freed.is_some() {
                from_state.insert((lifetime.device, lifetime.block.address), known);
            }
            visit(Step::Began(&exported(lifetime, known)))
        }
        LifetimeChange::Relabeled(lifetime, time) => {
            let known = from_state.get(&(lifetime.device, lifetime.block.address)).copied().unwrap_or_default();
            visit(Step::Relabeled(&exported(lifetime, known), time.time_ns))
        }
        LifetimeChange::Ended(lifetime, ending) => {
            // Most recordings have no allocation in this map.
            let known = if from_state.is_empty() {
                MomentsFromState::default()
            } else {
                from_state.remove(&(lifetime.device, lifetime.block.address)).unwrap_or_default()
            };
            let mut exported = exported(lifetime, known);
            if lifetime.completed.is_some() {
                exported.completed = Some(moment);
                if known.freed.is_none() && lifetime.freed == lifetime.completed {
                    exported.freed = Some(moment);
                }
            }
            visit(Step::Ended(&exported, ending))
        }
    }
}

/// Converts a lifetime for export. Its moments come from `known` where set there; otherwise they
/// are the moments after the events that allocated and freed the block.
fn exported(lifetime: &Lifetime, known: MomentsFromState) -> ExportedLifetime {
    ExportedLifetime {
        device: lifetime.device,
        block: lifetime.block,
        allocated: known.allocated.or(lifetime.allocated.map(Moment::after)),
        freed: known.freed.or(lifetime.freed.map(Moment::after)),
        completed: lifetime.completed.map(Moment::after),
    }
}

/// The annotations of a recording, sorted by the event that they precede, and how many were
/// reported. Marks among the events are listed as annotations too, but are reported as events.
struct Annotations {
    list: Vec<Annotation>,
    /// Number of elements of `list` that were reported.
    reported: usize,
}

impl Annotations {
    fn new(recording: &Recording) -> Self {
        let mut list = recording.annotations().to_vec();
        list.sort_by_key(|annotation| annotation.at_event);
        Self { list, reported: 0 }
    }

    /// Reports the annotations before the event with index `index` (from 0). If `event` is a mark,
    /// the annotation that repeats it is not reported.
    fn report_before(&mut self, index: u64, event: &Event, visit: &mut impl StepVisitor) -> Result {
        let mut mark = match event.kind {
            EventKind::Mark { stage, name, .. } => Some((event.device, event.time_ns, stage, name)),
            _ => None,
        };
        while let Some(next) = self.list.get(self.reported).filter(|next| next.at_event <= index) {
            self.reported += 1;
            if next.at_event == index && mark == Some((next.device, next.time_ns, next.stage, next.name)) {
                mark = None;
                continue;
            }
            visit(Step::Annotation(next))?;
        }
        Ok(())
    }

    /// Reports the annotations that follow the last event to `visit`.
    fn report_rest(&self, visit: &mut impl StepVisitor) -> Result {
        self.list[self.reported..].iter().try_for_each(|annotation| visit(Step::Annotation(annotation)))
    }
}

/// An event that is not reported yet, because the state after it is not known before the next event
/// is read.
#[derive(Clone, Copy, Debug)]
struct PendingEvent {
    /// Index (from 0) and time of the event.
    time: EventTime,
    event: Event,
    freed_block: Option<Block>,
}

/// A callback that receives the steps of a recording; its error ends the export.
trait StepVisitor: FnMut(Step<'_>) -> Result {}
impl<F: FnMut(Step<'_>) -> Result> StepVisitor for F {}

/// Reports an event with its device's state after it. `after` is the memory state before the next
/// event; `None` if the next event is missing, and the state is then replayed from the recording.
fn report_event(
    lifetimes: &mut LifetimeSteps,
    recording: &Recording,
    after: Option<&MemoryState>,
    PendingEvent { time, event, freed_block }: PendingEvent,
    visit: &mut impl StepVisitor,
) -> Result {
    let mut replay = Replay::new();
    let after = match after {
        Some(after) => after,
        None => replay.seek(recording, time.event + 1)?,
    };
    // A full state after the event may lack the device.
    let absent = DeviceState::default();
    let after = after.device(event.device).unwrap_or(&absent);
    lifetimes.verify(time, event.device, after, visit)?;
    visit(Step::Event { moment: Moment::after(time), event, freed_block, after })
}
