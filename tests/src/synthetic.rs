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
