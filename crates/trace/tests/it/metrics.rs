//! Metrics match their formulas, at one moment and over time.

use proptest::prelude::*;
use vramscope_trace::{
    Block, Churn, DeviceId, DeviceState, Event, EventKind, MemoryState, MempoolId, Metrics, MetricsSeries, PoolKey,
    PoolKind, Segment, SiteId, StreamId, metrics_by_group, unusable_share,
};

use crate::common::{any_event, program};

const DEVICE: DeviceId = DeviceId(1);
const KIB: u64 = 1 << 10;

/// Returns a device with one segment per text: one character per KiB, `.` for free memory, equal
/// letters for one block, upper case for a block that is pending free. A text that begins with `+`
/// is an expandable segment.
fn device_from_drawing(segments: &[&str]) -> DeviceState {
    let mut device = DeviceState::default();
    let (stream, site, pool) = (StreamId(0), SiteId(0), PoolKey::default_of(PoolKind::Large));
    for (number, text) in segments.iter().enumerate() {
        let start = (number as u64 + 1) << 30;
        let (expandable, text) = (text.starts_with('+'), text.trim_start_matches('+'));
        let size = text.len() as u64 * KIB;
        device.insert_segment(Segment { address: start, size, stream, pool, expandable, site, since_event: 0 });
        let letters: Vec<char> = text.chars().collect();
        let mut at = 0;
        for run in letters.chunk_by(|a, b| a == b) {
            if run[0] != '.' {
                device.insert_block(Block {
                    address: start + at * KIB,
                    size: run.len() as u64 * KIB,
                    requested: run.len() as u64 * KIB - 256,
                    stream,
                    pool,
                    site,
                    pending_free: run[0].is_uppercase(),
                    since_event: 0,
                    since_ns: 0,
                });
            }
            at += run.len() as u64;
        }
    }
    device
}

/// Checks `[allocated, active, reserved]` in KiB, the number of free blocks, of inactive splits and
/// their KiB, and `[fragmentation, free-space index, unusable share for 4 KiB]`.
fn check(segments: &[&str], bytes: [u64; 3], [free, split, split_kib]: [u64; 3], shares: [f64; 3]) {
    let device = device_from_drawing(segments);
    let metrics = Metrics::at(&device, |_, _| true);
    let counters = metrics.counters;
    assert_eq!([counters.allocated, counters.active, counters.reserved], bytes.map(|kib| kib * KIB), "{segments:?}");
    assert_eq!(counters, device.counters());
    let splits = [metrics.free.blocks, metrics.inactive_split, metrics.inactive_split_bytes / KIB];
    assert_eq!(splits, [free, split, split_kib], "{segments:?}");
    let actual = [metrics.fragmentation(), metrics.free_space_index(), metrics.unusable_share(4 * KIB)];
    assert_eq!(actual, shares, "{segments:?}");
    assert_eq!(unusable_share(&device, 4 * KIB, |_, _| true), shares[2]);
    assert_eq!(metrics.unallocated_bytes(), (bytes[2] - bytes[0]) * KIB);
    assert_eq!(metrics.rounding_waste_bytes(), device.blocks().len() as u64 * 256);
}

#[test]
fn metrics_match_their_formulas() {
    check(&[], [0, 0, 0], [0, 0, 0], [0.0, 1.0, 0.0]);
    check(&["aaaabbbb"], [8, 8, 8], [0, 0, 0], [0.0, 1.0, 0.0]);
    // An entirely free segment can be released, so it is not a split.
    check(&["........"], [0, 0, 8], [1, 0, 0], [0.0, 1.0, 0.0]);
    check(&["aaaa...."], [4, 4, 8], [1, 1, 4], [0.0, 1.0, 0.0]);
    check(&["aa..bb.."], [4, 4, 8], [2, 2, 4], [0.5, 0.5, 1.0]);
    // A block that is pending free is active and not allocated; its memory cannot be reused yet.
    check(&["aaBB...."], [2, 4, 8], [1, 1, 4], [0.0, 1.0, 0.0]);
    // Free blocks of different segments are never joined.
    check(&["aa..", "..bb", "...."], [4, 4, 12], [3, 2, 4], [0.5, 0.375, 0.5]);
    // Memory of an expandable segment can be unmapped, so it has no inactive splits.
    check(&["+aa..bb..", "cc.."], [6, 6, 12], [3, 1, 2], [1.0 - 1.0 / 3.0, 1.0 / 3.0, 1.0]);
}

#[test]
fn free_space_is_counted_per_pool_and_stream() {
    let pool = |kind, owner| PoolKey { kind, owner: MempoolId(0, owner) };
    let (small, private) = (pool(PoolKind::Small, 0), pool(PoolKind::Large, 3));
    let mut device = DeviceState::default();
    for (address, size, pool, stream) in [(0, 2048, small, 0), (2048, 2048, small, 7), (4096, 4096, private, 7)] {
        let stream = StreamId(stream);
        let site = SiteId(0);
        device.insert_segment(Segment { address, size, stream, pool, expandable: false, site, since_event: 0 });
    }
    let free = |metrics: Metrics| (metrics.segments, metrics.free.total, metrics.free.largest);
    assert_eq!(free(Metrics::at(&device, |_, _| true)), (3, 8192, 4096));
    assert_eq!(free(Metrics::at(&device, |pool, _| pool == small)), (2, 4096, 2048));
    assert_eq!(free(Metrics::at(&device, |_, stream| stream == StreamId(7))), (2, 6144, 4096));
    assert_eq!(metrics_by_group(&device).len(), 3);
}

/// Compares the metrics of a device with its counters and free space, which are computed
/// differently.
fn check_agreement(device: &DeviceState) -> Result<(), TestCaseError> {
    let metrics = Metrics::at(device, |_, _| true);
    prop_assert_eq!(metrics.counters, device.counters());
    prop_assert_eq!(metrics.free, device.free_space());
    prop_assert_eq!(metrics.segments, device.segments().len() as u64);
    let sizes: Vec<u64> = device
        .segments()
        .flat_map(|segment| device.extents(segment))
        .filter(|extent| extent.block.is_none())
        .map(|extent| extent.size)
        .collect();
    prop_assert_eq!(metrics.free_squares, sizes.iter().map(|&size| u128::from(size) * u128::from(size)).sum::<u128>());
    for request in (10..=32).map(|log2| 1u64 << log2) {
        prop_assert_eq!(metrics.unusable_share(request), unusable_share(device, request, |_, _| true));
    }
    for share in [metrics.fragmentation(), metrics.free_space_index(), metrics.rounding_waste()] {
        prop_assert!((0.0..=1.0).contains(&share), "{}", share);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn metrics_agree_with_the_state(count in 2..3000usize, seed: u64) {
        let mut state = MemoryState::default();
        program(count, seed).iter().for_each(|event| state.apply(event));
        for (_, device) in state.devices() {
            check_agreement(device)?;
        }
    }

    #[test]
    fn inconsistent_events_do_not_panic(events in prop::collection::vec(any_event(), 0..200)) {
        let mut state = MemoryState::default();
        let mut series = MetricsSeries::new();
        for event in &events {
            state.apply(event);
            let device = state.device(event.device).expect("the device has events");
            series.event(state.event(), event, device);
        }
        for (_, device) in state.devices() {
            let metrics = Metrics::at(device, |_, _| true);
            prop_assert_eq!(metrics.free, device.free_space());
            let _ = (metrics.free_space_index(), metrics.rounding_waste(), metrics.unusable_share(4096));
        }
        prop_assert!(series.between(0, u64::MAX, |_, _| true).count() <= events.len());
    }
}

/// Returns the metrics series of `DEVICE`.
fn series_of(events: &[Event]) -> MetricsSeries {
    let mut state = MemoryState::default();
    let mut series = MetricsSeries::new();
    for event in events {
        state.apply(event);
        if event.device == DEVICE {
            series.event(state.event(), event, state.device(DEVICE).expect("the device has events"));
        }
    }
    series
}

#[test]
fn series_is_exact_at_its_moments() {
    let events = program(60_000, 3);
    let series = series_of(&events);
    assert!(series.len() > 100, "{} moments", series.len());
    let end_ns = events.last().map_or(0, |event| event.time_ns);
    let mut samples = series.between(0, end_ns, |_, _| true).peekable();
    let mut state = MemoryState::default();
    let mut churn = Churn::default();
    for event in &events {
        state.apply(event);
        if let (DEVICE, EventKind::BlockAllocated { size, .. }) = (event.device, event.kind) {
            churn = Churn { allocations: churn.allocations + 1, bytes: churn.bytes + size };
        }
        if let Some(sample) = samples.next_if(|sample| sample.event == state.event()) {
            let device = state.device(DEVICE).expect("the device has events");
            assert_eq!(sample.metrics, Metrics::at(device, |_, _| true));
            assert_eq!((sample.churn, sample.time_ns), (churn, state.time_ns()));
        }
    }
    assert_eq!(samples.next(), None, "every sample was compared");
    let half = series.between(end_ns / 2, end_ns, |_, _| true).count();
    assert!((1..series.len()).contains(&half));
    assert_eq!(
        series.between(0, end_ns, |pool, _| pool.owner.1 == 9).next().map(|one| one.metrics),
        Some(Metrics::default())
    );
    assert_eq!(series.groups().len(), 1);
}

#[test]
fn events_can_be_added_in_batches() {
    let events = program(60_000, 3);
    let mut state = MemoryState::default();
    let (mut series, mut allocated, mut count) = (MetricsSeries::new(), Churn::default(), 0);
    for event in &events {
        state.apply(event);
        if event.device == DEVICE {
            count += 1;
            if let EventKind::BlockAllocated { size, .. } = event.kind {
                allocated.add(size);
            }
        }
        if state.event().is_multiple_of(1000) {
            let device = state.device(DEVICE).expect("the device has events");
            series.events(count, allocated, (state.event(), state.time_ns()), device);
            (allocated, count) = (Churn::default(), 0);
        }
    }
    assert_eq!(series.len(), 60);
    let of_events = series_of(&events);
    let last = series.between(0, u64::MAX, |_, _| true).last().expect("the series is not empty");
    let one = of_events.between(0, u64::MAX, |_, _| true).last().expect("the series is not empty");
    assert_eq!(
        (last.event, last.metrics),
        (60_000, Metrics::at(state.device(DEVICE).expect("the device has events"), |_, _| true))
    );
    assert!(one.churn.allocations <= last.churn.allocations && last.churn.allocations < one.churn.allocations + 2000);
}

#[test]
fn long_series_has_bounded_size() {
    // One block that is allocated and freed, so that the series has as many moments as possible.
    let pool = PoolKey::default_of(PoolKind::Small);
    let mut series = MetricsSeries::new();
    let mut state = MemoryState::default();
    let (address, site) = (512, SiteId(0));
    for number in 0..600_000u64 {
        let kind = if number % 2 == 0 {
            EventKind::BlockAllocated { address, size: 512, requested: 512, stream: StreamId(0), pool, site }
        } else {
            EventKind::FreeCompleted { address, site }
        };
        let event = Event { device: DEVICE, time_ns: number, kind };
        state.apply(&event);
        series.event(state.event(), &event, state.device(DEVICE).expect("the device has events"));
    }
    assert!((1024..4096).contains(&series.len()), "{} moments", series.len());
    assert!(series.memory_bytes() < 4 << 20);
    let churn: Vec<Churn> = series.between(0, u64::MAX, |_, _| true).map(|sample| sample.churn).collect();
    assert!(churn.is_sorted_by_key(|churn| churn.allocations));
    let Some([first, last]) = churn.first().zip(churn.last()).map(|(first, last)| [first, last]) else { return };
    assert!(last.since(first).bytes_per_second(1_000_000_000) > 0.0);
    assert_eq!(last.since(first).bytes, 512 * last.since(first).allocations);
}
