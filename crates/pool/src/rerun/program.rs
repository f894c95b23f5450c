//! The calls of a history without its addresses: what the program asked for, to be run anywhere.

use std::collections::HashMap;

use vramscope_trace::{EventKind, MempoolId, StreamId};

use super::history::History;
use super::log::{Call, Log};

/// A call. A block is known by the slot that it is kept in, a late free by its place in the order in which late frees were completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Allocate {
        bytes: u64,
        slot: u32,
        lane: u16,
        /// There was no room for it, so that the program never had it.
        failed: bool,
    },
    Free {
        slot: u32,
    },
    FreeLater {
        slot: u32,
        completed: u32,
    },
    /// Late frees up to this one can be completed.
    Pass {
        completed: u32,
    },
    ProcessEvents,
    EmptyCache,
    EmptyPool {
        lane: u16,
    },
    ReleasePool {
        lane: u16,
    },
}

/// A stream, and the private pool that requests on it ask.
pub(super) type Lane = (StreamId, MempoolId);

/// Calls ready to be run.
#[derive(Clone, Debug, Default)]
pub(super) struct Program {
    pub(super) steps: Vec<Step>,
    /// How many blocks there are at once, at most.
    pub(super) slots: usize,
    pub(super) lanes: Vec<Lane>,
    /// Requests, frees and cache emptyings.
    pub(super) requests: u64,
}

/// Makes a [`Program`].
struct Compiler<'h> {
    history: &'h History,
    program: Program,
    /// The slots of live blocks, by address.
    slots: HashMap<u64, u32>,
    vacant: Vec<u32>,
    lanes: HashMap<Lane, u16>,
    /// Ranks of late frees, by the place of their completion.
    ranks: HashMap<usize, u32>,
}

impl Program {
    /// The calls of a log, after requests for the blocks that were there before it, in the order of their addresses.
    pub(super) fn of(history: &History, log: &Log) -> Self {
        let mut completions: Vec<usize> = history.late_frees.values().copied().collect();
        completions.sort_unstable();
        let ranks = (0..).zip(&completions).map(|(rank, &completion)| (completion, rank)).collect();
        let (slots, lanes) = (HashMap::new(), HashMap::new());
        let program = Program { steps: Vec::with_capacity(log.len()), ..Program::default() };
        let mut compiler = Compiler { history, program, slots, vacant: Vec::new(), lanes, ranks };
        for block in history.start.blocks() {
            compiler.allocate(Some(block.address), block.requested, (block.stream, block.pool.owner));
        }
        let mut from = 0;
        for &(call, end) in &log.calls {
            compiler.take(call, from, end);
            from = end;
        }
        compiler.program
    }
}

impl Compiler<'_> {
    fn push(&mut self, step: Step) {
        self.program.steps.push(step);
    }

    fn take(&mut self, call: Call, from: usize, end: usize) {
        let completed_in_wait = matches!(call, Call::Request { passes: false, .. });
        if !completed_in_wait {
            self.pass(from, end);
        }
        self.program.requests += u64::from(!matches!(call, Call::ProcessEvents | Call::ReleasePool(_)));
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
            Call::FreeLater(at) => {
                let rank = self.history.late_frees.get(&at).and_then(|completion| self.ranks.get(completion)).copied();
                if let (Some(slot), Some(completed)) = (self.freed_slot(at), rank) {
                    self.push(Step::FreeLater { slot, completed });
                    self.vacant.push(slot);
                }
            }
            Call::ProcessEvents => self.push(Step::ProcessEvents),
            Call::EmptyCache => self.push(Step::EmptyCache),
            Call::EmptyPool(owner) => {
                let lane = self.lane((StreamId::default(), owner));
                self.push(Step::EmptyPool { lane });
            }
            Call::ReleasePool(owner) => {
                let lane = self.lane((StreamId::default(), owner));
                self.push(Step::ReleasePool { lane });
            }
        }
        if completed_in_wait {
            self.pass(from, end);
        }
    }

    /// The late frees that were completed among these entries can be from here on.
    fn pass(&mut self, from: usize, end: usize) {
        if self.ranks.is_empty() {
            return;
        }
        if let Some(&completed) = (from..end).rev().find_map(|place| self.ranks.get(&place)) {
            self.push(Step::Pass { completed });
        }
    }

    fn allocate(&mut self, address: Option<u64>, bytes: u64, lane: Lane) {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.program.slots += 1;
            self.program.slots as u32 - 1
        });
        let lane = self.lane(lane);
        match address {
            Some(address) => {
                // A block that was there already would be one that the recording lost sight of; it is never freed.
                self.slots.insert(address, slot);
            }
            None => self.vacant.push(slot),
        }
        self.push(Step::Allocate { bytes, slot, lane, failed: address.is_none() });
    }

    fn freed_slot(&mut self, at: usize) -> Option<u32> {
        let (EventKind::FreeRequested { address, .. } | EventKind::FreeCompleted { address, .. }) =
            self.history.entries[at].kind
        else {
            return None;
        };
        self.slots.remove(&address)
    }

    /// A lane's number. Streams beyond the 65,535th share one, which no program comes near.
    fn lane(&mut self, lane: Lane) -> u16 {
        let next = u16::try_from(self.program.lanes.len()).unwrap_or(u16::MAX);
        *self.lanes.entry(lane).or_insert_with(|| {
            if usize::from(next) == self.program.lanes.len() {
                self.program.lanes.push(lane);
            }
            next.min((self.program.lanes.len() - 1) as u16)
        })
    }
}
