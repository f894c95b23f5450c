//! The position in a history up to which the pool has made the recorded decisions.
//!
//! The recorded driver and the checking sink share one cursor: the driver answers from the entry at
//! the cursor, and the sink advances it when the pool makes the decision of that entry.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::rc::Rc;

use vramscope_trace::{EventKind, MempoolId, PoolKey, Sink, StreamId};

use super::history::History;
use crate::private_pools::CaptureFilter;

/// The lowest id of invented streams, which no program has. Each stands for the unknown streams
/// that one pending free waits for; its id is this number plus the index, in the history, of the
/// entry that completes the free. The pool processes streams in order of id, so it completes the
/// frees in the recorded order.
const FIRST_COMPLETION_STREAM: u64 = 1 << 62;
/// The id of the first assumed private pool, one whose id the recording lacks; further ones are
/// numbered downward.
const MAX_ASSUMED_POOL_ID: u64 = u64::MAX;

/// Returns the stream that a pending free waits for in place of the unknown recorded streams.
/// `position` is the index of the free's completion in the history.
pub(super) fn completion_stream(position: usize) -> StreamId {
    StreamId(FIRST_COMPLETION_STREAM + position as u64)
}

/// Returns the id given to the `n`th, from 0, of the private pools whose ids the recording lacks.
pub(super) fn assumed_private_pool_id(n: usize) -> MempoolId {
    MempoolId(MAX_ASSUMED_POOL_ID - n as u64, 0)
}

/// Returns a private pool that no program has, and a filter that accepts no request. While it is
/// selected, the allocator behaves as during a graph capture of another stream: it releases no
/// cached memory.
pub(super) fn capture_of_another_stream() -> (MempoolId, CaptureFilter) {
    let stream = StreamId(FIRST_COMPLETION_STREAM - 1);
    (MempoolId(MAX_ASSUMED_POOL_ID, MAX_ASSUMED_POOL_ID), CaptureFilter::Stream(stream))
}

/// Returns true for the id of an assumed private pool, one whose id the recording lacks; false for
/// recorded ids.
pub(super) fn is_assumed_private_pool(pool: MempoolId) -> bool {
    pool.0 > MAX_ASSUMED_POOL_ID / 2
}

/// The first difference between a recorded allocator event and the pool's behavior: the event's
/// index in the history, and the pool's decision.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mismatch {
    /// The position in the history.
    pub(super) at: usize,
    /// The pool's decision in its place.
    pub(super) outcome: Outcome,
}

/// The pool's behavior in place of the next recorded decision: another decision, a failed call, or
/// nothing.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    /// It made another decision.
    Decision(EventKind),
    /// The call failed.
    Failure(String),
    /// The call ended without a further decision.
    Nothing,
}

/// Assumptions about a call that no recorded event shows: the driver's refusals, the passing of
/// stream events, and a graph capture of another stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Assumptions {
    /// The driver may have refused memory. If false, every refusal must be the pool's own.
    pub(super) driver_may_refuse: bool,
    /// Stream events have passed when they are queried, not only when they are waited for.
    pub(super) events_pass: bool,
    /// Another stream was being captured, so that no cached memory could be released.
    pub(super) other_capture: bool,
}

impl Assumptions {
    /// The assumptions to try first: the driver may refuse memory, stream events pass before they
    /// are waited for, and no other stream is captured.
    pub(super) const DEFAULT: Self = Self { driver_may_refuse: true, events_pass: true, other_capture: false };
}

/// The position in a history up to which a pool has made the recorded decisions, and the first
/// mismatch after it.
#[derive(Debug)]
pub(super) struct HistoryCursor<'h> {
    history: &'h History,
    position: Cell<usize>,
    assumptions: Cell<Assumptions>,
    driver_refused: Cell<bool>,
    mismatch: RefCell<Option<Mismatch>>,
}

impl<'h> HistoryCursor<'h> {
    pub(super) fn new(history: &'h History) -> Rc<Self> {
        Rc::new(Self {
            history,
            position: Cell::new(0),
            assumptions: Cell::new(Assumptions::DEFAULT),
            driver_refused: Cell::new(false),
            mismatch: RefCell::new(None),
        })
    }

    /// Returns the history whose events are compared with the pool's.
    pub(super) fn history(&self) -> &'h History {
        self.history
    }

    /// Returns the index, in the history, of the next recorded event to compare with the pool's;
    /// the number of events at the end.
    pub(super) fn position(&self) -> usize {
        self.position.get()
    }

    /// Returns the assumptions about the call being made to the pool, as given to
    /// [`seek`](Self::seek).
    pub(super) fn assumptions(&self) -> Assumptions {
        self.assumptions.get()
    }

    /// Moves the cursor to the history's entry with index `position`, replaces the assumptions
    /// about the next call, and forgets the mismatch and the driver's refusal, if any.
    pub(super) fn seek(&self, position: usize, assumptions: Assumptions) {
        self.position.set(position);
        self.assumptions.set(assumptions);
        self.driver_refused.set(false);
        *self.mismatch.borrow_mut() = None;
    }

    /// Returns true if the recorded driver refused memory since the last [`seek`](Self::seek);
    /// false if it was not asked or provided all.
    pub(super) fn driver_refused(&self) -> bool {
        self.driver_refused.get()
    }

    /// Notes that the recorded driver refused memory; [`driver_refused`](Self::driver_refused)
    /// returns true until the next [`seek`](Self::seek).
    pub(super) fn set_driver_refused(&self) {
        self.driver_refused.set(true);
    }

    /// Returns true if the pool's events differed from the recorded ones since the last
    /// [`seek`](Self::seek); false if all were equal.
    pub(super) fn has_mismatch(&self) -> bool {
        self.mismatch.borrow().is_some()
    }

    /// Returns the first difference between the pool's events and the recorded ones since the last
    /// [`seek`](Self::seek); `None` if all were equal.
    pub(super) fn mismatch(&self) -> Option<Mismatch> {
        self.mismatch.borrow().clone()
    }

    /// Records a mismatch at the cursor's position, unless a mismatch is already recorded.
    pub(super) fn record_mismatch(&self, outcome: Outcome) {
        self.mismatch.borrow_mut().get_or_insert(Mismatch { at: self.position.get(), outcome });
    }

    /// Records a mismatch if the result of a call to the pool is an error.
    pub(super) fn expect_success<E: Display>(&self, result: Result<(), E>) {
        if let Err(error) = result {
            self.record_mismatch(Outcome::Failure(error.to_string()));
        }
    }

    /// Returns the recorded event at the cursor, not yet compared with the pool's: a segment,
    /// block, free or out-of-memory event. `None` at the end of the history.
    pub(super) fn next_recorded_event(&self) -> Option<&'h EventKind> {
        self.history.entries.get(self.position.get()).map(|entry| &entry.kind)
    }

    /// Compares an event of the pool with the recorded event at the cursor. Advances the cursor if
    /// they are equal, and records a mismatch if not. Does nothing after a mismatch.
    fn compare(&self, decision: &EventKind) {
        if self.has_mismatch() {
            return;
        }
        if !self.history.has_free_requests && matches!(decision, EventKind::FreeRequested { .. }) {
            return;
        }
        match self.next_recorded_event() {
            Some(recorded) if is_same_decision(recorded, decision) => self.position.set(self.position.get() + 1),
            _ => self.record_mismatch(Outcome::Decision(*decision)),
        }
    }
}

/// Returns true if an event of the pool equals the recorded one in all that the allocator decides:
/// addresses, sizes, stream and size class. Sites, free device memory, and a private pool that the
/// recording lacks are not compared.
fn is_same_decision(recorded: &EventKind, decision: &EventKind) -> bool {
    use EventKind as Kind;
    let same_pool = |recorded: &PoolKey, actual: &PoolKey| {
        recorded.kind == actual.kind && (recorded.owner == actual.owner || recorded.owner == MempoolId::default())
    };
    match (recorded, decision) {
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

/// A sink that compares each event of the pool with the next recorded event of a history.
#[derive(Clone, Debug)]
pub(super) struct DecisionChecker<'h>(pub(super) Rc<HistoryCursor<'h>>);

impl Sink for DecisionChecker<'_> {
    fn event(&mut self, event: &vramscope_trace::Event) {
        self.0.compare(&event.kind);
    }
}
