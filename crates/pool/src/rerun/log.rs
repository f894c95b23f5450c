//! The calls that a history comes from, in order.

use vramscope_trace::{EventKind, MempoolId};

use super::group::Group;
use super::history::History;

/// A call of the program, or what is as good as one. Numbers are places in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// The request that this entry answers.
    Request {
        at: usize,
        owner: MempoolId,
        /// Late frees that were completed in it were completed before a block was looked for.
        passes: bool,
    },
    /// A free, completed at once.
    Free(usize),
    /// A free, completed later.
    FreeLater(usize),
    /// Looks at finished work.
    ProcessEvents,
    EmptyCache,
    /// Gives back what is free of one private pool.
    EmptyPool(MempoolId),
    /// Nobody uses the private pool anymore.
    ReleasePool(MempoolId),
}

/// The calls, each with the place behind its last entry.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    pub(super) calls: Vec<(Call, usize)>,
}

impl Log {
    /// The calls under the likeliest reading of each entry, without a pool to see whether they explain it.
    pub(super) fn likeliest(history: &History) -> Self {
        let (entries, mut log, mut at) = (history.entries.as_slice(), Self::default(), 0);
        while at < entries.len() {
            let late = history.late_frees.contains_key(&at);
            match entries[at].kind {
                EventKind::FreeRequested { .. } if late => log.push(Call::FreeLater(at), at + 1),
                EventKind::FreeRequested { .. } => log.push(Call::Free(at), at + 2),
                EventKind::FreeCompleted { .. } if !history.has_free_requests => log.push(Call::Free(at), at + 1),
                _ => log.push_group(&Group::at(entries, at), history),
            }
            at = log.calls.last().map_or(at, |&(_, end)| end).max(at + 1);
        }
        log
    }

    fn push_group(&mut self, group: &Group, history: &History) {
        let entries = history.entries.as_slice();
        let (mut from, begin) = (group.begin, group.request_begins(entries)[0]);
        while from < begin {
            let end = Group::call_before(entries, from, begin);
            let call = if end.is_some() { Call::EmptyCache } else { Call::ProcessEvents };
            from = end.unwrap_or(begin);
            self.push(call, from);
        }
        if let Some(at) = group.request {
            let owner = match entries[at].kind {
                EventKind::BlockAllocated { pool, .. } => pool.owner,
                _ => MempoolId::default(),
            };
            self.push(Call::Request { at, owner, passes: true }, group.end);
        }
    }

    pub(super) fn push(&mut self, call: Call, end: usize) {
        self.calls.push((call, end));
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.calls.truncate(len);
    }
}
