//! Free memory by pool and over time against the memory state and the allocator itself.

use vramscope_insight::failures::Failures;
use vramscope_insight::memory_summary::MemorySummaryScan;
use vramscope_insight::placement::{PlacementRequest, placement, recorded_settings};
use vramscope_insight::pools::{
    ColumnSource, FirstAbove, FragmentationColumn, LargestRequests, PoolUsage, device_usage, fragmentation_columns,
    pool_rows, private_pools, releasable_by_device, sampled_fragmentation_columns,
};
use vramscope_pool::{Device, Origin, Pool, Settings, SimulatedDevice};
use vramscope_trace::{
    DeviceId, DeviceInfo, DeviceState, Encoder, Event, EventKind, Lifetimes, LifetimesBuilder, MempoolId, Metrics,
    NullSink, PoolKey, PoolKind, Recording, RecordingInfo, Replay, Sink, SiteId, StreamId,
};

use crate::memory_summary::shared_snapshots;
use crate::recordings::snapshot;

const RECORDINGS: [&str; 7] = [
    "mlp_train.pickle.zst",
    "frag_a_expandable.pickle.zst",
    "graphs.pickle.zst",
    "streams.pickle.gz",
    "ring_graphs_expandable.pickle.gz",
    "two_devices.pickle.gz",
    "stopped.pickle.gz",
];

/// Returns the bytes that a restored allocator releases from the default pool when its cache is
/// emptied, and from private pools without users.
fn released_by_empty_cache(device: &DeviceState, settings: &Settings) -> u64 {
    let reserved = device.counters().reserved;
    let mut simulated = SimulatedDevice::new(1 << 62).with_addresses([1 << 61]);
    simulated.reserve(reserved).expect("the device is large enough");
    let mut pool = Pool::restore(DeviceId(0), settings.clone(), simulated, device).expect("the state is valid");
    for private in private_pools(device, settings) {
        pool.release_pool(private.owner).expect("the pool exists");
    }
    pool.empty_cache(Origin::default(), &mut NullSink).expect("the device does not fail");
    reserved - pool.stats().reserved_bytes.all.current
}

/// Compares the rows of a device with its counters, and the releasable bytes with what the
/// allocator releases.
fn check_rows(name: &str, device: &DeviceState, settings: &Settings) {
    let rows = pool_rows(device, settings);
    let total: PoolUsage = rows.iter().map(|row| &row.usage).sum();
    let counters = device.counters();
    assert_eq!(total.reserved_bytes, counters.reserved, "{name}");
    assert_eq!(total.allocated_bytes, counters.allocated, "{name}");
    assert_eq!(total.allocated_bytes + total.pending_bytes, counters.active, "{name}");
    assert_eq!(total.requested_bytes, counters.requested, "{name}");
    assert_eq!(total.free, device.free_space(), "{name}");
    assert_eq!(total.blocks, device.blocks().len() as u64, "{name}");
    assert_eq!(total.segments, device.segments().len() as u64, "{name}");
    assert_eq!(total.releasable_bytes + total.stuck_bytes, total.free.total, "{name}");
    assert_eq!(total, device_usage(device, settings), "{name}");
    if total.pending_bytes == 0 {
        assert_eq!(total.releasable_bytes, released_by_empty_cache(device, settings), "{name}");
    }
    if device.segments().all(|segment| !segment.expandable) {
        assert_eq!(total.stuck_bytes, Metrics::at(device, |_, _| true).inactive_split_bytes, "{name}");
    }
    for private in private_pools(device, settings) {
        let of_pool = |bytes: fn(&PoolUsage) -> u64| {
            rows.iter().filter(|row| row.pool.owner == private.owner).map(|row| bytes(&row.usage)).sum::<u64>()
        };
        assert_eq!(private.usage.reserved_bytes, of_pool(|usage| usage.reserved_bytes), "{name}");
        let held: u64 = private.holdings.iter().map(|holding| holding.bytes).sum();
        assert_eq!(held, private.usage.allocated_bytes + private.usage.pending_bytes, "{name}");
    }
}

#[test]
fn rows_add_up_and_releasable_bytes_equal_the_released_ones() {
    let mut random = fastrand::Rng::with_seed(5);
    for name in RECORDINGS {
        let recording = snapshot(name);
        let settings = recorded_settings(recording.info());
        let mut replay = Replay::new();
        for _ in 0..60 {
            let moment = random.u64(recording.first_event()..=recording.end_event());
            let state = replay.seek(&recording, moment).expect("it is loaded");
            for (_, device) in state.devices() {
                check_rows(name, device, &settings);
            }
        }
    }
}

#[test]
fn private_pools_of_graphs_are_found() {
    let recording = snapshot("graphs.pickle.zst");
    let settings = recorded_settings(recording.info());
    let device = recording.end_state().device(DeviceId(0)).expect("it has events");
    let pools = private_pools(device, &settings);
    assert!(!pools.is_empty());
    assert!(pools.iter().all(|pool| pool.usage.reserved_bytes > 0 && !pool.holdings.is_empty()), "{pools:?}");
}

#[test]
fn devices_are_ordered_by_releasable_bytes() {
    let recording = snapshot("two_devices.pickle.gz");
    let settings = recorded_settings(recording.info());
    let devices = releasable_by_device(recording.end_state(), &settings);
    assert_eq!(devices.len(), 2);
    assert!(devices[0].1 >= devices[1].1);
    for (id, bytes) in devices {
        let device = recording.end_state().device(id).expect("it is listed");
        assert_eq!(bytes, device_usage(device, &settings).releasable_bytes);
    }
}

/// Returns the lifetimes of all allocations of a recording without missing events.
fn lifetimes(recording: &Recording) -> Lifetimes {
    let mut replay = Replay::new();
    let mut builder = LifetimesBuilder::new();
    for index in 0..recording.end_event() {
        let event = replay.event(recording, index).expect("it is loaded").expect("it exists");
        builder.event(index, &event);
    }
    builder.finish()
}

/// Returns the largest request among the events of device 0 after the moment `after` up to `to`.
fn largest_request(recording: &Recording, after: u64, to: u64) -> u64 {
    let mut replay = Replay::new();
    let sizes = (after..to).filter_map(|index| match replay.event(recording, index).expect("it is loaded")?.kind {
        EventKind::BlockAllocated { requested, .. } | EventKind::OutOfMemory { requested, .. } => Some(requested),
        _ => None,
    });
    sizes.max().unwrap_or(0)
}

#[test]
fn columns_from_events_are_exact() {
    for name in ["mlp_train.pickle.zst", "frag_a_expandable.pickle.zst"] {
        let recording = snapshot(name);
        let settings = recorded_settings(recording.info());
        let lifetimes = lifetimes(&recording);
        let device = lifetimes.device(DeviceId(0)).expect("it has events");
        let requests = LargestRequests::new(&recording, DeviceId(0), device);
        let end = recording.end_event();
        let edges: Vec<u64> = (0..=50).map(|edge| end / 10 + edge * (end / 2) / 50).chain([end, end]).collect();
        let chart = fragmentation_columns(&recording, DeviceId(0), &edges, &settings, Some((device, &requests)));
        assert_eq!((chart.columns.len(), chart.source), (edges.len() - 1, ColumnSource::Events));
        let mut replay = Replay::new();
        for (column, range) in chart.columns.iter().zip(edges.windows(2)) {
            let state = replay.seek(&recording, range[1]).expect("it is loaded");
            let state = state.device(DeviceId(0)).expect("it has events");
            let usage = device_usage(state, &settings);
            assert_eq!((column.free, column.moment), (usage.free, range[1]), "{name}");
            assert_eq!((column.releasable_bytes, column.stuck_bytes), (usage.releasable_bytes, usage.stuck_bytes));
            assert_eq!(column.rounding_waste_bytes, state.counters().rounding_waste_bytes());
            assert!(column.min_fragmentation <= column.fragmentation);
            assert!(column.fragmentation <= column.max_fragmentation);
            let largest = largest_request(&recording, range[0], range[1]);
            assert_eq!(column.largest_request_bytes, Some(largest), "{name}: {range:?}");
        }
    }
}

#[test]
fn columns_from_samples_have_the_last_sample_of_each_range() {
    let Some((_, recording, _)) = shared_snapshots(|name| name == "gpt_varlen.pickle.zst").pop() else { return };
    let settings = recorded_settings(recording.info());
    let end = recording.end_event();
    // More columns than can be computed from the events.
    let edges: Vec<u64> = (0..=6000).map(|edge| edge * end / 6000).collect();
    let chart = fragmentation_columns(&recording, DeviceId(0), &edges, &settings, None);
    assert_eq!(chart.source, ColumnSource::Samples);
    let series = recording.metrics(DeviceId(0)).expect("it has events");
    let samples: Vec<_> = series.between(0, u64::MAX, |_, _| true).collect();
    for (column, range) in chart.columns.iter().zip(edges.windows(2)).step_by(97) {
        let last = samples.iter().rfind(|sample| sample.event <= range[1]);
        let expected = last.map_or(FragmentationColumn::default().free, |sample| sample.metrics.free);
        assert_eq!(column.free, expected);
        assert_eq!(column.stuck_bytes, last.map_or(0, |sample| sample.metrics.inactive_split_bytes));
    }
    let sampled = sampled_fragmentation_columns(&recording, DeviceId(0), &edges, None);
    assert_eq!(sampled, chart);
}

#[test]
fn largest_request_of_all_is_exact() {
    for name in ["mlp_train.pickle.zst", "frag_a_expandable.pickle.zst"] {
        let recording = snapshot(name);
        let lifetimes = lifetimes(&recording);
        let device = lifetimes.device(DeviceId(0)).expect("it has events");
        let requests = LargestRequests::new(&recording, DeviceId(0), device);
        let end = recording.end_event();
        assert_eq!(requests.between(0, end), largest_request(&recording, 0, end));
        assert_eq!(requests.between(end, end), 0);
    }
}

/// Returns the first moment at which the fragmentation is above `threshold`, by computing it at
/// every moment.
fn first_above(recording: &Recording, device: DeviceId, threshold: f64) -> Option<(u64, f64)> {
    let mut replay = Replay::new();
    let mut state = replay.seek(recording, recording.first_event()).expect("it is loaded").clone();
    loop {
        let fragmentation = state.device(device).map_or(0.0, |device| device.free_space().fragmentation());
        if fragmentation > threshold {
            return Some((state.event(), fragmentation));
        }
        let event = replay.event(recording, state.event()).expect("it is loaded")?;
        state.apply(&event);
    }
}

/// Compares the search for several thresholds with a computation at every moment.
fn check_first_above(name: &str, recording: &Recording) {
    for device in recording.devices() {
        for threshold in [0.0, 0.2, 0.5, 0.8, 0.9, 0.97] {
            let mut search = FirstAbove::new(recording, device, threshold).expect("it is loaded");
            while !search.step(recording, 50).expect("it is loaded") {}
            let found = search.found().map(|found| (found.event, found.fragmentation));
            assert_eq!(found, first_above(recording, device, threshold), "{name}, {device}: {threshold}");
        }
    }
}

#[test]
fn first_moment_above_a_fragmentation_is_exact() {
    for name in RECORDINGS {
        check_first_above(name, &snapshot(name));
    }
    for (name, recording, _) in shared_snapshots(|name| name.starts_with("frag_a.")) {
        check_first_above(&name, &recording);
    }
}

/// Returns a random event, which mostly contradicts the events before it.
fn random_event(random: &mut fastrand::Rng) -> EventKind {
    const MIB: u64 = 1 << 20;
    let extreme = random.u64(..);
    let address = if random.u8(..) < 8 { extreme } else { (1 + random.u64(0..40)) * MIB };
    let size = if random.u8(..) < 8 { extreme } else { random.u64(0..24) * MIB / 2 };
    let kind = if random.bool() { PoolKind::Small } else { PoolKind::Large };
    let pool = PoolKey { kind, owner: MempoolId(0, random.u64(0..3) / 2) };
    let (stream, site) = (StreamId(random.u64(0..2)), SiteId(random.u32(0..3)));
    match random.u8(0..10) {
        0 => EventKind::SegmentAllocated { address, size, stream, pool, site },
        1 => EventKind::SegmentFreed { address, size, site },
        2 => EventKind::SegmentMapped { address, size, stream, pool, site },
        3 => EventKind::SegmentUnmapped { address, size, site },
        4..=6 => EventKind::BlockAllocated { address, size, requested: size / 2, stream, pool, site },
        7 => EventKind::FreeRequested { address, site },
        8 => EventKind::FreeCompleted { address, site },
        _ => EventKind::OutOfMemory { requested: size, device_free: extreme, stream, site },
    }
}

#[test]
fn contradictory_events_do_not_panic() {
    let mut random = fastrand::Rng::with_seed(3);
    for round in 0..300 {
        let confs = ["", "max_split_size_mb:20", "expandable_segments:True", "garbage_collection_threshold:0.5"];
        let mut info = RecordingInfo { alloc_conf: confs[round % confs.len()].to_owned(), ..RecordingInfo::default() };
        info.devices.push(DeviceInfo { history_complete: true, total_bytes: random.u64(..), ..DeviceInfo::default() });
        let mut encoder = Encoder::new(&info);
        for time_ns in 0..80 {
            encoder.event(&Event { device: DeviceId(0), time_ns, kind: random_event(&mut random) });
        }
        encoder.flush();
        let mut recording = Recording::new();
        for chunk in encoder.take_output() {
            recording.push(&chunk.bytes).expect("the encoder writes valid chunks");
        }
        let settings = recorded_settings(&info);
        let mut failures = Failures::new(settings.clone());
        assert!(failures.step(&recording, usize::MAX).expect("it is loaded"));
        assert!(failures.cards(&recording).iter().all(|card| !card.summary.is_empty()));
        let mut scan = MemorySummaryScan::new(&recording, DeviceId(0), u64::MAX).expect("it is loaded");
        assert!(scan.step(&recording, u64::MAX).expect("it is loaded"));
        assert_eq!(scan.summary().rows().len(), 11);
        let edges: Vec<u64> = (0..=80).step_by(3).collect();
        let chart = fragmentation_columns(&recording, DeviceId(0), &edges, &settings, None);
        assert_eq!(chart.columns.len(), edges.len() - 1);
        let mut search = FirstAbove::new(&recording, DeviceId(0), 0.5).expect("it is loaded");
        while !search.step(&recording, 10).expect("it is loaded") {}
        let found = search.found().map(|found| (found.event, found.fragmentation));
        assert_eq!(found, first_above(&recording, DeviceId(0), 0.5), "round {round}");
        let device = recording.end_state().device(DeviceId(0)).expect("it has events");
        for bytes in [1, 3 << 20, 50 << 20, random.u64(..)] {
            let limit_bytes = random.bool().then_some(100 << 20);
            let settings = Settings { limit_bytes, ..settings.clone() };
            if let Ok(placed) = placement(device, &PlacementRequest::new(device, bytes), &settings) {
                assert!(!placed.summary().is_empty());
            }
        }
        let usage = device_usage(device, &settings);
        assert_eq!(usage.reserved_bytes, device.counters().reserved);
    }
}
