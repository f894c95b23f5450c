//! Recordings that are made, of any length.

use vramscope_trace::{
    DeviceId, Encoder, Event, EventKind, Info, Opening, Pool, PoolKind, Recording, Sink, SiteId, StreamId,
};

/// A recording with an index at its end, whether it had one or not.
///
/// # Panics
/// Where it is no good recording.
#[must_use]
pub fn with_index(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut opening = Opening::new(bytes.len() as u64);
    while let Some(range) = opening.wants() {
        opening.supply(range.start, &bytes[range.start as usize..range.end as usize]);
    }
    if opening.finish().is_none() {
        let mut recording = Recording::passing_by(None);
        recording.push(&bytes).expect("a good recording");
        bytes.extend(recording.index().into_iter().flat_map(|chunk| chunk.bytes));
    }
    bytes
}

/// Blocks of any sizes that come and go in any order, which is the worst that a program can do to a recording: it takes several bytes an event.
#[must_use]
pub fn program(events: u64) -> Vec<u8> {
    const SLOTS: u64 = 1024;
    const SLOT: u64 = 1 << 20;
    let (stream, pool, site) = (StreamId(0), Pool::default_of(PoolKind::Large), SiteId(0));
    let base = 0x7f00_0000_0000;
    let mut encoder = Encoder::new(&Info { source: "made".to_owned(), ..Info::default() });
    let mut bytes = Vec::new();
    let mut held = vec![false; SLOTS as usize];
    let mut random = 1u64;
    for number in 0..events {
        // Knuth's linear congruential generator; its high bits are the good ones.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let slot = (random >> 33) % SLOTS;
        let (address, taken) = (base + slot * SLOT, held[slot as usize]);
        let kind = if number == 0 {
            EventKind::SegmentAllocated { address: base, size: SLOTS * SLOT, stream, pool, site }
        } else if taken {
            held[slot as usize] = false;
            EventKind::FreeCompleted { address, site }
        } else {
            let size = 512 * (1 + (random >> 43) % (SLOT / 512));
            held[slot as usize] = true;
            EventKind::BlockAllocated { address, size, requested: size - (random >> 50) % 512, stream, pool, site }
        };
        encoder.event(&Event { device: DeviceId(0), time_ns: 1_000_000 + number * 900 + (random >> 54), kind });
        for chunk in encoder.take_output() {
            bytes.extend(chunk.bytes);
        }
    }
    encoder.flush();
    bytes.extend(encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes));
    bytes
}
