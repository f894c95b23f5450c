//! What happens in a recording, allocation by allocation: the walk that the exports to other tools have in common.
//!
//! A [`walk`](super::walk) shows events; those tools want to know of an allocation when it began, when it ended and how. This follows
//! the live blocks beside the memory state and by the same rules: a newer event is believed, and what it contradicts is lost. What is
//! held is the live blocks of one moment and nothing of the past.

use std::collections::BTreeMap;

use vramscope_trace::{Annotation, Block, DeviceId, DeviceState, Event, EventKind, MemoryState, Recording, Replay};

use super::{ExportError, Progress, walk};

/// Between which events something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// The number of the event that it was.
    pub(crate) event: u64,
    /// When, in nanoseconds; never before an earlier event.
    pub(crate) time_ns: u64,
}

/// What became of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It was freed, and its block went back to its pool.
    Freed,
    /// It was freed, and a stream still used its block when the recording ended.
    Pending,
    /// It was there when the recording ended.
    Alive,
    /// Its end is not in the recording: events are missing, or a later one contradicts it.
    Lost,
}

impl Ending {
    /// The word for it in a table.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Freed => "freed",
            Self::Pending => "pending",
            Self::Alive => "alive",
            Self::Lost => "lost",
        }
    }
}

/// An allocation, as far as the recording has gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetime {
    /// The device it is on.
    pub(crate) device: DeviceId,
    /// The block.
    pub(crate) block: Block,
    /// When it was allocated; `None` where it was there before the first event.
    pub(crate) allocated: Option<Moment>,
    /// When the program freed it, or, of a lost one, when it was missed.
    pub(crate) freed: Option<Moment>,
    /// When its block went back to its pool, or, of a lost one, when it was missed.
    pub(crate) completed: Option<Moment>,
}

/// One thing that happens, in order.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    /// An allocation begins.
    Began(&'a Lifetime),
    /// An allocation ends, or the recording does.
    Ended(&'a Lifetime, Ending),
    /// An event was applied; behind the allocations that it began or ended.
    Event {
        /// Its number and time.
        moment: Moment,
        /// The event.
        event: Event,
        /// The block that it frees, as it was before.
        frees: Option<Block>,
        /// Its device behind it.
        after: &'a DeviceState,
    },
    /// Something that stands beside the history.
    Annotation(&'a Annotation),
}

/// Calls `visit` with everything that happens. Memory is bounded by that of one state, one chunk and the annotations.
///
/// # Errors
/// If a chunk cannot be read, and whatever `visit` returns.
pub(crate) fn follow(
    recording: &Recording,
    progress: Progress<'_>,
    mut visit: impl FnMut(Step<'_>) -> Result<(), ExportError>,
) -> Result<(), ExportError> {
    let mut annotations = Annotations::of(recording);
    let mut blocks = Blocks::default();
    let mut waiting: Option<Told> = None;
    walk(recording, progress, |before: &MemoryState, number, event| {
        let is_next = waiting.is_some_and(|last| last.moment.event + 1 == number);
        if let Some(last) = waiting.take() {
            blocks.tell(recording, is_next.then_some(before), last, &mut visit)?;
        }
        if !is_next {
            blocks.adopt_all(before, number == recording.first_event(), &mut visit)?;
        }
        annotations.up_to(number, event, &mut visit)?;
        let moment = Moment { event: number, time_ns: before.time_ns().max(event.time_ns) };
        let frees = blocks.apply(moment, event, &mut visit)?;
        waiting = Some(Told { moment, event: *event, frees });
        Ok::<(), ExportError>(())
    })?;
    let end = recording.end_state();
    let is_next = waiting.is_some_and(|last| last.moment.event + 1 == recording.end_event());
    let is_empty = waiting.is_none();
    if let Some(last) = waiting {
        blocks.tell(recording, is_next.then_some(end), last, &mut visit)?;
    }
    if !is_next {
        blocks.adopt_all(end, is_empty, &mut visit)?;
    }
    annotations.rest(&mut visit)?;
    blocks.finish(&mut visit)
}

/// The annotations in the order of the events that they stand before. The marks among the events are among them too, and are told
/// as events.
struct Annotations {
    list: Vec<Annotation>,
    told: usize,
}

impl Annotations {
    fn of(recording: &Recording) -> Self {
        let mut list = recording.annotations().to_vec();
        list.sort_by_key(|annotation| annotation.at_event);
        Self { list, told: 0 }
    }

    /// Tells those that stand before event `number`.
    fn up_to(&mut self, number: u64, event: &Event, visit: &mut impl Visit) -> Result<(), ExportError> {
        let mut mark = match event.kind {
            EventKind::Mark { stage, name, .. } => Some((event.device, event.time_ns, stage, name)),
            _ => None,
        };
        while let Some(next) = self.list.get(self.told).filter(|next| next.at_event <= number) {
            self.told += 1;
            if next.at_event == number && mark == Some((next.device, next.time_ns, next.stage, next.name)) {
                mark = None;
                continue;
            }
            visit(Step::Annotation(next))?;
        }
        Ok(())
    }

    fn rest(&self, visit: &mut impl Visit) -> Result<(), ExportError> {
        self.list[self.told..].iter().try_for_each(|annotation| visit(Step::Annotation(annotation)))
    }
}

/// An event that is told when the state behind it is known.
#[derive(Clone, Copy, Debug)]
struct Told {
    moment: Moment,
    event: Event,
    frees: Option<Block>,
}

/// Takes the steps.
trait Visit: FnMut(Step<'_>) -> Result<(), ExportError> {}
impl<F: FnMut(Step<'_>) -> Result<(), ExportError>> Visit for F {}

/// The live blocks by device and address.
#[derive(Debug, Default)]
struct Blocks {
    devices: BTreeMap<DeviceId, BTreeMap<u64, Lifetime>>,
}

impl Blocks {
    /// Takes over a state that does not follow from the events before it.
    fn adopt_all(&mut self, state: &MemoryState, is_first: bool, visit: &mut impl Visit) -> Result<(), ExportError> {
        let at = Moment { event: state.event(), time_ns: state.time_ns() };
        // A device of which the state says nothing has nothing.
        let nothing = DeviceState::default();
        let gone: Vec<DeviceId> = self.devices.keys().copied().filter(|id| state.device(*id).is_none()).collect();
        gone.into_iter().try_for_each(|id| self.adopt(id, &nothing, at, false, visit))?;
        state.devices().try_for_each(|(id, device)| self.adopt(id, device, at, is_first, visit))
    }

    /// Takes over the blocks of a device. Allocations that it does not have are lost, and those that it has besides began unseen.
    fn adopt(
        &mut self,
        id: DeviceId,
        state: &DeviceState,
        at: Moment,
        is_first: bool,
        visit: &mut impl Visit,
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
        gone.into_iter().try_for_each(|address| lose(live, address, at, visit))?;
        for block in state.blocks() {
            if live.contains_key(&block.address) {
                continue;
            }
            let since = Moment { event: block.since_event, time_ns: block.since_ns };
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

    /// Tells an event with the state behind it: the one before the next event or, where what follows is missing, a replay's.
    fn tell(
        &mut self,
        recording: &Recording,
        after: Option<&MemoryState>,
        Told { moment, event, frees }: Told,
        visit: &mut impl Visit,
    ) -> Result<(), ExportError> {
        let mut replay = Replay::new();
        let after = match after {
            Some(after) => after,
            None => replay.seek(recording, moment.event + 1)?,
        };
        let Some(after) = after.device(event.device) else { return Ok(()) };
        // Blocks go with a segment that is taken away under them. Counting them costs nothing, and no sound history does it.
        if self.devices.get(&event.device).map_or(0, BTreeMap::len) != after.blocks().len() {
            self.adopt(event.device, after, moment, false, visit)?;
        }
        visit(Step::Event { moment, event, frees, after })
    }

    /// Begins and ends what an event begins and ends by itself. Returns the block that it frees.
    fn apply(&mut self, moment: Moment, event: &Event, visit: &mut impl Visit) -> Result<Option<Block>, ExportError> {
        let live = self.devices.entry(event.device).or_default();
        match event.kind {
            EventKind::BlockAllocated { address, size, requested, stream, pool, site } => {
                let Some(end) = address.checked_add(size).filter(|_| size > 0) else { return Ok(None) };
                while let Some((&below, overlapped)) = live.range(..end).next_back()
                    && overlapped.block.end() > address
                {
                    lose(live, below, moment, visit)?;
                }
                let (requested, since_event, since_ns) = (requested.min(size), moment.event, event.time_ns);
                let block =
                    Block { address, size, requested, stream, pool, site, pending_free: false, since_event, since_ns };
                let lifetime =
                    Lifetime { device: event.device, block, allocated: Some(moment), freed: None, completed: None };
                visit(Step::Began(&lifetime))?;
                live.insert(address, lifetime);
            }
            EventKind::FreeRequested { address, .. } => {
                let Some(lifetime) = live.get_mut(&address) else { return Ok(None) };
                lifetime.freed.get_or_insert(moment);
                return Ok(Some(lifetime.block));
            }
            EventKind::FreeCompleted { address, .. } => {
                let Some(mut lifetime) = live.remove(&address) else { return Ok(None) };
                lifetime.freed.get_or_insert(moment);
                lifetime.completed = Some(moment);
                visit(Step::Ended(&lifetime, Ending::Freed))?;
                return Ok(Some(lifetime.block));
            }
            _ => {}
        }
        Ok(None)
    }

    /// The recording ends.
    fn finish(self, visit: &mut impl Visit) -> Result<(), ExportError> {
        self.devices.into_values().flat_map(BTreeMap::into_values).try_for_each(|lifetime| {
            let ending = if lifetime.freed.is_some() { Ending::Pending } else { Ending::Alive };
            visit(Step::Ended(&lifetime, ending))
        })
    }
}

/// Ends an allocation of which nobody knows how it ended.
fn lose(
    live: &mut BTreeMap<u64, Lifetime>,
    address: u64,
    missed: Moment,
    visit: &mut impl Visit,
) -> Result<(), ExportError> {
    let Some(mut lifetime) = live.remove(&address) else { return Ok(()) };
    lifetime.freed.get_or_insert(missed);
    lifetime.completed = Some(missed);
    visit(Step::Ended(&lifetime, Ending::Lost))
}
