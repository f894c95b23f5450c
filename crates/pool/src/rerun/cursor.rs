//! The position in a history up to which the pool has made the recorded decisions.
//!
//! The recorded driver and the checking sink share one cursor: the driver answers from the entry at
//! the cursor, and the sink advances it when the pool makes the decision of that entry.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use vramscope_trace::{EventKind, MempoolId, PoolKey, Sink, StreamId};

use super::history::History;
use crate::private_pools::CaptureFilter;

/// Streams from this number on stand for the use that a pending free waits for, one stream for each
/// such free: this number plus the position of the completion. The pool processes streams in order,
/// so it completes the frees in the recorded order.
const FIRST_COMPLETION_STREAM: u64 = 1 << 62;
/// Private pools that the recording does not name are numbered downward from here.
const LAST_UNNAMED_POOL: u64 = u64::MAX;

/// Returns the stream that stands for the use that a pending free waits for, if the free is
/// completed at `position`.
pub(super) fn completion_stream(position: usize) -> StreamId {
    StreamId(FIRST_COMPLETION_STREAM + position as u64)
}

/// Returns the id of the `n`th private pool that the recording does not name.
pub(super) fn unnamed_pool(n: usize) -> MempoolId {
    MempoolId(LAST_UNNAMED_POOL - n as u64, 0)
}

/// Returns a private pool, and the filter to select it with, that stand for a concurrent capture of
/// another stream.
pub(super) fn placeholder_capture() -> (MempoolId, CaptureFilter) {
    let stream = StreamId(FIRST_COMPLETION_STREAM - 1);
    (MempoolId(LAST_UNNAMED_POOL, LAST_UNNAMED_POOL), CaptureFilter::Stream(stream))
}

/// Returns true for the ids of private pools that the recording does not name.
pub(super) fn is_unnamed(pool: MempoolId) -> bool {
    pool.0 > LAST_UNNAMED_POOL / 2
}

/// A difference between a recorded decision and what the pool did instead.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mismatch {
    /// The position in the history.
    pub(super) at: usize,
    /// What the pool did instead.
    pub(super) outcome: Outcome,
}

/// What the pool did instead of the recorded decision.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    /// It made another decision.
    Decision(EventKind),
    /// The call failed.
    Failure(String),
    /// The call ended without a further decision.
    Nothing,
}

/// What is assumed about a call, because the history does not contain it.
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
    /// The weakest assumptions: any answer of the driver, and finished work is noticed.
    pub(super) const DEFAULT: Self = Self { driver_may_refuse: true, events_pass: true, other_capture: false };
}

/// A history and the position of the next recorded decision to compare with the pool's.
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

    /// Returns the history.
    pub(super) fn history(&self) -> &'h History {
        self.history
    }

    /// Returns the position of the next entry to compare.
    pub(super) fn position(&self) -> usize {
        self.position.get()
    }

    /// Returns the assumptions about the present call.
    pub(super) fn assumptions(&self) -> Assumptions {
        self.assumptions.get()
    }

    /// Moves to a position and clears the mismatch and the driver's refusal.
    pub(super) fn seek(&self, position: usize, assumptions: Assumptions) {
        self.position.set(position);
        self.assumptions.set(assumptions);
        self.driver_refused.set(false);
        *self.mismatch.borrow_mut() = None;
    }

    /// Returns whether the driver refused memory since the last [`seek`](Self::seek).
    pub(super) fn driver_refused(&self) -> bool {
        self.driver_refused.get()
    }

    /// Notes that the driver refused memory, for [`driver_refused`](Self::driver_refused).
    pub(super) fn set_driver_refused(&self) {
        self.driver_refused.set(true);
    }

    /// Returns true if there was a mismatch since the last [`seek`](Self::seek).
    pub(super) fn has_mismatch(&self) -> bool {
        self.mismatch.borrow().is_some()
    }

    /// Returns the first mismatch since the last [`seek`](Self::seek), or `None`.
    pub(super) fn mismatch(&self) -> Option<Mismatch> {
        self.mismatch.borrow().clone()
    }

    /// Records a mismatch at the present position, unless there already is one.
    pub(super) fn record_mismatch(&self, outcome: Outcome) {
        self.mismatch.borrow_mut().get_or_insert(Mismatch { at: self.position.get(), outcome });
    }

    /// Returns the recorded decision at the present position; `None` at the end of the history.
    pub(super) fn next_decision(&self) -> Option<&'h EventKind> {
        self.history.entries.get(self.position.get()).map(|entry| &entry.kind)
    }

    /// Compares a decision of the pool with the recorded one. Advances if they are the same, and
    /// records a mismatch if not.
    fn compare(&self, decision: &EventKind) {
        if self.has_mismatch() {
            return;
        }
        if !self.history.has_free_requests && matches!(decision, EventKind::FreeRequested { .. }) {
            return;
        }
        match self.next_decision() {
            Some(recorded) if is_same_decision(recorded, decision) => self.position.set(self.position.get() + 1),
            _ => self.record_mismatch(Outcome::Decision(*decision)),
        }
    }
}

/// Returns whether the pool made the recorded decision. Sites and the device's free bytes are not
/// decisions, and neither is the private pool, which is part of the request. A recording that names
/// none does not exclude one (see `private_pool_tracker`).
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

/// A sink that compares the pool's decisions with the history.
#[derive(Clone, Debug)]
pub(super) struct DecisionChecker<'h>(pub(super) Rc<HistoryCursor<'h>>);

impl Sink for DecisionChecker<'_> {
    fn event(&mut self, event: &vramscope_trace::Event) {
        self.0.compare(&event.kind);
    }
}
