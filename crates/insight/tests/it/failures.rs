//! Out-of-memory cards and retries against PyTorch's counters and the caps that were set.

use vramscope_insight::failures::{FailureCard, Failures, OomCause, ReservedCap, Retries, headline};
use vramscope_insight::group::DeviceCategories;
use vramscope_insight::placement::{PlacementOutcome, placement, recorded_settings};
use vramscope_pool::Settings;
use vramscope_trace::{
    Category, Definition, DeviceId, DeviceInfo, Encoder, Event, EventKind, MempoolId, PoolKey, PoolKind, Recording,
    RecordingInfo, Replay, Sink, Site, SiteId, StreamId,
};

use crate::memory_summary::{shared_snapshots, truth};
use crate::recordings::snapshot;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Returns the cards of all failures of a recording.
fn cards(recording: &Recording) -> Vec<FailureCard> {
    let mut failures = Failures::new(recorded_settings(recording.info()));
    while !failures.step(recording, 1).expect("the recording is complete") {}
    failures.cards(recording)
}

/// Compares the failures, the cap and the retries of a recording with PyTorch's counters, and every
/// card with the memory state.
fn check(name: &str, recording: &Recording, truth_text: &str) {
    let number = |key| truth(truth_text, DeviceId(0), key).unwrap_or(0);
    let cards = cards(recording);
    assert_eq!(cards.len() as u64, number("num_ooms"), "{name}");
    let settings = recorded_settings(recording.info());
    let mut replay = Replay::new();
    for card in &cards {
        let failure = &card.failure;
        let event = replay.event(recording, failure.event - 1).expect("it is loaded").expect("it exists");
        assert!(matches!(event.kind, EventKind::OutOfMemory { requested, .. } if requested == failure.requested_bytes));
        if let Some(limit) = truth(truth_text, DeviceId(0), "limit_bytes") {
            let ReservedCap::Bounds { at_least_bytes, below_bytes } = card.cap else { panic!("{name}: {card:?}") };
            assert!((at_least_bytes..below_bytes).contains(&limit), "{name}: {limit} in {:?}", card.cap);
        }
        let state = replay.seek(recording, failure.event - 1).expect("it is loaded");
        let device = state.device(failure.device).expect("it has events");
        let counters = device.counters();
        let usage = failure.usage;
        assert_eq!((usage.allocated_bytes, usage.reserved_bytes), (counters.allocated, counters.reserved), "{name}");
        assert_eq!(usage.free, device.free_space(), "{name}");
        let own = device.segments().filter(|one| one.pool == failure.pool && one.stream == failure.stream);
        let free = own.flat_map(|segment| device.extents(segment)).filter(|extent| extent.block.is_none());
        assert_eq!(free.map(|extent| extent.size).max().unwrap_or(0), failure.largest_own_bytes, "{name}");
        if failure.holdings.len() < 20 {
            assert_eq!(failure.holdings.iter().map(|one| one.bytes).sum::<u64>(), counters.active, "{name}");
        }
        // The restored allocator fails, too, under the inferred cap.
        let settings = Settings { limit_bytes: card.cap.about_bytes(), ..settings.clone() };
        let placed = placement(device, &failure.request(), &settings).expect("the state is valid");
        assert!(matches!(placed.outcome, PlacementOutcome::OutOfMemory { .. }), "{name}: {}", placed.summary());
    }
    if settings.garbage_collection_threshold == 0.0 {
        let mut retries = Retries::new(recording).expect("the recording is complete");
        while !retries.step(recording, 100).expect("the recording is complete") {}
        assert_eq!(retries.found().len() as u64, number("num_alloc_retries"), "{name}: {:?}", retries.found());
        assert_eq!(retries.found().iter().filter(|retry| retry.failed).count(), cards.len(), "{name}");
    }
}

#[test]
fn failures_match_pytorchs_counters_and_caps() {
    for name in ["frag_a_expandable.pickle.zst", "mlp_train.pickle.zst", "cudnn_benchmark_all.pickle.gz"] {
        let text = crate::memory_summary::truth_file(name);
        check(name, &snapshot(name), &text);
    }
    let is_small = |name: &str| name.contains("frag");
    for (name, recording, text) in shared_snapshots(is_small) {
        check(&name, &recording, &text);
    }
}

#[test]
fn cards_explain_the_failures_of_oom_frag() {
    let mut recordings = shared_snapshots(|name| name == "oom_frag.pickle.zst");
    let Some((_, recording, _)) = recordings.pop() else { return };
    let cards = cards(&recording);
    let found: Vec<_> = cards.iter().map(|card| (card.failure.event, card.cause)).collect();
    let causes = [OomCause::Fragmentation, OomCause::Fragmentation, OomCause::OverCap];
    assert_eq!(found, [(447, causes[0]), (807, causes[1]), (1047, causes[2])]);
    let first = &cards[0];
    assert_eq!(first.cap.about_bytes(), Some(3 * GIB));
    for part in ["61.4 MiB failed", "a cap of at least ", "134 GiB free"] {
        assert!(first.summary.contains(part), "{}", first.summary);
    }
    assert_eq!((cards[2].failure.released, cards[2].failure.released_bytes), (6, 205_520_896));
    let headline = headline(&recording, &DeviceCategories::default(), first, None).expect("the recording is complete");
    let expected = "2.87 GiB was allocated on device 0; the line with most is train.py:110 (2.87 GiB, 100.0%). \
                    At train.py:110 oom_frag, 61.4 MiB failed by fragmentation: ";
    assert!(headline.starts_with(expected), "{headline}");
}

/// Records events of device 0, whose size is unknown. Site 1 has a category, but no call stack.
fn record(kinds: impl IntoIterator<Item = EventKind>) -> Recording {
    record_on(0, kinds)
}

/// Records events of device 0, which has `total_bytes` (0: unknown).
pub(crate) fn record_on(total_bytes: u64, kinds: impl IntoIterator<Item = EventKind>) -> Recording {
    let device = DeviceInfo { device: 0, total_bytes, history_complete: true, ..DeviceInfo::default() };
    let mut encoder = Encoder::new(&RecordingInfo { devices: vec![device], ..RecordingInfo::default() });
    let site = Site { category: Category::Parameter, ..Site::default() };
    encoder.define(&Definition::Site(site));
    for (time_ns, kind) in (0..).zip(kinds) {
        encoder.event(&Event { device: DeviceId(0), time_ns, kind });
    }
    encoder.flush();
    let mut recording = Recording::new();
    for chunk in encoder.take_output() {
        recording.push(&chunk.bytes).expect("the encoder writes valid chunks");
    }
    recording
}

/// Checks the cause of a request of `requested` bytes on `stream` that fails with `device_free`
/// bytes free. Two segments of 40 MiB exist, of stream 0 and stream 7; the first has a block of
/// 20 MiB in its middle, the second one of 2 MiB. The device has 512 MiB.
#[track_caller]
fn check_cause(requested: u64, stream: u64, device_free: u64, expected: OomCause) {
    let (pool, site) = (PoolKey::default_of(PoolKind::Large), SiteId(0));
    let size = 20 * MIB;
    let pin = 2 * MIB;
    let (first, second) = (StreamId(0), StreamId(7));
    let recording = record_on(
        512 * MIB,
        [
            EventKind::SegmentAllocated { address: GIB, size: 2 * size, stream: first, pool, site },
            EventKind::SegmentAllocated { address: 2 * GIB, size: 2 * size, stream: second, pool, site },
            EventKind::BlockAllocated { address: GIB + 10 * MIB, size, requested: size, stream: first, pool, site },
            EventKind::BlockAllocated {
                address: 2 * GIB + 19 * MIB,
                size: pin,
                requested: pin,
                stream: second,
                pool,
                site,
            },
            EventKind::OutOfMemory { requested, device_free, stream: StreamId(stream), site },
        ],
    );
    let cards = cards(&recording);
    assert_eq!(cards.len(), 1);
    assert_eq!(cards[0].cause, expected, "{}", cards[0].summary);
    let failure = &cards[0].failure;
    assert_eq!((failure.usage.releasable_bytes, failure.usage.stuck_bytes), (0, 58 * MIB));
}

#[test]
fn every_cause_is_recognized() {
    check_cause(20 * MIB, 0, 0, OomCause::Fragmentation);
    check_cause(15 * MIB, 0, 0, OomCause::OtherStream);
    check_cause(16 * MIB, 7, 0, OomCause::BlockNotUsed);
    check_cause(60 * MIB, 0, 0, OomCause::DeviceFull);
    check_cause(60 * MIB, 0, GIB, OomCause::OverCap);
    check_cause(600 * MIB, 0, 100 * MIB, OomCause::NeverFits);
}

/// Returns a request that fails beside one segment of `held_mib`, all of it in use.
fn full(held_mib: u64, requested: u64, device_free: u64) -> Vec<EventKind> {
    let (pool, site, stream) = (PoolKey::default_of(PoolKind::Large), SiteId(0), StreamId(0));
    let size = held_mib * MIB;
    vec![
        EventKind::SegmentAllocated { address: GIB, size, stream, pool, site },
        EventKind::BlockAllocated { address: GIB, size, requested: size, stream, pool, site },
        EventKind::OutOfMemory { requested, device_free, stream, site },
    ]
}

#[test]
fn memory_outside_of_the_pool_needs_evidence() {
    let check = |total_bytes, events: Vec<EventKind>, expected: OomCause, at_least: u64| {
        let cards = cards(&record_on(total_bytes, events));
        let last = cards.last().expect("a request fails");
        assert_eq!((last.cause, last.device.outside_at_least_bytes), (expected, at_least), "{}", last.summary);
    };
    // 9 GiB on a device of unknown size: it may have no more.
    check(0, full(9 << 10, GIB, 0), OomCause::DeviceFull, 0);
    check(24 * GIB, full(9 << 10, GIB, 0), OomCause::Outside, 15 * GIB);
    check(10 * GIB, full(9 << 10, GIB, 0), OomCause::DeviceFull, GIB);
    // Earlier in the recording, the driver had 10 GiB free.
    let (stream, site) = (StreamId(0), SiteId(0));
    let mut shrinking = full(9 << 10, 11 * GIB, 10 * GIB);
    shrinking.push(EventKind::OutOfMemory { requested: GIB, device_free: 0, stream, site });
    check(0, shrinking, OomCause::Outside, 10 * GIB);
    let mut sampled = full(9 << 10, GIB, 0);
    sampled.insert(0, EventKind::MemorySample { used_by_context: 0, used_by_others: 6 * GIB, free: 9 * GIB });
    check(0, sampled, OomCause::Outside, 6 * GIB);
    // No device has as little as the pool and the driver have here.
    check(0, full(200, 100 * MIB, 0), OomCause::Outside, (2 << 30) - (768 << 20) - 200 * MIB);
}

#[test]
fn request_below_the_cap_can_fit() {
    let check = |limit_bytes, expected: OomCause| {
        let recording = record(full(64, 3 * GIB, 100 * GIB));
        let settings = Settings { limit_bytes, ..Settings::default() };
        let mut failures = Failures::new(settings);
        assert!(failures.step(&recording, 10).expect("the recording is complete"));
        let card = failures.cards(&recording).remove(0);
        assert_eq!(card.cause, expected, "{limit_bytes:?}: {}", card.summary);
    };
    check(Some(3 * GIB - MIB), OomCause::NeverFits);
    check(Some(3 * GIB + MIB), OomCause::OverCap);
    // The cap follows from the failure: below 3 GiB and 64 MiB.
    check(None, OomCause::OverCap);
}

#[test]
fn all_free_memory_is_attributed() {
    let (large, small) = (PoolKey::default_of(PoolKind::Large), PoolKey::default_of(PoolKind::Small));
    let private = PoolKey { owner: MempoolId(0, 1), ..large };
    let site = SiteId(0);
    let mut events = Vec::new();
    let segments = [(large, 0), (large, 7), (small, 0), (small, 7), (private, 0)];
    for ((pool, stream), address) in segments.into_iter().zip((GIB..).step_by(GIB as usize)) {
        let stream = StreamId(stream);
        events.push(EventKind::SegmentAllocated { address, size: 20 * MIB, stream, pool, site });
        events.push(EventKind::BlockAllocated { address, size: 512, requested: 512, stream, pool, site });
    }
    events.push(EventKind::OutOfMemory { requested: 30 * MIB, device_free: 0, stream: StreamId(0), site });
    let failure = cards(&record_on(GIB, events)).remove(0).failure;
    let free = &failure.free;
    let each = 20 * MIB - 512;
    let elsewhere = [free.other_streams, free.private_pools, free.other_size_class].map(|space| space.total);
    assert_eq!(elsewhere, [each, each, 2 * each], "blocks of the other size class are no other stream's");
    assert_eq!(failure.own_free_bytes + elsewhere.iter().sum::<u64>(), failure.usage.free.total);
}

#[test]
fn headline_leaves_out_a_line_that_is_unknown() {
    let (pool, stream) = (PoolKey::default_of(PoolKind::Large), StreamId(0));
    let check = |sites: &[u32], expected: &str| {
        let size = 20 * MIB;
        let mut events = Vec::new();
        for (&site, address) in sites.iter().zip((GIB..).step_by(size as usize)) {
            let site = SiteId(site);
            events.push(EventKind::SegmentAllocated { address, size, stream, pool, site });
            events.push(EventKind::BlockAllocated { address, size, requested: size, stream, pool, site });
        }
        events.push(EventKind::OutOfMemory { requested: 60 * MIB, device_free: 0, stream, site: SiteId(0) });
        let recording = record(events);
        let cards = cards(&recording);
        let headline =
            headline(&recording, &DeviceCategories::default(), &cards[0], None).expect("the recording is complete");
        assert_eq!(headline, format!("{expected}{}", cards[0].summary));
    };
    check(&[], "");
    check(&[0, 0], "40 MiB was allocated on device 0. ");
    check(&[0, 1, 1], "60 MiB was allocated on device 0, most of it parameters (40 MiB). ");
}

#[test]
fn failures_close_together_are_all_listed() {
    let site = SiteId(0);
    let failed = |requested| EventKind::OutOfMemory { requested, device_free: 0, stream: StreamId(0), site };
    let recording = record((1..=50).map(|size| failed(size * MIB)));
    let numbers: Vec<_> = cards(&recording).iter().map(|card| card.failure.event).collect();
    assert!(numbers.into_iter().eq(1..=50));
}

#[test]
fn release_by_another_call_is_no_retry() {
    let (pool, stream) = (PoolKey::default_of(PoolKind::Large), StreamId(0));
    let size = 40 * MIB;
    let retries = |release: u32, second_bytes: u64| {
        let (site, release) = (SiteId(1), SiteId(release));
        let recording = record([
            EventKind::SegmentAllocated { address: GIB, size, stream, pool, site },
            EventKind::SegmentFreed { address: GIB, size, site: release },
            EventKind::SegmentAllocated { address: GIB, size: second_bytes, stream, pool, site },
        ]);
        let mut retries = Retries::new(&recording).expect("the recording is complete");
        while !retries.step(&recording, 1).expect("the recording is complete") {}
        retries.found().iter().map(|retry| (retry.event, retry.released_bytes)).collect::<Vec<_>>()
    };
    assert_eq!(retries(1, 50 * MIB), [(3, size)]);
    assert_eq!(retries(2, 50 * MIB), []);
    assert_eq!(retries(0, 50 * MIB), [], "a release without a stack is not of a request that has one");
}
