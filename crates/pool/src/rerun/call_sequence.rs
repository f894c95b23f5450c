//! The calls of a history without addresses, to be run on any device.

use std::collections::HashMap;

use vramscope_trace::{EventKind, MempoolId, StreamId};

use super::call_log::{Call, CallLog};
use super::entry::site_of;
use super::history::History;
use crate::pool::Origin;

/// One step of a simulation: a call of the program, or the passing of stream events. A block is
/// identified by its slot (a number that is reused after the block is freed), and a pending free by
/// its rank, from 0, in the order of completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Allocate {
        bytes: u64,
        slot: u32,
        target: u16,
        /// The recorded request failed, so the program never had the block.
        failed: bool,
    },
    Free {
        slot: u32,
    },
    /// Frees a block that another stream still uses.
    DeferredFree {
        slot: u32,
        /// The rank of the completion.
        completed: u32,
    },
    /// Lets pending frees up to this rank be completed.
    PassEvents {
        completed: u32,
    },
    ProcessEvents,
    EmptyCache,
    EmptyPool {
        target: u16,
    },
    ReleasePool {
        target: u16,
    },
}

/// The stream of a request and the private pool that serves it; (0, 0) is the default pool.
pub(super) type RequestTarget = (StreamId, MempoolId);

/// The calls of a recorded program without addresses, so that they can be run under other settings.
#[derive(Clone, Debug, Default)]
pub(super) struct CallSequence {
    pub(super) steps: Vec<Step>,
    /// The time and the allocation site of each step.
    pub(super) origins: Vec<Origin>,
    /// The number of the event that each step led to; 0 for blocks older than the history.
    pub(super) events: Vec<u64>,
    /// The largest number of blocks that are allocated at one time.
    pub(super) slot_count: usize,
    pub(super) targets: Vec<RequestTarget>,
    /// The number of requests, frees and emptied caches.
    pub(super) calls: u64,
    /// The number of requests. Does not include blocks that existed before the history.
    pub(super) requests: u64,
}

/// Builds a [`CallSequence`] (calls without addresses) from a [`CallLog`] (calls with indices of
/// recorded entries).
struct SequenceBuilder<'h> {
    history: &'h History,
    sequence: CallSequence,
    /// The slots of allocated blocks, by recorded address.
    slots: foldhash::HashMap<u64, u32>,
    vacant: Vec<u32>,
    targets: HashMap<RequestTarget, u16>,
    /// The target of the last request and its index; most requests have the previous request's
    /// target.
    last_target: Option<(RequestTarget, u16)>,
    /// The ranks of pending frees, by the position of their completion.
    completion_ranks: HashMap<usize, u32>,
    /// The time and the allocation site of the call that is being added.
    origin: Origin,
    /// The number of the event that the call led to.
    event: u64,
}

impl CallSequence {
    /// Builds the sequence from a log. It begins with requests for the blocks that existed before
    /// the history, in the order of their addresses.
    pub(super) fn new(history: &History, log: &CallLog) -> Self {
        let completed = |&(call, _): &(Call, usize)| match call {
            Call::DeferredFree { completed, .. } => Some(completed),
            _ => None,
        };
        let mut completions: Vec<usize> = log.calls.iter().filter_map(completed).collect();
        completions.sort_unstable();
        let completion_ranks = (0..).zip(&completions).map(|(rank, &completion)| (completion, rank)).collect();
        let capacity = log.len();
        let (steps, origins) = (Vec::with_capacity(capacity), Vec::with_capacity(capacity));
        let sequence = CallSequence { steps, origins, events: Vec::with_capacity(capacity), ..CallSequence::default() };
        let origin = Origin { time_ns: history.entries.first().map_or(0, |entry| entry.time_ns), ..Origin::default() };
        let mut builder = SequenceBuilder {
            history,
            sequence,
            slots: HashMap::default(),
            vacant: Vec::new(),
            targets: HashMap::new(),
            last_target: None,
            completion_ranks,
            origin,
            event: 0,
        };
        for block in history.start.blocks() {
            builder.origin.site = block.site;
            builder.allocate(Some(block.address), block.requested, (block.stream, block.pool.owner));
        }
        let mut from = 0;
        for &(call, end) in &log.calls {
            builder.add_call(call, from, end);
            from = end;
        }
        builder.sequence
    }

    /// Appends a step, made at `origin` and before the event number `event`.
    pub(super) fn push(&mut self, step: Step, origin: Origin, event: u64) {
        self.steps.push(step);
        self.origins.push(origin);
        self.events.push(event);
    }
}

impl SequenceBuilder<'_> {
    /// Appends a step to the sequence, with the origin and event of the call that is being added.
    fn push(&mut self, step: Step) {
        self.sequence.push(step, self.origin, self.event);
    }

    /// Appends the steps of a call. The entries that the call led to have the indices `from..end`
    /// in the history.
    fn add_call(&mut self, call: Call, from: usize, end: usize) {
        let position = match call {
            Call::Request { at, .. } | Call::Free(at) | Call::DeferredFree { at, .. } => at,
            _ => from,
        };
        // A call at the end of the history may have no entry; it has the origin of the call before.
        if let Some(entry) = self.history.entries.get(position) {
            self.origin = Origin { site: site_of(&entry.kind), time_ns: entry.time_ns };
            // Entries have indexes; the event at index 0 has number 1.
            self.event = entry.number + 1;
        }
        let completed_in_wait = matches!(call, Call::Request { events_pass: false, .. });
        if !completed_in_wait {
            self.add_passed_events(from, end);
        }
        self.sequence.calls += u64::from(!matches!(call, Call::ProcessEvents | Call::ReleasePool(_)));
        self.sequence.requests += u64::from(matches!(call, Call::Request { .. }));
        match call {
            Call::Request { at, owner, .. } => match self.history.entries[at].kind {
                EventKind::BlockAllocated { address, requested, stream, .. } => {
                    self.allocate(Some(address), requested, (stream, owner));
                }
                EventKind::OutOfMemory { requested, stream, .. } => self.allocate(None, requested, (stream, owner)),
                _ => {}
            },
            Call::Free(at) => {
                if let Some(slot) = self.freed_slot(at) {
                    self.push(Step::Free { slot });
                    self.vacant.push(slot);
                }
            }
            Call::DeferredFree { at, completed } => {
                let rank = self.completion_ranks.get(&completed).copied();
                if let (Some(slot), Some(completed)) = (self.freed_slot(at), rank) {
                    self.push(Step::DeferredFree { slot, completed });
                    self.vacant.push(slot);
                }
            }
            Call::ProcessEvents => self.push(Step::ProcessEvents),
            Call::EmptyCache => self.push(Step::EmptyCache),
            Call::EmptyPool(owner) => {
                let target = self.target_index((StreamId::default(), owner));
                self.push(Step::EmptyPool { target });
            }
            Call::ReleasePool(owner) => {
                let target = self.target_index((StreamId::default(), owner));
                self.push(Step::ReleasePool { target });
            }
        }
        if completed_in_wait {
            self.add_passed_events(from, end);
        }
    }

    /// Appends a step that completes the pending frees whose recorded completion is one of the
    /// entries `from..end` of the history. Appends nothing if there are none.
    fn add_passed_events(&mut self, from: usize, end: usize) {
        if self.completion_ranks.is_empty() {
            return;
        }
        if let Some(&completed) = (from..end).rev().find_map(|position| self.completion_ranks.get(&position)) {
            self.push(Step::PassEvents { completed });
        }
    }

    /// Appends a request for `bytes`. `address` is that of the block that the recorded request got;
    /// `None` if the recorded request failed.
    fn allocate(&mut self, address: Option<u64>, bytes: u64, target: RequestTarget) {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.sequence.slot_count += 1;
            self.sequence.slot_count as u32 - 1
        });
        let target = self.target_index(target);
        match address {
            Some(address) => {
                // If a block is already recorded at this address, the recording missed its free; it
                // is never freed.
                self.slots.insert(address, slot);
            }
            None => self.vacant.push(slot),
        }
        self.push(Step::Allocate { bytes, slot, target, failed: address.is_none() });
    }

    /// Removes and returns the slot of the block that the history's entry with index `at` frees;
    /// `None` if no block is known at the entry's address.
    fn freed_slot(&mut self, at: usize) -> Option<u32> {
        let (EventKind::FreeRequested { address, .. } | EventKind::FreeCompleted { address, .. }) =
            self.history.entries[at].kind
        else {
            return None;
        };
        self.slots.remove(&address)
    }

    /// Returns the index of `target` among the sequence's targets, adding it if it is new. At most
    /// 65,536 targets are kept, more than any real program has; further ones share the last index.
    fn target_index(&mut self, target: RequestTarget) -> u16 {
        if let Some((_, index)) = self.last_target.filter(|(last, _)| *last == target) {
            return index;
        }
        let next = u16::try_from(self.sequence.targets.len()).unwrap_or(u16::MAX);
        let index = *self.targets.entry(target).or_insert_with(|| {
            if usize::from(next) == self.sequence.targets.len() {
                self.sequence.targets.push(target);
            }
            next.min((self.sequence.targets.len() - 1) as u16)
        });
        self.last_target = Some((target, index));
        index
    }
}
