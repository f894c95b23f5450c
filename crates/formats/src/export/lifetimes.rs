//! Follows the allocations of a recording in event order, for the exports that show when each one
//! began and ended.
//!
//! This is a streaming counterpart of [`vramscope_trace::Lifetimes`]. The exports do not use that
//! index, for three reasons:
//!
//! - Memory. The index takes 23 bytes an allocation and has no times, which would take 8 bytes an
//!   event besides: 620 MB for a recording of 40 million events with 13 million allocations. This
//!   keeps only the live blocks of one moment, at about 150 bytes each.
//! - Order. The exports write an allocation when it begins (Perfetto) or ends (tables), which the
//!   index would have to be sorted for.
//! - Contradictory histories. The tables add up to the counters at every event, so an allocation
//!   that is partly overwritten ends at that event. The index ends it at the next full state.
//!
//! For consistent histories both give the same lifetimes, which a test verifies
//! (`tests/export_tools/tables.rs`).

use std::collections::BTreeMap;

use vramscope_trace::{Annotation, Block, DeviceId, DeviceState, Event, EventKind, MemoryState, Recording, Replay};

use super::error::{ExportError, Progress};
use super::walk::for_each_event;

/// The number and time of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventTime {
    /// Number of the event.
    pub(crate) event: u64,
    /// Time in nanoseconds; never before an earlier event.
    pub(crate) time_ns: u64,
}

/// How an allocation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Freed, and its block returned to its pool.
    Freed,
    /// Freed, but a stream still used its block when the recording ended.
    Pending,
    /// Live when the recording ended.
    Alive,
    /// Its end is not recorded: events are missing, or a later event contradicts it.
    Lost,
}

impl Ending {
    /// Returns the name used in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Freed => "freed",
            Self::Pending => "pending",
            Self::Alive => "alive",
            Self::Lost => "lost",
        }
    }
}

/// An allocation, as far as the recording has been read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetime {
    /// Device of the block.
    pub(crate) device: DeviceId,
    /// The block, as it was allocated.
    pub(crate) block: Block,
    /// When it was allocated; `None` if it is older than the recording.
    pub(crate) allocated: Option<EventTime>,
    /// When the program freed it; for a lost one, when it was found missing.
    pub(crate) freed: Option<EventTime>,
    /// When its block returned to its pool; for a lost one, when it was found missing.
    pub(crate) completed: Option<EventTime>,
}

/// A step of the recording. Steps are in the order of events.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    /// An allocation begins.
    Began(&'a Lifetime),
    /// An allocation ends, or the recording does.
    Ended(&'a Lifetime, Ending),
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
    let mut live = LiveAllocations::default();
    let mut pending: Option<PendingEvent> = None;
    for_each_event(recording, progress, |before: &MemoryState, number, event| {
        let is_consecutive = pending.is_some_and(|last| last.time.event + 1 == number);
        if let Some(last) = pending.take() {
            live.report_event(recording, is_consecutive.then_some(before), last, &mut visit)?;
        }
        if !is_consecutive {
            live.adopt_state(before, number == recording.first_event(), &mut visit)?;
        }
        annotations.report_before(number, event, &mut visit)?;
        let time = EventTime { event: number, time_ns: before.time_ns().max(event.time_ns) };
        let freed_block = live.apply(time, event, &mut visit)?;
        pending = Some(PendingEvent { time, event: *event, freed_block });
        Ok::<(), ExportError>(())
    })?;
    let end = recording.end_state();
    let is_consecutive = pending.is_some_and(|last| last.time.event + 1 == recording.end_event());
    let is_empty = pending.is_none();
    if let Some(last) = pending {
        live.report_event(recording, is_consecutive.then_some(end), last, &mut visit)?;
    }
    if !is_consecutive {
        live.adopt_state(end, is_empty, &mut visit)?;
    }
    annotations.report_rest(&mut visit)?;
    live.finish(&mut visit)
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

/// The live allocations by device and address.
#[derive(Debug, Default)]
struct LiveAllocations {
    devices: BTreeMap<DeviceId, BTreeMap<u64, Lifetime>>,
}

impl LiveAllocations {
    /// Adopts a state that does not follow from the events before it.
    fn adopt_state(
        &mut self,
        state: &MemoryState,
        is_first: bool,
        visit: &mut impl StepVisitor,
    ) -> Result<(), ExportError> {
        let at = EventTime { event: state.event(), time_ns: state.time_ns() };
        // A device that the state does not mention has no blocks.
        let empty = DeviceState::default();
        let gone: Vec<DeviceId> = self.devices.keys().copied().filter(|id| state.device(*id).is_none()).collect();
        gone.into_iter().try_for_each(|id| self.adopt_device(id, &empty, at, false, visit))?;
        state.devices().try_for_each(|(id, device)| self.adopt_device(id, device, at, is_first, visit))
    }

    /// Adopts the state of a device. Allocations that it lacks are lost; additional blocks began
    /// without a recorded event.
    fn adopt_device(
        &mut self,
        id: DeviceId,
        state: &DeviceState,
        at: EventTime,
        is_first: bool,
        visit: &mut impl StepVisitor,
    ) -> Result<(), ExportError> {
        let live = self.devices.entry(id).or_default();
        let is_gone = |address: u64, lifetime: &Lifetime| {
            let block = state.block_at(address).filter(|block| block.address == address);
            block.is_none_or(|block| block.since_event != lifetime.block.since_event)
        };
        let gone: Vec<u64> = live
            .iter()
            .filter(|(address, lifetime)| is_gone(**address, lifetime))
            .map(|(address, _)| *address)
            .collect();
        gone.into_iter().try_for_each(|address| end_as_lost(live, address, at, visit))?;
        for block in state.blocks() {
            if live.contains_key(&block.address) {
                continue;
            }
            let since = EventTime { event: block.since_event, time_ns: block.since_ns };
            let lifetime = Lifetime {
                device: id,
                block: *block,
                allocated: (!is_first).then_some(since),
                freed: block.pending_free.then_some(at),
                completed: None,
            };
            visit(Step::Began(&lifetime))?;
            live.insert(block.address, lifetime);
        }
        Ok(())
    }

    /// Reports an event with the state after it: the state before the next event, or a replayed one
    /// if the next event is missing.
    fn report_event(
        &mut self,
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
        // Blocks disappear with a segment that is freed while they are live. Comparing counts is
        // cheap, and no consistent history does this.
        if self.devices.get(&event.device).map_or(0, BTreeMap::len) != after.blocks().len() {
            self.adopt_device(event.device, after, time, false, visit)?;
        }
        visit(Step::Event { time, event, freed_block, after })
    }

    /// Starts and ends the allocations of an event. Returns the block that it frees.
    fn apply(
        &mut self,
        time: EventTime,
        event: &Event,
        visit: &mut impl StepVisitor,
    ) -> Result<Option<Block>, ExportError> {
        let live = self.devices.entry(event.device).or_default();
        match event.kind {
            EventKind::BlockAllocated { address, size, requested, stream, pool, site } => {
                let Some(end) = address.checked_add(size).filter(|_| size > 0) else { return Ok(None) };
                while let Some((&below, overlapped)) = live.range(..end).next_back()
                    && overlapped.block.end() > address
                {
                    end_as_lost(live, below, time, visit)?;
                }
                let (requested, since_event, since_ns) = (requested.min(size), time.event, event.time_ns);
                let block =
                    Block { address, size, requested, stream, pool, site, pending_free: false, since_event, since_ns };
                let lifetime =
                    Lifetime { device: event.device, block, allocated: Some(time), freed: None, completed: None };
                visit(Step::Began(&lifetime))?;
                live.insert(address, lifetime);
            }
            EventKind::FreeRequested { address, .. } => {
                let Some(lifetime) = live.get_mut(&address) else { return Ok(None) };
                lifetime.freed.get_or_insert(time);
                return Ok(Some(lifetime.block));
            }
            EventKind::FreeCompleted { address, .. } => {
                let Some(mut lifetime) = live.remove(&address) else { return Ok(None) };
                lifetime.freed.get_or_insert(time);
                lifetime.completed = Some(time);
                visit(Step::Ended(&lifetime, Ending::Freed))?;
                return Ok(Some(lifetime.block));
            }
            _ => {}
        }
        Ok(None)
    }

    /// Ends the remaining allocations at the end of the recording.
    fn finish(self, visit: &mut impl StepVisitor) -> Result<(), ExportError> {
        self.devices.into_values().flat_map(BTreeMap::into_values).try_for_each(|lifetime| {
            let ending = if lifetime.freed.is_some() { Ending::Pending } else { Ending::Alive };
            visit(Step::Ended(&lifetime, ending))
        })
    }
}

/// Ends an allocation whose end is not recorded.
fn end_as_lost(
    live: &mut BTreeMap<u64, Lifetime>,
    address: u64,
    missed: EventTime,
    visit: &mut impl StepVisitor,
) -> Result<(), ExportError> {
    let Some(mut lifetime) = live.remove(&address) else { return Ok(()) };
    lifetime.freed.get_or_insert(missed);
    lifetime.completed = Some(missed);
    visit(Step::Ended(&lifetime, Ending::Lost))
}
