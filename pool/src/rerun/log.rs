//! The calls that a history comes from, in order.

use vramscope_trace::MempoolId;

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
    /// Nobody uses the private pool anymore.
    ReleasePool(MempoolId),
}

/// The calls, each with the place behind its last entry.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    pub(super) calls: Vec<(Call, usize)>,
}

impl Log {
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
