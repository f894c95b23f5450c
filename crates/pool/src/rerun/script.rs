//! The recorded history as the pool's surroundings: a device that answers as the recorded driver did, and a sink that compares what
//! the pool tells with what was recorded. Both look at the same place in the history.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use vramscope_trace::{Event, EventKind, MempoolId, Sink, StreamId};

use super::history::{Entry, History};
use crate::device::{Device, DeviceError, DeviceMemory, StreamEvent};
use crate::mempool::Diverted;
use crate::settings::Settings;

/// Streams of this number and above are made up, one for each free that was completed late; the number above it is the place of the
/// completion, so that the pool, which looks at streams in order, completes them in the recorded order.
const LATE_STREAMS: u64 = 1 << 62;
/// Private pools that the recording does not name are numbered downward from here.
const ASSUMED_POOLS: u64 = u64::MAX;

/// The stream that stands for a use which was seen to be over at `place`.
pub(super) fn late_stream(place: usize) -> StreamId {
    StreamId(LATE_STREAMS + place as u64)
}

/// The `n`th private pool that the recording does not name.
pub(super) fn assumed_pool(n: usize) -> MempoolId {
    MempoolId(ASSUMED_POOLS - n as u64, 0)
}

/// The capture of a stream that nothing is known of but that it is under way, and the private pool that it would go to.
pub(super) fn other_capture() -> (MempoolId, Diverted) {
    (MempoolId(ASSUMED_POOLS, ASSUMED_POOLS), Diverted::Stream(StreamId(LATE_STREAMS - 1)))
}

/// Whether the recording does not name this private pool.
pub(super) fn is_assumed(pool: MempoolId) -> bool {
    pool.0 > ASSUMED_POOLS / 2
}

/// What differs between the recorded and the pool's decision.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mismatch {
    /// The place in the history.
    pub(super) at: usize,
    /// What the pool decided, or why it could not.
    pub(super) got: Got,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Got {
    Decision(EventKind),
    Failure(String),
    /// The call was over, and nothing more came.
    Nothing,
}

/// How the device answers beyond what the history says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Manner {
    /// Whether the driver may have refused memory; if not, every refusal is the pool's own.
    pub(super) refuses: bool,
    /// Whether uses of other streams are seen to be over when they are asked about, and not only when they are waited for.
    pub(super) passes: bool,
    /// Whether another stream was being captured, so that nothing that was cached could be given back.
    pub(super) captured: bool,
}

impl Manner {
    /// Whatever the driver says, and finished work is seen.
    pub(super) const FREELY: Self = Self { refuses: true, passes: true, captured: false };
}

/// The history and the place up to which the pool has made the same decisions.
#[derive(Debug)]
pub(super) struct Script<'h> {
    history: &'h History,
    at: Cell<usize>,
    manner: Cell<Manner>,
    refused: Cell<bool>,
    mismatch: RefCell<Option<Mismatch>>,
}

impl<'h> Script<'h> {
    pub(super) fn new(history: &'h History) -> Rc<Self> {
        let manner = Cell::new(Manner::FREELY);
        Rc::new(Self { history, at: Cell::new(0), manner, refused: Cell::new(false), mismatch: RefCell::new(None) })
    }

    pub(super) fn at(&self) -> usize {
        self.at.get()
    }

    /// Goes to a place, with nothing known of what comes there.
    pub(super) fn go(&self, at: usize, manner: Manner) {
        self.at.set(at);
        self.manner.set(manner);
        self.refused.set(false);
        *self.mismatch.borrow_mut() = None;
    }

    /// Whether the device refused memory since [`go`](Self::go).
    pub(super) fn has_refused(&self) -> bool {
        self.refused.get()
    }

    pub(super) fn has_mismatch(&self) -> bool {
        self.mismatch.borrow().is_some()
    }

    /// The first difference since [`go`](Self::go).
    pub(super) fn mismatch(&self) -> Option<Mismatch> {
        self.mismatch.borrow().clone()
    }

    /// Notes a difference at the present place; the first counts.
    pub(super) fn differ(&self, got: Got) {
        self.mismatch.borrow_mut().get_or_insert(Mismatch { at: self.at.get(), got });
    }

    fn next(&self) -> Option<&'h EventKind> {
        self.history.entries.get(self.at.get()).map(|entry| &entry.kind)
    }

    fn tell(&self, told: &EventKind) {
        if self.has_mismatch() {
            return;
        }
        if !self.history.has_free_requests && matches!(told, EventKind::FreeRequested { .. }) {
            return;
        }
        match self.next() {
            Some(recorded) if is_same(recorded, told) => self.at.set(self.at.get() + 1),
            _ => self.differ(Got::Decision(*told)),
        }
    }
}

/// Whether the pool decided what was recorded. Sites and the device's free bytes are not decisions. The private pool is what was asked;
/// where the recording names none, there may have been one (see `owners`).
fn is_same(recorded: &EventKind, told: &EventKind) -> bool {
    use EventKind as Kind;
    let same_pool = |recorded: &vramscope_trace::Pool, told: &vramscope_trace::Pool| {
        recorded.kind == told.kind && (recorded.owner == told.owner || recorded.owner == MempoolId::default())
    };
    match (recorded, told) {
        (
            Kind::SegmentAllocated { address, size, stream, pool, .. },
            Kind::SegmentAllocated { address: a, size: s, stream: st, pool: p, .. },
        )
        | (
            Kind::SegmentMapped { address, size, stream, pool, .. },
            Kind::SegmentMapped { address: a, size: s, stream: st, pool: p, .. },
        ) => (address, size, stream) == (a, s, st) && same_pool(pool, p),
        (Kind::SegmentFreed { address, size, .. }, Kind::SegmentFreed { address: a, size: s, .. })
        | (Kind::SegmentUnmapped { address, size, .. }, Kind::SegmentUnmapped { address: a, size: s, .. }) => {
            (address, size) == (a, s)
        }
        (
            Kind::BlockAllocated { address, size, requested, stream, pool, .. },
            Kind::BlockAllocated { address: a, size: s, requested: r, stream: st, pool: p, .. },
        ) => (address, size, requested, stream) == (a, s, r, st) && same_pool(pool, p),
        (Kind::FreeRequested { address, .. }, Kind::FreeRequested { address: a, .. })
        | (Kind::FreeCompleted { address, .. }, Kind::FreeCompleted { address: a, .. }) => address == a,
        (Kind::OutOfMemory { requested, stream, .. }, Kind::OutOfMemory { requested: r, stream: st, .. }) => {
            (requested, stream) == (r, st)
        }
        _ => false,
    }
}

/// The sink that compares.
#[derive(Clone, Debug)]
pub(super) struct Checker<'h>(pub(super) Rc<Script<'h>>);

impl Sink for Checker<'_> {
    fn event(&mut self, event: &Event) {
        self.0.tell(&event.kind);
    }
}

/// The device that answers as the recorded driver did. A refusal has left no entry, so whatever was not given next was refused.
#[derive(Clone, Debug)]
pub(super) struct RecordedDevice<'h> {
    script: Rc<Script<'h>>,
    /// Bytes of addresses in an expandable segment.
    address_bytes: u64,
    /// Bytes given.
    used_bytes: u64,
    /// The fewest bytes that were refused because there was no room for so many in all.
    refused_bytes: Option<u64>,
}

impl<'h> RecordedDevice<'h> {
    pub(super) fn new(script: Rc<Script<'h>>, settings: &Settings) -> Self {
        let used_bytes = script.history.start.counters().reserved;
        let address_bytes = script.history.address_bytes(settings.large_segment_size);
        Self { script, address_bytes, used_bytes, refused_bytes: None }
    }

    /// The most bytes with which everything that was refused still is; `None` where nothing was.
    pub(super) fn capacity_bytes(&self) -> Option<u64> {
        self.refused_bytes.map(|bytes| bytes.saturating_sub(1))
    }

    fn give(&mut self, bytes: u64) {
        self.used_bytes = self.used_bytes.saturating_add(bytes);
    }

    fn refuse(&mut self, bytes: u64) -> DeviceError {
        let all = self.used_bytes.saturating_add(bytes);
        self.refused_bytes = Some(self.refused_bytes.map_or(all, |before| before.min(all)));
        self.script.refused.set(true);
        DeviceError::OutOfMemory
    }
}

fn event_of(stream: StreamId) -> StreamEvent {
    StreamEvent(stream.0)
}

impl Device for RecordedDevice<'_> {
    fn reserve(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        match self.script.next() {
            Some(&EventKind::SegmentAllocated { address, size, .. }) if size == bytes => {
                self.give(bytes);
                Ok(address)
            }
            _ => Err(self.refuse(bytes)),
        }
    }

    fn release(&mut self, _: u64, bytes: u64) -> Result<(), DeviceError> {
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
        Ok(())
    }

    fn memory(&self) -> DeviceMemory {
        let free_bytes = match self.script.next() {
            Some(&EventKind::OutOfMemory { device_free, .. }) => device_free,
            _ => 0,
        };
        let history = self.script.history;
        // What expandable segments take is 9/8 of this.
        let for_addresses = self.address_bytes / 9 * 8;
        let total_bytes = if history.total_bytes > 0 { history.total_bytes } else { for_addresses };
        DeviceMemory { free_bytes, total_bytes }
    }

    fn reserve_addresses(&mut self, _: u64) -> Result<u64, DeviceError> {
        match self.script.next() {
            Some(&EventKind::SegmentMapped { address, .. }) => Ok(address),
            // How many bytes were to be mapped there is not known here.
            _ => {
                self.script.refused.set(true);
                Err(DeviceError::OutOfMemory)
            }
        }
    }

    fn release_addresses(&mut self, _: u64, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn map(&mut self, at: u64, bytes: u64, _: u64) -> Result<(), DeviceError> {
        match self.script.next() {
            Some(&EventKind::SegmentMapped { address, size, .. }) if (address, size) == (at, bytes) => {
                self.give(bytes);
                Ok(())
            }
            _ => Err(self.refuse(bytes)),
        }
    }

    fn unmap(&mut self, _: u64, bytes: u64, _: u64, _: StreamId) -> Result<(), DeviceError> {
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
        Ok(())
    }

    fn record_event(&mut self, stream: StreamId) -> Result<StreamEvent, DeviceError> {
        Ok(event_of(stream))
    }

    fn has_passed(&mut self, event: StreamEvent) -> Result<bool, DeviceError> {
        let script = &self.script;
        let is_next = match script.next() {
            // Of a block that was freed before the history begins, the event has the address.
            Some(&EventKind::FreeCompleted { address, .. }) => {
                event == event_of(late_stream(script.at())) || event == StreamEvent(address)
            }
            _ => false,
        };
        Ok(is_next && script.manner.get().passes && !script.has_mismatch())
    }

    fn wait_for(&mut self, _: StreamEvent) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// An entry in words, for a person who looks for the difference.
pub(super) fn in_words(entry: Option<&Entry>) -> String {
    entry.map_or_else(|| "the end of the history".to_owned(), |entry| kind_in_words(&entry.kind))
}

/// The same of what the pool did.
pub(super) fn got_in_words(got: &Got) -> String {
    match got {
        Got::Decision(kind) => kind_in_words(kind),
        Got::Failure(reason) => reason.clone(),
        Got::Nothing => "nothing".to_owned(),
    }
}

fn kind_in_words(kind: &EventKind) -> String {
    let of_pool = |pool: &vramscope_trace::Pool| {
        let kind = match pool.kind {
            vramscope_trace::PoolKind::Small => "small",
            vramscope_trace::PoolKind::Large => "large",
        };
        match pool.owner {
            MempoolId(0, 0) => format!("the {kind} pool"),
            owner if is_assumed(owner) => format!("the {kind} pool of an unnamed private pool"),
            MempoolId(a, b) => format!("the {kind} pool of private pool ({a}, {b})"),
        }
    };
    match kind {
        EventKind::SegmentAllocated { address, size, stream, pool, .. } => {
            format!("a new segment of {size} bytes at {address:#x} for stream {} in {}", stream.0, of_pool(pool))
        }
        EventKind::SegmentFreed { address, size, .. } => {
            format!("the segment of {size} bytes at {address:#x} given back")
        }
        EventKind::SegmentMapped { address, size, stream, pool, .. } => {
            format!("{size} bytes mapped at {address:#x} for stream {} in {}", stream.0, of_pool(pool))
        }
        EventKind::SegmentUnmapped { address, size, .. } => format!("{size} bytes unmapped at {address:#x}"),
        EventKind::BlockAllocated { address, size, requested, stream, pool, .. } => format!(
            "a block of {size} bytes at {address:#x} for {requested} bytes on stream {} from {}",
            stream.0,
            of_pool(pool)
        ),
        EventKind::FreeRequested { address, .. } => format!("the block at {address:#x} freed by the program"),
        EventKind::FreeCompleted { address, .. } => format!("the block at {address:#x} back in its pool"),
        EventKind::OutOfMemory { requested, stream, .. } => {
            format!("out of memory for {requested} bytes on stream {}", stream.0)
        }
        EventKind::MemorySample { .. } => "a sample of the device's memory".to_owned(),
        EventKind::Mark { .. } => "a mark".to_owned(),
        EventKind::Gap { lost } => format!("{lost} events missing"),
    }
}
