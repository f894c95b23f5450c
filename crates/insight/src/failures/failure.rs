//! The facts of one out-of-memory event, from the memory state just before it.

use vramscope_pool::{MAX_REQUEST_BYTES, Settings, size};
use vramscope_trace::{
    DeviceId, Event, EventKind, Extent, FormatError, MempoolId, PoolKey, Recording, Replay, SiteId, StreamId,
    metrics_by_group,
};

use super::cap::{FailedReservation, ReservedCap};
use super::free_elsewhere::FreeElsewhere;
use crate::placement::PlacementRequest;
use crate::pools::{PoolUsage, SiteHolding, device_usage, site_holdings};

/// Maximum number of sites that a failure lists as holders of memory.
const MAX_HOLDINGS: usize = 20;
/// Maximum number of events before a failure that are searched for released segments.
const MAX_EVENTS_BEFORE: u64 = 65_536;
/// Maximum number of frees before a failure that are examined.
const MAX_FREED_BEFORE: usize = 256;

/// A request that failed, and the memory at that moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// Bytes that other processes held when they were last recorded.
    pub others_bytes: Option<u64>,
    /// The device's memory: allocated, reserved, releasable and stuck bytes.
    pub usage: PoolUsage,
    /// Free bytes in the request's pool and stream.
    pub own_free_bytes: u64,
    /// Size in bytes of the largest free block in the request's pool and stream; 0 without one.
    pub largest_own_bytes: u64,
    /// Free memory elsewhere, and blocks that were pending free.
    pub free: FreeElsewhere,
    /// Whether the largest free block in the request's pool and stream fits and was freed just
    /// before the failure, with no successful request in between.
    pub was_just_freed: bool,
    /// Number of segments and mapped ranges that the allocator released just before it gave up.
    pub released: u64,
    /// Bytes of the released segments and mapped ranges.
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

    /// Returns the bytes that the pool can have at most while other processes free no memory: what
    /// it held and the bytes that the driver had free.
    #[must_use]
    pub fn obtainable_bytes(&self) -> u64 {
        self.usage.reserved_bytes.saturating_add(self.device_free_bytes)
    }

    /// Returns true if `cap` refused the segment, not the driver.
    #[must_use]
    pub fn is_capped_by(&self, cap: ReservedCap) -> bool {
        cap != ReservedCap::None && self.reservation().shows_cap()
    }

    /// Returns the bounds of the cap that follow from the failure.
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
        let before = EventsBefore::read(recording, replay, index, event.device)?;
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
            released: before.released,
            released_bytes: before.released_bytes,
            ..Self::default()
        };
        let state = replay.seek(recording, index)?;
        let Some(device) = state.device(event.device) else { return Ok(Some(failure)) };
        failure.others_bytes = device.sample().map(|sample| sample.used_by_others);
        failure.usage = device_usage(device, settings);
        for ((pool, stream), metrics) in metrics_by_group(device) {
            let free = metrics.free;
            if (pool, stream) == (failure.pool, failure.stream) {
                (failure.own_free_bytes, failure.largest_own_bytes) = (free.total, free.largest);
            }
        }
        failure.free = FreeElsewhere::read(device, pool, stream);
        failure.was_just_freed = before.freed.iter().any(|&address| {
            let segment = device.segment_at(address).filter(|one| (one.pool, one.stream) == (pool, stream));
            let mut extents = segment.into_iter().flat_map(|segment| device.extents(segment));
            let is_fitting = |extent: Extent<'_>| {
                extent.block.is_none()
                    && extent.size >= rounded_bytes
                    && (extent.address..extent.address + extent.size).contains(&address)
            };
            extents.any(is_fitting)
        });
        failure.holdings = site_holdings(device.blocks());
        failure.holdings.truncate(MAX_HOLDINGS);
        Ok(Some(failure))
    }
}

/// The events between the last successful request and a failure.
#[derive(Clone, Debug, Default)]
struct EventsBefore {
    /// Number of segments and mapped ranges that the failed request released.
    released: u64,
    /// Bytes of the released segments and mapped ranges.
    released_bytes: u64,
    /// Addresses of the last blocks that became free.
    freed: Vec<u64>,
}

impl EventsBefore {
    /// Reads the events of a device before the one with index `index` (from 0).
    fn read(recording: &Recording, replay: &mut Replay, index: u64, device: DeviceId) -> Result<Self, FormatError> {
        let (mut found, mut is_of_request) = (Self::default(), true);
        for before in (index.saturating_sub(MAX_EVENTS_BEFORE)..index).rev() {
            match replay.event(recording, before)? {
                Some(Event { device: other, .. }) if other != device => {}
                Some(Event { kind, .. }) => match kind {
                    EventKind::SegmentFreed { size, .. } | EventKind::SegmentUnmapped { size, .. } if is_of_request => {
                        found.released += 1;
                        found.released_bytes = found.released_bytes.saturating_add(size);
                    }
                    // The allocator waits for pending frees before it releases segments.
                    EventKind::FreeCompleted { address, .. } => {
                        if found.freed.len() < MAX_FREED_BEFORE {
                            found.freed.push(address);
                        }
                    }
                    // Pages that the failed request mapped before the device was full stay mapped.
                    EventKind::SegmentMapped { .. } => {}
                    EventKind::BlockAllocated { .. } | EventKind::OutOfMemory { .. } => break,
                    _ => is_of_request = false,
                },
                None => break,
            }
        }
        Ok(found)
    }
}
