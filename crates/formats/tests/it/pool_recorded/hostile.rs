//! Cases found by fuzzing: recordings that no allocator can have made.

use vramscope_pool::Settings;
use vramscope_pool::rerun::{History, Workload, verify};
use vramscope_trace::{
    DeviceId, Encoder, Event, EventKind, MemoryState, MempoolId, PoolKey, PoolKind, RecordingInfo, Segment, Sink,
    SiteId, StreamId,
};

use super::fixtures::recording_of;

/// Runs a history that has no events and begins with these segments: `(address, size, expandable)`.
fn check(segments: &[(u64, u64, bool)]) {
    let mut state = MemoryState::default();
    let pool = PoolKey { kind: PoolKind::Large, owner: MempoolId(0, 0) };
    for &(address, size, expandable) in segments {
        let (stream, site) = (StreamId(0), SiteId(0));
        let segment = Segment { address, size, stream, pool, expandable, site, since_event: 0 };
        state.device_mut(DeviceId(0)).insert_segment(segment);
    }
    let mut encoder = Encoder::new(&RecordingInfo::default());
    encoder.replace_state(&state);
    rerun(encoder);
}

/// Verifies and simulates the histories that an encoder has recorded.
fn rerun(mut encoder: Encoder) {
    for history in History::from_recording(&recording_of(&mut encoder)).expect("the recording is complete") {
        let verification = verify(&history, &Settings::default());
        assert!(verification.matched <= verification.events, "{verification:?}");
        if let Ok(requests) = Workload::new(history, &Settings::default()) {
            let _ = requests.simulate(&Settings::default(), None);
        }
    }
}

#[test]
fn segments_may_span_the_address_space() {
    check(&[(512, u64::MAX - 1024, true)]);
    check(&[(512, u64::MAX - 1024, false)]);
    check(&[(512, 2 << 20, true), (u64::MAX - 5000, 4096, true)]);
    check(&[(0, u64::MAX, true)]);
}

#[test]
fn free_memory_at_a_failed_request_may_have_any_size() {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    let (stream, site) = (StreamId(0), SiteId(0));
    let kind = EventKind::OutOfMemory { requested: 1 << 20, device_free: u64::MAX, stream, site };
    encoder.event(&Event { device: DeviceId(0), time_ns: 0, kind });
    rerun(encoder);
}

#[test]
fn requests_and_segments_may_have_any_size() {
    let pool = PoolKey { kind: PoolKind::Large, owner: MempoolId(0, 0) };
    let (address, stream, site) = (1 << 30, StreamId(0), SiteId(0));
    let blocks = [(2 << 20, u64::MAX), (20 << 20, (1 << 60) + 1), (1, u64::MAX), (u64::MAX, u64::MAX)];
    for ((size, requested), bytes) in blocks.into_iter().flat_map(|block| [(block, 20 << 20), (block, u64::MAX)]) {
        let mut encoder = Encoder::new(&RecordingInfo::default());
        let kinds = [
            EventKind::SegmentAllocated { address, size: bytes, stream, pool, site },
            EventKind::BlockAllocated { address, size, requested, stream, pool, site },
            EventKind::FreeRequested { address, site },
            EventKind::FreeCompleted { address, site },
            EventKind::OutOfMemory { requested, device_free: requested, stream, site },
            // A segment that does not exist at the end makes the search for unnamed private pools
            // run.
            EventKind::SegmentFreed { address, size: bytes, site },
        ];
        kinds.into_iter().for_each(|kind| encoder.event(&Event { device: DeviceId(0), time_ns: 1, kind }));
        rerun(encoder);
    }
}
