//! Streams: defers the free of a block that streams other than its own have used until these
//! streams have finished with it.

use std::collections::BTreeSet;

use vramscope_trace::{MempoolId, Sink, SiteId, StreamId};

use crate::block::BlockState;
use crate::device::{Device, DeviceError, DeviceResult, StreamEvent};
use crate::error::FreeError;
use crate::index::BlockIndex;
use crate::pool::{Origin, Pool};

impl<D: Device> Pool<D> {
    /// Records that `stream` uses the allocated block at `address`, as `Tensor.record_stream` does.
    ///
    /// After the block is freed, its memory is not reused until the work queued on `stream` at the
    /// time of the free has finished. A use on the block's own stream has no effect.
    ///
    /// # Errors
    /// [`FreeError`] if no allocated block begins at `address`.
    pub fn record_stream(&mut self, address: u64, stream: StreamId) -> Result<(), FreeError> {
        let Some(index) = self.live.get(address) else { return Err(self.invalid_address_error(address)) };
        self.record_stream_of_block(index, stream);
        Ok(())
    }

    /// Records that `stream` uses an allocated block, as [`record_stream`](Self::record_stream)
    /// does.
    pub(crate) fn record_stream_of_block(&mut self, index: BlockIndex, stream: StreamId) {
        let block = &mut self.blocks[index];
        if self.pools[block.stream_pool].stream != stream {
            block.has_stream_uses = true;
            self.stream_uses.record(index, stream, self.private_pools.is_capturing());
        }
    }

    /// Defers the free of a block that other streams have used: until the end of the capture while
    /// a private pool is selected, otherwise until an event on each of these streams has passed.
    /// Changes nothing if the device fails.
    // Never inlined: few frees defer, and every free would carry its code.
    #[inline(never)]
    pub(crate) fn defer_free(&mut self, index: BlockIndex, site: SiteId) -> DeviceResult {
        if self.private_pools.is_capturing() {
            self.stream_uses.defer_until_capture_ends(index, site);
        } else {
            self.record_events(index, self.stream_uses.streams(index), site)?;
        }
        self.counters.track_active_separately();
        let block = &mut self.blocks[index];
        block.state = BlockState::PendingFree;
        block.has_stream_uses = false;
        Ok(())
    }

    /// Records an event on each of `streams` and defers the free of the block `index`, made at
    /// `site`, until all of them have passed. Changes nothing if the device fails.
    fn record_events(&mut self, index: BlockIndex, streams: BTreeSet<StreamId>, site: SiteId) -> DeviceResult {
        let mut events = Vec::with_capacity(streams.len());
        for &stream in &streams {
            match self.device.record_event(stream) {
                Ok(event) => events.push((stream, event)),
                Err(error) => {
                    // The device keeps an event until it has passed; waiting releases it.
                    events.into_iter().for_each(|(_, event)| drop(self.device.wait_for(event)));
                    return Err(error);
                }
            }
        }
        self.stream_uses.defer_until(index, events, site);
        Ok(())
    }

    /// Records stream events (CUDA events) for the blocks that were freed during a graph capture,
    /// now that it has ended. Blocks that only captured work used are freed at once.
    fn record_deferred_events(&mut self, origin: Origin, sink: &mut (impl Sink + ?Sized)) -> DeviceResult {
        let mut freed = self.stream_uses.take_freed_in_capture().into_iter();
        while let Some(index) = freed.next() {
            let streams = self.stream_uses.uncaptured_streams(index);
            let site = self.stream_uses.pending_site(index).unwrap_or(origin.site);
            let waits_for_none = streams.is_empty();
            if let Err(error) = self.record_events(index, streams, site) {
                self.stream_uses.restore_freed_in_capture(std::iter::once(index).chain(freed).collect());
                return Err(error);
            }
            if waits_for_none {
                self.stream_uses.remove_pending(index);
                self.complete_free(index, Origin { site, ..origin }, sink);
            }
        }
        Ok(())
    }

    /// Completes pending frees whose stream events have passed. Every request begins with this.
    ///
    /// Events are queried stream by stream, in the order of stream ids, and for each stream oldest
    /// first up to the first event that has not passed. (In PyTorch, the order of streams is that
    /// of a hash map.) Does nothing while a private pool is selected, because events cannot be
    /// queried during a graph capture.
    ///
    /// # Errors
    /// [`DeviceError`] if the device fails. Frees completed until then stay completed.
    pub fn process_events(&mut self, origin: Origin, sink: &mut (impl Sink + ?Sized)) -> Result<(), DeviceError> {
        if self.private_pools.is_capturing() || !self.stream_uses.any_pending() {
            return Ok(());
        }
        self.record_deferred_events(origin, sink)?;
        let mut next = self.stream_uses.next_waiting_stream(None);
        while let Some(stream) = next {
            while let Some((event, _)) = self.stream_uses.front(stream)
                && self.device.has_passed(event)?
            {
                self.event_passed(stream, 0, origin, sink);
            }
            next = self.stream_uses.next_waiting_stream(Some(stream));
        }
        Ok(())
    }

    /// Waits until all stream events have passed, or only the events of one private pool's blocks
    /// if `mempool` is given, and completes the frees that waited for them.
    pub(crate) fn wait_for_events(
        &mut self,
        mempool: Option<MempoolId>,
        origin: Origin,
        sink: &mut (impl Sink + ?Sized),
    ) -> DeviceResult {
        self.counters.num_sync_all_streams += 1;
        self.record_deferred_events(origin, sink)?;
        let mut next = self.stream_uses.next_waiting_stream(None);
        while let Some(stream) = next {
            let is_in_pool = |index| mempool.is_none_or(|id| self.key_of(&self.blocks[index]).owner == id);
            if let Some((position, event)) = self.stream_uses.first_matching(stream, is_in_pool) {
                self.device.wait_for(event)?;
                self.event_passed(stream, position, origin, sink);
            } else {
                next = self.stream_uses.next_waiting_stream(Some(stream));
            }
        }
        Ok(())
    }

    /// Removes the event at index `position` of a stream's queue, because it has passed, and
    /// completes the free of its block if the free waits for no other event.
    fn event_passed(&mut self, stream: StreamId, position: usize, origin: Origin, sink: &mut (impl Sink + ?Sized)) {
        if let Some((index, site)) = self.stream_uses.remove_event(stream, position) {
            self.complete_free(index, Origin { site, ..origin }, sink);
        }
    }

    /// Restores the pending free of a block of a recording's first memory state. The free waits for
    /// `event` on `stream`.
    pub(crate) fn restore_pending(&mut self, index: BlockIndex, stream: StreamId, event: StreamEvent) {
        let site = self.blocks[index].site;
        self.stream_uses.defer_until(index, vec![(stream, event)], site);
    }
}
