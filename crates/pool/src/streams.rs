//! Blocks that other streams than their own have used: after the program frees one, it stays until those streams are done with it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::ops::Bound;

use vramscope_trace::{MempoolId, Sink, SiteId, StreamId};

use crate::block::{BlockIndex, BlockState};
use crate::device::{Device, DeviceError, StreamEvent};
use crate::error::FreeError;
use crate::pool::{Origin, Pool};

/// A freed block that is still in use.
#[derive(Clone, Copy, Debug)]
struct Pending {
    /// How many events have yet to pass.
    events: usize,
    /// Where it was freed.
    site: SiteId,
}

/// What is known of uses on other streams.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses {
    /// The streams that used a block since it was handed out.
    streams: BTreeMap<BlockIndex, BTreeSet<StreamId>>,
    /// Those of them that did so while a capture was under way; by its end they are done.
    captured: BTreeMap<BlockIndex, BTreeSet<StreamId>>,
    /// Freed while a capture was under way, in which no event can be recorded.
    deferred: Vec<BlockIndex>,
    /// What has yet to pass on each stream, in order.
    queues: BTreeMap<StreamId, VecDeque<(StreamEvent, BlockIndex)>>,
    pending: BTreeMap<BlockIndex, Pending>,
}

impl Uses {
    /// Whether any freed block is still in use.
    #[inline]
    pub(crate) fn any_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The next stream with events behind `stream`.
    fn queue_after(&self, stream: Option<StreamId>) -> Option<StreamId> {
        let from = stream.map_or(Bound::Unbounded, Bound::Excluded);
        self.queues.range((from, Bound::Unbounded)).next().map(|(&stream, _)| stream)
    }

    fn front(&self, stream: StreamId) -> Option<(StreamEvent, BlockIndex)> {
        self.queues.get(&stream)?.front().copied()
    }

    /// The event at `place` of a stream's queue has passed. Returns the block that is free with it and where it was freed.
    fn pop(&mut self, stream: StreamId, place: usize) -> Option<(BlockIndex, SiteId)> {
        let queue = self.queues.get_mut(&stream)?;
        let (_, index) = queue.remove(place)?;
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

impl<D: Device> Pool<D> {
    /// The program uses the live block at `address` on `stream`. After it is freed it is not handed out again before what is queued
    /// there then is done. A use on the block's own stream needs nothing of the kind.
    ///
    /// # Errors
    /// When no live block begins there.
    pub fn record_stream(&mut self, address: u64, stream: StreamId) -> Result<(), FreeError> {
        let Some(index) = self.live.get(address) else { return Err(self.why_not_live(address)) };
        let block = &mut self.blocks[index];
        if self.homes[block.home].stream == stream {
            return Ok(());
        }
        block.is_shared = true;
        self.uses.streams.entry(index).or_default().insert(stream);
        if self.mempools.is_capturing() {
            self.uses.captured.entry(index).or_default().insert(stream);
        }
        Ok(())
    }

    /// The program freed a block that other streams have used. It is not in `live` anymore and counts as freed by the program.
    pub(crate) fn free_shared(&mut self, index: BlockIndex, site: SiteId) -> Result<(), DeviceError> {
        if self.mempools.is_capturing() {
            self.uses.deferred.push(index);
            self.uses.pending.insert(index, Pending { events: 0, site });
        } else {
            let streams = self.uses.streams.get(&index).cloned().unwrap_or_default();
            self.queue_events(index, streams, site)?;
        }
        self.counters.part_active();
        let block = &mut self.blocks[index];
        block.state = BlockState::PendingFree;
        block.is_shared = false;
        Ok(())
    }

    /// Puts one event behind what is queued on each stream. With an error nothing has changed.
    fn queue_events(
        &mut self,
        index: BlockIndex,
        streams: BTreeSet<StreamId>,
        site: SiteId,
    ) -> Result<(), DeviceError> {
        let mut events = Vec::with_capacity(streams.len());
        for &stream in &streams {
            match self.device.record_event(stream) {
                Ok(event) => events.push((stream, event)),
                Err(error) => {
                    // Waiting is how an event is given back.
                    events.into_iter().for_each(|(_, event)| drop(self.device.wait_for(event)));
                    return Err(error);
                }
            }
        }
        self.uses.streams.remove(&index);
        self.uses.captured.remove(&index);
        self.uses.pending.insert(index, Pending { events: events.len(), site });
        for (stream, event) in events {
            self.uses.queues.entry(stream).or_default().push_back((event, index));
        }
        Ok(())
    }

    /// Blocks freed during a capture get their events now that there is none. What only captured work used is free at once.
    fn queue_deferred(&mut self, origin: Origin, sink: &mut (impl Sink + ?Sized)) -> Result<(), DeviceError> {
        let mut deferred = mem::take(&mut self.uses.deferred).into_iter();
        while let Some(index) = deferred.next() {
            let mut streams = self.uses.streams.get(&index).cloned().unwrap_or_default();
            if let Some(captured) = self.uses.captured.get(&index) {
                streams.retain(|stream| !captured.contains(stream));
            }
            let site = self.uses.pending.get(&index).map_or(origin.site, |pending| pending.site);
            let none = streams.is_empty();
            if let Err(error) = self.queue_events(index, streams, site) {
                self.uses.deferred = std::iter::once(index).chain(deferred).collect();
                return Err(error);
            }
            if none {
                self.uses.pending.remove(&index);
                self.complete_free(index, Origin { site, ..origin }, sink);
            }
        }
        Ok(())
    }

    /// Takes back freed blocks whose uses on other streams are done. Each stream's events are looked at in their order up to the first
    /// that has not passed, stream after stream in the order of their numbers. (In PyTorch the order of streams is that of a hash table.)
    /// Every request begins with this. While a capture is under way nothing can be asked of events, and nothing happens.
    ///
    /// # Errors
    /// When the device fails; what was taken back until then stays so.
    pub fn process_events(&mut self, origin: Origin, sink: &mut (impl Sink + ?Sized)) -> Result<(), DeviceError> {
        if self.mempools.is_capturing() || !self.uses.any_pending() {
            return Ok(());
        }
        self.queue_deferred(origin, sink)?;
        let mut stream = self.uses.queue_after(None);
        while let Some(at) = stream {
            while let Some((event, _)) = self.uses.front(at)
                && self.device.has_passed(event)?
            {
                self.pass(at, 0, origin, sink);
            }
            stream = self.uses.queue_after(Some(at));
        }
        Ok(())
    }

    /// Waits for every event, or for those of the blocks of one private pool, and takes back the blocks.
    pub(crate) fn wait_for_events(
        &mut self,
        mempool: Option<MempoolId>,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> Result<(), DeviceError> {
        self.counters.num_sync_all_streams += 1;
        self.queue_deferred(origin, sink)?;
        let is_meant = |pool: &Self, index| mempool.is_none_or(|id| pool.key_of(&pool.blocks[index]).owner == id);
        let mut stream = self.uses.queue_after(None);
        while let Some(at) = stream {
            while let Some(queue) = self.uses.queues.get(&at)
                && let Some(place) = queue.iter().position(|&(_, index)| is_meant(self, index))
            {
                self.device.wait_for(queue[place].0)?;
                self.pass(at, place, origin, sink);
            }
            stream = self.uses.queue_after(Some(at));
        }
        Ok(())
    }

    fn pass(&mut self, stream: StreamId, place: usize, origin: Origin, sink: &mut (impl Sink + ?Sized)) {
        if let Some((index, site)) = self.uses.pop(stream, place) {
            self.complete_free(index, Origin { site, ..origin }, sink);
        }
    }

    /// A block that was freed before the pool began to watch, and whose use is not over.
    pub(crate) fn restore_pending(&mut self, index: BlockIndex, stream: StreamId, event: StreamEvent) {
        let site = self.blocks[index].site;
        self.uses.pending.insert(index, Pending { events: 1, site });
        self.uses.queues.entry(stream).or_default().push_back((event, index));
    }
}
