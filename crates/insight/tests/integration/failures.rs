//! Out-of-memory cards and retries against PyTorch's counters and the caps that were set.

use vramscope_insight::failures::{FailureCard, FailureCause, Failures, ReservedCap, Retries, headline};
use vramscope_insight::placement::{PlacementOutcome, placement, recorded_settings};
use vramscope_pool::Settings;
use vramscope_trace::{
    Category, Definition, DeviceId, Encoder, Event, EventKind, PoolKey, PoolKind, Recording, RecordingInfo, Replay,
    Sink, Site, SiteId, StreamId,
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
    let causes = [FailureCause::Fragmented, FailureCause::Fragmented, FailureCause::OverCap];
    assert_eq!(found, [(447, causes[0]), (807, causes[1]), (1047, causes[2])]);
    let first = &cards[0];
    assert_eq!(first.cap.about_bytes(), Some(3 * GIB));
    for part in ["61.4 MiB failed", "a cap of about 3 GiB (2.94 GiB reserved + 62 MiB", "134 GiB free"] {
        assert!(first.summary.contains(part), "{}", first.summary);
    }
    assert_eq!((cards[2].failure.released, cards[2].failure.released_bytes), (6, 205_520_896));
    let headline = headline(&recording, first).expect("the recording is complete");
    let expected = "2.87 GiB was allocated on device 0; the line with most is train.py:110 (2.87 GiB, 100.0%). \
                    At train.py:110 oom_frag, 61.4 MiB failed by fragmentation: ";
    assert!(headline.starts_with(expected), "{headline}");
}

/// Records events of device 0. Site 1 has a category, but no call stack.
fn record(kinds: impl IntoIterator<Item = EventKind>) -> Recording {
    let mut encoder = Encoder::new(&RecordingInfo::default());
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
/// 20 MiB in its middle.
#[track_caller]
fn check_cause(requested: u64, stream: u64, device_free: u64, expected: FailureCause) {
    let (pool, site) = (PoolKey::default_of(PoolKind::Large), SiteId(0));
    let size = 20 * MIB;
    let recording = record([
        EventKind::SegmentAllocated { address: GIB, size: 2 * size, stream: StreamId(0), pool, site },
        EventKind::SegmentAllocated { address: 2 * GIB, size: 2 * size, stream: StreamId(7), pool, site },
        EventKind::BlockAllocated { address: GIB + 10 * MIB, size, requested: size, stream: StreamId(0), pool, site },
        EventKind::OutOfMemory { requested, device_free, stream: StreamId(stream), site },
    ]);
    let cards = cards(&recording);
    assert_eq!(cards.len(), 1);
    assert_eq!(cards[0].cause, expected, "{}", cards[0].summary);
    let failure = &cards[0].failure;
    assert_eq!((failure.usage.releasable_bytes, failure.usage.stuck_bytes), (40 * MIB, 20 * MIB));
}

#[test]
fn every_cause_is_recognized() {
    check_cause(16 * MIB, 0, 0, FailureCause::Fragmented);
    check_cause(30 * MIB, 0, 0, FailureCause::OtherPool);
    check_cause(16 * MIB, 7, 0, FailureCause::BlockNotUsed);
    check_cause(60 * MIB, 0, 0, FailureCause::DeviceFull);
    check_cause(60 * MIB, 0, GIB, FailureCause::OverCap);
    check_cause(200 * MIB, 0, 100 * MIB, FailureCause::TooLarge);
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
        let headline = headline(&recording, &cards[0]).expect("the recording is complete");
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
}
