//! The table of blocks that streams other than their own have used, and of the frees that wait for
//! these streams.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::ops::Bound;

use vramscope_trace::{SiteId, StreamId};

use crate::device::StreamEvent;
use crate::index::BlockIndex;

/// The free of a block whose memory streams may still use: how many of their events have not
/// passed, and the site of the free.
#[derive(Clone, Copy, Debug)]
struct PendingFree {
    /// The number of stream events that have not passed.
    events: usize,
    /// The site of the free.
    site: SiteId,
}

/// The uses of allocated blocks by streams other than the block's own, and the frees that wait
/// until these streams have finished.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamUses {
    /// The streams that used a block since it was allocated.
    streams: BTreeMap<BlockIndex, BTreeSet<StreamId>>,
    /// The subset of `streams` recorded during a graph capture. Captured work has not run yet, so a
    /// captured use needs no event.
    captured: BTreeMap<BlockIndex, BTreeSet<StreamId>>,
    /// Blocks freed during a capture, when events cannot be recorded.
    freed_in_capture: Vec<BlockIndex>,
    /// The events that have not passed, by stream, oldest first.
    queues: BTreeMap<StreamId, VecDeque<(StreamEvent, BlockIndex)>>,
    /// The frees that wait for stream events, by block.
    pending: BTreeMap<BlockIndex, PendingFree>,
}

impl StreamUses {
    /// Returns true if any free waits for a stream or for the end of a graph capture; false if all
    /// frees are completed.
    #[inline]
    pub(crate) fn any_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Records that `stream` uses an allocated block; `in_capture` is true if the use is part of a
    /// graph capture.
    pub(crate) fn record(&mut self, index: BlockIndex, stream: StreamId, in_capture: bool) {
        self.streams.entry(index).or_default().insert(stream);
        if in_capture {
            self.captured.entry(index).or_default().insert(stream);
        }
    }

    /// Returns the streams, other than its own, that used a block since it was allocated.
    pub(crate) fn streams(&self, index: BlockIndex) -> BTreeSet<StreamId> {
        self.streams.get(&index).cloned().unwrap_or_default()
    }

    /// Returns the streams, other than its own, that used a block since it was allocated, without
    /// streams that used it in a graph capture.
    pub(crate) fn uncaptured_streams(&self, index: BlockIndex) -> BTreeSet<StreamId> {
        let mut streams = self.streams(index);
        if let Some(captured) = self.captured.get(&index) {
            streams.retain(|stream| !captured.contains(stream));
        }
        streams
    }

    /// Defers the free of the block `index`, made at `site`, until the end of the present graph
    /// capture.
    pub(crate) fn defer_until_capture_ends(&mut self, index: BlockIndex, site: SiteId) {
        self.freed_in_capture.push(index);
        self.pending.insert(index, PendingFree { events: 0, site });
    }

    /// Removes and returns the blocks whose frees were deferred until the end of a graph capture.
    pub(crate) fn take_freed_in_capture(&mut self) -> Vec<BlockIndex> {
        mem::take(&mut self.freed_in_capture)
    }

    /// Puts blocks back that [`take_freed_in_capture`](Self::take_freed_in_capture) returned, as
    /// the only blocks whose frees wait for the end of a graph capture.
    pub(crate) fn restore_freed_in_capture(&mut self, blocks: Vec<BlockIndex>) {
        self.freed_in_capture = blocks;
    }

    /// Defers the free of the block `index`, made at `site`, until all `events` have passed, each
    /// on its stream.
    pub(crate) fn defer_until(&mut self, index: BlockIndex, events: Vec<(StreamId, StreamEvent)>, site: SiteId) {
        self.streams.remove(&index);
        self.captured.remove(&index);
        self.pending.insert(index, PendingFree { events: events.len(), site });
        for (stream, event) in events {
            self.queues.entry(stream).or_default().push_back((event, index));
        }
    }

    /// Returns the site where a block was freed whose free is still pending; `None` if its free is
    /// not pending.
    pub(crate) fn pending_site(&self, index: BlockIndex) -> Option<SiteId> {
        self.pending.get(&index).map(|pending| pending.site)
    }

    /// Removes a block's pending free, so that the caller can complete it. The free must not wait
    /// for any stream event.
    pub(crate) fn remove_pending(&mut self, index: BlockIndex) {
        self.pending.remove(&index);
    }

    /// Returns the lowest stream id above `stream`, or of all for `None`, that has events which
    /// have not passed; `None` if no such stream exists.
    pub(crate) fn next_waiting_stream(&self, stream: Option<StreamId>) -> Option<StreamId> {
        let from = stream.map_or(Bound::Unbounded, Bound::Excluded);
        self.queues.range((from, Bound::Unbounded)).next().map(|(&stream, _)| stream)
    }

    /// Returns the oldest event of a stream that has not passed, and the block whose free waits for
    /// it; `None` if the stream has no event.
    pub(crate) fn front(&self, stream: StreamId) -> Option<(StreamEvent, BlockIndex)> {
        self.queues.get(&stream)?.front().copied()
    }

    /// Returns the oldest event of `stream` for whose block `accepts` returns true, as its index in
    /// the stream's queue and the event itself; `None` if it accepts no block.
    pub(crate) fn first_matching(
        &self,
        stream: StreamId,
        mut accepts: impl FnMut(BlockIndex) -> bool,
    ) -> Option<(usize, StreamEvent)> {
        let queue = self.queues.get(&stream)?;
        let position = queue.iter().position(|&(_, index)| accepts(index))?;
        Some((position, queue[position].0))
    }

    /// Removes the event at index `position` of a stream's queue, because it has passed. If it was
    /// the last event that its block waited for, returns the block and the site of its free.
    pub(crate) fn remove_event(&mut self, stream: StreamId, position: usize) -> Option<(BlockIndex, SiteId)> {
        let queue = self.queues.get_mut(&stream)?;
        let (_, index) = queue.remove(position)?;
        if queue.is_empty() {
            self.queues.remove(&stream);
        }
        let pending = self.pending.get_mut(&index)?;
        pending.events -= 1;
        if pending.events > 0 {
            return None;
        }
        self.pending.remove(&index).map(|pending| (index, pending.site))
    }
}
