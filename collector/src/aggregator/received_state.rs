//! Compares a device's state that a process sent with the merged one, and converts it.

use vramscope_trace::DeviceState;

use super::source::{ProcessSource, WAIT_NS};

/// Returns true if two states of a device have equal segments, blocks, counters and memory sample.
/// Sites, ages and event numbers may differ.
pub(super) fn is_equal(current: &DeviceState, received: &DeviceState) -> bool {
    current.counters() == received.counters()
        && current.sample() == received.sample()
        && current.segments().len() == received.segments().len()
        && current.blocks().len() == received.blocks().len()
        && current.segments().zip(received.segments()).all(|(a, b)| {
            (a.address, a.size, a.stream, a.pool, a.expandable) == (b.address, b.size, b.stream, b.pool, b.expandable)
        })
        && current.blocks().zip(received.blocks()).all(|(a, b)| {
            (a.address, a.size, a.requested, a.stream, a.pool, a.pending_free)
                == (b.address, b.size, b.requested, b.stream, b.pool, b.pending_free)
        })
}

/// Converts a device's state from a process to the merged recording's site numbers and times (at
/// most `now_ns`). Segments and blocks that `current`, the merged state of the device, also
/// contains keep their event number; all others get `event`.
pub(super) fn merged_device(
    source: &ProcessSource,
    received: &DeviceState,
    current: &DeviceState,
    event: u64,
    now_ns: u64,
) -> DeviceState {
    received.with_remapped_ids(
        |segment| {
            let known = current.segment_at(segment.address).filter(|known| known.address == segment.address);
            (source.numbers.site(segment.site), known.map_or(event, |known| known.since_event))
        },
        |block| {
            let (site, since_ns) = (source.numbers.site(block.site), source.merged_ns(block.since_ns, now_ns));
            // `block` comes from `received`. A relabeled block is passed twice: with its current
            // site and with the site of its allocation.
            let allocation_site = source.numbers.site(received.allocation_site(block));
            let known = current.block(block.address).filter(|known| {
                current.allocation_site(known) == allocation_site
                    && known.size == block.size
                    && known.since_ns.abs_diff(since_ns) <= WAIT_NS
            });
            known.map_or((site, event, since_ns), |known| (site, known.since_event, known.since_ns))
        },
    )
}
