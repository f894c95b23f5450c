//! Placements against the decisions of PyTorch's allocator, and blocking regions against all
//! possible ones.

use vramscope_insight::placement::{
    Placement, PlacementError, PlacementOutcome, PlacementRequest, UnusableReason, default_stream, placement,
    recorded_settings,
};
use vramscope_pool::Settings;
use vramscope_trace::{
    DeviceId, DeviceState, Event, EventKind, MemoryState, MempoolId, PoolKey, PoolKind, Recording, SiteId, StreamId,
};

use crate::memory_summary::shared_snapshots;
use crate::recordings::snapshot;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Returns every event of a recording.
fn events(recording: &Recording) -> Vec<Event> {
    let mut replay = vramscope_trace::Replay::new();
    let indexes = 0..recording.end_event();
    indexes.map(|index| replay.event(recording, index).expect("it is loaded").expect("it exists")).collect()
}

/// Returns what the recorded allocator did for a request with the event `index`, and the request;
/// `None` if the event belongs to no request, or to a request whose decision an earlier event
/// shows.
fn recorded_decision(events: &[Event], index: usize) -> Option<(PlacementRequest, PlacementOutcome)> {
    let Event { device, kind, .. } = events[index];
    let before = index.checked_sub(1).map(|before| events[before].kind);
    let of_device = |next: &&Event| next.device == device;
    let allocated = match kind {
        EventKind::BlockAllocated { .. } => Some(&events[index]),
        EventKind::SegmentAllocated { .. } | EventKind::SegmentMapped { .. } => {
            events[index + 1..].iter().find(of_device)
        }
        _ => None,
    };
    let EventKind::BlockAllocated { address, requested, stream, pool, .. } = allocated?.kind else { return None };
    let request = PlacementRequest { bytes: requested, stream, owner: pool.owner, device_free_bytes: None };
    let outcome = match (kind, before) {
        // The allocator released memory first.
        (_, Some(EventKind::SegmentFreed { .. } | EventKind::SegmentUnmapped { .. })) => return None,
        // A further part of the decision that the event before it belongs to.
        (EventKind::SegmentMapped { .. }, Some(EventKind::SegmentMapped { .. })) => return None,
        (EventKind::BlockAllocated { .. }, Some(EventKind::SegmentMapped { .. })) => return None,
        (EventKind::BlockAllocated { .. }, Some(EventKind::SegmentAllocated { .. })) => return None,
        (EventKind::SegmentAllocated { size, .. }, _) => {
            PlacementOutcome::NewSegment { segment_bytes: size, remaining_bytes: 0 }
        }
        (EventKind::SegmentMapped { size, .. }, _) => PlacementOutcome::MappedPages { mapped_bytes: size },
        _ => PlacementOutcome::FreeBlock { address, free_bytes: 0, remaining_bytes: 0 },
    };
    Some((request, outcome))
}

/// Returns the outcome without the values that recorded events do not contain.
fn comparable(outcome: PlacementOutcome) -> PlacementOutcome {
    match outcome {
        PlacementOutcome::FreeBlock { address, .. } => {
            PlacementOutcome::FreeBlock { address, free_bytes: 0, remaining_bytes: 0 }
        }
        PlacementOutcome::NewSegment { segment_bytes, .. } => {
            PlacementOutcome::NewSegment { segment_bytes, remaining_bytes: 0 }
        }
        other => other,
    }
}

/// Compares the placement of every recorded request with what the recorded allocator did; requests
/// for which it first released memory are left out. Returns how many were compared.
fn check_decisions(name: &str, recording: &Recording) -> usize {
    let settings = recorded_settings(recording.info());
    let events = events(recording);
    let mut state = MemoryState::default();
    let mut compared = 0;
    for (index, event) in events.iter().enumerate() {
        if let Some((request, expected)) = recorded_decision(&events, index) {
            let empty = DeviceState::default();
            let device = state.device(event.device).unwrap_or(&empty);
            let got = placement(device, &request, &settings).expect("the state is valid").outcome;
            assert_eq!(comparable(got), expected, "{name}, event {}: {request:?}", index + 1);
            compared += 1;
        }
        state.apply(event);
    }
    compared
}

#[test]
fn placements_equal_those_of_pytorch() {
    for (name, least) in [
        ("mlp_train.pickle.zst", 400),
        ("tiny_inference.pickle.zst", 8),
        ("streams.pickle.gz", 1000),
        ("frag_a_expandable.pickle.zst", 700),
    ] {
        let compared = check_decisions(name, &snapshot(name));
        assert!(compared >= least, "{name}: {compared}");
    }
    let names = ["frag_a.pickle.zst", "frag_a_roundup.pickle.zst", "frag_a_maxsplit.pickle.zst"];
    for (name, recording, _) in shared_snapshots(|name| names.contains(&name)) {
        assert!(check_decisions(&name, &recording) > 700);
    }
}

/// Address, size and blocks of a segment, in MiB; blocks as offset and size.
type SegmentInMib<B> = (u64, u64, B);

/// Returns a device with segments of the large default pool and stream 0.
fn device(segments: &[SegmentInMib<&[(u64, u64)]>]) -> DeviceState {
    let (pool, stream, site) = (PoolKey::default_of(PoolKind::Large), StreamId(0), SiteId(0));
    let mut state = MemoryState::default();
    let mut apply = |kind| state.apply(&Event { device: DeviceId(0), time_ns: 0, kind });
    for &(address, size, blocks) in segments {
        apply(EventKind::SegmentAllocated { address: address * MIB, size: size * MIB, stream, pool, site });
        for &(offset, size) in blocks {
            let (address, size, site) = ((address + offset) * MIB, size * MIB, SiteId(size as u32));
            apply(EventKind::BlockAllocated { address, size, requested: size, stream, pool, site });
        }
    }
    state.device(DeviceId(0)).cloned().unwrap_or_default()
}

/// Places a request of `mib` MiB under a cap of what is reserved, so that no segment can be added.
fn place_under_cap(device: &DeviceState, mib: u64) -> Placement {
    let settings = Settings { limit_bytes: Some(device.counters().reserved), ..Settings::default() };
    placement(device, &PlacementRequest::new(device, mib * MIB), &settings).expect("the state is valid")
}

#[test]
fn blocking_region_has_the_fewest_live_bytes() {
    // A region of 30 MiB has 12 MiB of live blocks in the first segment, and 5 MiB in the second.
    let device =
        device(&[(1024, 40, &[(0, 4), (10, 12), (32, 4)]), (2048, 60, &[(0, 10), (20, 5), (35, 8), (50, 10)])]);
    let placed = place_under_cap(&device, 25);
    assert_eq!(placed.outcome, PlacementOutcome::OutOfMemory { segment_bytes: 26 * MIB });
    let blocking = placed.blocking.as_ref().expect("both segments are large enough");
    assert_eq!((blocking.address, blocking.bytes, blocking.live_bytes), (2058 * MIB, 25 * MIB, 5 * MIB));
    let blocks: Vec<_> = blocking.blocks.iter().map(|block| (block.address, block.bytes, block.allocated_at)).collect();
    assert_eq!(blocks, [(2068 * MIB, 5 * MIB, 7)]);
    assert_eq!(blocking.holdings.len(), 1);
    assert!(placed.summary().contains("1 block of 5 MiB were freed"), "{}", placed.summary());
}

/// Returns the fewest live bytes in any range of successive extents of one segment that has at
/// least `size` bytes, by trying all ranges.
fn fewest_live_bytes(device: &DeviceState, size: u64) -> Option<u64> {
    let ranges = device.segments().flat_map(|segment| {
        let extents: Vec<_> = device.extents(segment).collect();
        let all = (0..extents.len()).flat_map(|from| (from..extents.len()).map(move |to| (from, to)));
        let sums = all.map(|(from, to)| {
            let range = &extents[from..=to];
            let live = range.iter().filter(|extent| extent.block.is_some()).map(|extent| extent.size).sum::<u64>();
            (range.iter().map(|extent| extent.size).sum::<u64>(), live)
        });
        sums.collect::<Vec<_>>()
    });
    ranges.filter(|&(bytes, _)| bytes >= size).map(|(_, live)| live).min()
}

#[test]
fn blocking_region_is_the_best_of_all_ranges() {
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..60 {
        let segments: Vec<SegmentInMib<Vec<(u64, u64)>>> = (1..4)
            .map(|number| {
                let size = random.u64(20..60) * 2;
                let mut blocks = Vec::new();
                let mut at = 0;
                while at + 2 < size {
                    let (skip, bytes) = (random.u64(0..6), random.u64(2..9));
                    if at + skip + bytes <= size {
                        blocks.push((at + skip, bytes));
                    }
                    at += skip + bytes;
                }
                (number * 1024, size, blocks)
            })
            .collect();
        let segments: Vec<_> =
            segments.iter().map(|(address, size, blocks)| (*address, *size, blocks.as_slice())).collect();
        let device = device(&segments);
        let mib = random.u64(8..70);
        let placed = place_under_cap(&device, mib);
        if device.free_space().largest >= mib * MIB {
            assert!(matches!(placed.outcome, PlacementOutcome::FreeBlock { .. }), "{mib}: {}", placed.summary());
            continue;
        }
        // A retry would release free segments, and the request then fits under the cap.
        if let PlacementOutcome::NewSegment { .. } = placed.outcome {
            assert!(placed.released > 0);
            continue;
        }
        let live_bytes = placed.blocking.as_ref().map(|blocking| blocking.live_bytes);
        assert_eq!(live_bytes, fewest_live_bytes(&device, mib * MIB), "{mib}: {}", placed.summary());
    }
}

#[test]
fn retry_releases_free_segments_first() {
    let device = device(&[(1024, 20, &[]), (2048, 20, &[(0, 20)])]);
    let placed = place_under_cap(&device, 20);
    assert!(matches!(placed.outcome, PlacementOutcome::FreeBlock { remaining_bytes: 0, .. }), "{placed:?}");
    let settings = Settings { limit_bytes: Some(50 * MIB), ..Settings::default() };
    let request = PlacementRequest::new(&device, 30 * MIB);
    let placed = placement(&device, &request, &settings).expect("the state is valid");
    let segment = PlacementOutcome::NewSegment { segment_bytes: 30 * MIB, remaining_bytes: 0 };
    assert_eq!((placed.outcome, placed.released_bytes), (segment, 20 * MIB));
    assert!(placed.summary().ends_with("1 free segment (20 MiB) would be released first."), "{}", placed.summary());
}

#[test]
fn unusable_free_memory_is_listed_with_its_reason() {
    let (site, large) = (SiteId(0), PoolKey::default_of(PoolKind::Large));
    let private = PoolKey { owner: MempoolId(0, 3), ..large };
    let mut state = MemoryState::default();
    for (address, size, stream, pool) in [
        (GIB, 20 * MIB, StreamId(0), large),
        (2 * GIB, 40 * MIB, StreamId(7), large),
        (3 * GIB, 60 * MIB, StreamId(0), private),
        (4 * GIB, 2 * MIB, StreamId(0), PoolKey::default_of(PoolKind::Small)),
    ] {
        let kind = EventKind::SegmentAllocated { address, size, stream, pool, site };
        state.apply(&Event { device: DeviceId(0), time_ns: 0, kind });
    }
    let device = state.device(DeviceId(0)).expect("it has segments");
    let mut request = PlacementRequest { device_free_bytes: Some(0), ..PlacementRequest::new(device, 100 * MIB) };
    let settings = Settings::default();
    let reasons = |request: &PlacementRequest| -> Vec<_> {
        let placed = placement(device, request, &settings).expect("the state is valid");
        placed.unusable.iter().map(|free| (free.free_bytes / MIB, free.reason)).collect()
    };
    assert_eq!(
        reasons(&request),
        [
            (60, UnusableReason::PrivatePool),
            (40, UnusableReason::OtherStream),
            (20, UnusableReason::OwnPool),
            (2, UnusableReason::OtherSizeClass(PoolKind::Small)),
        ]
    );
    request.owner = MempoolId(0, 3);
    assert_eq!(reasons(&request)[1], (40, UnusableReason::DefaultPool));
}

#[test]
fn default_stream_is_the_one_with_most_memory_unless_zero_is_used() {
    let segment = |address, size, stream| EventKind::SegmentAllocated {
        address,
        size,
        stream: StreamId(stream),
        pool: PoolKey::default(),
        site: SiteId(0),
    };
    let mut state = MemoryState::default();
    let mut apply = |kind| state.apply(&Event { device: DeviceId(0), time_ns: 0, kind });
    apply(segment(GIB, 2 * MIB, 5));
    apply(segment(2 * GIB, 4 * MIB, 9));
    assert_eq!(default_stream(state.device(DeviceId(0)).expect("it exists")), StreamId(9));
    assert_eq!(default_stream(&DeviceState::default()), StreamId(0));
}

#[test]
fn impossible_requests_and_states_are_errors() {
    let device = device(&[(1024, 20, &[])]);
    let place = |bytes| {
        let request = PlacementRequest::new(&device, bytes);
        placement(&device, &request, &Settings::default()).map(|placed| placed.outcome)
    };
    assert_eq!(place(0), Err(PlacementError::Empty));
    assert_eq!(place(u64::MAX), Err(PlacementError::TooLarge(u64::MAX)));
    // No allocator has a segment at address 0.
    let at_zero = self::device(&[(0, 20, &[])]);
    let placed = placement(&at_zero, &PlacementRequest::new(&at_zero, MIB), &Settings::default());
    assert!(matches!(placed, Err(PlacementError::State(_))), "{placed:?}");
}
