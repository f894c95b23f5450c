//! The follower's side of a device: turns the records of its ring into events of the recording.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vramscope_collector::RecorderHandle;
use vramscope_collector::ring::Consumer;
use vramscope_formats::{LiveDevice, LiveEntry, TraceAction};
use vramscope_trace::{
    AnnotationStage, Category, DeviceId, DeviceState, Event, EventKind, MempoolId, Relabel, Sink as _, SiteId,
};

use crate::definitions::{Code, Definitions, Names, TrackedRequest};
use crate::modules;
use crate::notes::{Note, NoteKind, record_mark};
use crate::record::{self, CODE, EVENT_KINDS, LOST, NODE, OWN_SNAPSHOT, RING_LEN, SCOPE, SETTING, STACK, TABLES};
use crate::torch::{actions, is_request};
use crate::workspaces::WorkspaceCandidates;
use crate::writer::Overflow;

/// The private pool id to which snapshots of pinned host memory are limited. No pool has this id,
/// because one of the two numbers of PyTorch's ids is always 0. So these snapshots contain no
/// device memory, and the tracker can distinguish them from other snapshots.
pub(crate) const PINNED_SNAPSHOT_POOL: MempoolId = MempoolId(0x7672_616d, 1);
/// Maximum number of events that are held until the tracker has been checked: they take 40 MB.
/// Beyond it, they are discarded, and another snapshot is needed.
const MAX_HELD_EVENTS: usize = 1 << 19;
/// Maximum number of notes that are held until the tracker has been checked; beyond it, the oldest
/// are dropped.
const MAX_HELD_NOTES: usize = 1 << 14;
/// Number of events that are read before their room in the ring is released to the tracker.
const RELEASE_EVENTS: u64 = 4096;

/// Whether the events of a device are discarded, kept until a snapshot, or recorded.
enum Phase {
    /// Events are discarded.
    Off,
    /// Events are kept in the ring until a snapshot provides the state before them.
    Waiting,
    /// Events are recorded.
    Recording(Box<Recording>),
}

/// A device that is being recorded.
struct Recording {
    live: LiveDevice,
    handle: RecorderHandle,
    /// Time of the last event, in nanoseconds since the recording began.
    time_ns: u64,
    /// The site of each live block, by address.
    sites: HashMap<u64, SiteId>,
    workspaces: WorkspaceCandidates,
}

/// The reading end of one device's ring, which converts its records to events of the recording.
pub(crate) struct DeviceReader {
    pub(crate) device: DeviceId,
    ring: Consumer<RING_LEN>,
    overflow: Arc<Overflow>,
    definitions: Definitions,
    /// Stream and private pool of the ring's next events.
    setting: [u64; 3],
    /// Number of the scope of the ring's next requests; 0 for none.
    scope: u32,
    /// Sequence number of the autograd node of the ring's next event.
    node: Option<u32>,
    /// True if this version of PyTorch reports private pools.
    has_mempools: bool,
    phase: Phase,
    /// True while events stay in the ring until the tracker has been checked.
    pub(crate) holds_events: bool,
    /// Events that were read from the ring and are still to be recorded, in order.
    held: VecDeque<RawEvent>,
    /// Number of generations of stacks that have begun since the first held event.
    held_generations: u32,
    /// Number of events that the tracker lost before the ring's next event.
    lost: u64,
    /// Value of `lost` when the recording began or was last resumed.
    known_lost: u64,
    /// Number of events that were discarded since the recording began or was last resumed.
    discarded: u64,
    words: Vec<u64>,
    /// Notes that are still to be recorded, in the order of time.
    pub(crate) notes: VecDeque<Note>,
}

/// An event as the ring has it: PyTorch's fields, with numbers of stack, scope and operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawEvent {
    pub(crate) action: u8,
    pub(crate) stack: u32,
    /// Number of the scope, for a request; 0 for none.
    pub(crate) scope: u32,
    /// For a request with Python frames in a backward pass: low part of the sequence number of the
    /// operation whose backward pass it is.
    pub(crate) node: Option<u32>,
    /// Low part of the sequence number of autograd's operation; 0 for none.
    pub(crate) sequence: u32,
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// The processor's time-stamp counter.
    pub(crate) time: u64,
    /// Stream and private pool.
    setting: [u64; 3],
}

impl RawEvent {
    #[cfg(test)]
    pub(crate) fn new(action: u8, address: u64, size: u64, time: u64, setting: [u64; 3]) -> Self {
        Self { action, stack: 0, scope: 0, node: None, sequence: 0, address, size, time, setting }
    }

    /// Returns true if this is the event of a snapshot that this library took, not the program.
    pub(crate) fn is_own_snapshot(&self) -> bool {
        self.action == actions::SNAPSHOT && self.address == OWN_SNAPSHOT
    }

    /// Returns the change of memory that the event reports; `None` for an event that changes
    /// nothing. `has_mempools` says whether this version of PyTorch reports private pools.
    pub(crate) fn live_entry(&self, has_mempools: bool) -> Option<LiveEntry> {
        live_action(self.action).map(|action| self.entry_of(action, has_mempools))
    }

    fn entry_of(&self, action: TraceAction, has_mempools: bool) -> LiveEntry {
        let [stream, first, second] = self.setting;
        let mempool = has_mempools.then_some(MempoolId(first, second));
        LiveEntry { action, address: self.address, size: self.size, stream, mempool }
    }
}

impl DeviceReader {
    pub(crate) fn new(device: DeviceId, ring: Consumer<RING_LEN>, overflow: Arc<Overflow>, has_mempools: bool) -> Self {
        Self {
            device,
            ring,
            overflow,
            definitions: Definitions::default(),
            setting: [0; 3],
            scope: 0,
            node: None,
            has_mempools,
            phase: Phase::Off,
            holds_events: false,
            held: VecDeque::new(),
            held_generations: 0,
            lost: 0,
            known_lost: 0,
            discarded: 0,
            words: Vec::new(),
            notes: VecDeque::new(),
        }
    }

    /// Returns true if events were lost since the last snapshot, so that another one is needed.
    pub(crate) fn needs_snapshot(&self) -> bool {
        match &self.phase {
            Phase::Recording(recording) => {
                recording.live.contradictions() > 0 || self.overflow.is_full.load(Ordering::Acquire)
            }
            // The ring may have no room for the entry of the snapshot.
            Phase::Waiting => self.overflow.is_full.load(Ordering::Acquire),
            Phase::Off => false,
        }
    }

    /// Returns true if events are kept in the ring until [`record`](Self::record).
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting)
    }

    /// Ends the recording of the device: later events are discarded.
    pub(crate) fn stop(&mut self) {
        if let Phase::Recording(recording) = &mut self.phase {
            let lost = self.overflow.lost.load(Ordering::Relaxed).saturating_sub(self.known_lost);
            if lost > 0 {
                // The lost events are recorded without a state after them, because none is known.
                let kind = EventKind::Gap { lost };
                recording.handle.event(&Event { device: self.device, time_ns: recording.time_ns, kind });
            }
        }
        self.phase = Phase::Off;
        self.holds_events = false;
        self.definitions.end_recording();
        self.notes.clear();
    }

    /// Discards the ring's events until now, lets the tracker write again if the ring was full, and
    /// keeps later events in the ring.
    pub(crate) fn wait_for_snapshot(&mut self) {
        self.phase = Phase::Waiting;
        self.hold_events();
        self.discarded += self.held.len() as u64;
        self.held.clear();
        self.overflow.is_full.store(false, Ordering::Release);
    }

    /// Reads the events that the ring has now and holds them. Returns all held events.
    pub(crate) fn hold_events(&mut self) -> &VecDeque<RawEvent> {
        self.ring.refresh();
        while let Some(event) = self.read_event() {
            if self.held.is_empty() {
                self.held_generations = 0;
            }
            self.held.push_back(event);
        }
        self.ring.release();
        // The stacks of events from before the previous generation are forgotten.
        if self.held.len() > MAX_HELD_EVENTS || !self.held.is_empty() && self.held_generations > 1 {
            // Marks the ring as full, so that the recording continues with another snapshot.
            self.discarded += self.held.len() as u64;
            self.held.clear();
            self.overflow.is_full.store(true, Ordering::Release);
        }
        &self.held
    }

    /// Removes a held event, by its index, so that it is not recorded.
    pub(crate) fn leave_out(&mut self, index: usize) {
        self.held.remove(index);
    }

    /// Discards events up to and including the next event of a snapshot that this library took, and
    /// returns that event; `None` if there is none.
    pub(crate) fn skip_to_snapshot(&mut self) -> Option<RawEvent> {
        self.ring.refresh();
        let mut found = None;
        while let Some(event) = self.next_event() {
            if event.is_own_snapshot() {
                found = Some(event);
                break;
            }
            self.discarded += 1;
        }
        self.ring.release();
        found
    }

    /// Starts to record events from the current position of the ring on. `live` and `state` are the
    /// device's state at this position: `live` to convert events, `state` with the blocks and their
    /// sites.
    pub(crate) fn record(&mut self, live: LiveDevice, state: &DeviceState, handle: RecorderHandle, time_ns: u64) {
        self.known_lost = self.lost;
        self.discarded = 0;
        let sites = state.blocks().map(|block| (block.address, block.site)).collect();
        let mut workspaces = WorkspaceCandidates::default();
        state.blocks().for_each(|block| workspaces.allocated(block.address, block.requested));
        self.phase = Phase::Recording(Box::new(Recording { live, handle, time_ns, sites, workspaces }));
    }

    /// Continues to record after events were lost: records their number and then `state`, the
    /// device's state after them. `live` has the same state, to convert later events.
    pub(crate) fn resume(&mut self, live: LiveDevice, state: DeviceState, mut handle: RecorderHandle, time_ns: u64) {
        let lost = self.lost - self.known_lost + self.discarded;
        // Entries that contradict each other mean that at least one is missing.
        handle.resync(self.device, time_ns, lost.max(1), state.clone());
        self.record(live, &state, handle, time_ns);
    }

    /// Records the events that are in the ring now. Discards them if the device is not recorded.
    pub(crate) fn run_pass(&mut self, names: &mut Names) {
        if self.holds_events && !self.is_waiting() && self.hold_events().is_empty() {
            // If no events are held, the notes need not wait for the check of the tracker.
            self.record_notes();
            return;
        }
        if self.is_waiting() || self.holds_events {
            let excess = self.notes.len().saturating_sub(MAX_HELD_NOTES);
            self.notes.drain(..excess);
            return;
        }
        self.ring.refresh();
        let mut events = 0_u64;
        while let Some(event) = self.next_event() {
            while let Some(note) = self.notes.pop_front_if(|note| note.time < event.time) {
                self.record_note(note);
            }
            self.record_event(event, names);
            events += 1;
            if events.is_multiple_of(RELEASE_EVENTS) {
                self.ring.release();
            }
        }
        self.ring.release();
        // The ring contained every event that happened before the notes were taken.
        self.record_notes();
    }

    /// Records all notes.
    fn record_notes(&mut self) {
        while let Some(note) = self.notes.pop_front() {
            self.record_note(note);
        }
    }

    /// Records a note. Does nothing unless the device's events are being recorded.
    fn record_note(&mut self, note: Note) {
        let Phase::Recording(recording) = &mut self.phase else { return };
        let Recording { handle, time_ns, workspaces, .. } = &mut **recording;
        *time_ns = handle.ns_at_time_stamp(note.time).max(*time_ns);
        let (device, time_ns) = (self.device, *time_ns);
        match note.kind {
            NoteKind::Mark { name, stage } => record_mark(handle, device, time_ns, &name, stage),
            NoteKind::Relabel { address, category, scope } => self.relabel(time_ns, &[address], category, &scope),
            NoteKind::StepEnd { workspace_bytes } => {
                let found = workspaces.check(workspace_bytes);
                self.relabel(time_ns, &found, Category::Workspace, "");
            }
        }
    }

    /// Gives the live blocks at these addresses a category and, unless `scope` is empty, a scope.
    fn relabel(&mut self, time_ns: u64, addresses: &[u64], category: Category, scope: &str) {
        let Phase::Recording(recording) = &mut self.phase else { return };
        let Recording { handle, sites, .. } = &mut **recording;
        for &address in addresses {
            let Some(known) = sites.get_mut(&address) else { continue };
            let site = self.definitions.relabel(*known, category, scope, handle);
            if site != *known {
                *known = site;
                handle.relabel(&Relabel { device: self.device, time_ns, address, site });
            }
        }
    }

    /// Records one event. Does nothing unless the device's events are being recorded.
    fn record_event(&mut self, event: RawEvent, names: &mut Names) {
        let Phase::Recording(recording) = &mut self.phase else { return };
        let Recording { live, handle, time_ns, sites, workspaces } = &mut **recording;
        // The counters of two processors may differ by some nanoseconds, but times never go back.
        *time_ns = handle.ns_at_time_stamp(event.time).max(*time_ns);
        let RawEvent { stack, sequence, node, scope, .. } = event;
        if self.definitions.has_unnamed_module(stack) {
            modules::want_names(event.time);
        }
        let request = TrackedRequest { stack, sequence, node, scope };
        let site = self.definitions.site(request, names, handle);
        let kind = match live_action(event.action) {
            Some(action) => {
                let entry = event.entry_of(action, self.has_mempools);
                match action {
                    TraceAction::Allocated => {
                        sites.insert(event.address, site);
                        workspaces.allocated(event.address, event.size);
                    }
                    TraceAction::FreeCompleted => {
                        sites.remove(&event.address);
                        workspaces.freed(event.address);
                    }
                    _ => {}
                }
                live.apply(&entry, site)
            }
            None if event.action == actions::SNAPSHOT => {
                let name = handle.intern(|interner| interner.string("snapshot"));
                EventKind::Mark { stage: AnnotationStage::Instant, name, address: 0, site: SiteId(0) }
            }
            None => return,
        };
        handle.event(&Event { device: self.device, time_ns: *time_ns, kind });
    }

    /// Returns the next event: a held one if there is one, else the ring's next; `None` if all
    /// events of the last refresh of the ring have been returned.
    fn next_event(&mut self) -> Option<RawEvent> {
        self.held.pop_front().or_else(|| self.read_event())
    }

    /// Reads records from the ring up to the next event and returns the event; `None` if all
    /// records of the last refresh of the ring have been read.
    fn read_event(&mut self) -> Option<RawEvent> {
        loop {
            let head = self.ring.take()?;
            match record::kind(head) {
                action if action < EVENT_KINDS => {
                    let [address, size, time] = [self.ring.take()?, self.ring.take()?, self.ring.take()?];
                    let (stack, sequence, setting) = (record::number(head), record::sequence(head), self.setting);
                    let scope = if is_request(action) { self.scope } else { 0 };
                    let node = self.node.take();
                    let [_, first, second] = setting;
                    if action == actions::SNAPSHOT && MempoolId(first, second) == PINNED_SNAPSHOT_POOL {
                        // This snapshot has no state of this device.
                        continue;
                    }
                    return Some(RawEvent { action, stack, scope, node, sequence, address, size, time, setting });
                }
                SETTING => self.setting = [self.ring.take()?, self.ring.take()?, self.ring.take()?],
                SCOPE => self.scope = record::number(head),
                NODE => self.node = Some(record::number(head)),
                LOST => self.lost = self.ring.take()?,
                TABLES => {
                    self.definitions.replace_stacks();
                    self.held_generations = self.held_generations.saturating_add(1);
                }
                CODE => self.read_code(head)?,
                STACK => {
                    self.read_words(record::stack_words(head))?;
                    self.definitions.add_stack(&self.words);
                }
                kind => unreachable!("the tracker writes no record of kind {kind}"),
            }
        }
    }

    /// Reads the rest of a code object's definition, which begins with `head`, and stores it.
    /// `None` if the ring has no more words.
    fn read_code(&mut self, head: u64) -> Option<()> {
        let [file, name] = record::code_text_lengths(head);
        let address = self.ring.take()?;
        self.read_words((file + name).div_ceil(8))?;
        let bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let text = |range| String::from_utf8_lossy(bytes.get(range).unwrap_or_default()).into_owned();
        self.definitions.add_code(Code { address, file: text(0..file), function: text(file..file + name) });
        Some(())
    }

    /// Reads `count` words of the ring into `words`. `None` if the ring has fewer.
    fn read_words(&mut self, count: usize) -> Option<()> {
        self.words.clear();
        for _ in 0..count {
            self.words.push(self.ring.take()?);
        }
        Some(())
    }
}

/// Returns the change of memory for an action of PyTorch's trace entries; `None` for an action that
/// changes nothing.
fn live_action(action: u8) -> Option<TraceAction> {
    Some(match action {
        actions::ALLOC => TraceAction::Allocated,
        actions::FREE_REQUESTED => TraceAction::FreeRequested,
        actions::FREE_COMPLETED => TraceAction::FreeCompleted,
        actions::SEGMENT_ALLOC => TraceAction::SegmentAllocated,
        actions::SEGMENT_FREE => TraceAction::SegmentFreed,
        actions::SEGMENT_MAP => TraceAction::SegmentMapped,
        actions::SEGMENT_UNMAP => TraceAction::SegmentUnmapped,
        actions::OOM => TraceAction::OutOfMemory,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use vramscope_collector::ring::ring;

    use super::*;

    #[test]
    fn events_are_held_as_long_as_their_stacks_are_known() {
        let (mut tracker, consumer) = ring::<RING_LEN>();
        let mut reader = DeviceReader::new(DeviceId(0), consumer, Arc::default(), false);
        let stack = [record::stack_head(2, 1), record::native_frame_word(), 0x4000];
        let event = [record::event_head(actions::ALLOC, 0, 1), 0x7000, 512, 1];
        tracker.put([u64::from(TABLES)]);
        tracker.put(stack);
        tracker.put(event);
        assert_eq!(reader.hold_events().len(), 1);
        tracker.put([u64::from(TABLES)]);
        tracker.put(event);
        assert_eq!(reader.hold_events().len(), 2);
        assert!(!reader.overflow.is_full.load(Ordering::Acquire));
        // The second further generation forgets the stack.
        tracker.put([u64::from(TABLES)]);
        assert_eq!((reader.hold_events().len(), reader.discarded), (0, 2));
        assert!(reader.overflow.is_full.load(Ordering::Acquire), "the recording continues with a snapshot");
        tracker.put(event);
        tracker.put([u64::from(TABLES)]);
        assert_eq!(reader.hold_events().len(), 1);
    }
}
