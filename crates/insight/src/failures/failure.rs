//! The facts of one out-of-memory event, from the memory state just before it.

use vramscope_pool::{MAX_REQUEST_BYTES, Settings, size};
use vramscope_trace::{
    DeviceId, Event, EventKind, FormatError, MempoolId, PoolKey, Recording, Replay, SiteId, StreamId, metrics_by_group,
};

use super::cap::FailedReservation;
use crate::placement::PlacementRequest;
use crate::pools::{PoolUsage, SiteHolding, device_usage, site_holdings};

/// The most sites that a failure lists as holders of memory.
const MAX_HOLDINGS: usize = 20;
/// The most events before a failure that are searched for released segments.
const MAX_EVENTS_BEFORE: u64 = 65_536;

/// A free block and the pool and stream that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargestFree {
    /// Size in bytes.
    pub bytes: u64,
    /// Size class and owner of its pool.
    pub pool: PoolKey,
    /// Its stream.
    pub stream: StreamId,
}

/// A request that failed, and the memory at that moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Number of the out-of-memory event. The figures are from the moment before it.
    pub event: u64,
    /// Time in nanoseconds since the recording's time 0.
    pub time_ns: u64,
    /// The device.
    pub device: DeviceId,
    /// The recorded size of the request in bytes. PyTorch records it after rounding.
    pub requested_bytes: u64,
    /// Size in bytes of the block that the request needed.
    pub rounded_bytes: u64,
    /// Size in bytes of the segment that the allocator had to reserve for it.
    pub segment_bytes: u64,
    /// The stream of the request.
    pub stream: StreamId,
    /// The default pool of the request's size class. No recording contains the pool of a failed
    /// request; one made during a graph capture belongs to a private pool.
    pub pool: PoolKey,
    /// Where the request was made.
    pub site: SiteId,
    /// Free bytes of the device, as the driver reported.
    pub device_free_bytes: u64,
    /// The device's memory: allocated, reserved, releasable and stuck bytes.
    pub usage: PoolUsage,
    /// Free bytes in the request's pool and stream.
    pub own_free_bytes: u64,
    /// Size in bytes of the largest free block in the request's pool and stream; 0 without one.
    pub largest_own_bytes: u64,
    /// The largest free block in any pool and stream.
    pub largest: Option<LargestFree>,
    /// Number of segments and mapped ranges that the allocator released just before it gave up.
    pub released: u64,
    /// Bytes of these.
    pub released_bytes: u64,
    /// The sites that held most memory, largest first, at most 20.
    pub holdings: Vec<SiteHolding>,
}

impl Failure {
    /// Returns the request, to compute its [placement](crate::placement::placement()) at the moment
    /// before the failure: which blocks it would have needed to be free.
    #[must_use]
    pub fn request(&self) -> PlacementRequest {
        PlacementRequest {
            bytes: self.requested_bytes,
            stream: self.stream,
            owner: MempoolId::default(),
            device_free_bytes: Some(self.device_free_bytes),
        }
    }

    /// Returns what the failure shows about the cap.
    pub(super) fn reservation(&self) -> FailedReservation {
        FailedReservation {
            reserved_bytes: self.usage.reserved_bytes,
            segment_bytes: self.segment_bytes,
            device_free_bytes: self.device_free_bytes,
        }
    }

    /// Reads the failure whose event has index `index` (from 0); `None` if that is no out-of-memory
    /// event. `settings` are the allocator's.
    ///
    /// # Errors
    /// If a chunk cannot be read.
    pub(super) fn read(
        recording: &Recording,
        replay: &mut Replay,
        index: u64,
        settings: &Settings,
    ) -> Result<Option<Self>, FormatError> {
        let Some(event) = replay.event(recording, index)? else { return Ok(None) };
        let EventKind::OutOfMemory { requested, device_free, stream, site } = event.kind else { return Ok(None) };
        let rounded_bytes = size::block_size(settings, requested.min(MAX_REQUEST_BYTES));
        let pool = PoolKey::default_of(size::pool_kind(rounded_bytes));
        let (released, released_bytes) = released_before(recording, replay, index, event.device)?;
        let mut failure = Self {
            event: index.saturating_add(1),
            time_ns: event.time_ns,
            device: event.device,
            requested_bytes: requested,
            rounded_bytes,
            segment_bytes: size::segment_size(settings, rounded_bytes),
            stream,
            pool,
            site,
            device_free_bytes: device_free,
            usage: PoolUsage::default(),
            own_free_bytes: 0,
            largest_own_bytes: 0,
            largest: None,
            released,
            released_bytes,
            holdings: Vec::new(),
        };
        let state = replay.seek(recording, index)?;
        let Some(device) = state.device(event.device) else { return Ok(Some(failure)) };
        failure.usage = device_usage(device, settings);
        for ((pool, stream), metrics) in metrics_by_group(device) {
            let free = metrics.free;
            if (pool, stream) == (failure.pool, failure.stream) {
                (failure.own_free_bytes, failure.largest_own_bytes) = (free.total, free.largest);
            }
            if free.largest > failure.largest.map_or(0, |largest| largest.bytes) {
                failure.largest = Some(LargestFree { bytes: free.largest, pool, stream });
            }
        }
        failure.holdings = site_holdings(device.blocks());
        failure.holdings.truncate(MAX_HOLDINGS);
        Ok(Some(failure))
    }
}

/// Returns the number and bytes of the segments and mapped ranges that were released directly
/// before the event with index `index` (from 0) of a device, by the request that then failed.
fn released_before(
    recording: &Recording,
    replay: &mut Replay,
    index: u64,
    device: DeviceId,
) -> Result<(u64, u64), FormatError> {
    let (mut released, mut bytes) = (0u64, 0u64);
    for before in (index.saturating_sub(MAX_EVENTS_BEFORE)..index).rev() {
        match replay.event(recording, before)? {
            Some(Event { device: other, .. }) if other != device => {}
            Some(Event { kind, .. }) => match kind {
                EventKind::SegmentFreed { size, .. } | EventKind::SegmentUnmapped { size, .. } => {
                    released += 1;
                    bytes = bytes.saturating_add(size);
                }
                // The allocator waits for pending frees before it releases segments, and pages that
                // were mapped before the device had no more stay mapped.
                EventKind::FreeCompleted { .. } | EventKind::SegmentMapped { .. } => {}
                _ => break,
            },
            None => break,
        }
    }
    Ok((released, bytes))
}
