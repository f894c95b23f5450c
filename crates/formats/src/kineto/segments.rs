//! Rebuilds the segments of a trace that begins with an empty allocator.
//!
//! A trace has no segments, but the bytes that are reserved after each event. If PyTorch's
//! allocator, run with the requests of the trace, explains each of these totals and puts each block
//! at the address that it has in the trace, its segments are those of the program.
//!
//! Streams are not known either. A request belongs to the stream of the segment that its block is
//! in. A request that needs a new segment belongs to the first stream that has no free block for
//! it, or, if a later request contradicts that, to the next one. These streams are numbers for the
//! rebuilding only.

use std::collections::{BTreeMap, BTreeSet};

use vramscope_pool::{Device, DeviceError, DeviceMemory, Origin, Pool, Settings};
use vramscope_trace::{DeviceId, Event, EventKind, PoolKey, PoolKind, Sink, StreamId};

use super::trace::MemoryRow;

/// Bytes of the simulated device beyond those that the trace reserves: no request fails. Ranges of
/// addresses of expandable segments are as large as the device, and must not overlap.
const SPARE_BYTES: u64 = 1 << 30;
/// Maximum number of assumptions: of moments at which the program emptied the cache unnoticed, and
/// of segments of other streams.
const MAX_ASSUMED: usize = 64;
/// Maximum number of streams.
const MAX_STREAMS: u64 = 64;

/// The segments of a device's history.
#[derive(Debug, Default)]
pub(super) struct Segments {
    /// The settings under which the pool explains the trace, as in `PYTORCH_CUDA_ALLOC_CONF`.
    pub(super) conf: &'static str,
    /// Changes of segments, each before the event with this index.
    pub(super) changes: Vec<(usize, EventKind)>,
    /// For each event, the pool of its block.
    pub(super) pools: Vec<PoolKey>,
}

/// Returns the segments of a device's events; `None` if the allocator does not explain them.
pub(super) fn rebuild(rows: &[&MemoryRow]) -> Option<Segments> {
    ["", "expandable_segments:True"].into_iter().find_map(|conf| {
        let settings = Settings::parse(conf).ok()?;
        let capacity_bytes = rows.iter().filter_map(|row| row.reserved).max()?.checked_add(SPARE_BYTES)?;
        let mut assumed = Assumptions::default();
        loop {
            let mut rebuilding = Rebuilding::new(settings.clone(), capacity_bytes);
            match rebuilding.run(rows, &assumed) {
                Ok(()) => {
                    let Rebuilding { changes, pools, .. } = rebuilding;
                    return Some(Segments { conf, changes, pools });
                }
                Err(Mismatch::Elsewhere) => return None,
                // The request may have followed `empty_cache()`, which reports nothing.
                Err(Mismatch::ReservedOfRequest(index)) if assumed.emptied.insert(index) => {}
                Err(Mismatch::ReservedOfRequest(_)) => return None,
                Err(Mismatch::StreamOfSegment(index, stream)) => {
                    assumed.least_streams.insert(index, stream.0 + 1);
                }
            }
            if assumed.emptied.len() + assumed.least_streams.len() > MAX_ASSUMED
                || assumed.least_streams.values().any(|stream| *stream > MAX_STREAMS)
            {
                return None;
            }
        }
    })
}

/// What is assumed about a program because its trace does not show it.
#[derive(Debug, Default)]
struct Assumptions {
    /// Indices of requests before which the program emptied the cache.
    emptied: BTreeSet<usize>,
    /// The least stream of requests with these indices, which need a new segment.
    least_streams: BTreeMap<usize, u64>,
}

/// How a simulated history differs from the trace.
enum Mismatch {
    /// After the request with this index, the pool has reserved another number of bytes.
    ReservedOfRequest(usize),
    /// The segment that was obtained for the request with this index has another stream than this.
    StreamOfSegment(usize, StreamId),
    Elsewhere,
}

/// A segment at the addresses of the trace.
#[derive(Clone, Copy, Debug)]
struct Segment {
    end: u64,
    stream: StreamId,
    /// The index of the request that it was obtained for.
    request: usize,
}

/// A device that reserves memory at the address that the next block has in the trace: the first
/// block of a segment lies at its start.
#[derive(Debug)]
struct TraceDevice {
    next_address: u64,
    used_bytes: u64,
    capacity_bytes: u64,
}

impl Device for TraceDevice {
    fn reserve(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        self.used_bytes += bytes;
        Ok(self.next_address)
    }

    fn release(&mut self, _: u64, bytes: u64) -> Result<(), DeviceError> {
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
        Ok(())
    }

    fn memory(&self) -> DeviceMemory {
        let total_bytes = self.capacity_bytes;
        DeviceMemory { free_bytes: total_bytes.saturating_sub(self.used_bytes), total_bytes }
    }

    fn reserve_addresses(&mut self, _: u64) -> Result<u64, DeviceError> {
        Ok(self.next_address)
    }

    fn release_addresses(&mut self, _: u64, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn map(&mut self, _: u64, bytes: u64, _: u64) -> Result<(), DeviceError> {
        self.used_bytes += bytes;
        Ok(())
    }

    fn unmap(&mut self, _: u64, bytes: u64, _: u64, _: StreamId) -> Result<(), DeviceError> {
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
        Ok(())
    }
}

/// A pool that runs the requests of a trace.
struct Rebuilding {
    pool: Pool<TraceDevice>,
    /// By address.
    segments: BTreeMap<u64, Segment>,
    /// Number of streams that have segments.
    streams: u64,
    changes: Vec<(usize, EventKind)>,
    pools: Vec<PoolKey>,
}

impl Rebuilding {
    fn new(settings: Settings, capacity_bytes: u64) -> Self {
        let device = TraceDevice { next_address: 0, used_bytes: 0, capacity_bytes };
        Self {
            pool: Pool::new(DeviceId(0), settings, device),
            segments: BTreeMap::new(),
            streams: 0,
            changes: Vec::new(),
            pools: Vec::new(),
        }
    }

    fn reserved(&self) -> u64 {
        self.pool.stats().reserved_bytes.all.current
    }

    /// Runs all requests.
    fn run(&mut self, rows: &[&MemoryRow], assumed: &Assumptions) -> Result<(), Mismatch> {
        for (index, row) in rows.iter().enumerate() {
            if row.failed_bytes > 0 {
                self.pools.push(PoolKey::default());
                continue;
            }
            let reserved = row.reserved.ok_or(Mismatch::Elsewhere)?;
            if assumed.emptied.contains(&index) || reserved < self.reserved() {
                let mut sink = Changes(Vec::new());
                self.pool.empty_cache(Origin::default(), &mut sink).map_err(|_| Mismatch::Elsewhere)?;
                self.apply(index, &sink.0, StreamId(0))?;
            }
            if row.bytes > 0 {
                let least_stream = assumed.least_streams.get(&index).copied().unwrap_or(0);
                self.allocate(index, row, least_stream)?;
                if self.reserved() != reserved {
                    return Err(Mismatch::ReservedOfRequest(index));
                }
            } else {
                let freed = self.pool.free(row.address, Origin::default(), &mut Changes(Vec::new()));
                freed.map_err(|_| Mismatch::Elsewhere)?;
                if self.reserved() != reserved {
                    return Err(Mismatch::Elsewhere);
                }
                self.pools.push(PoolKey::default());
            }
        }
        Ok(())
    }

    /// Runs a request, on the stream that puts its block at the address of the trace.
    fn allocate(&mut self, index: usize, row: &MemoryRow, least_stream: u64) -> Result<(), Mismatch> {
        let known = self.segment_at(row.address);
        let streams = match known {
            Some(Segment { stream, .. }) => stream.0..=stream.0,
            // In expandable segments, also an address behind a segment belongs to its stream.
            None => least_stream..=self.streams.min(MAX_STREAMS).max(least_stream),
        };
        for stream in streams.map(StreamId) {
            self.pool.device_mut().next_address = row.address;
            let mut sink = Changes(Vec::new());
            let block = self.pool.allocate(row.bytes.unsigned_abs(), stream, Origin::default(), &mut sink);
            let block = block.ok().flatten().ok_or(Mismatch::Elsewhere)?;
            if block.address == row.address {
                self.streams = self.streams.max(stream.0 + 1);
                return self.apply(index, &sink.0, stream);
            }
            let is_hit = sink.0.iter().all(|kind| matches!(kind, EventKind::BlockAllocated { .. }));
            let freed = self.pool.free(block.address, Origin::default(), &mut Changes(Vec::new()));
            freed.map_err(|_| Mismatch::Elsewhere)?;
            match self.segment_at(block.address).filter(|_| is_hit) {
                // The block that the pool prefers must be of another stream.
                Some(Segment { request, stream, .. }) if known.is_some() => {
                    return Err(Mismatch::StreamOfSegment(request, stream));
                }
                Some(_) => {}
                None => return Err(Mismatch::Elsewhere),
            }
        }
        Err(Mismatch::Elsewhere)
    }

    /// Returns the segment that contains an address of the trace.
    fn segment_at(&self, address: u64) -> Option<Segment> {
        let (_, segment) = self.segments.range(..=address).next_back()?;
        Some(*segment).filter(|segment| address < segment.end)
    }

    /// Applies the pool's events before an event of the trace.
    fn apply(&mut self, index: usize, events: &[EventKind], stream: StreamId) -> Result<(), Mismatch> {
        for kind in events {
            match *kind {
                EventKind::SegmentAllocated { address, size, pool, site, .. }
                | EventKind::SegmentMapped { address, size, pool, site, .. } => {
                    let end = address.checked_add(size).ok_or(Mismatch::Elsewhere)?;
                    if self.segments.range(..end).next_back().is_some_and(|(_, below)| below.end > address) {
                        return Err(Mismatch::Elsewhere);
                    }
                    self.segments.insert(address, Segment { end, stream, request: index });
                    let stream = StreamId(0);
                    let change = match kind {
                        EventKind::SegmentMapped { .. } => {
                            EventKind::SegmentMapped { address, size, stream, pool, site }
                        }
                        _ => EventKind::SegmentAllocated { address, size, stream, pool, site },
                    };
                    self.changes.push((index, change));
                }
                EventKind::SegmentFreed { address, size, .. } | EventKind::SegmentUnmapped { address, size, .. } => {
                    self.remove(address, address.saturating_add(size));
                    self.changes.push((index, *kind));
                }
                EventKind::BlockAllocated { pool, .. } => self.pools.push(pool),
                _ => return Err(Mismatch::Elsewhere),
            }
        }
        Ok(())
    }

    /// Removes addresses from the segments. Ranges of an expandable segment may be released in
    /// other pieces than they were mapped in.
    fn remove(&mut self, start: u64, end: u64) {
        while let Some((&first, &segment)) = self.segments.range(..end).next_back()
            && segment.end > start
        {
            self.segments.remove(&first);
            if end < segment.end {
                self.segments.insert(end, segment);
            }
            if first < start {
                self.segments.insert(first, Segment { end: start, ..segment });
                break;
            }
        }
    }
}

/// A sink that keeps the kinds of events.
struct Changes(Vec<EventKind>);

impl Sink for Changes {
    fn event(&mut self, event: &Event) {
        self.0.push(event.kind);
    }
}

/// Returns the pool of a block, where segments are not known: by its size alone.
pub(super) fn pool_of_size(bytes: u64) -> PoolKey {
    PoolKey::default_of(if bytes <= 1 << 20 { PoolKind::Small } else { PoolKind::Large })
}
