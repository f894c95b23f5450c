//! The part of a segment that would serve a request if the fewest live bytes were freed.

use std::collections::{BinaryHeap, VecDeque};

use vramscope_pool::Settings;
use vramscope_trace::{
    Block, DeviceId, DeviceState, Event, EventKind, Extent, MemoryState, PoolKey, Segment, SiteId, StreamId,
};

use super::dry_run::dry_run;
use super::request::PlacementRequest;
use crate::pools::{SiteHolding, site_holdings};

/// Number of candidate regions, one for each segment, that are tried in order of their live bytes.
/// More than one is needed only if the settings keep a freed region from serving the request.
const MAX_CANDIDATES: usize = 8;

/// A live block in a [`BlockingRegion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockingBlock {
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// The site that holds it.
    pub site: SiteId,
    /// Whether it is pending free, so that it becomes free by itself.
    pub pending_free: bool,
    /// Number of the event that allocated it; of the first event if it is older than the recording.
    pub allocated_at: u64,
}

/// A part of a segment that is large enough for a request, and the live blocks in it.
///
/// No other large enough part has fewer live bytes. If the live blocks were freed, the request
/// would be served from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockingRegion {
    /// Address of the segment.
    pub segment_address: u64,
    /// Address of the region's first byte.
    pub address: u64,
    /// Size of the region in bytes.
    pub bytes: u64,
    /// Bytes of its live blocks.
    pub live_bytes: u64,
    /// Its live blocks in address order.
    pub blocks: Vec<BlockingBlock>,
    /// The sites of these blocks, largest first.
    pub holdings: Vec<SiteHolding>,
}

/// A range of extents of one segment that is large enough for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    live_bytes: u64,
    address: u64,
    end: u64,
    segment_address: u64,
}

/// Returns the range of successive extents of `segment` of at least `size` bytes with the fewest
/// live bytes, then the lowest address; `None` if the segment is smaller.
fn best_in_segment(state: &DeviceState, segment: &Segment, size: u64) -> Option<Candidate> {
    if segment.size < size {
        return None;
    }
    let live = |extent: &Extent<'_>| if extent.block.is_some() { extent.size } else { 0 };
    let mut window: VecDeque<Extent<'_>> = VecDeque::new();
    let (mut bytes, mut live_bytes) = (0u64, 0u64);
    let mut best: Option<Candidate> = None;
    for extent in state.extents(segment) {
        bytes += extent.size;
        live_bytes += live(&extent);
        window.push_back(extent);
        // The shortest range that ends here: a longer one has no fewer live bytes.
        while let Some(first) = window.front().filter(|first| bytes - first.size >= size) {
            bytes -= first.size;
            live_bytes -= live(first);
            window.pop_front();
        }
        let Some(first) = window.front().filter(|_| bytes >= size) else { continue };
        let candidate = Candidate {
            live_bytes,
            address: first.address,
            end: first.address + bytes,
            segment_address: segment.address,
        };
        best = Some(best.map_or(candidate, |best| best.min(candidate)));
    }
    best
}

/// Returns the blocks of a candidate in address order.
fn blocks_of<'a>(state: &'a DeviceState, candidate: &Candidate) -> Vec<&'a Block> {
    let Some(segment) = state.segment_at(candidate.segment_address) else { return Vec::new() };
    let extents = state.extents(segment).skip_while(|extent| extent.address < candidate.address);
    extents.take_while(|extent| extent.address < candidate.end).filter_map(|extent| extent.block).collect()
}

/// Returns true if the request would be served from a candidate after its blocks are freed.
fn would_serve(
    state: &DeviceState,
    candidate: &Candidate,
    blocks: &[&Block],
    request: &PlacementRequest,
    settings: &Settings,
) -> bool {
    let device = DeviceId(0);
    let mut freed = MemoryState::default();
    *freed.device_mut(device) = state.clone();
    for block in blocks {
        let kind = EventKind::FreeCompleted { address: block.address, site: block.site };
        freed.apply(&Event { device, time_ns: 0, kind });
    }
    let run = freed.device(device).map(|freed| dry_run(freed, request, settings));
    let Some(Ok(run)) = run else { return false };
    run.new_segment_bytes.is_none()
        && run.mapped_bytes == 0
        && run.block.is_some_and(|(address, _)| (candidate.segment_address..candidate.end).contains(&address))
}

/// Returns the region of a segment of `pool` and `stream` that would serve `request`, a block of
/// `size` bytes, if the fewest live bytes were freed; `None` if no segment is large enough.
///
/// The cost is linear in the number of segments and blocks.
pub(super) fn blocking_region(
    state: &DeviceState,
    request: &PlacementRequest,
    settings: &Settings,
    (pool, stream, size): (PoolKey, StreamId, u64),
) -> Option<BlockingRegion> {
    let mut best: BinaryHeap<Candidate> = BinaryHeap::new();
    for segment in state.segments().filter(|segment| segment.pool == pool && segment.stream == stream) {
        let Some(candidate) = best_in_segment(state, segment, size) else { continue };
        best.push(candidate);
        if best.len() > MAX_CANDIDATES {
            best.pop();
        }
    }
    best.into_sorted_vec().iter().find_map(|candidate| {
        let blocks = blocks_of(state, candidate);
        would_serve(state, candidate, &blocks, request, settings).then(|| BlockingRegion {
            segment_address: candidate.segment_address,
            address: candidate.address,
            bytes: candidate.end - candidate.address,
            live_bytes: candidate.live_bytes,
            holdings: site_holdings(blocks.iter().copied()),
            blocks: blocks
                .iter()
                .map(|block| BlockingBlock {
                    address: block.address,
                    bytes: block.size,
                    site: block.site,
                    pending_free: block.pending_free,
                    allocated_at: block.since_event.saturating_add(1),
                })
                .collect(),
        })
    })
}
