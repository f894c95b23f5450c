//! Serves one request from a pool that is restored from a memory state.

use vramscope_pool::{
    AllocateError, Device, DeviceError, MAX_REQUEST_BYTES, MempoolError, Origin, Pool, Settings, SimulatedDevice,
};
use vramscope_trace::{DeviceId, DeviceState, Event, EventKind, MemorySink, MempoolId};

use super::request::PlacementRequest;

/// Distance of new segments from the recorded ones, in bytes: more than the address range that an
/// expandable segment may be given.
const ADDRESS_DISTANCE: u64 = 1 << 52;
/// Alignment of the addresses of new segments, in bytes; as on a GPU.
const ADDRESS_STEP: u64 = 2 << 20;
/// The memory of a device whose free bytes are unknown: more than any request.
const UNLIMITED_BYTES: u64 = 1 << 62;

/// Why the placement of a request cannot be found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// A request for 0 bytes gets no block.
    #[error("a request for 0 bytes gets no block")]
    Empty,
    /// The request is larger than the allocator accepts.
    #[error("a request for {0} bytes is refused without an attempt: the most is 1 EiB")]
    TooLarge(u64),
    /// No allocator can have the recorded memory state.
    #[error("the recorded memory state cannot be restored: {0}")]
    State(DeviceError),
    /// The private pool cannot be used.
    #[error(transparent)]
    Mempool(#[from] MempoolError),
}

/// The decisions of a restored pool for one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DryRun {
    /// Address and size of the block; `None` if the request failed.
    pub(super) block: Option<(u64, u64)>,
    /// Size of the new segment that the request was served from, if one was needed.
    pub(super) new_segment_bytes: Option<u64>,
    /// Bytes that were mapped into an expandable segment.
    pub(super) mapped_bytes: u64,
    /// Number of segments and mapped ranges that were released first.
    pub(super) released: u64,
    /// Bytes of the released segments and mapped ranges.
    pub(super) released_bytes: u64,
    /// Number of pending frees that were waited for.
    pub(super) awaited_frees: u64,
}

/// Serves `request` from a pool with the memory `state`, under `settings`.
///
/// Stream events of pending frees have not passed, so that pending blocks are reused only where the
/// allocator waits for them. The cost is linear in the number of segments and blocks.
pub(super) fn dry_run(
    state: &DeviceState,
    request: &PlacementRequest,
    settings: &Settings,
) -> Result<DryRun, PlacementError> {
    match request.bytes {
        0 => return Err(PlacementError::Empty),
        MAX_REQUEST_BYTES.. => return Err(PlacementError::TooLarge(request.bytes)),
        _ => {}
    }
    let mut pool = restore(state, request, settings).map_err(PlacementError::State)?;
    let mut sink = MemorySink::default();
    let allocated = if request.owner == MempoolId::default() {
        pool.allocate(request.bytes, request.stream, Origin::default(), &mut sink)
    } else {
        let exists = state.segments().any(|segment| segment.pool.owner == request.owner);
        if !exists {
            pool.create_pool(request.owner)?;
        }
        pool.allocate_in(request.owner, request.bytes, request.stream, Origin::default(), &mut sink)
    };
    let block = match allocated {
        Ok(block) => block.map(|block| (block.address, block.size)),
        Err(AllocateError::OutOfMemory(_)) => None,
        Err(AllocateError::TooLarge { requested }) => return Err(PlacementError::TooLarge(requested)),
        Err(AllocateError::Device(error)) => return Err(PlacementError::State(error)),
        Err(AllocateError::Mempool(error)) => return Err(PlacementError::Mempool(error)),
    };
    let mut run = DryRun { block, ..DryRun::default() };
    for Event { kind, .. } in sink.events {
        match kind {
            EventKind::SegmentAllocated { size, .. } => run.new_segment_bytes = Some(size),
            EventKind::SegmentMapped { size, .. } => run.mapped_bytes = run.mapped_bytes.saturating_add(size),
            EventKind::SegmentFreed { size, .. } | EventKind::SegmentUnmapped { size, .. } => {
                run.released += 1;
                run.released_bytes = run.released_bytes.saturating_add(size);
            }
            EventKind::FreeCompleted { .. } => run.awaited_frees += 1,
            _ => {}
        }
    }
    Ok(run)
}

/// Restores a pool from a memory state, on a device with the free memory that `request` names.
fn restore(
    state: &DeviceState,
    request: &PlacementRequest,
    settings: &Settings,
) -> Result<Pool<SimulatedDevice>, DeviceError> {
    let reserved = state.counters().reserved;
    let capacity = request.device_free_bytes.map_or(UNLIMITED_BYTES, |free| reserved.saturating_add(free));
    let end = state.segments().map(|segment| segment.end()).max().unwrap_or(0);
    let base = end.checked_add(ADDRESS_DISTANCE).and_then(|base| base.checked_next_multiple_of(ADDRESS_STEP));
    let Some(base) = base else {
        return Err(DeviceError::Failed("no address is left above the last segment".to_owned()));
    };
    // The first range only accounts for the reserved memory.
    let device = SimulatedDevice::new(capacity.max(reserved)).with_manual_events();
    let mut device = device.with_addresses([base, base, base.saturating_add(ADDRESS_DISTANCE)]);
    device.reserve(reserved)?;
    // A share of the device's memory would be computed from the simulated size.
    let settings = Settings { per_process_memory_fraction: 1.0, ..settings.clone() };
    Pool::restore(DeviceId(0), settings, device, state)
}
