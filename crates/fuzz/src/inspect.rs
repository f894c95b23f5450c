//! Queries a recording as a viewer does, and checks invariants of the results.

use vramscope_trace::{DeviceId, DeviceState, FormatError, Recording, Replay, metrics_by_group, peak_utilization};

use crate::random::Random;

/// Maximum number of devices and of sites that are inspected.
const MAX_INSPECTED: usize = 4;
/// Widths of the queried timelines, in columns.
const WIDTHS: [usize; 3] = [1, 7, 100];

/// Inspects a recording as a whole and at some moments. Chunks that cannot be read are skipped.
pub(crate) fn inspect(recording: &Recording, random: &mut Random) {
    let _ = (recording.info(), recording.start_ns(), recording.events(), recording.lost_events());
    let definitions = recording.definitions();
    for site in 0..definitions.site_count().min(MAX_INSPECTED) as u32 + 2 {
        let site = vramscope_trace::SiteId(site);
        let _ = vramscope_trace::site_name(definitions, site);
    }
    assert!(recording.annotations().is_sorted_by_key(|annotation| annotation.time_ns), "annotations are in order");
    assert!(recording.incidents().is_sorted_by_key(|incident| incident.at_event), "incidents are in order");
    assert!(recording.first_event() <= recording.end_event(), "a recording begins before it ends");
    let devices: Vec<DeviceId> = recording.devices().take(MAX_INSPECTED).collect();
    for device in devices {
        inspect_timeline(recording, device, random);
    }
    inspect_moments(recording, random);
}

/// Queries a device's counters and metrics over valid and invalid ranges of time.
fn inspect_timeline(recording: &Recording, device: DeviceId, random: &mut Random) {
    let (start, end) = (recording.start_ns(), recording.end_ns());
    let cut = |random: &mut Random| if random.below(3) == 0 { random.next() } else { random.below(end.max(1)) };
    let ranges = [(start, end), (0, u64::MAX), (cut(random), cut(random)), (end, start)];
    for ((from, to), width) in ranges.into_iter().zip(WIDTHS.into_iter().cycle()) {
        let columns = recording.columns(device, from, to, width);
        assert_eq!(columns.len(), width, "the number of columns is the requested width");
        if let Some(series) = recording.series(device) {
            assert_eq!(series.columns(from, to, width).len(), width, "the number of columns is the requested width");
            assert_eq!(series.samples(from, to, width).len(), width, "the number of samples is the requested width");
        }
        if let Some(metrics) = recording.metrics(device) {
            for sample in metrics.between(from, to, |_, stream| stream.0 % 2 == 0).take(100) {
                check_shares(&sample.metrics);
            }
        }
    }
    if let Some(series) = recording.series(device) {
        let _ = (series.peak_allocated(), series.peak_active(), series.peak_reserved(), series.used_memory_peaks());
        assert!((0.0..=1.0).contains(&peak_utilization(series)), "a share is between 0 and 1");
    }
}

/// Checks that all shares are between 0 and 1.
fn check_shares(metrics: &vramscope_trace::Metrics) {
    let shares = [
        metrics.fragmentation(),
        metrics.free_space_index(),
        metrics.unusable_share(1 << 20),
        metrics.rounding_waste(),
    ];
    assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)), "a share is between 0 and 1: {shares:?}");
    let _ = (metrics.rounding_waste_bytes(), metrics.unallocated_bytes());
}

/// Seeks to moments inside and outside the recording and inspects the states found.
fn inspect_moments(recording: &Recording, random: &mut Random) {
    let (first, end) = (recording.first_event(), recording.end_event());
    let time = recording.event_at_time(random.next());
    assert!(time <= end, "a time maps to a moment of the recording");
    let mut replay = Replay::new();
    let inside = |random: &mut Random| first + random.below((end - first).saturating_add(1).max(1));
    for target in [0, first, inside(random), inside(random), time, inside(random), end, u64::MAX] {
        let Ok(state) = replay.seek(recording, target) else { continue };
        for (_, device) in state.devices().take(MAX_INSPECTED) {
            inspect_device(device);
        }
        let number = recording.next_event(target);
        assert!(number.is_none_or(|number| number >= target), "the next event is not before");
        let _: Result<_, FormatError> = replay.event(recording, number.unwrap_or(target));
    }
    let _ = replay.play(recording, first, end);
}

/// Checks the invariants of a device's state at a moment: counters, segments, blocks and metrics.
pub(crate) fn inspect_device(device: &DeviceState) {
    let (counters, free) = (device.counters(), device.free_space());
    assert!(free.largest <= free.total && (0.0..=1.0).contains(&free.fragmentation()), "free space adds up");
    assert!(counters.allocated <= counters.active, "allocated bytes are active");
    assert!(device.segments().is_sorted_by_key(|segment| segment.address), "segments are in order");
    assert!(device.blocks().is_sorted_by_key(|block| block.address), "blocks are in order");
    for segment in device.segments().take(100) {
        let mut end = segment.address;
        for extent in device.extents(segment).take(1000) {
            assert!(extent.address >= end && extent.size > 0, "extents follow each other");
            end = extent.address.saturating_add(extent.size);
        }
        assert!(device.segment_at(segment.address).is_some(), "a segment is found by its address");
    }
    for block in device.blocks().take(100) {
        assert!(device.block_at(block.address).is_some_and(|found| found == block), "a block is found by its address");
    }
    for (_, metrics) in metrics_by_group(device).into_iter().take(100) {
        check_shares(&metrics);
    }
    let _ = vramscope_trace::live_bytes_by_site(device);
}
