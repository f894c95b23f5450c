//! Synthetic recordings of any length.

use fastrand::Rng;
use vramscope_trace::{
    DeviceId, Encoder, Event, EventKind, PoolKey, PoolKind, Recording, RecordingInfo, RecordingOpener, Sink, SiteId,
    StreamId,
};

/// Appends an index to a recording that has none.
///
/// # Panics
/// Panics if the recording is damaged.
#[must_use]
pub fn with_index(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut opening = RecordingOpener::new(bytes.len() as u64);
    while let Some(range) = opening.wanted_range() {
        opening.supply(range.start, &bytes[range.start as usize..range.end as usize]);
    }
    if opening.finish().is_none() {
        let mut recording = Recording::overview_only(None);
        recording.push(&bytes).expect("the recording is valid");
        bytes.extend(recording.index().into_iter().flat_map(|chunk| chunk.bytes));
    }
    bytes
}

/// Returns a recording of blocks of random sizes that are allocated and freed in random order.
/// Such a program compresses worst: several bytes an event.
#[must_use]
pub fn program(events: u64) -> Vec<u8> {
    const SLOTS: u64 = 1024;
    const SLOT: u64 = 1 << 20;
    let (stream, pool, site) = (StreamId(0), PoolKey::default_of(PoolKind::Large), SiteId(0));
    let base = 0x7f00_0000_0000;
    let mut encoder = Encoder::new(&RecordingInfo { source: "synthetic".to_owned(), ..RecordingInfo::default() });
    let mut bytes = Vec::new();
    let mut allocated = vec![false; SLOTS as usize];
    let mut random = Rng::with_seed(1);
    for number in 0..events {
        let slot = random.u64(..SLOTS);
        let (address, is_allocated) = (base + slot * SLOT, allocated[slot as usize]);
        let kind = if number == 0 {
            EventKind::SegmentAllocated { address: base, size: SLOTS * SLOT, stream, pool, site }
        } else if is_allocated {
            allocated[slot as usize] = false;
            EventKind::FreeCompleted { address, site }
        } else {
            let size = 512 * random.u64(1..=SLOT / 512);
            allocated[slot as usize] = true;
            EventKind::BlockAllocated { address, size, requested: size - random.u64(..512), stream, pool, site }
        };
        encoder.event(&Event { device: DeviceId(0), time_ns: 1_000_000 + number * 900 + random.u64(..1024), kind });
        for chunk in encoder.take_output() {
            bytes.extend(chunk.bytes);
        }
    }
    encoder.flush();
    bytes.extend(encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes));
    bytes
}

/// Returns a recording of `devices` GPUs with `segments` segments and `blocks` live blocks in all,
/// followed by as many frees and allocations as a tenth of the blocks.
#[must_use]
pub fn devices(devices: u16, segments: u64, blocks: u64) -> Vec<u8> {
    const BASE: u64 = 0x7f00_0000_0000;
    let (stream, pool, site) = (StreamId(0), PoolKey::default_of(PoolKind::Large), SiteId(0));
    let info = RecordingInfo { source: "synthetic".to_owned(), ..RecordingInfo::default() };
    let (mut encoder, mut bytes) = (Encoder::new(&info), Vec::new());
    let per_segment = blocks.div_ceil(segments).max(1);
    let slot = 256 << 10;
    let size = per_segment * slot;
    let mut random = Rng::with_seed(2);
    let mut number = 0;
    let mut record = |device: u64, kind| {
        number += 1;
        encoder.event(&Event { device: DeviceId(device as u16), time_ns: number * 1000, kind });
        bytes.extend(encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes));
    };
    let devices = u64::from(devices);
    let allocated = |address, random: &mut Rng| {
        let size = 512 * random.u64(1..=slot / 512);
        EventKind::BlockAllocated { address, size, requested: size - random.u64(..512), stream, pool, site }
    };
    for segment in 0..segments {
        let address = BASE + segment * size;
        record(segment % devices, EventKind::SegmentAllocated { address, size, stream, pool, site });
        for block in 0..per_segment {
            record(segment % devices, allocated(address + block * slot, &mut random));
        }
    }
    for _ in 0..blocks / 10 {
        let segment = random.u64(..segments);
        let address = BASE + segment * size + random.u64(..per_segment) * slot;
        record(segment % devices, EventKind::FreeCompleted { address, site });
        record(segment % devices, allocated(address, &mut random));
    }
    encoder.flush();
    bytes.extend(encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes));
    bytes
}
