//! Visits a recording in event order, with the allocations that each event begins and ends, for the
//! exports that show lifetimes.
//!
//! The exports follow lifetimes with a [`LifetimeTracker`], not with the index
//! [`vramscope_trace::Lifetimes`], for two reasons:
//!
//! - Memory. The index takes 23 bytes an allocation and has no times, which would take 8 bytes an
//!   event besides: 620 MB for a recording of 40 million events with 13 million allocations. The
//!   tracker keeps only the live blocks of one moment, at about 150 bytes each.
//! - Order. The exports write an allocation when it begins (Perfetto) or ends (tables), which the
//!   index would have to be sorted for.
//!
//! For consistent histories both give the same lifetimes, which a test verifies
//! (`tests/export_tools/tables.rs`).

use vramscope_trace::{
    Annotation, Block, DeviceState, Event, EventKind, EventTime, Lifetime, LifetimeChange, LifetimeEnding,
    LifetimeTracker, MemoryState, Recording, Replay,
};

use super::error::{ExportError, Progress};
use super::walk::for_each_event;

/// A step of the recording. Steps are in the order of events.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    /// An allocation begins.
    Began(&'a Lifetime),
    /// An allocation ends, or the recording does.
    Ended(&'a Lifetime, LifetimeEnding),
    /// An event was applied. Follows the allocations that it began or ended.
    Event {
        /// Number and time of the event.
        time: EventTime,
        /// The event.
        event: Event,
        /// The block that the event frees, in its state before.
        freed_block: Option<Block>,
        /// The state of the device after the event.
        after: &'a DeviceState,
    },
    /// An annotation beside the events.
    Annotation(&'a Annotation),
}

impl<'a> From<LifetimeChange<'a>> for Step<'a> {
    fn from(change: LifetimeChange<'a>) -> Self {
        match change {
            LifetimeChange::Began(lifetime) => Self::Began(lifetime),
            LifetimeChange::Ended(lifetime, ending) => Self::Ended(lifetime, ending),
        }
    }
}

/// Calls `visit` with every step. Memory is bounded by one state, one chunk and the annotations.
///
/// # Errors
/// If a chunk cannot be read, and any error of `visit`.
pub(crate) fn for_each_step(
    recording: &Recording,
    progress: Progress<'_>,
    mut visit: impl FnMut(Step<'_>) -> Result<(), ExportError>,
) -> Result<(), ExportError> {
    let mut annotations = Annotations::new(recording);
    let mut tracker = LifetimeTracker::new(recording.first_event());
    let mut pending: Option<PendingEvent> = None;
    for_each_event(recording, progress, |before: &MemoryState, number, event| {
        let is_consecutive = pending.is_some_and(|last| last.time.event + 1 == number);
        if let Some(last) = pending.take() {
            report_event(&mut tracker, recording, is_consecutive.then_some(before), last, &mut visit)?;
        }
        if !is_consecutive {
            tracker.full_state(before, &mut |change| visit(change.into()))?;
        }
        annotations.report_before(number, event, &mut visit)?;
        let time = EventTime { event: number, time_ns: before.time_ns().max(event.time_ns) };
        let freed_block = freed_block(&tracker, event);
        tracker.event(time, event, &mut |change| visit(change.into()))?;
        pending = Some(PendingEvent { time, event: *event, freed_block });
        Ok::<(), ExportError>(())
    })?;
    let end = recording.end_state();
    let is_consecutive = pending.is_some_and(|last| last.time.event + 1 == recording.end_event());
    if let Some(last) = pending {
        report_event(&mut tracker, recording, is_consecutive.then_some(end), last, &mut visit)?;
    }
    if !is_consecutive {
        tracker.full_state(end, &mut |change| visit(change.into()))?;
    }
    annotations.report_rest(&mut visit)?;
    tracker.finish(&mut |change| visit(change.into()))
}

/// Returns the block that `event` frees, as it was allocated.
fn freed_block(tracker: &LifetimeTracker, event: &Event) -> Option<Block> {
    match event.kind {
        EventKind::FreeRequested { address, .. } | EventKind::FreeCompleted { address, .. } => {
            tracker.open_at(event.device, address).map(|lifetime| lifetime.block)
        }
        _ => None,
    }
}

/// The annotations in the order of the events that they precede. Marks among the events are listed
/// as annotations too, but are reported as events.
struct Annotations {
    list: Vec<Annotation>,
    reported: usize,
}

impl Annotations {
    fn new(recording: &Recording) -> Self {
        let mut list = recording.annotations().to_vec();
        list.sort_by_key(|annotation| annotation.at_event);
        Self { list, reported: 0 }
    }

    /// Reports the annotations before event `number`.
    fn report_before(&mut self, number: u64, event: &Event, visit: &mut impl StepVisitor) -> Result<(), ExportError> {
        let mut mark = match event.kind {
            EventKind::Mark { stage, name, .. } => Some((event.device, event.time_ns, stage, name)),
            _ => None,
        };
        while let Some(next) = self.list.get(self.reported).filter(|next| next.at_event <= number) {
            self.reported += 1;
            if next.at_event == number && mark == Some((next.device, next.time_ns, next.stage, next.name)) {
                mark = None;
                continue;
            }
            visit(Step::Annotation(next))?;
        }
        Ok(())
    }

    fn report_rest(&self, visit: &mut impl StepVisitor) -> Result<(), ExportError> {
        self.list[self.reported..].iter().try_for_each(|annotation| visit(Step::Annotation(annotation)))
    }
}

/// An event whose following state is not known yet.
#[derive(Clone, Copy, Debug)]
struct PendingEvent {
    time: EventTime,
    event: Event,
    freed_block: Option<Block>,
}

/// A callback for steps.
trait StepVisitor: FnMut(Step<'_>) -> Result<(), ExportError> {}
impl<F: FnMut(Step<'_>) -> Result<(), ExportError>> StepVisitor for F {}

/// Reports an event with the state after it: the state before the next event, or a replayed one if
/// the next event is missing.
fn report_event(
    tracker: &mut LifetimeTracker,
    recording: &Recording,
    after: Option<&MemoryState>,
    PendingEvent { time, event, freed_block }: PendingEvent,
    visit: &mut impl StepVisitor,
) -> Result<(), ExportError> {
    let mut replay = Replay::new();
    let after = match after {
        Some(after) => after,
        None => replay.seek(recording, time.event + 1)?,
    };
    let Some(after) = after.device(event.device) else { return Ok(()) };
    tracker.verify(time, event.device, after, &mut |change| visit(change.into()))?;
    visit(Step::Event { time, event, freed_block, after })
}
