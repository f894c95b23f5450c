//! Where a request would be placed.

use std::fmt::Write;

use vramscope_pool::{Settings, size};
use vramscope_trace::{ByteSize, Count, DeviceState, PoolKey, StreamId};

use super::blocking::{BlockingRegion, blocking_region};
use super::dry_run::{DryRun, PlacementError, dry_run};
use super::request::PlacementRequest;
use super::unusable::{UnusableFree, unusable_free};

/// The way in which the allocator would serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementOutcome {
    /// It serves the request from a free block.
    FreeBlock {
        /// Address of the block.
        address: u64,
        /// Size of the free block in bytes.
        free_bytes: u64,
        /// Bytes of the free block that stay free.
        remaining_bytes: u64,
    },
    /// It reserves a segment.
    NewSegment {
        /// Size of the segment in bytes.
        segment_bytes: u64,
        /// Bytes of the segment that stay free.
        remaining_bytes: u64,
    },
    /// It maps memory into an expandable segment, an existing or a new one.
    MappedPages {
        /// Bytes that it maps.
        mapped_bytes: u64,
    },
    /// The request fails: the memory that it needs would exceed the cap or the device's free
    /// memory.
    OutOfMemory {
        /// Size in bytes of the segment that the request needs.
        segment_bytes: u64,
    },
}

/// Where a request would be placed at a moment, or what blocks it if no free block fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The request.
    pub request: PlacementRequest,
    /// Size of its block in bytes, after rounding. The block that it gets is larger if the rest of
    /// the free block is too small to be split off.
    pub rounded_bytes: u64,
    /// The size class and owner of the pool that serves it.
    pub pool: PoolKey,
    /// The way in which the allocator would serve the request.
    pub outcome: PlacementOutcome,
    /// Size in bytes of the block that the request gets; 0 if it fails.
    pub block_bytes: u64,
    /// Number of segments and mapped ranges that the allocator would release first.
    pub released: u64,
    /// Bytes of the released segments and mapped ranges.
    pub released_bytes: u64,
    /// Bytes that the allocator may reserve; `None` without a cap.
    pub cap_bytes: Option<u64>,
    /// Bytes of all segments at the moment.
    pub reserved_bytes: u64,
    /// The region that would serve the request if the fewest live bytes were freed. `None` if a
    /// free block fits, and if no segment of the request's pool and stream is large enough.
    pub blocking: Option<BlockingRegion>,
    /// Free memory that the request cannot use. Empty if a free block fits.
    pub unusable: Vec<UnusableFree>,
}

/// Returns where the allocator would place a request in a memory state.
///
/// `settings` are the allocator's; [`Settings::limit_bytes`] is the cap. The cost is linear in the
/// number of segments and blocks: 0.1 ms for 200 blocks, 0.1 s for 125,000.
///
/// # Errors
/// If the request is for 0 bytes or too large, or no allocator can have the memory state.
pub fn placement(
    state: &DeviceState,
    request: &PlacementRequest,
    settings: &Settings,
) -> Result<Placement, PlacementError> {
    let run = dry_run(state, request, settings)?;
    let rounded_bytes = size::block_size(settings, request.bytes);
    let pool = PoolKey { kind: size::pool_kind(rounded_bytes), owner: request.owner };
    let outcome = outcome(state, &run, size::segment_size(settings, rounded_bytes));
    let fits = matches!(outcome, PlacementOutcome::FreeBlock { .. });
    let of_request: (PoolKey, StreamId, u64) = (pool, request.stream, rounded_bytes);
    Ok(Placement {
        request: *request,
        rounded_bytes,
        pool,
        outcome,
        block_bytes: run.block.map_or(0, |(_, bytes)| bytes),
        released: run.released,
        released_bytes: run.released_bytes,
        cap_bytes: settings.limit_bytes,
        reserved_bytes: state.counters().reserved,
        blocking: if fits { None } else { blocking_region(state, request, settings, of_request) },
        unusable: if fits { Vec::new() } else { unusable_free(state, pool, request.stream) },
    })
}

/// Returns the outcome that a dry run shows; `segment_bytes` is the size of the segment that a
/// request without a fitting free block needs.
fn outcome(state: &DeviceState, run: &DryRun, segment_bytes: u64) -> PlacementOutcome {
    let Some((address, block_bytes)) = run.block else { return PlacementOutcome::OutOfMemory { segment_bytes } };
    if let Some(segment_bytes) = run.new_segment_bytes {
        let remaining_bytes = segment_bytes.saturating_sub(block_bytes);
        return PlacementOutcome::NewSegment { segment_bytes, remaining_bytes };
    }
    if run.mapped_bytes > 0 {
        return PlacementOutcome::MappedPages { mapped_bytes: run.mapped_bytes };
    }
    let free = state
        .segment_at(address)
        .and_then(|segment| state.extents(segment).find(|extent| extent.block.is_none() && extent.address == address));
    // A block that the allocator made free by waiting for a stream is not free in the state.
    let free_bytes = free.map_or(block_bytes, |extent| extent.size);
    PlacementOutcome::FreeBlock { address, free_bytes, remaining_bytes: free_bytes.saturating_sub(block_bytes) }
}

impl Placement {
    /// Returns the placement as one or more sentences for users.
    #[must_use]
    pub fn summary(&self) -> String {
        let size = ByteSize(self.rounded_bytes);
        let mut text = match self.outcome {
            PlacementOutcome::FreeBlock { address, free_bytes, remaining_bytes: 0 } => {
                format!("{size} would take the free block of {} at {address:#x}.", ByteSize(free_bytes))
            }
            PlacementOutcome::FreeBlock { address, free_bytes, remaining_bytes } => format!(
                "{size} would be placed in the free block of {} at {address:#x}; {} of it would stay free.",
                ByteSize(free_bytes),
                ByteSize(remaining_bytes)
            ),
            PlacementOutcome::NewSegment { segment_bytes, .. } => {
                format!("No free block fits {size}; a new segment of {} would be reserved.", ByteSize(segment_bytes))
            }
            PlacementOutcome::MappedPages { mapped_bytes } => {
                format!("No free block fits {size}; {} would be mapped.", ByteSize(mapped_bytes))
            }
            PlacementOutcome::OutOfMemory { segment_bytes } => {
                let reserved = ByteSize(self.reserved_bytes.saturating_sub(self.released_bytes));
                let limit = match self.cap_bytes {
                    Some(cap) if self.exceeds_cap(segment_bytes) => {
                        format!("with {reserved} reserved it would exceed the cap of {}", ByteSize(cap))
                    }
                    _ => "the device has less free memory".to_owned(),
                };
                format!(
                    "{size} would fail: no free block fits, and a new segment of {} cannot be reserved, because \
                     {limit}.",
                    ByteSize(segment_bytes)
                )
            }
        };
        // Writing to a string does not fail.
        if self.released > 0 {
            let segments = Count(self.released).of("free segment", "free segments");
            let _ = write!(text, " {segments} ({}) would be released first.", ByteSize(self.released_bytes));
        }
        if let Some(blocking) = &self.blocking {
            let blocks = Count(blocking.blocks.len() as u64).of("block", "blocks");
            let together = if blocking.blocks.len() > 1 { " together" } else { "" };
            let live = ByteSize(blocking.live_bytes);
            let _ = write!(text, " It would fit in existing memory if {blocks} of {live}{together} were freed.");
        } else if matches!(self.outcome, PlacementOutcome::OutOfMemory { .. }) {
            text += " No segment of its pool and stream is large enough to hold it.";
        }
        text
    }

    /// Returns true if a segment of `segment_bytes` would exceed the cap after the release of free
    /// segments.
    fn exceeds_cap(&self, segment_bytes: u64) -> bool {
        let reserved = self.reserved_bytes.saturating_sub(self.released_bytes);
        self.cap_bytes.is_some_and(|cap| reserved.saturating_add(segment_bytes) > cap)
    }
}
