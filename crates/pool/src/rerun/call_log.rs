//! The reconstructed calls of a history, in order.

use vramscope_trace::{EventKind, MempoolId};

use super::entry_group::EntryGroup;
use super::history::History;

/// A call of the recorded program to the allocator. Numbers are indices of entries (recorded
/// allocator events) in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// A request.
    Request {
        at: usize,
        owner: MempoolId,
        /// True if the pending frees that the request completed were completed before its search
        /// for a block; false if it waited for them.
        events_pass: bool,
    },
    /// A free that is completed at once.
    Free(usize),
    /// A free that is completed later, at the entry `completed`.
    DeferredFree {
        at: usize,
        completed: usize,
    },
    /// Processing stream events.
    ProcessEvents,
    EmptyCache,
    /// Releasing the cached memory of one private pool.
    EmptyPool(MempoolId),
    /// Removing the last user of a private pool.
    ReleasePool(MempoolId),
}

/// The calls of the recorded program in order, each with the index after its last entry in the
/// history.
#[derive(Clone, Debug, Default)]
pub(super) struct CallLog {
    pub(super) calls: Vec<(Call, usize)>,
}

impl CallLog {
    /// Returns the calls that most likely led to the entries of a history, without checking on a
    /// pool that the calls lead to these entries.
    pub(super) fn most_likely(history: &History) -> Self {
        let (entries, mut log, mut at) = (history.entries.as_slice(), Self::default(), 0);
        while at < entries.len() {
            let completed = history.deferred_frees.get(&at).copied();
            match entries[at].kind {
                EventKind::FreeRequested { .. } => match completed {
                    Some(completed) => log.push(Call::DeferredFree { at, completed }, at + 1),
                    None => log.push(Call::Free(at), at + 2),
                },
                EventKind::FreeCompleted { .. } if !history.has_free_requests => log.push(Call::Free(at), at + 1),
                _ => log.push_group(&EntryGroup::at(entries, at), history),
            }
            at = log.calls.last().map_or(at, |&(_, end)| end).max(at + 1);
        }
        log
    }

    /// Adds the calls that most likely led to a group of entries: emptied caches and processed
    /// stream events, then the request.
    fn push_group(&mut self, group: &EntryGroup, history: &History) {
        let entries = history.entries.as_slice();
        let (mut start, request_start) = (group.start, group.request_starts(entries)[0]);
        while start < request_start {
            let end = EntryGroup::cache_release_end(entries, start, request_start);
            let call = if end.is_some() { Call::EmptyCache } else { Call::ProcessEvents };
            start = end.unwrap_or(request_start);
            self.push(call, start);
        }
        if let Some(at) = group.request {
            let owner = match entries[at].kind {
                EventKind::BlockAllocated { pool, .. } => pool.owner,
                _ => MempoolId::default(),
            };
            self.push(Call::Request { at, owner, events_pass: true }, group.end);
        }
    }

    /// Adds a call of the recorded program; `end` is the index, in the history, after the last
    /// entry that it led to.
    pub(super) fn push(&mut self, call: Call, end: usize) {
        self.calls.push((call, end));
    }

    /// Returns the number of calls in the log.
    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    /// Removes calls from the end of the log, so that its first `len` calls remain.
    pub(super) fn truncate(&mut self, len: usize) {
        self.calls.truncate(len);
    }
}
